"""Result rows as tables of text: models down, metrics across, trivial baselines first.

A cell is the mean over seeds with its 95 % interval; a published number may stand beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from idcf.evaluation.groups import GROUP_DESCRIPTIONS
from idcf.evaluation.results import LOWER_IS_BETTER, NOMINAL_VALUES, TRIVIAL_BASELINES, ResultRow
from idcf.metrics import Interval, mean_of_seeds
from idcf.results import TextTable

_BEST_MARK = "*"


class CellKey(NamedTuple):
    """The cell of a table that a published number belongs to."""

    dataset: str
    users: str  # the user group
    metric: str
    model: str


@dataclass(frozen=True)
class ReferenceNumbers:
    """Published numbers to print beside the measured ones."""

    numbers: Mapping[CellKey, float] = field(default_factory=dict)
    # (dataset, split name) -> whether the published numbers are for that split
    same_split: Callable[[str, str], bool] = lambda dataset, split: False

    def numbers_by_model(self, dataset: str, users: str, metric: str) -> dict[str, float]:
        """Return model -> published number, for one column of a table."""
        return {
            cell.model: number
            for cell, number in self.numbers.items()
            if (cell.dataset, cell.users, cell.metric) == (dataset, users, metric)
        }


@dataclass(frozen=True)
class ResultTable:
    """The results of one group of users of one dataset; every cell is text."""

    title: str
    notes: tuple[str, ...]  # printed below the title
    header: tuple[str, ...]  # names of the columns
    baseline_lines: tuple[tuple[str, ...], ...]  # trivial baselines
    model_lines: tuple[tuple[str, ...], ...]  # all other models; a line has a cell per column


def make_tables(
    rows: Sequence[ResultRow], reference: ReferenceNumbers | None = None
) -> list[ResultTable]:
    """Make a table for each dataset, split, preset and group of users, in the order of the rows."""
    rows_by_table: dict[tuple[str, str, str, str], list[ResultRow]] = {}
    for row in rows:
        key = (row.dataset, row.split, row.preset, row.users)
        rows_by_table.setdefault(key, []).append(row)
    return [_make_table(x, reference or ReferenceNumbers()) for x in rows_by_table.values()]


def format_text(rows: Sequence[ResultRow], reference: ReferenceNumbers | None = None) -> str:
    """Format the tables of `make_tables` for a terminal, columns aligned."""
    return "\n\n".join(map(format_text_table, make_tables(rows, reference)))


def format_markdown(rows: Sequence[ResultRow], reference: ReferenceNumbers | None = None) -> str:
    """Format the tables of `make_tables` as Markdown; the best values are bold."""
    return "\n\n".join(map(format_markdown_table, make_tables(rows, reference)))


def format_text_table(table: ResultTable) -> str:
    """Return a table as text with aligned columns and a rule below header and baselines."""
    lines = [table.header, *table.baseline_lines, *table.model_lines]
    widths = [max(len(line[n]) for line in lines) for n in range(len(table.header))]
    rule = "  ".join("-" * width for width in widths)
    text_lines = [table.title, *table.notes, ""]
    for number, line in enumerate(lines):
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        text_lines.append("  ".join(padded).rstrip())
        if number in (0, len(table.baseline_lines)):
            text_lines.append(rule)
    return "\n".join(text_lines)


def format_markdown_table(table: ResultTable) -> str:
    """Return a table as Markdown: title, notes and grid."""
    notes = "  \n".join(table.notes).replace(f"{_BEST_MARK} best", "bold: best")
    grid = format_markdown_grid(table.header, (*table.baseline_lines, *table.model_lines))
    return "\n".join([f"**{table.title}**", "", notes, "", grid])


def to_text_table(table: ResultTable) -> TextTable:
    """Return a table for HTML, with the notes below."""
    lines = [*table.baseline_lines, *table.model_lines]
    columns = dict(zip(table.header, map(list, zip(*lines, strict=True)), strict=True))
    return TextTable(table.title, columns, notes=table.notes)


def intervals_by_cell(rows: Iterable[ResultRow]) -> dict[tuple[str, str], Interval]:
    """Return (model, metric) -> mean over seeds, for the rows of one group of users."""
    intervals: dict[tuple[str, str], list[Interval]] = {}
    for row in rows:
        intervals.setdefault((row.model, row.metric), []).append(row.interval)
    return {cell: mean_of_seeds(of_seeds) for cell, of_seeds in intervals.items()}


def ordered_metrics(rows: Sequence[ResultRow]) -> list[str]:
    """Return the metrics, in the order of the system that has most of them."""
    metrics_by_run: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        metrics_by_run.setdefault((row.model, row.seed), []).append(row.metric)
    longest_first = sorted(metrics_by_run.values(), key=len, reverse=True)
    return list(dict.fromkeys(metric for metrics in longest_first for metric in metrics))


def best_value(metric: str, values: Iterable[float]) -> float:
    """Return the best of the values: the lowest, the highest, or the closest to nominal."""
    if metric in NOMINAL_VALUES:
        return min(values, key=lambda value: abs(value - NOMINAL_VALUES[metric]))
    return min(values) if metric in LOWER_IS_BETTER else max(values)


def direction_arrow(metric: str) -> str:
    """Return ↓ or ↑ for the direction in which a metric is better, or → and the nominal value."""
    if metric in NOMINAL_VALUES:
        return f"→ {NOMINAL_VALUES[metric]:g}"
    return "↓" if metric in LOWER_IS_BETTER else "↑"


def format_interval(interval: Interval, digits: int = 3, *, sign: str = "") -> str:
    """Format an interval as `value [low, high]`; with the sign "+", as differences: `+0.100`."""
    value, low, high = (f"{x:{sign}.{digits}f}" for x in interval)
    return f"{value} [{low}, {high}]"


def format_markdown_grid(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table; a cell that ends in a star is bold."""
    rule = f"|{'|'.join(['---'] * len(header))}|"
    head, *body = (f"| {' | '.join(_bold(x) for x in line)} |" for line in (header, *lines))
    return "\n".join([head, rule, *body])


def _make_table(rows: Sequence[ResultRow], reference: ReferenceNumbers) -> ResultTable:
    """Make the table of one group of users from its rows."""
    first, cells, metrics = rows[0], intervals_by_cell(rows), ordered_metrics(rows)
    models = list(dict.fromkeys(row.model for row in rows))
    best = {}
    for m in metrics:
        values = {x: cells[x, m].value for x in models if (x, m) in cells}
        others = [value for x, value in values.items() if x != "random"]
        best[m] = best_value(m, others or values.values())
    digits = {m: 3 if best[m] >= 0.1 else 4 for m in metrics}
    referenced = [m for m in metrics if reference.numbers_by_model(first.dataset, first.users, m)]
    header = ["model"]
    for m in metrics:
        header += [f"{m} {direction_arrow(m)}", *(["paper"] if m in referenced else [])]

    def format_line(model: str) -> tuple[str, ...]:
        """Return the cells of a model: its name, then each metric and its published number."""
        line = [model]
        for m in metrics:
            cell = cells.get((model, m))
            mark = _BEST_MARK if cell and cell.value == best[m] and model != "random" else ""
            line.append(f"{format_interval(cell, digits[m])}{mark}" if cell else "-")
            if m in referenced:
                number = reference.numbers.get(CellKey(first.dataset, first.users, m, model))
                line.append("" if number is None else f"{number:.3f}")
        return tuple(line)

    return ResultTable(
        f"{first.dataset}: {GROUP_DESCRIPTIONS.get(first.users, first.users)}",
        (
            _table_note(rows),
            *_quality_notes(rows),
            *_reference_notes(first, referenced, models, reference),
        ),
        tuple(header),
        tuple(format_line(m) for m in models if m in TRIVIAL_BASELINES),
        tuple(format_line(m) for m in models if m not in TRIVIAL_BASELINES),
    )


def _table_note(rows: Sequence[ResultRow]) -> str:
    """Return the note of a table: split, preset, sizes, seeds, and how to read a cell."""
    first, n_seeds = rows[0], len({row.seed for row in rows})
    n_users = max(row.n_users for row in rows)
    n_ratings = max(row.n_ratings for row in rows)
    mean = f"mean of {n_seeds} seeds" if n_seeds > 1 else "one seed"
    over = "users and seeds" if n_seeds > 2 else "users"
    return (
        f"split {first.split}; preset {first.preset}; {n_users:,} users, {n_ratings:,} test rows; "
        f"{mean}, [95 % interval over {over}]; {_BEST_MARK} best in its column"
    )


def _quality_notes(rows: Sequence[ResultRow]) -> list[str]:
    """Return which lists are ordered by expected benefit, and with which quality."""
    models: dict[float, list[str]] = {}
    for row in rows:
        if row.quality is not None and row.model not in models.setdefault(row.quality, []):
            models[row.quality].append(row.model)
    return [
        f"lists of {', '.join(names)}: by expected benefit, quality {quality:g}"
        for quality, names in models.items()
    ]


def _reference_notes(
    first_row: ResultRow, metrics: Sequence[str], models: Sequence[str], reference: ReferenceNumbers
) -> list[str]:
    """Return a warning if the splits differ, and the published systems that were not measured."""
    notes = []
    if metrics and not reference.same_split(first_row.dataset, first_row.split):
        notes.append("the paper's numbers are for another split than this one")
    for metric in metrics:
        numbers = reference.numbers_by_model(first_row.dataset, first_row.users, metric)
        others = [f"{model} {x:.3f}" for model, x in numbers.items() if model not in models]
        if others:
            notes.append(f"also in the paper, {metric}: {', '.join(others)}")
    return notes


def _bold(text: str) -> str:
    """Replace the star at the end of a cell by bold."""
    return f"**{text.removesuffix(_BEST_MARK)}**" if text.endswith(_BEST_MARK) else text
