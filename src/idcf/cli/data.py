"""`idcf data`: list, download and summarize datasets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from idcf.cli import options as o

if TYPE_CHECKING:
    from idcf.data.datasets.catalog import Dataset
    from idcf.data.interactions import Interactions

app = typer.Typer(no_args_is_help=True, help="List, download or summarize datasets.")

_QUANTILES = {"min": 0.0, "10%": 0.1, "25%": 0.25, "50%": 0.5, "75%": 0.75, "90%": 0.9, "max": 1.0}
_MAX_RATING_VALUES = 20  # more different ratings are counted in bins
_RATING_BINS = 10
_BAR_WIDTH = 40  # characters


@dataclass(frozen=True)
class SplitSizes:
    """Numbers of rows of an official train/test split."""

    n_train_rows: int
    n_test_rows: int


@dataclass(frozen=True)
class DatasetSummary:
    """Counts and distributions of a dataset, as `idcf data describe --json` prints them."""

    name: str
    n_users: int
    n_items: int
    n_rows: int
    density: float  # n_rows / (n_users * n_items)
    feedback: str  # implicit or explicit
    has_timestamps: bool  # whether rows have a time
    rating_counts: dict[str, int]  # rating, or range of ratings -> number of rows
    n_users_with_one_row: int
    n_items_with_one_row: int
    n_users_without_rows: int
    n_items_without_rows: int
    history_lengths: dict[str, int]  # quantile -> rows per user
    split: SplitSizes | None  # None: the dataset has no official split
    key_threshold: int  # rows that make a user a key user (the paper's δ)
    n_key_users: int
    n_query_users: int  # users who are no key users
    note: str  # remark on the split; empty if there is none


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
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET", help="Dataset name (see `idcf data list`).", show_default=False
        ),
    ],
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
    key_threshold: o.KeyThreshold = None,
    as_json: o.JsonSwitch = False,
) -> None:
    """Summarize a dataset or a file: users, items, ratings, history lengths and key users."""
    data = o.open_dataset_argument(dataset, column, implicit, progress=not as_json)
    summary = summarize_dataset(data, key_threshold or data.key_threshold)
    o.print_result(asdict(summary), _format_summary(summary), as_json)


def summarize_dataset(dataset: Dataset, key_threshold: int) -> DatasetSummary:
    """Return counts and distributions of a dataset.

    Parameters
    ----------
    dataset : Dataset
        The dataset.
    key_threshold : int
        Users with at least as many training rows count as key users.
    """
    import numpy as np

    table = dataset.interactions
    train = table if dataset.train is None else dataset.train
    user_counts, item_counts = table.user_counts(), table.item_counts()
    n_users, n_items = len(table.users), len(table.items)
    n_key_users = int((train.user_counts() >= key_threshold).sum())
    lengths = np.quantile(user_counts, list(_QUANTILES.values()), method="lower").tolist()
    return DatasetSummary(
        name=dataset.name,
        n_users=n_users,
        n_items=n_items,
        n_rows=len(table),
        density=len(table) / (n_users * n_items),
        feedback="implicit" if table.implicit else "explicit",
        has_timestamps=table.time is not None,
        rating_counts=_count_ratings(table),
        n_users_with_one_row=int((user_counts == 1).sum()),
        n_items_with_one_row=int((item_counts == 1).sum()),
        n_users_without_rows=int((user_counts == 0).sum()),
        n_items_without_rows=int((item_counts == 0).sum()),
        history_lengths=dict(zip(_QUANTILES, lengths, strict=True)),
        split=None if dataset.test is None else SplitSizes(len(train), len(dataset.test)),
        key_threshold=key_threshold,
        n_key_users=n_key_users,
        n_query_users=n_users - n_key_users,
        note=dataset.note,
    )


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


def _format_summary(summary: DatasetSummary) -> str:
    """Return the text that `idcf data describe` prints, with a bar chart of the ratings."""
    x = summary
    lines = [
        f"{x.name}: {x.feedback} feedback{', with timestamps' if x.has_timestamps else ''}",
        f"  {x.n_users:,} users x {x.n_items:,} items, {x.n_rows:,} rows, density {x.density:.3%}",
    ]
    if x.split:
        split = f"{x.split.n_train_rows:,} train / {x.split.n_test_rows:,} test rows"
        lines.append(f"  official split: {split}")
    largest = max(x.rating_counts.values(), default=1)
    for rating, n in x.rating_counts.items():
        lines.append(f"  {rating:>12} {n:>9,} {'#' * round(_BAR_WIDTH * n / largest)}")
    quantiles = ", ".join(f"{name} {n:,}" for name, n in x.history_lengths.items())
    counted = "training rows" if x.split else "rows"
    lines += [
        f"  with one row: {x.n_users_with_one_row:,} users, {x.n_items_with_one_row:,} items; "
        f"without rows: {x.n_users_without_rows:,} users, {x.n_items_without_rows:,} items",
        f"  rows per user: {quantiles}",
        f"  key users (at least {x.key_threshold} {counted}): {x.n_key_users:,}; "
        f"query users: {x.n_query_users:,}",
    ]
    if x.note:
        lines.append(f"  note: {x.note}")
    return "\n".join(lines)
