"""The tables of means over several splits, with corrected comparisons to their reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

from idcf.evaluation.groups import GROUP_DESCRIPTIONS
from idcf.evaluation.tables import ResultTable, best_value, direction_arrow, format_interval
from idcf.metrics import Interval, holm, mean_of_seeds
from idcf.paper import results_store, split_comparisons
from idcf.paper.results_store import SplitDifference, StoredRow
from idcf.paper.split_comparisons import Cell, RunRows
from idcf.paper.table_spec import TableSpec

LEGEND = (
    "Nothing was chosen on the random draws: the settings were fixed before they were made. "
    "Every draw takes its test rows anew from the whole dataset, but settings were searched "
    'on the same datasets before, so the splits are fresh and the users are not. "mean" is '
    "the mean over splits; its 95 % interval joins the mean half-width over users with that "
    'over splits, t · sd · √(1/S + test rows / training rows), as a sum of squares. "sd" is '
    "the standard deviation over splits. Differences are paired: the same rows in each split. "
    "Their variance is that of a bootstrap which draws the same users in all splits, plus "
    "(1/S + test rows / training rows) · sd² of the differences over splits, because the "
    "training rows of random splits overlap (Nadeau and Bengio 2003); for seeds on one split "
    "the ratio is left out. Interval and p-value are those of Student's t with the degrees of "
    'freedom of Welch and Satterthwaite. "p, Holm" is the p-value after the correction of '
    "Holm over all comparisons of this page; a comparison counts where it is below .05. The "
    "sign † marks a difference of rows that have changed since. The best mean of a column is "
    "in bold."
)
_HEADER = ("system", "mean", "sd", "{reference} minus it", "p", "p, Holm", "runs")


@dataclass(frozen=True)
class SplitResults:
    """The stored results of one table of splits."""

    table: TableSpec
    cells: dict[str, dict[Cell, RunRows]]  # by dataset
    differences: dict[tuple[str, Cell], SplitDifference]  # by dataset and cell
    corrected_p_values: dict[tuple[str, Cell], float]

    @classmethod
    def load(cls, results: Path, table: TableSpec) -> SplitResults:
        """Read the results of a table; the family of the correction is all its differences."""
        cells = {
            dataset: split_comparisons.rows_of_table(
                table, dataset, results_store.latest_rows(results, dataset)
            )
            for dataset in table.datasets
        }
        differences = {
            (line.dataset, (line.model, line.users, line.metric)): line
            for dataset in table.datasets
            for line in results_store.read_lines(results, SplitDifference, dataset).values()
            if line.table == table.name
        }
        corrected = holm([line.p_value for line in differences.values()])
        return cls(table, cells, differences, dict(zip(differences, corrected, strict=True)))

    def rows(self, dataset: str, cell: Cell) -> list[StoredRow]:
        """Return the rows of a system, one for each split or seed."""
        return list(self.cells[dataset].get(cell, {}).values())

    def mean(self, dataset: str, cell: Cell) -> Interval | None:
        """Return the mean of a system over its splits with its interval; None without rows."""
        rows = self.rows(dataset, cell)
        repeats = self.table.repeats.get(dataset)
        ratio = repeats.test_to_train if repeats else 0.0
        return mean_of_seeds([r.interval for r in rows], test_to_train=ratio) if rows else None

    def n_planned(self, dataset: str) -> int:
        """Return the number of runs of a system that the table asks for."""
        return len(self.table.split_rules(dataset)) * self.table.n_seeds(dataset)


def split_tables(results: SplitResults) -> Iterator[ResultTable]:
    """Yield the summary, then a table for each dataset, user group and metric."""
    table = results.table
    columns = list(
        dict.fromkeys((column.dataset, column.users, column.metric) for column in table.columns())
    )
    yield _summary(results, columns)
    for dataset, users, metric in columns:
        yield _detail(results, dataset, users, metric)


def _summary(results: SplitResults, columns: list[tuple[str, str, str]]) -> ResultTable:
    """Return the means of all systems, without intervals."""
    lines = []
    for model in results.table.systems:
        cells = []
        for dataset, users, metric in columns:
            mean = results.mean(dataset, (model, users, metric))
            is_best = mean and mean.value == _best_mean(results, dataset, users, metric)
            cells.append(f"{mean.value:.3f}{'*' if is_best else ''}" if mean else "-")
        lines.append((model, *cells))
    header = ("system", *(f"{dataset} {users} {metric}" for dataset, users, metric in columns))
    n_comparisons = len(results.differences)
    note = (
        f"{n_comparisons} comparisons with {results.table.reference} are corrected for."
        if n_comparisons
        else "No comparisons are stored."
    )
    return ResultTable("At a glance", (note,), header, (), tuple(lines))


def _detail(results: SplitResults, dataset: str, users: str, metric: str) -> ResultTable:
    """Return the table of one dataset, user group and metric."""
    table = results.table
    names = table.split_names(dataset)
    splits = f'"{names[0]}" to "{names[-1]}"' if len(names) > 1 else f'"{names[0]}"'
    rows = [r for x in table.systems for r in results.rows(dataset, (x, users, metric))]
    if rows:
        low, high = min(r.n_users for r in rows), max(r.n_users for r in rows)
        n_users = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        devices = " and ".join(sorted({r.device for r in rows}))
        commits = " and ".join(sorted({r.commit or "not recorded" for r in rows}))
        note = f"Splits {splits}; {n_users} users; devices: {devices}; commits: {commits}."
    else:
        note = f"Splits {splits}: nothing was run."
    best = _best_mean(results, dataset, users, metric)
    return ResultTable(
        f"{dataset}, {GROUP_DESCRIPTIONS[users]}: {metric} {direction_arrow(metric)}",
        (note,),
        tuple(name.format(reference=table.reference) for name in _HEADER),
        (),
        tuple(
            _detail_line(results, dataset, (model, users, metric), best)
            for model in table.systems_on(dataset)
        ),
    )


def _detail_line(
    results: SplitResults, dataset: str, cell: Cell, best: float | None
) -> tuple[str, ...]:
    """Return the line of one system."""
    rows, mean = results.rows(dataset, cell), results.mean(dataset, cell)
    if mean is None:
        return (cell[0], "not run", *[""] * 5)
    spread = f"{stdev(r.value for r in rows):.4f}" if len(rows) > 1 else ""
    n_planned = results.n_planned(dataset)
    runs = str(len(rows)) if len(rows) == n_planned else f"{len(rows)} of {n_planned}"
    shown = f"{format_interval(mean)}{'*' if mean.value == best else ''}"
    return cell[0], shown, spread, *_comparison_cells(results, dataset, cell), runs


def _comparison_cells(results: SplitResults, dataset: str, cell: Cell) -> tuple[str, str, str]:
    """Return the difference of the reference to a system, and its p-value before and after the
    correction."""
    if cell[0] == results.table.reference:
        return "reference", "", ""
    line = results.differences.get((dataset, cell))
    if line is None:
        return "", "", ""
    reference = (results.table.reference, *cell[1:])
    cells = results.cells[dataset]
    is_current = split_comparisons.is_current(line, cells.get(reference, {}), cells.get(cell, {}))
    interval = format_interval(Interval(line.difference, line.low, line.high), 4, sign="+")
    corrected = results.corrected_p_values[dataset, cell]
    return (
        f"{interval}{'' if is_current else ' †'}",
        _format_p_value(line.p_value),
        _format_p_value(corrected),
    )


def _format_p_value(value: float) -> str:
    """Return a p-value with three digits, or that it is smaller."""
    return "< .001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def _best_mean(results: SplitResults, dataset: str, users: str, metric: str) -> float | None:
    """Return the best mean of a column; None without rows."""
    means = [
        mean.value
        for model in results.table.systems_on(dataset)
        if model != "random" and (mean := results.mean(dataset, (model, users, metric)))
    ]
    return best_value(metric, means) if means else None
