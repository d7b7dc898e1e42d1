"""The paper's tables with our rows in them, as pages: Markdown for each, HTML for all.

The same rows give the same bytes, so a test can say whether the committed pages are current.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idcf.evaluation.groups import DESCRIPTIONS, GROUPS
from idcf.evaluation.tables import Table, arrow, better, cell, grid, over_seeds
from idcf.metrics import Interval
from idcf.paper import paired_differences, results_store, run_plan
from idcf.paper.html_report import Section, page
from idcf.paper.results_store import Failure, Pair
from idcf.paper.table_spec import Column, Spec, load_all, refusal

_LEGEND = (
    "paper: what the paper prints. published: this package with the settings of the published "
    "code; clean: with its own, found without test rows. Mean of the seeds, [95 % interval over "
    "users and seeds]. against: clean minus the best simple system (chosen on the same test rows, "
    "which favours it), paired over users. seconds: training, once. Best of each column in bold. "
    "none: no published settings. † measured under settings that have changed since."
)
_HEADER = ("system", "paper", "published", "clean", "against", "seconds")
_SHORT = 60


@dataclass(frozen=True)
class _Data:
    """The lines of one data set, as they are asked for."""

    columns: Mapping[tuple[str, str, str], paired_differences.Systems]  # (split, users, metric)
    pairs: Mapping[tuple[Any, ...], Pair]
    failures: Mapping[tuple[str, ...], str]  # (split, model, preset, training) -> why

    @classmethod
    def of(cls, results: Path, dataset: str) -> _Data:
        failed = results_store.read(results, Failure, dataset).values()
        return cls(
            paired_differences.columns(results_store.records(results, dataset)),
            results_store.read(results, Pair, dataset),
            {(f.split, f.model, f.preset, f.users): f.reason for f in failed},
        )


def render(results: Path) -> dict[str, str]:
    """Every page by the name of its file."""
    specs = load_all()
    data = {d: _Data.of(results, d) for spec in specs.values() for d in spec.datasets}
    out, sections = {}, []
    for name, spec in specs.items():
        blocks = [_summary(spec, data), *_blocks(spec, data)]
        parts = [f"# {spec.title}", "", spec.shows, "", _LEGEND]
        for table in blocks:
            parts += ["", f"## {table.title}", "", *(f"{note}  " for note in table.notes), ""]
            parts.append(grid(table.header, table.body))
        out[f"{name}.md"] = "\n".join(parts).replace("  \n\n", "\n\n") + "\n"
        sections += [Section(spec.title, spec.shows)]
        sections += [Section(table.title, table=table) for table in blocks]
    out["index.html"] = page("The paper's tables, and ours", _LEGEND, sections, "")
    return out


def write(out: Path, pages: Mapping[str, str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (out / name).write_text(text, encoding="utf-8")


def outdated(out: Path, pages: Mapping[str, str]) -> list[str]:
    """Which files are not what the rows render to."""
    return [
        name
        for name, text in pages.items()
        if not (out / name).exists() or (out / name).read_text(encoding="utf-8") != text
    ]


def _summary(spec: Spec, data: Mapping[str, _Data]) -> Table:
    """The first metric of every data set at a glance: clean, and the paper's in brackets."""
    first = {c.dataset: c.metric for c in reversed(list(spec.columns()))}
    columns = [c for c in spec.columns() if c.metric == first[c.dataset]]
    several = len(spec.splits) > 1  # then they stand across, and the groups of users down
    lines: dict[tuple[str, ...], list[str]] = {}
    for column in columns:
        part = _Part(spec, column, data[column.dataset])
        for model in spec.systems:
            place = (model, column.users) if several else (model,)
            lines.setdefault(place, []).append(part.brief(model))
    across = [c.split if several else f"{c.dataset} {c.users} {c.metric}" for c in columns]
    return Table(
        "At a glance",
        (f"{', '.join(dict.fromkeys(first.values()))}; clean (paper); - where there is none",),
        ("system", *(["users"] if several else []), *dict.fromkeys(across)),
        (),
        tuple((*place, *cells) for place, cells in lines.items()),
    )


def _blocks(spec: Spec, data: Mapping[str, _Data]) -> list[Table]:
    """One table for each data set, group and metric; several splits stand in one."""
    found: dict[tuple[str, str, str], list[Column]] = {}
    for column in spec.columns():
        found.setdefault((column.dataset, column.users, column.metric), []).append(column)
    return [_block(spec, columns, data[columns[0].dataset]) for columns in found.values()]


def _block(spec: Spec, columns: Sequence[Column], data: _Data) -> Table:
    first = columns[0]
    lines, notes = [], []
    for column in columns:
        part = _Part(spec, column, data)
        notes += part.notes()
        for line in part.lines():
            lines.append((column.split, *line) if len(columns) > 1 else line)
    header = ["split", *_HEADER] if len(columns) > 1 else list(_HEADER)
    kept = [n for n, name in enumerate(header) if _tells(name, [line[n] for line in lines])]
    return Table(
        f"{first.dataset}, {DESCRIPTIONS[first.users]}: {first.metric} {arrow(first.metric)}",
        tuple(dict.fromkeys(notes)),
        tuple(header[n] for n in kept),
        (),
        tuple(tuple(line[n] for n in kept) for line in lines),
    )


def _tells(name: str, cells: Sequence[str]) -> bool:
    """A column of the paper or of a preset that nobody has is left out."""
    return name not in ("paper", "published") or any(c not in ("", "none") for c in cells)


class _Part:
    """One column of the paper's table: every system with what there is of it."""

    def __init__(self, spec: Spec, column: Column, data: _Data) -> None:
        self.spec, self.column, self.data = spec, column, data
        self.split = spec.split_name(column.dataset, column.split)
        self.paper = spec.published(column)
        self.systems = data.columns.get((self.split, column.users, column.metric), {})
        self.simple = paired_differences.best_simple(self.systems, column.metric)
        printed = [x for block in spec.paper for *_, x in block.cells()]
        self.digits = max(len(repr(x).partition(".")[2]) for x in [0.001, *printed])
        self.best = {p: self._best(p) for p in ("clean", "published")}
        self.best_paper = better(column.metric)(self.paper.values()) if self.paper else None

    def lines(self) -> Iterable[tuple[str, ...]]:
        for model, presets in self.spec.systems.items():
            yield (
                model,
                self._paper(model),
                self._ours(model, "published") if "published" in presets else "none",
                self._ours(model, "clean"),
                self._against(model),
                self._seconds(model),
            )

    def brief(self, model: str) -> str:
        """Ours and the paper's in as little room as can be."""
        found, value = self._mean(model, "clean"), self.paper.get(model)
        ours = f"{found.value:.{self.digits}f}" if found else "-"
        there = "" if value is None else f" ({value:.{self.digits}f})"
        best = found and found.value == self.best["clean"] and model != "random"
        return f"{ours}{there}{'*' if best else ''}"

    def notes(self) -> list[str]:
        rows = [r for of in self.systems.values() for r in of]
        if not rows:
            return [f"split {self.split}; nothing was run"]
        users, ratings = (max(getattr(r, x) for r in rows) for x in ("n_users", "n_ratings"))
        devices = ", ".join(sorted({r.device for r in rows}))
        best = f"; best simple system: {self.simple}" if self.simple else ""
        return [f"split {self.split}; {users:,} users, {ratings:,} test rows; {devices}{best}"]

    def _mean(self, model: str, preset: str) -> Interval | None:
        rows = self.systems.get((model, preset))
        return over_seeds([Interval(r.value, r.low, r.high) for r in rows]) if rows else None

    def _best(self, preset: str) -> float | None:
        values = [
            found.value
            for model in self.spec.systems
            if model != "random" and (found := self._mean(model, preset))
        ]
        return better(self.column.metric)(values) if values else None

    def _paper(self, model: str) -> str:
        if not self.spec.in_paper(self.column):
            return ""
        value = self.paper.get(model)
        if value is None:
            known = {m for block in self.spec.paper for m in block.systems}
            return "not reported" if model in known else "not in the paper"
        return f"{value:.{self.digits}f}{'*' if value == self.best_paper else ''}"

    def _ours(self, model: str, preset: str) -> str:
        found = self._mean(model, preset)
        if found is None:
            return self._why(model, preset)
        rows = self.systems[model, preset]
        options = self.spec.options(self.column.dataset, model)
        who = GROUPS[self.column.users]
        now = run_plan.fingerprint(model, preset, self.column.dataset, who, options)
        old = " †" if any(r.options != now for r in rows) else ""
        few = "" if len(rows) == self.spec.seeds or model == "random" else f" ({len(rows)} of "
        few = f"{few}{self.spec.seeds} seeds)" if few else ""
        mark = "*" if found.value == self.best[preset] and model != "random" else ""
        return f"{cell(found, self.digits)}{old}{few}{mark}"

    def _why(self, model: str, preset: str) -> str:
        """Why there is no number."""
        column = self.column
        reason = refusal(model, column.dataset, column.users, self.spec.splits[column.split])
        if reason:
            return reason
        if run_plan.missing_preset(model, preset):
            return "no such settings"
        if "@" in column.metric and model in self.spec.pairs_only:
            return "pairs only: slow to rank a catalogue"
        others = self.data.columns.items()
        there = [
            m
            for (s, u, m), of in others
            if (s, u) == (self.split, column.users) and (model, preset) in of
        ]
        if there:
            return "orders only: no ratings"
        training = GROUPS[column.users]
        failed = self.data.failures.get((self.split, model, preset, training), "")
        if failed:
            return f"failed: {failed[:_SHORT]}"
        reason = self.spec.why_not(column.dataset, model, preset)
        return f"not run: {reason}" if reason else "not run"

    def _against(self, model: str) -> str:
        if model == self.simple:
            return "best simple"
        place = (self.column.dataset, self.split, model, "clean")
        found = self.data.pairs.get((*place, self.column.users, self.column.metric))
        if found is None or (model, "clean") not in self.systems:
            return ""
        value, low, high = (
            f"{x:+.{self.digits}f}" for x in (found.difference, found.low, found.high)
        )
        other = "" if found.baseline == self.simple else f" to {found.baseline}"
        old = "" if paired_differences.is_current(found, self.systems) else " †"
        return f"{value} [{low}, {high}]{other}{old}"

    def _seconds(self, model: str) -> str:
        rows = self.systems.get((model, "clean"), [])
        if not rows or model == "random":
            return ""
        mean = sum(r.seconds for r in rows) / len(rows)
        return f"{mean:.0f}" if mean >= 10 else f"{mean:.1f}"
