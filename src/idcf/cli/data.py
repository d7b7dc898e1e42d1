"""`idcf data`: list, download and summarize datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.cli import options as o

if TYPE_CHECKING:
    from idcf.data.datasets.catalog import Dataset
    from idcf.data.interactions import Interactions

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="List, download or summarize datasets."
)

_QUANTILES = {"min": 0.0, "10%": 0.1, "25%": 0.25, "50%": 0.5, "75%": 0.75, "90%": 0.9, "max": 1.0}
_MAX_RATING_VALUES = 20  # more different ratings are counted in bins
_RATING_BINS = 10
_BAR_WIDTH = 40  # characters


@app.command("list")
def list_command(as_json: o.JsonSwitch = False) -> None:
    """List the datasets that idcf can download, and where they are on this machine."""
    from idcf.data.datasets.catalog import DATASET_SOURCES, find_dataset_folder

    rows, lines = [], []
    for name, source in DATASET_SOURCES.items():
        counts, folder = source.expected_counts[0], find_dataset_folder(name)
        row = {
            "name": name,
            "n_users": counts.users,
            "n_items": counts.items,
            "n_rows": counts.rows,
            "n_train_rows": counts.train,
            "n_test_rows": counts.test,
            "implicit": source.implicit,
            "key_threshold": source.key_threshold,
            "license": source.license,
            "url": source.url,
            "sha256": source.archive_sha256,
            "folder": None if folder is None else str(folder),
        }
        rows.append(row)
        feedback = "implicit" if source.implicit else "explicit"
        sizes = f"{counts.users:,} users x {counts.items:,} items, {counts.rows:,} rows, {feedback}"
        lines += [f"{name:14} {sizes}", f"{'':14} {folder or source.url} ({source.license})"]
    o.print_result(rows, "\n".join(lines), as_json)


@app.command("fetch")
def fetch_command(
    dataset: Annotated[str, o.argument("DATASET", "Dataset name (see `idcf data list`).")],
    as_json: o.JsonSwitch = False,
) -> None:
    """Download a dataset, unless it is in $IDCF_DATA or in the cache, and print its folder."""
    from idcf.data.datasets.catalog import fetch_dataset

    folder = str(fetch_dataset(dataset, progress=not as_json))
    o.print_result({"name": dataset, "folder": folder}, folder, as_json)


@app.command("describe")
def describe_command(
    dataset: o.DatasetArgument,
    column: o.ColumnMapping = None,
    implicit: o.ImplicitSwitch = None,
    drop_missing: o.DropMissingSwitch = False,
    key_threshold: o.KeyThreshold = None,
    as_json: o.JsonSwitch = False,
) -> None:
    """Summarize a dataset or a file: users, items, ratings, history lengths and key users."""
    data = o.open_dataset_argument(
        dataset, column, implicit, drop_missing=drop_missing, progress=not as_json
    )
    summary = summarize_dataset(data, key_threshold or data.key_threshold)
    o.print_result(summary, _format_summary(summary), as_json)


def summarize_dataset(dataset: Dataset, key_threshold: int) -> dict[str, Any]:
    """Return the counts and distributions that `idcf data describe --json` prints.

    Users with at least `key_threshold` training rows count as key users, all others as query users.
    """
    import numpy as np

    table, test = dataset.interactions, dataset.test
    train = table if dataset.train is None else dataset.train
    user_counts, item_counts = table.user_counts(), table.item_counts()
    n_users, n_items, n_rows = len(table.users), len(table.items), len(table)
    n_key_users = int((train.user_counts() >= key_threshold).sum())
    split = None if test is None else {"n_train_rows": len(train), "n_test_rows": len(test)}
    lengths = np.quantile(user_counts, list(_QUANTILES.values()), method="lower").tolist()
    return {
        "name": dataset.name,
        "n_users": n_users,
        "n_items": n_items,
        "n_rows": n_rows,
        "density": n_rows / (n_users * n_items),
        "feedback": "implicit" if table.implicit else "explicit",
        "has_timestamps": table.time is not None,
        "rating_counts": _count_ratings(table),
        "n_users_with_one_row": int((user_counts == 1).sum()),
        "n_items_with_one_row": int((item_counts == 1).sum()),
        "n_users_without_rows": int((user_counts == 0).sum()),
        "n_items_without_rows": int((item_counts == 0).sum()),
        "history_lengths": dict(zip(_QUANTILES, lengths, strict=True)),
        "split": split,
        "key_threshold": key_threshold,
        "n_key_users": n_key_users,
        "n_query_users": n_users - n_key_users,
        "note": dataset.note,
    }


def _count_ratings(table: Interactions) -> dict[str, int]:
    """Count the rows of each rating, or of ten equal ranges if there are many different ones."""
    import numpy as np

    if table.implicit:
        return {}
    values, counts = np.unique(table.rating, return_counts=True)
    if len(values) <= _MAX_RATING_VALUES:
        return {f"{value:g}": int(n) for value, n in zip(values, counts, strict=True)}
    counts, edges = np.histogram(table.rating, _RATING_BINS)
    bins = zip(edges[:-1], edges[1:], counts, strict=True)
    return {f"{low:.3g}..{high:.3g}": int(n) for low, high, n in bins}


def _format_summary(summary: dict[str, Any]) -> str:
    """Return the text that `idcf data describe` prints, with a bar chart of the ratings."""
    split, rating_counts = summary["split"], summary["rating_counts"]
    largest = max(rating_counts.values(), default=1)
    parts = {
        "times": ", with timestamps" if summary["has_timestamps"] else "",
        "counted": "training rows" if split else "rows",
        "quantiles": ", ".join(f"{x} {n:,}" for x, n in summary["history_lengths"].items()),
    }
    lines = [
        "{name}: {feedback} feedback{times}",
        "  {n_users:,} users x {n_items:,} items, {n_rows:,} rows, density {density:.3%}",
        *(
            ["  official split: {n_train_rows:,} train / {n_test_rows:,} test rows"]
            if split
            else []
        ),
        *(
            f"  {rating:>12} {n:>9,} {'#' * round(_BAR_WIDTH * n / largest)}"
            for rating, n in rating_counts.items()
        ),
        "  with one row: {n_users_with_one_row:,} users, {n_items_with_one_row:,} items; "
        "without rows: {n_users_without_rows:,} users, {n_items_without_rows:,} items",
        "  rows per user: {quantiles}",
        "  key users (at least {key_threshold} {counted}): {n_key_users:,}; "
        "query users: {n_query_users:,}",
        *(["  note: {note}"] if summary["note"] else []),
    ]
    return "\n".join(lines).format(**summary, **(split or {}), **parts)
