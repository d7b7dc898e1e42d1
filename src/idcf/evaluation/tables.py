"""Rows of results as a table that people read: models down, metrics across, floors first.

A cell is the mean over seeds with its 95 % interval; the paper's number stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from idcf.evaluation.groups import DESCRIPTIONS
from idcf.evaluation.results import FLOORS, LOWER, NOMINAL, Row
from idcf.metrics import Interval, mean_of_seeds

_BEST = "*"


class Cell(NamedTuple):
    """What a published number is about."""

    dataset: str
    users: str
    metric: str
    model: str


@dataclass(frozen=True)
class Reference:
    """Published numbers to print beside ours."""

    numbers: Mapping[Cell, float] = field(default_factory=dict)
    same_split: Callable[[str, str], bool] = lambda dataset, split: False

    def systems(self, dataset: str, users: str, metric: str) -> dict[str, float]:
        """Return model -> published number, for one column of a table."""
        column = (dataset, users, metric)
        return {c.model: x for c, x in self.numbers.items() if c[:3] == column}


@dataclass(frozen=True)
class Table:
    """One group of users of one dataset; cells are text."""

    title: str
    notes: tuple[str, ...]
    header: tuple[str, ...]
    floors: tuple[tuple[str, ...], ...]
    body: tuple[tuple[str, ...], ...]


def tables(rows: Sequence[Row], reference: Reference | None = None) -> list[Table]:
    """A table for each dataset, split, preset and group of users, in the order they came."""
    keys = dict.fromkeys((r.dataset, r.split, r.preset, r.users) for r in rows)
    return [
        _table(
            [r for r in rows if (r.dataset, r.split, r.preset, r.users) == key],
            reference or Reference(),
        )
        for key in keys
    ]


def text(rows: Sequence[Row], reference: Reference | None = None) -> str:
    """For a terminal: columns aligned."""
    return "\n\n".join(_text(table) for table in tables(rows, reference))


def markdown(rows: Sequence[Row], reference: Reference | None = None) -> str:
    return "\n\n".join(_markdown(table) for table in tables(rows, reference))


def intervals(rows: Iterable[Row]) -> dict[tuple[str, str], Interval]:
    """(model, metric) -> the mean over seeds, of rows of one group of users."""
    found: dict[tuple[str, str], list[Interval]] = {}
    for r in rows:
        found.setdefault((r.model, r.metric), []).append(Interval(r.value, r.low, r.high))
    return {key: over_seeds(values) for key, values in found.items()}


def over_seeds(seeds: Sequence[Interval]) -> Interval:
    """Two seeds say too little of their spread: then the interval is that of the users."""
    if len(seeds) != 2:
        return mean_of_seeds(seeds)
    return Interval(*(sum(column) / 2 for column in zip(*seeds, strict=True)))


def better(metric: str) -> Callable[[Iterable[float]], float]:
    if metric in NOMINAL:
        return lambda values: min(values, key=lambda x: abs(x - NOMINAL[metric]))
    return min if metric in LOWER else max


def arrow(metric: str) -> str:
    return f"→ {NOMINAL[metric]:g}" if metric in NOMINAL else "↓" if metric in LOWER else "↑"


def _table(rows: Sequence[Row], reference: Reference) -> Table:
    first, cells = rows[0], intervals(rows)
    metrics = sorted({r.metric for r in rows}, key=[*dict.fromkeys(_order(rows))].index)
    models = list(dict.fromkeys(r.model for r in rows))
    best = {
        m: better(m)([cells[x, m].value for x in models if x != "random" and (x, m) in cells])
        for m in metrics
    }
    digits = {m: 3 if best[m] >= 0.1 else 4 for m in metrics}
    beside = [m for m in metrics if reference.systems(first.dataset, first.users, m)]
    header = ["model"]
    for m in metrics:
        header += [f"{m} {arrow(m)}", *(["paper"] if m in beside else [])]

    def line(model: str) -> tuple[str, ...]:
        out = [model]
        for m in metrics:
            found = cells.get((model, m))
            mark = _BEST if found and found.value == best[m] and model != "random" else ""
            out.append(f"{cell(found, digits[m])}{mark}" if found else "-")
            if m in beside:
                there = reference.numbers.get(Cell(first.dataset, first.users, m, model))
                out.append("" if there is None else f"{there:.3f}")
        return tuple(out)

    return Table(
        f"{first.dataset}: {DESCRIPTIONS.get(first.users, first.users)}",
        (*_notes(rows), *_others(first, beside, models, reference)),
        tuple(header),
        tuple(line(m) for m in models if m in FLOORS),
        tuple(line(m) for m in models if m not in FLOORS),
    )


def cell(found: Interval, digits: int = 3) -> str:
    value, low, high = (f"{x:.{digits}f}" for x in found)
    return f"{value} [{low}, {high}]"


def _order(rows: Sequence[Row]) -> list[str]:
    """Metrics as a system that has them all lists them."""
    lists: dict[tuple[str, int], list[str]] = {}
    for r in rows:
        lists.setdefault((r.model, r.seed), []).append(r.metric)
    return [m for each in sorted(lists.values(), key=len, reverse=True) for m in each]


def _notes(rows: Sequence[Row]) -> list[str]:
    first, seeds = rows[0], len({r.seed for r in rows})
    n_users, n_ratings = (max(getattr(r, x) for r in rows) for x in ("n_users", "n_ratings"))
    mean = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    over = "users and seeds" if seeds > 2 else "users"
    return [
        f"split {first.split}; preset {first.preset}; {n_users:,} users, {n_ratings:,} test rows; "
        f"{mean}, [95 % interval over {over}]; {_BEST} best in its column"
    ]


def _others(
    first: Row, metrics: Sequence[str], models: Sequence[str], reference: Reference
) -> list[str]:
    """The paper's systems that are not among ours, and a warning where it must not be compared."""
    out = []
    if metrics and not reference.same_split(first.dataset, first.split):
        out.append("the paper's numbers are for another split than this one")
    for m in metrics:
        rest = reference.systems(first.dataset, first.users, m)
        named = [f"{x} {v:.3f}" for x, v in rest.items() if x not in models]
        if named:
            out.append(f"also in the paper, {m}: {', '.join(named)}")
    return out


def _text(table: Table) -> str:
    lines = [table.header, *table.floors, *table.body]
    widths = [max(len(line[n]) for line in lines) for n in range(len(table.header))]
    rule = "  ".join("-" * w for w in widths)
    out = [table.title, *table.notes, ""]
    for number, line in enumerate(lines):
        out.append("  ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)).rstrip())
        if number in (0, len(table.floors)):
            out.append(rule)
    return "\n".join(out)


def _markdown(table: Table) -> str:
    notes = "  \n".join(table.notes).replace(f"{_BEST} best", "bold: best")
    return "\n".join(
        [f"**{table.title}**", "", notes, "", grid(table.header, (*table.floors, *table.body))]
    )


def grid(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Rows as Markdown has them; what ends in a star is bold."""
    rule = f"|{'|'.join(['---'] * len(header))}|"
    first, *rest = (f"| {' | '.join(_bold(x) for x in line)} |" for line in (header, *lines))
    return "\n".join([first, rule, *rest])


def _bold(text: str) -> str:
    return f"**{text.removesuffix(_BEST)}**" if text.endswith(_BEST) else text
