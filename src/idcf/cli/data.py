"""`idcf data`: which datasets there are, getting one, and what is in one or in a file of yours."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import typer

from idcf.cli import options as o
from idcf.data.datasets.catalog import SOURCES, Dataset, fetch, find
from idcf.data.interactions import Interactions

app = typer.Typer(no_args_is_help=True, help="Datasets: list, fetch, describe.")

_QUANTILES = {"min": 0.0, "10%": 0.1, "25%": 0.25, "50%": 0.5, "75%": 0.75, "90%": 0.9, "max": 1.0}


@app.command("list")
def list_(as_json: o.Json = False) -> None:
    """The datasets known by name, and which of them are on this machine."""
    rows = []
    for name, source in SOURCES.items():
        here = find(name)
        rows.append(
            {
                "name": name,
                **source.counts[0]._asdict(),
                "implicit": source.implicit,
                "threshold": source.threshold,
                "licence": source.licence,
                "address": source.address,
                "sha256": source.sha256,
                "folder": None if here is None else str(here),
            }
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        kind = "implicit" if row["implicit"] else "explicit"
        size = f"{row['users']:,} users x {row['items']:,} items, {row['rows']:,} rows, {kind}"
        typer.echo(f"{row['name']:14} {size}")
        typer.echo(f"{'':14} {row['folder'] or row['address']} ({row['licence']})")


@app.command("fetch")
def fetch_(
    name: Annotated[str, typer.Argument(help="A name that `idcf data list` prints.")],
    as_json: o.Json = False,
) -> None:
    """Get a dataset: from $IDCF_DATA, from the cache, or from its address."""
    folder = fetch(name, progress=not as_json)
    typer.echo(json.dumps({"name": name, "folder": str(folder)}) if as_json else str(folder))


@app.command()
def describe(
    source: o.Source,
    key_threshold: o.KeyThreshold = None,
    column: o.Column = None,
    implicit: o.Implicit = None,
    as_json: o.Json = False,
) -> None:
    """What is in a dataset or in a file of yours."""
    data = o.opened(source, column, implicit, progress=not as_json)
    found = summary(data, key_threshold or data.threshold)
    typer.echo(json.dumps(found, indent=2) if as_json else _text(found))


def summary(data: Dataset, threshold: int) -> dict[str, Any]:
    """Counts, tails and roles of a dataset as plain values."""
    table = data.interactions
    counts, items = table.counts(), table.item_counts()
    train = table if data.train is None else data.train
    key = int((train.counts() >= threshold).sum())
    lengths = np.quantile(counts, list(_QUANTILES.values()), method="lower").tolist()
    return {
        "name": data.name,
        "users": len(table.users),
        "items": len(table.items),
        "rows": len(table),
        "density": len(table) / (len(table.users) * len(table.items)),
        "feedback": "implicit" if table.implicit else "explicit",
        "times": table.time is not None,
        "ratings": _histogram(table),
        "users_once": int((counts == 1).sum()),
        "items_once": int((items == 1).sum()),
        "users_never": int((counts == 0).sum()),
        "items_never": int((items == 0).sum()),
        "history_lengths": dict(zip(_QUANTILES, lengths, strict=True)),
        "split": None if data.test is None else {"train": len(train), "test": len(data.test)},
        "threshold": threshold,
        "key_users": key,
        "query_users": len(table.users) - key,
        "note": data.note,
    }


def _histogram(table: Interactions) -> dict[str, int]:
    """How often each rating occurs; in ten equal bins where there are many different ones."""
    if table.implicit:
        return {}
    values, counts = np.unique(table.rating, return_counts=True)
    if len(values) <= 20:
        return {f"{v:g}": int(n) for v, n in zip(values, counts, strict=True)}
    counts, edges = np.histogram(table.rating, 10)
    bins = zip(edges[:-1], edges[1:], counts, strict=True)
    return {f"{low:.3g}..{high:.3g}": int(n) for low, high, n in bins}


def _text(found: dict[str, Any]) -> str:
    split, over = found["split"], "of all rows"
    lines = [
        f"{found['name']}: {found['feedback']} feedback{', with times' if found['times'] else ''}",
        f"  {found['users']:,} users x {found['items']:,} items, {found['rows']:,} rows, "
        f"density {found['density']:.3%}",
    ]
    if split:
        over = "of training rows"
        lines.append(f"  official split: {split['train']:,} train / {split['test']:,} test")
    most = max(found["ratings"].values(), default=1)
    for value, n in found["ratings"].items():
        lines.append(f"  {value:>12} {n:>9,} {'#' * round(40 * n / most)}")
    quantiles = ", ".join(f"{q} {n:,}" for q, n in found["history_lengths"].items())
    lines += [
        f"  occur once: {found['users_once']:,} users, {found['items_once']:,} items; "
        f"never: {found['users_never']:,} users, {found['items_never']:,} items",
        f"  rows of a user: {quantiles}",
        f"  key users (at least {found['threshold']} {over}): {found['key_users']:,}; "
        f"query users: {found['query_users']:,}",
    ]
    return "\n".join([*lines, *([f"  note: {found['note']}"] if found["note"] else [])])
