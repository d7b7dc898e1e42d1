"""`idcf train`: a table of yours, or a dataset by its name, becomes a saved model."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.cli import options as o

if TYPE_CHECKING:
    from idcf.recommender import Recommender


def train(
    source: o.Source,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    model: o.Model = "idcf-bayes",
    titles: Annotated[
        Path | None, typer.Option(help="A table with columns item_id and title.")
    ] = None,
    users: Annotated[
        Path | None, typer.Option(help="A table of users: user_id and their features.")
    ] = None,
    items: Annotated[
        Path | None, typer.Option(help="A table of items: item_id, title, their features.")
    ] = None,
    key_threshold: o.KeyThreshold = None,
    key_users: o.KeyUsers = "threshold",
    preset: o.Preset = "clean",
    seed: o.Seed = 0,
    set_: o.Set = None,
    column: o.Column = None,
    implicit: o.Implicit = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="A folder for the curves of the training.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(help="An MLflow tracking address for the same.")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(help="Train a second time without some key users, to fill the card's curve."),
    ] = True,
    device: o.Device = "auto",
    threads: o.Threads = 1,
    as_json: o.Json = False,
) -> None:
    """Train a model on all of a table and save it, for `recommend`, `embed` and `serve`."""
    o.limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.recommender import Recommender
    from idcf.training import trackers

    began = time.perf_counter()
    options = parse_overrides(set_ or [])
    made = Recommender(
        model,
        key_threshold=key_threshold,
        key_users=o.which(key_users),
        preset=preset,
        seed=seed,
        device=device,
        **options,
    )
    data = o.opened(source, column, implicit, progress=not as_json)
    named = _titles(titles) if titles else (data.titles or None)
    with ExitStack() as stack:
        watchers: list[Any] = []
        if tensorboard:
            watchers.append(stack.enter_context(trackers.TensorBoard(tensorboard)))
        if mlflow:
            about = {"model": model, "source": source, **options}
            watchers.append(stack.enter_context(trackers.MLflow(mlflow, options=about)))
        watcher = trackers.together(watchers)
        made.fit(
            data.interactions,
            users=users,
            items=items,
            titles=named,
            measure=measure,
            progress=not as_json,
            watcher=watcher,
        )
    made.save(out)
    found = _summary(made, out, time.perf_counter() - began)
    typer.echo(json.dumps(found, indent=2) if as_json else _text(found))


def _titles(path: Path) -> dict[Any, str]:
    """Item ids and titles of a CSV or Parquet file."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    from idcf.errors import DataError, unknown

    try:
        table = parquet.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: the titles cannot be read: {error}") from None
    for name in ("item_id", "title"):
        if name not in table.column_names:
            raise DataError(f"{path}: {unknown('column', name, table.column_names)}")
    pairs = zip(table["item_id"].to_pylist(), table["title"].to_pylist(), strict=True)
    return {x: str(title) for x, title in pairs if title is not None}


def _summary(made: Recommender, out: Path, seconds: float) -> dict[str, Any]:
    about = made.about
    return {
        "folder": str(out),
        "model": about.model,
        "items": about.domain.n_items,
        "rows": about.data.rows,
        "users": about.data.users,
        "key_users": about.data.key_users,
        "key_threshold": about.data.key_threshold,
        "chosen": about.data.chosen,
        "seed": about.seed,
        "measured": asdict(about.measured) if about.measured else None,
        "seconds": round(seconds, 1),
    }


def _text(found: dict[str, Any]) -> str:
    fewer = "" if found["chosen"] == "threshold" else f", chosen: {found['chosen']}"
    return (
        f"{found['model']}: {found['rows']:,} rows of {found['users']:,} users "
        f"({found['key_users']:,} of them key users, with {found['key_threshold']} rows or more"
        f"{fewer}), {found['items']:,} items; {found['seconds']:.0f} s\n"
        f"{_newcomers(found['measured'])}saved in {found['folder']}"
    )


def _newcomers(measured: dict[str, Any] | None) -> str:
    if not measured:
        return ""
    last, plain = measured["curve"][-1], measured["plain"]
    return (
        f"{measured['people']:,} key users held out of a twin, {last['shown']} interactions each: "
        f"{measured['metric']} {last['value']:.3f} ({plain} {last['plain']:.3f})\n"
    )
