"""The paper's tables with our results in them: a Markdown page per table, and one HTML page.

Pages depend on the stored results alone; a test compares the committed pages with them, word by
word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idcf.evaluation.groups import GROUP_DESCRIPTIONS, USER_GROUPS
from idcf.evaluation.tables import (
    ResultTable,
    best_value,
    direction_arrow,
    format_interval,
    format_markdown_grid,
)
from idcf.files import write_text
from idcf.metrics import Interval, mean_of_seeds
from idcf.paper import paired_differences, results_store, run_plan, split_pages
from idcf.paper.html_report import Section, render_html
from idcf.paper.paired_differences import RowsBySystem
from idcf.paper.results_store import PairedDifference, RunFailure, StoredRow
from idcf.paper.split_pages import SplitResults
from idcf.paper.table_spec import TableColumn, TableSpec, load_tables, refusal_reason

_LEGEND = (
    'The column "paper" repeats the number that the paper prints. "published" is this package with '
    'the settings of the published code, and "none" there means that the system has no published '
    'settings. "clean" is this package with our own settings, chosen on held-out users or rows; '
    "the results page (docs/results/README.md) lists those that were chosen again after a test "
    "figure had been seen. Each of our numbers is the mean over the seeds, with its 95 % interval "
    "over users and seeds in brackets. "
    '"against" is the clean number minus that of the best simple system, paired over users; that '
    "system is chosen on the same test rows, which favours it. "
    '"seconds" is the mean time of one training; systems ran on different devices, some of them '
    "side by side, so these times only give an order of magnitude. The best number of each column "
    "is in bold. A number with the sign † was measured under settings or code that have changed. "
    "Lists (metrics with an @) are ordered by the scores of each model alone: those of idcf-bayes "
    "by expected rating, which is not the default order of `recommend`. NDCG has two gains: "
    "2^rating - 1 in the paper's public code (`ndcg`; the paper's numbers are of this size), and "
    "the rating in its formula (`ndcg-linear`); – stands where a run was made before the latter "
    "was measured."
)
_MAIN_TABLES = ("table2", "table3", "table4")  # systems against one another; others vary settings
_HEADER = ("system", "paper", "published", "clean", "against", "seconds")
_MAX_REASON_LENGTH = 60


@dataclass(frozen=True)
class _DatasetResults:
    """The stored results of one dataset, indexed for the tables."""

    rows_by_column: Mapping[tuple[str, str, str], RowsBySystem]  # (split, users, metric) -> rows
    differences: Mapping[tuple[Any, ...], PairedDifference]  # by `PairedDifference.key`
    failures: Mapping[tuple[str, str, str, str], str]  # (split, model, preset, mode) -> the error

    @classmethod
    def load(cls, results: Path, dataset: str) -> _DatasetResults:
        """Read the results of a dataset."""
        failures = results_store.read_lines(results, RunFailure, dataset).values()
        return cls(
            paired_differences.rows_by_column(results_store.latest_rows(results, dataset)),
            results_store.read_lines(results, PairedDifference, dataset),
            {(f.split, f.model, f.preset, f.users): f.reason for f in failures},
        )


def render_pages(results: Path) -> dict[str, str]:
    """Render file name -> content from a folder of results: a Markdown page for each table, and
    `index.html` for all of them."""
    specs = load_tables()
    data = {d: _DatasetResults.load(results, d) for spec in specs.values() for d in spec.datasets}
    pages: dict[str, str] = {}
    sections: list[Section] = [Section("How to read the tables", _LEGEND)]
    for name, spec in specs.items():
        legend = split_pages.LEGEND if spec.reference else _LEGEND
        tables = list(_tables(spec, results, data))
        headline = "" if spec.reference else _headline([spec], data)
        parts = [f"# {spec.title}", "", *([f"**{headline}**", ""] if headline else []), spec.shows]
        parts += ["", *format_contents([x.title for x in tables]), "", legend]
        for table in tables:
            parts += ["", f"## {table.title}", "", *(f"{note}  " for note in table.notes), ""]
            parts.append(format_markdown_grid(table.header, table.model_lines))
        pages[f"{name}.md"] = "\n".join(parts).replace("  \n\n", "\n\n") + "\n"
        sections += [
            Section(spec.title, f"{spec.shows} {legend if spec.reference else ''}".strip())
        ]
        sections += [
            Section(table.title, table=table, level=3, is_open=table is tables[0])
            for table in tables
        ]
    lead = "Each table of the paper with our numbers beside its own; a click unfolds a part."
    title = "The paper's tables, and ours"
    best = _headline([specs[name] for name in _MAIN_TABLES if name in specs], data)
    headline = f"Tables 2 to 4: {best[:1].lower()}{best[1:]}" if best else ""
    pages["index.html"] = render_html(title, lead, sections, "", headline=headline)
    return pages


def _headline(specs: Iterable[TableSpec], data: Mapping[str, _DatasetResults]) -> str:
    """Return which systems are best under clean settings in most columns of some tables: one column
    for each dataset, split and user group, by the first metric."""
    winners: dict[tuple[str, str, str], str | None] = {}
    for spec in specs:
        for column in spec.columns():
            key = (column.dataset, column.split, column.users)
            if key not in winners:
                winners[key] = _ColumnReport(spec, column, data[column.dataset]).best_system()
    compared = [x for x in winners.values() if x]
    if not compared:
        return ""
    (best, n), *others = Counter(compared).most_common(3)
    rest = "".join(f", `{name}` in {count}" for name, count in others)
    noun = "comparison" if len(compared) == 1 else "comparisons"
    return (
        f"Under clean settings, `{best}` has the best number in {n} of {len(compared)} {noun} "
        f"(dataset, split and group of users, by the first metric){rest}."
    )


def format_contents(titles: Sequence[str]) -> list[str]:
    """Return a Markdown list of links to sections, by the anchors that GitHub and MyST give."""
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return [f"- [{title}](#{slug})" for title, slug in zip(titles, slugs, strict=True)]


def _tables(
    spec: TableSpec, results: Path, data: Mapping[str, _DatasetResults]
) -> Iterator[ResultTable]:
    """Yield the parts of a page: a summary, then a table for each dataset, user group and
    metric."""
    if spec.reference:
        yield from split_pages.split_tables(SplitResults.load(results, spec))
        return
    reports = [_ColumnReport(spec, c, data[c.dataset]) for c in spec.columns()]
    reports_by_table: dict[tuple[str, str, str], list[_ColumnReport]] = {}
    for report in reports:
        dataset, _, users, metric = report.column
        reports_by_table.setdefault((dataset, users, metric), []).append(report)
    yield _summary_table(spec, reports)
    for key, of_table in reports_by_table.items():
        yield _detail_table(*key, of_table)


def write_pages(out: Path, pages: Mapping[str, str]) -> None:
    """Write pages into a folder, each atomically."""
    for name, text in pages.items():
        write_text(out / name, text)


def outdated_pages(out: Path, pages: Mapping[str, str]) -> list[str]:
    """Return the names of pages that are missing in a folder or have other content there."""
    return [
        name
        for name, text in pages.items()
        if not (out / name).exists() or (out / name).read_text(encoding="utf-8") != text
    ]


def _summary_table(spec: TableSpec, reports: Sequence[_ColumnReport]) -> ResultTable:
    """Return our clean number and the paper's, for the first metric of each dataset."""
    first_metric = {r.column.dataset: r.column.metric for r in reversed(reports)}
    has_splits = len(spec.splits) > 1  # then columns are splits, and rows also user groups
    lines: dict[tuple[str, ...], list[str]] = {}
    header: list[str] = []
    for report in reports:
        dataset, split, users, metric = report.column
        if metric == first_metric[dataset]:
            header.append(split if has_splits else f"{dataset} {users} {metric}")
            for model in spec.systems:
                row = (model, users) if has_splits else (model,)
                lines.setdefault(row, []).append(report.summary_cell(model))
    metrics = " or ".join(dict.fromkeys(first_metric.values()))
    note = (
        f"Each cell is our {metrics} under clean settings, with the paper's number in brackets; "
        '"-" means that we have none.'
    )
    return ResultTable(
        "At a glance",
        (note,),
        ("system", *(["users"] if has_splits else []), *dict.fromkeys(header)),
        (),
        tuple((*row, *cells) for row, cells in lines.items()),
    )


def _detail_table(
    dataset: str, users: str, metric: str, reports: Sequence[_ColumnReport]
) -> ResultTable:
    """Return the table of one dataset, user group and metric; the reports differ in their split. A
    column "paper" or "published" without any number or reason is left out."""
    has_splits = len(reports) > 1
    header = ["split", *_HEADER] if has_splits else list(_HEADER)
    lines = [
        (report.column.split, *line) if has_splits else line
        for report in reports
        for line in report.table_lines()
    ]
    shown = [
        n
        for n, name in enumerate(header)
        if name not in ("paper", "published") or any(line[n] not in ("", "none") for line in lines)
    ]
    return ResultTable(
        f"{dataset}, {GROUP_DESCRIPTIONS[users]}: {metric} {direction_arrow(metric)}",
        tuple(dict.fromkeys(report.note() for report in reports)),
        tuple(header[n] for n in shown),
        (),
        tuple(tuple(line[n] for n in shown) for line in lines),
    )


def _describe_commits(rows: Iterable[StoredRow]) -> str:
    """Return the commits that rows were made at, and how many rows carry none."""
    counts = Counter(row.commit for row in rows)
    n_unknown = counts.pop(None, 0)
    commits = ", ".join(sorted(str(commit) for commit in counts))
    if not n_unknown:
        return commits
    unknown = f"no commit recorded in {n_unknown} of {n_unknown + counts.total()} rows"
    return f"{commits}, {unknown}" if commits else "no commit recorded"


class _ColumnReport:
    """The cells of one column of the paper's table, for all systems."""

    def __init__(self, spec: TableSpec, column: TableColumn, results: _DatasetResults) -> None:
        self.spec = spec
        self.column = column
        self.results = results
        self.split = spec.split_name(column.dataset, column.split)
        self.published = spec.published_values(column)
        self.rows_by_system = results.rows_by_column.get(
            (self.split, column.users, column.metric), {}
        )
        self.best_baseline = paired_differences.best_baseline(self.rows_by_system, column.metric)
        printed = [value for block in spec.paper for *_, value in block.cells()]
        self.digits = max(len(repr(value).partition(".")[2]) for value in [0.001, *printed])
        self.best_by_preset = {p: self._best_value(p) for p in ("clean", "published")}
        self.best_published = (
            best_value(column.metric, self.published.values()) if self.published else None
        )

    def table_lines(self) -> Iterable[tuple[str, ...]]:
        """Yield a table row for each system: its text cells, one for each name of `_HEADER`."""
        for model in self.spec.systems_on(self.column.dataset):
            presets = self.spec.systems[model]
            yield (
                model,
                self._published_cell(model),
                self._measured_cell(model, "published") if "published" in presets else "none",
                self._measured_cell(model, "clean"),
                self._difference_cell(model),
                self._seconds_cell(model),
            )

    def summary_cell(self, model: str) -> str:
        """Return our clean number, and the paper's in brackets, without intervals."""
        mean = self._mean_over_seeds(model, "clean")
        published = self.published.get(model)
        ours = f"{mean.value:.{self.digits}f}" if mean else "-"
        paper = "" if published is None else f" ({published:.{self.digits}f})"
        is_best = mean and mean.value == self.best_by_preset["clean"] and model != "random"
        return f"{ours}{paper}{'*' if is_best else ''}"

    def note(self) -> str:
        """Return a note on split, test rows, devices, commits and best baseline; or that nothing
        was run."""
        rows = [row for rows in self.rows_by_system.values() for row in rows]
        if not rows:
            return f'On the split "{self.split}" nothing was run.'
        n_users, n_ratings = max(r.n_users for r in rows), max(r.n_ratings for r in rows)
        devices = " and ".join(sorted({row.device for row in rows}))
        best = self.best_baseline
        return (
            f'The split "{self.split}" has {n_users:,} users and {n_ratings:,} test rows here; '
            f"devices: {devices}; code: {_describe_commits(rows)}."
            f"{f' The best simple system is {best}.' if best else ''}"
        )

    def _mean_over_seeds(self, model: str, preset: str) -> Interval | None:
        """Return the mean of a system over its seeds; None if it has no stored row."""
        rows = self.rows_by_system.get((model, preset))
        return mean_of_seeds([row.interval for row in rows]) if rows else None

    def _best_value(self, preset: str) -> float | None:
        """Return the best mean of all systems but random under a preset; None if there are not at
        least two to compare."""
        values = [
            mean.value
            for model in self.spec.systems
            if model != "random" and (mean := self._mean_over_seeds(model, preset))
        ]
        return best_value(self.column.metric, values) if len(values) > 1 else None

    def best_system(self) -> str | None:
        """Return the system with the best clean mean; None if there are not two to compare."""
        best = self.best_by_preset["clean"]
        for model in self.spec.systems:
            mean = self._mean_over_seeds(model, "clean")
            if mean and mean.value == best and model != "random":
                return model
        return None

    def _published_cell(self, model: str) -> str:
        """Return the number that the paper prints, or why there is none; a * marks the best."""
        if not self.published:
            return ""
        value = self.published.get(model)
        if value is None:
            paper_systems = {m for block in self.spec.paper for m in block.systems}
            return "not reported" if model in paper_systems else "not in the paper"
        return f"{value:.{self.digits}f}{'*' if value == self.best_published else ''}"

    def _measured_cell(self, model: str, preset: str) -> str:
        """Return the mean over seeds with its interval, or why there is none. † marks a number of
        other settings, * the best one; missing seeds are counted."""
        mean = self._mean_over_seeds(model, preset)
        if mean is None:
            return self._missing_reason(model, preset)
        rows = self.rows_by_system[model, preset]
        mode = USER_GROUPS[self.column.users]
        fingerprint = run_plan.settings_fingerprint(model, preset, self.column.dataset, mode)
        outdated = " †" if any(row.options != fingerprint for row in rows) else ""
        is_complete = len(rows) == self.spec.seeds or model == "random"
        seeds = "" if is_complete else f" ({len(rows)} of {self.spec.seeds} seeds)"
        best = "*" if mean.value == self.best_by_preset[preset] and model != "random" else ""
        return f"{format_interval(mean, self.digits)}{outdated}{seeds}{best}"

    def _missing_reason(self, model: str, preset: str) -> str:
        """Return why there is no number."""
        column = self.column
        reason = refusal_reason(model, column.dataset, column.users, self.spec.splits[column.split])
        if reason:
            return reason
        if run_plan.lacks_preset(model, preset):
            return "no such settings"
        if "@" in column.metric and model in self.spec.pairs_only:
            return "pairs only: slow to rank a catalogue"
        has_other_metric = any(
            (split, users) == (self.split, column.users) and (model, preset) in rows_by_system
            for (split, users, _), rows_by_system in self.results.rows_by_column.items()
        )
        if has_other_metric and column.metric == "ndcg-linear":
            return "–"
        if has_other_metric:
            return "orders only: no ratings"
        mode = USER_GROUPS[column.users]
        error = self.results.failures.get((self.split, model, preset, mode), "")
        if error:
            return f"failed: {error[:_MAX_REASON_LENGTH]}"
        reason = self.spec.not_run_reason(column.dataset, model, preset)
        return f"not run: {reason}" if reason else "not run"

    def _difference_cell(self, model: str) -> str:
        """Return the paired difference to the best simple baseline, empty if it is not stored.
        Another baseline is named; † marks a difference of rows that have changed since."""
        if model == self.best_baseline:
            return "best simple"
        column = self.column
        key = (column.dataset, self.split, model, "clean", column.users, column.metric)
        difference = self.results.differences.get(key)
        if difference is None or (model, "clean") not in self.rows_by_system:
            return ""
        interval = Interval(difference.difference, difference.low, difference.high)
        baseline = difference.baseline
        other_baseline = "" if baseline == self.best_baseline else f" to {baseline}"
        is_current = paired_differences.is_current(difference, self.rows_by_system)
        cell = format_interval(interval, self.digits, sign="+")
        return f"{cell}{other_baseline}{'' if is_current else ' †'}"

    def _seconds_cell(self, model: str) -> str:
        """Return the mean training time of the clean preset in seconds; empty if it was not run."""
        rows = self.rows_by_system.get((model, "clean"), [])
        if not rows or model == "random":
            return ""
        mean = sum(row.seconds for row in rows) / len(rows)
        return f"{mean:.0f}" if mean >= 10 else f"{mean:.1f}"
