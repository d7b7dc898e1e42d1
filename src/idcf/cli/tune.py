"""`idcf tune`: better options of a model for a table of yours, found on people held out of it."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idcf.cli import options as o

if TYPE_CHECKING:
    from idcf.evaluation.tune import Trial, Tuned


def tune(
    source: o.Source,
    model: o.Model,
    storage: Annotated[
        Path, typer.Option(help="Keeps the trials (SQLite); the same file goes on with them.")
    ],
    trials: Annotated[int, typer.Option(min=1, help="In all, those in the file included.")] = 20,
    out: Annotated[
        Path | None, typer.Option(help="The TOML row to write; beside the storage if not said.")
    ] = None,
    key_threshold: o.KeyThreshold = None,
    preset: o.Preset = "clean",
    seed: o.Seed = 0,
    split_seed: o.SplitSeed = 0,
    set_: o.Set = None,
    column: o.Column = None,
    implicit: o.Implicit = None,
    device: o.Device = "auto",
    threads: o.Threads = 1,
    as_json: o.Json = False,
) -> None:
    """Search options on held-out people, but for those that are `--set`. Stop it when you like:
    the same command goes on."""
    o.limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.evaluation import tune as search
    from idcf.evaluation.protocol import standard_split
    from idcf.evaluation.results import check_writable
    from idcf.training.distributed import start

    row = out or storage.with_suffix(".toml")
    for path in (storage, row):
        check_writable(path)
    data = o.opened(source, column, implicit, progress=not as_json)
    began = time.perf_counter()
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
        told=partial(_told, trials),
    )
    row.write_text(found.toml(preset, data.name), encoding="utf-8")
    typer.echo(_plain(found, row, began) if as_json else _text(found, row))


def _told(trials: int, trial: Trial) -> None:
    typer.echo(f"trial {trial.number} of {trials}: {trial.value:.4f}, {trial.options}", err=True)


def _plain(found: Tuned, row: Path, began: float) -> str:
    about = {
        "model": found.model,
        "metric": found.metric,
        "people": found.people,
        "trials": len(found.trials),
        "best": found.best._asdict(),
        "first": found.trials[0]._asdict(),
        "words": found.words(),
        "file": str(row),
        "seconds": round(time.perf_counter() - began, 1),
    }
    return json.dumps(about, indent=2)


def _text(found: Tuned, row: Path) -> str:
    best, first = found.best, found.trials[0]
    return (
        f"{found.model}: {found.metric} {best.value:.4f} of {found.people} held-out people in "
        f"trial {best.number} of {len(found.trials)} (as it comes: {first.value:.4f})\n"
        f"{found.words()}\nwritten to {row}"
    )
