"""Result types of the public API, and how they are printed: recommendations, explanations and more.

All ids are the caller's own item and user ids. Nothing here depends on a model. Results are printed
as tables of text; notebooks show them as HTML, in which every id and title is escaped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any, Literal, NamedTuple, Self, SupportsIndex, TypeVar, overload
from unicodedata import combining, east_asian_width

import numpy as np
from numpy.typing import NDArray

from idcf.errors import ConfigError

__all__ = [  # noqa: RUF022 - in the order of the page
    "Recommendation",
    "Recommendations",
    "RecommendationBatch",
    "Explanation",
    "Reason",
    "Cohort",
    "Question",
    "Questions",
    "SimilarUser",
    "SimilarUsers",
    "PredictionInterval",
]

Floats = NDArray[np.float32]
Basis = Literal["history", "features", "popularity"]  # what a list was made from
T = TypeVar("T")

MAX_LINES = 10  # of a printed table; the number of the others stands below
_MAX_WIDTH = 40  # of a printed cell
_MAX_NAMES = 3  # of a list in one cell
_PERSONAL_SOURCES = ("posterior", "relation")


@dataclass(frozen=True)
class TextTable:
    """A table to be shown: its title, columns of text, and notes below."""

    title: str
    columns: Mapping[str, Sequence[str]]  # cells by the name of the column; all of one length
    numbers: tuple[str, ...] = ()  # names of the columns that are aligned to the right
    n_hidden: int = 0  # number of further lines, which are not shown
    notes: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Return lines of text with aligned columns."""
        shown, lines = self._cells(), [_one_line(self.title)]
        if shown:
            widths = {k: max(map(_width, [k, *v])) for k, v in shown.items()}
            for cells in (dict(zip(shown, shown, strict=True)), *_lines(shown)):
                padded = [self._pad(k, cells[k], widths[k]) for k in shown]
                lines.append("  ".join(padded).rstrip())
        return "\n".join([*lines, *self._all_notes()])

    def to_html(self) -> str:
        """Return an HTML table, which has no script and no style but for the alignment."""
        shown = self._cells()
        head = "".join(self._html_cell("th", k, k) for k in shown)
        body = "".join(
            f"<tr>{''.join(self._html_cell('td', k, x) for k, x in line.items())}</tr>"
            for line in _lines(shown)
        )
        grid = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        notes = [f"<p>{escape(x)}</p>" for x in self._all_notes()]
        title = f"<p><b>{escape(_one_line(self.title))}</b></p>"
        return "".join([title, grid if shown else "", *notes])

    def _cells(self) -> dict[str, list[str]]:
        """Return the cells of the columns that are not empty."""
        return {k: [_printable(x) for x in v] for k, v in self.columns.items() if any(v)}

    def _all_notes(self) -> list[str]:
        """Return the notes, with the number of hidden lines."""
        hidden = [f"… and {self.n_hidden:,} more"] if self.n_hidden > 0 else []
        return [*hidden, *map(_one_line, self.notes)]

    def _pad(self, column: str, cell: str, width: int) -> str:
        """Return a cell with spaces before or after it."""
        spaces = " " * (width - _width(cell))
        return spaces + cell if column in self.numbers else cell + spaces

    def _html_cell(self, tag: str, column: str, cell: str) -> str:
        """Return an HTML cell, aligned as its column."""
        side = "right" if column in self.numbers else "left"
        return f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'


class Tabular(ABC):
    """A result that is printed as a table and can be converted to a dataframe."""

    __slots__ = ()

    @abstractmethod
    def to_arrow(self) -> Any:
        """Return an Arrow table with one row per entry."""

    @abstractmethod
    def _text_tables(self) -> list[TextTable]:
        """Return the tables that are printed."""

    def to_pandas(self) -> Any:
        """Return a pandas dataframe with the columns of `to_arrow`; needs pandas."""
        _require_package("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return a Polars dataframe with the columns of `to_arrow`; needs Polars."""
        return _require_package("polars").from_arrow(self.to_arrow())

    def __repr__(self) -> str:
        return "\n".join(x.to_text() for x in self._text_tables())

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for notebooks."""
        return "".join(x.to_html() for x in self._text_tables())


class TabularList(Tabular, list[T]):
    """A list that is printed as a table, and so are its slices."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: SupportsIndex | slice) -> T | Self:
        """Return one entry, or a part of the list."""
        if not isinstance(index, slice):
            return super().__getitem__(index)
        part = copy(self)  # with its notes
        part[:] = super().__getitem__(index)
        return part


class Recommendation(NamedTuple):
    """One item of a recommendation list."""

    item_id: Any
    score: float  # what a list by history or features is ordered by: benefit, probability, rating
    rank: int  # 1 is the best
    title: str | None = None  # None: the item has no title
    std: float | None = None  # standard deviation of the rating, if requested and available
    source: str = "relation"  # origin of the score: posterior, relation, features or popular
    probability: float | None = None  # that the user takes the item up, if the model knows
    rating: float | None = None  # expected rating, if the user chooses the item
    rating_if_shown: float | None = None  # expected rating, if it is shown instead; with `std`


class Recommendations(TabularList[Recommendation]):
    """Recommendations for one user, best first: a list that is printed as a table.

    Parameters
    ----------
    unknown_items
        Item ids of the history that the model does not know; they were ignored.
    user_id
        Id of the user, or None if the caller gave none.
    basis
        What the list was made from: "history", the known items of the user; without any,
        "features" of the user; without those, or if the model reads neither, "popularity". None:
        the list is not for a user, but of similar items.

    Examples
    --------
    >>> from idcf import Recommender
    >>> model = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=True)
    >>> model.recommend(["a"], n=1).to_arrow()["item_id"].to_pylist()
    ['b']
    """

    def __init__(
        self,
        recommendations: Iterable[Recommendation] = (),
        unknown_items: Sequence[Hashable] = (),
        user_id: Hashable = None,
        basis: Basis | None = "history",
    ) -> None:
        super().__init__(recommendations)
        self.unknown_items, self.user_id = tuple(unknown_items), user_id
        self.basis: Basis | None = basis

    def to_arrow(self) -> Any:
        """Return an Arrow table with one row per item, and as columns the fields of
        `Recommendation`."""
        import pyarrow as pa

        types = {
            "item_id": None,
            "title": pa.string(),
            "score": pa.float32(),
            "rank": pa.int32(),
            "std": pa.float32(),
            "source": pa.string(),
            "probability": pa.float32(),
            "rating": pa.float32(),
            "rating_if_shown": pa.float32(),
        }
        return pa.table({k: pa.array([getattr(x, k) for x in self], v) for k, v in types.items()})

    def _text_tables(self) -> list[TextTable]:
        """Return the table that is printed."""
        first = self[:MAX_LINES]
        user = "" if self.user_id is None else f" for user {self.user_id!r}"
        has_rating = any(x.rating is not None for x in first)
        std = [None if x.std is None else f"{x.std:.2f}" for x in first]
        ratings = [
            "" if x.rating is None else f"{x.rating:.2f}" + (f" ± {error}" if error else "")
            for x, error in zip(first, std, strict=True)
        ]
        columns = {
            "rank": [str(x.rank) for x in first],
            "item_id": [str(x.item_id) for x in first],
            "title": [x.title or "" for x in first],
            "score": format_numbers([x.score for x in first]),
            "probability": ["" if x.probability is None else f"{x.probability:.1%}" for x in first],
            "rating": ratings,
            "std": [] if has_rating else [x or "" for x in std],
            "source": _unusual_sources(first),
        }
        title = f"{type(self).__name__}{user}: {_count(len(self), 'item')}"
        notes = _unknown_items_note(self.unknown_items)
        if self.basis not in (None, "history"):
            notes = (f"basis: {self.basis}", *notes)
        return [TextTable(title, columns, _NUMBERS, len(self) - MAX_LINES, notes)]


class RecommendationBatch(TabularList[Recommendations]):
    """Recommendations for several users, in the order in which the users were given."""

    def to_arrow(self) -> Any:
        """Return all lists as one Arrow table.

        Columns are user_id and the fields of `Recommendation`; rows are ordered by user, then by
        rank. Users without an id are numbered from 0.
        """
        import pyarrow as pa

        ids = [user_id for user_id, x in self._by_user() for _ in x]
        rows = Recommendations(row for recommendations in self for row in recommendations)
        return rows.to_arrow().add_column(0, "user_id", pa.array(ids))

    def to_table(self) -> Any:
        """Return `to_arrow` without the titles, which is what `idcf recommend --out` writes."""
        return self.to_arrow().drop_columns(["title"])

    def _text_tables(self) -> list[TextTable]:
        """Return a table with one line per user."""
        first = self._by_user()[:MAX_LINES]
        columns: dict[str, list[str]] = {
            "user_id": [str(user_id) for user_id, _ in first],
            "items": [str(len(x)) for _, x in first],
            "basis": [x.basis or "" for _, x in first],
            "best": [_join((str(i.title or i.item_id) for i in x), _MAX_NAMES) for _, x in first],
        }
        if {"history"}.issuperset(columns["basis"]):
            del columns["basis"]
        title = f"{type(self).__name__}: {_count(len(self), 'list')}"
        return [TextTable(title, columns, ("items",), len(self) - MAX_LINES)]

    def _by_user(self) -> list[tuple[Any, Recommendations]]:
        """Return each list with the id of its user, or its number."""
        return [(n if x.user_id is None else x.user_id, x) for n, x in enumerate(self)]


class Reason(NamedTuple):
    """An item of the user's history and its effect on the explained score."""

    item_id: Any
    title: str | None
    rating: float  # that of the history
    effect: float  # score with this item in the history minus the score without it


class Cohort(NamedTuple):
    """A group of at least five key users that resemble the user."""

    size: int  # number of key users
    weight: float  # share of the user's resemblance; over all cohorts the sum is 1
    liked_titles: tuple[str, ...]  # titles, or else ids, of items the cohort has in common


class _ExplanationFields(NamedTuple):
    """The fields of `Explanation`."""

    item_id: Any
    title: str | None
    score: float
    std: float | None = None  # standard deviation of the rating, if the model has a posterior
    reasons: tuple[Reason, ...] = ()  # largest absolute effect first
    cohorts: tuple[Cohort, ...] = ()  # largest weight first
    unknown_items: tuple[Hashable, ...] = ()  # items of the history that the model does not know


class Explanation(_ExplanationFields, Tabular):
    """The score of one item for one user, and where it comes from: a named tuple.

    Fields are item_id, title, score, std (of the rating, if the model has a posterior), reasons
    (`Reason`, largest absolute effect first), cohorts (`Cohort`, largest weight first) and
    unknown_items (ids of the history that the model does not know).
    """

    __slots__ = ()
    __repr__ = Tabular.__repr__

    def to_arrow(self) -> Any:
        """Return an Arrow table of the reasons: item_id, title, rating and effect."""
        import pyarrow as pa

        types = {"item_id": None, "title": pa.string(), "rating": pa.float32()}
        types |= {"effect": pa.float32()}
        columns = {k: [getattr(x, k) for x in self.reasons] for k in types}
        return pa.table({k: pa.array(columns[k], type_) for k, type_ in types.items()})

    def _text_tables(self) -> list[TextTable]:
        """Return a table of the reasons and, if there are any, one of the cohorts."""
        name = f"{self.item_id!r}" + (f" ({self.title})" if self.title else "")
        score = format_numbers([self.score])[0]
        std = "" if self.std is None else f", standard deviation of the rating {self.std:.2f}"
        first = self.reasons[:MAX_LINES]
        reasons = {
            "item_id": [str(x.item_id) for x in first],
            "title": [x.title or "" for x in first],
            "rating": [f"{x.rating:g}" for x in first],
            "effect": format_numbers([x.effect for x in first], "+"),
        }
        title = f"{type(self).__name__} of {name}: score {score}{std}"
        n_hidden, notes = len(self.reasons) - MAX_LINES, _unknown_items_note(self.unknown_items)
        table = TextTable(title, reasons, _NUMBERS, n_hidden, notes)
        if not self.cohorts:
            return [table]
        cohorts = {
            "size": [f"{x.size:,}" for x in self.cohorts],
            "weight": [f"{x.weight:.0%}" for x in self.cohorts],
            "liked": [_join(x.liked_titles, _MAX_NAMES) for x in self.cohorts],
        }
        return [table, TextTable("similar key users", cohorts, _NUMBERS)]


class Question(NamedTuple):
    """An item to ask a new user about."""

    item_id: Any
    title: str | None
    expected_gain: float  # of the variance of the user's ratings, or bits that the answer tells


class Questions(TabularList[Question]):
    """Items to ask a new user about, best first: a list that is printed as a table."""

    def to_arrow(self) -> Any:
        """Return an Arrow table: item_id, title and expected_gain."""
        import pyarrow as pa

        types = {"item_id": None, "title": pa.string(), "expected_gain": pa.float32()}
        return pa.table({k: pa.array([getattr(x, k) for x in self], v) for k, v in types.items()})

    def _text_tables(self) -> list[TextTable]:
        """Return the table that is printed."""
        first = self[:MAX_LINES]
        columns = {
            "item_id": [str(x.item_id) for x in first],
            "title": [x.title or "" for x in first],
            "expected_gain": format_numbers([x.expected_gain for x in first]),
        }
        title = f"{type(self).__name__}: {_count(len(self), 'item')}"
        return [TextTable(title, columns, _NUMBERS, len(self) - MAX_LINES)]


class SimilarUser(NamedTuple):
    """A user whose saved embedding resembles that of another one."""

    user_id: Any
    similarity: float  # cosine of the two embeddings


class SimilarUsers(TabularList[SimilarUser]):
    """Users that resemble one user, most similar first: a list that is printed as a table."""

    def to_arrow(self) -> Any:
        """Return an Arrow table: user_id and similarity."""
        import pyarrow as pa

        similarities = pa.array([x.similarity for x in self], pa.float32())
        return pa.table(
            {"user_id": pa.array([x.user_id for x in self]), "similarity": similarities}
        )

    def _text_tables(self) -> list[TextTable]:
        """Return the table that is printed."""
        first = self[:MAX_LINES]
        columns = {
            "user_id": [str(x.user_id) for x in first],
            "similarity": format_numbers([x.similarity for x in first]),
        }
        title = f"{type(self).__name__}: {_count(len(self), 'user')}"
        return [TextTable(title, columns, _NUMBERS, len(self) - MAX_LINES)]


class _PredictionIntervalFields(NamedTuple):
    """The fields of `PredictionInterval`."""

    score: Floats  # expected rating
    std: Floats  # standard deviation of the rating
    low: Floats  # lower bound of the interval
    high: Floats  # upper bound of the interval
    item_ids: tuple[Any, ...] = ()
    titles: tuple[str | None, ...] = ()  # None: the item has no title


class PredictionInterval(_PredictionIntervalFields, Tabular):
    """Predicted ratings of several items with intervals: a named tuple.

    Fields are score (expected rating), std (standard deviation of the rating), low and high (bounds
    of the interval), arrays of one value per item, and item_ids and titles.
    """

    __slots__ = ()
    __repr__ = Tabular.__repr__

    def to_arrow(self) -> Any:
        """Return an Arrow table with one row per item: item_id, title, score, std, low and high."""
        import pyarrow as pa

        names = {"item_id": pa.array(self.item_ids), "title": pa.array(self.titles, pa.string())}
        known = names if self.item_ids else {}
        return pa.table({**known, **{k: pa.array(np.asarray(v)) for k, v in self._values()}})

    def _text_tables(self) -> list[TextTable]:
        """Return the table that is printed."""
        columns = {
            "item_id": [str(x) for x in self.item_ids[:MAX_LINES]],
            "title": [x or "" for x in self.titles[:MAX_LINES]],
        }
        for name, values in self._values():
            columns[name] = [f"{x:.2f}" for x in np.ravel(values)[:MAX_LINES]]
        n_items = np.size(self.score)
        title = f"{type(self).__name__}: {_count(n_items, 'item')}"
        return [TextTable(title, columns, _NUMBERS, n_items - MAX_LINES)]

    def _values(self) -> list[tuple[str, Floats]]:
        """Return the arrays by name."""
        return [(k, getattr(self, k)) for k in ("score", "std", "low", "high")]


_NUMBERS = (
    *("rank", "score", "probability", "rating", "std", "effect", "size", "weight"),
    *("expected_gain", "similarity", "low", "high"),
)


def format_numbers(values: Sequence[float], sign: str = "") -> list[str]:
    """Return numbers with so many decimals that the largest has three digits or more."""
    largest = max((abs(x) for x in values if np.isfinite(x)), default=0.0)
    digits = 2 if largest >= 10 else 3 if largest >= 0.1 else 5
    return [f"{x:{sign}.{digits}f}" for x in values]


def _lines(columns: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return the lines of a table, each as {column: cell}."""
    return [dict(zip(columns, x, strict=True)) for x in zip(*columns.values(), strict=True)]


def _unknown_items_note(unknown_items: Sequence[Hashable]) -> tuple[str, ...]:
    """Return a note on the items of the history that were ignored, if there are any."""
    if not unknown_items:
        return ()
    return (f"not known to the model: {_join(map(repr, unknown_items), 5)}",)


def _unusual_sources(recommendations: Sequence[Recommendation]) -> list[str]:
    """Return the sources, if not all scores are those of the model for the user's history."""
    sources = [x.source for x in recommendations]
    return [] if set(sources) <= set(_PERSONAL_SOURCES) else sources


def _count(n: int, noun: str) -> str:
    """Return a number with its noun, such as "1 item" or "12 items"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _join(names: Iterable[str], n_shown: int) -> str:
    """Return names separated by commas, those after the first few as dots."""
    names = list(names)
    return ", ".join([*names[:n_shown], *["…"] * (len(names) > n_shown)])


def _one_line(text: str) -> str:
    """Return a text without line breaks and control characters, which would move the cursor."""
    return " ".join("".join(x if x.isprintable() else " " for x in text).split())


def _printable(cell: str) -> str:
    """Return a cell as one short line."""
    line = _one_line(cell)
    return line if len(line) <= _MAX_WIDTH else f"{line[: _MAX_WIDTH - 1].rstrip()}…"


def _width(text: str) -> int:
    """Return the number of columns of a terminal that a text takes."""
    return sum(0 if combining(x) else 1 + (east_asian_width(x) in "WF") for x in text)


def _require_package(name: str) -> Any:
    """Import a package that is not required; raise ConfigError without it."""
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"to_{name} needs {name}, which is missing; pip install {name}") from None
