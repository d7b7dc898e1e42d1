"""`idcf tune`: better options of a model for a table of yours, found on people held out of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idcf.cli.evaluate import Device, Threads, limit_threads
from idcf.cli.serve import Json

if TYPE_CHECKING:
    from idcf.experiment.tune import Trial


def tune(
    source: Annotated[
        str, typer.Argument(help="A name that `idcf data list` prints, or the path of a file.")
    ],
    model: Annotated[str, typer.Option(help="Which model.")],
    storage: Annotated[
        Path, typer.Option(help="Keeps the trials (SQLite); the same file goes on with them.")
    ],
    trials: Annotated[int, typer.Option(min=1, help="In all, those in the file included.")] = 20,
    out: Annotated[
        Path | None, typer.Option(help="The TOML row to write; beside the storage if not said.")
    ] = None,
    key_threshold: Annotated[
        int | None, typer.Option(min=1, help="Key users have at least that many training rows.")
    ] = None,
    preset: Annotated[str, typer.Option(help="clean or published.")] = "clean",
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    split_seed: Annotated[int, typer.Option(help="Of a random split, as in evaluate.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="An option that is not searched.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="A column of your file, as in user_id=uid.")
    ] = None,
    implicit: Annotated[
        bool | None, typer.Option(help="Feedback without ratings, whatever the columns.")
    ] = None,
    device: Device = "auto",
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Search options on held-out people. Stop it when you like: the same command goes on."""
    limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.experiment import tune as search
    from idcf.experiment.protocol import open_dataset, standard_split
    from idcf.experiment.rows import check_writable
    from idcf.train.runtime import start

    row = out or storage.with_suffix(".toml")
    for path in (storage, row):
        check_writable(path)
    columns = {role: str(name) for role, name in parse_overrides(column or []).items()}
    data = open_dataset(source, columns=columns, implicit=implicit, progress=not as_json)
    began = time.perf_counter()

    def told(trial: Trial) -> None:
        typer.echo(
            f"trial {trial.number} of {trials}: {trial.value:.4f}, {trial.options}", err=True
        )

    found = search.tune(
        data,
        model,
        trials,
        storage,
        split=standard_split(data, seed=split_seed, threshold=key_threshold),
        preset=preset,
        options=parse_overrides(set_ or []),
        seed=seed,
        runtime=start(device),
        told=told,
    )
    row.write_text(found.toml(preset, data.name), encoding="utf-8")
    best, first = found.best, found.trials[0]
    about = {
        "model": model,
        "metric": found.metric,
        "people": found.people,
        "trials": len(found.trials),
        "best": best._asdict(),
        "first": first._asdict(),
        "words": found.words(),
        "file": str(row),
        "seconds": round(time.perf_counter() - began, 1),
    }
    text = (
        f"{model}: {found.metric} {best.value:.4f} of {found.people} held-out people in trial "
        f"{best.number} of {len(found.trials)} (as it comes: {first.value:.4f})\n"
        f"{found.words()}\nwritten to {row}"
    )
    typer.echo(json.dumps(about, indent=2) if as_json else text)
