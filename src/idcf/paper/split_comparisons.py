"""The reference system of a table minus every other system, over the splits of a dataset.

`idcf.metrics.difference_over_splits` says what interval and p-value are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from idcf.metrics import PerUserMetric, difference_over_splits
from idcf.metrics.stats import Statistic
from idcf.paper import results_store
from idcf.paper.paired_differences import MAX_ROUNDING
from idcf.paper.results_store import SplitDifference, StoredRow
from idcf.paper.table_spec import TableSpec, load_tables
from idcf.rng import random_stream

RunRows = Mapping[tuple[str, int], StoredRow]  # (split, seed) -> row of one system and metric
Cell = tuple[str, str, str]  # (system, user group, metric)


def rows_of_table(table: TableSpec, dataset: str, rows: Iterable[StoredRow]) -> dict[Cell, RunRows]:
    """Return the rows of the clean preset on the splits and seeds of a table, by cell."""
    names = table.split_names(dataset)
    seeds = range(table.n_seeds(dataset))
    cells: dict[Cell, dict[tuple[str, int], StoredRow]] = {}
    for row in rows:
        if row.split in names and row.seed in seeds and row.preset == "clean":
            cells.setdefault((row.model, row.users, row.metric), {})[row.split, row.seed] = row
    return {cell: dict(sorted(of_cell.items())) for cell, of_cell in cells.items()}


def compared_cells(table: TableSpec, dataset: str) -> list[Cell]:
    """Return the cells that a table compares with its reference."""
    columns = dict.fromkeys((x.users, x.metric) for x in table.columns() if x.dataset == dataset)
    systems = [x for x in table.systems_on(dataset) if x not in (table.reference, "random")]
    return [(system, *column) for column in columns for system in systems]


def update_differences(results: Path, dataset: str) -> int:
    """Compute and store the differences of a dataset that are missing or outdated, where the values
    per user of both systems are at hand; drop those that no table has. Return how many are new."""
    stored = results_store.read_lines(results, SplitDifference, dataset)
    rows = results_store.latest_rows(results, dataset)
    lines: dict[tuple[Any, ...], SplitDifference] = {}
    n_new = 0
    for table in load_tables().values():
        if not table.reference or dataset not in table.datasets:
            continue
        cells = rows_of_table(table, dataset, rows)
        for model, users, metric in compared_cells(table, dataset):
            reference_rows = cells.get((table.reference, users, metric), {})
            other_rows = cells.get((model, users, metric), {})
            key = (table.name, dataset, table.reference, model, users, metric)
            line = stored.get(key)
            if line is None or not is_current(line, reference_rows, other_rows):
                new = _difference(results, table, reference_rows, other_rows)
                n_new += new is not None
                line = new or line
            if line is not None:
                lines[key] = line
    results_store.rewrite_lines(results, SplitDifference, dataset, lines.values())
    return n_new


def is_current(line: SplitDifference, reference_rows: RunRows, other_rows: RunRows) -> bool:
    """Return whether a difference was computed from these rows."""
    shared = reference_rows.keys() & other_rows.keys()
    if line.n_runs != len(shared):
        return False
    pairs = [(reference_rows[run], other_rows[run]) for run in shared]
    difference = fmean(a.value - b.value for a, b in pairs)
    return abs(difference - line.difference) < MAX_ROUNDING and line.options == _options(pairs)


def _difference(
    results: Path, table: TableSpec, reference_rows: RunRows, other_rows: RunRows
) -> SplitDifference | None:
    """Compare two systems on the runs that both have; None if values per user are missing."""
    row_pairs = [(row, other_rows[run]) for run, row in reference_rows.items() if run in other_rows]
    pairs: list[tuple[PerUserMetric, PerUserMetric]] = []
    for row, other_row in row_pairs:
        values = results_store.load_per_user(results, row)
        other_values = results_store.load_per_user(results, other_row)
        if values is None or other_values is None:
            return None
        pairs.append((values, other_values))
    if not pairs:
        return None
    first, other = row_pairs[0]
    statistic: Statistic = "rmse" if first.metric == "rmse" else "mean-ratio"
    repeats = table.repeats.get(first.dataset)
    test = difference_over_splits(
        pairs,
        statistic=statistic,
        test_to_train=repeats.test_to_train if repeats else 0.0,
        rng=random_stream(0, "bootstrap"),
    )
    return SplitDifference(
        table.name,
        first.dataset,
        table.reference,
        other.model,
        first.users,
        first.metric,
        *test.difference,
        p_value=test.p_value,
        n_runs=test.n_splits,
        options=_options(row_pairs),
    )


def _options(pairs: Iterable[tuple[StoredRow, StoredRow]]) -> str:
    """Return the fingerprints of the settings that some pairs of rows were made with."""
    return "+".join(sorted({f"{a.options}/{b.options}" for a, b in pairs}))
