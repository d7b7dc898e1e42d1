"""What is known of users or items beside their interactions, as numbers: one row each.

A column of numbers becomes itself and a fifth it falls into; a column of words becomes one column
per word, with several words in a cell separated by `|`. All of it is standardised over the rows
that are known, and 0 where nothing is: the average. The `Encoding` is kept, so that a newcomer's
own features can be read the same way; it holds words and means, and nobody's row.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from idcf.data.datasets import formats
from idcf.data.interactions import Floats, Interactions, Vocab
from idcf.errors import DataError, unknown

Numbers = NDArray[np.float64]

_MOST = 64  # words of a column, the most frequent
_LEAST = 3  # rows that a word must have
_PARTS = 5  # into which numbers fall
_FAR = 20.0  # spreads from the mean, beyond which a newcomer's number is a slip
_YEAR = re.compile(r"\((\d{4})\)\s*$")


@dataclass(frozen=True, kw_only=True)
class Column:
    """How one column is read: as numbers, or as words where there are any."""

    name: str
    words: tuple[str, ...] | None = None
    usual: float = 0.0  # the number where none is said
    edges: tuple[float, ...] = ()  # between its parts

    @classmethod
    def learn(cls, name: str, values: Sequence[Any]) -> Self:
        try:
            numbers = _numbers(values)
        except (TypeError, ValueError):
            return cls(name=name, words=_frequent(values))
        known = numbers[np.isfinite(numbers)]
        if not len(known):
            return cls(name=name, words=())  # says nothing
        usual = float(known.mean())
        numbers = np.where(np.isfinite(numbers), numbers, usual)
        if len(np.unique(numbers)) <= 2:
            return cls(name=name, usual=usual)
        edges = np.unique(np.quantile(numbers, np.arange(1, _PARTS) / _PARTS))
        return cls(name=name, usual=usual, edges=tuple(edges.tolist()))

    @property
    def width(self) -> int:
        if self.words is not None:
            return len(self.words)
        return 2 + len(self.edges) if self.edges else 1

    def read(self, values: Sequence[Any]) -> Numbers:
        """[n, width]"""
        if self.words is not None:
            each = [_words(x) for x in values]
            found = [[w in words for w in self.words] for words in each]
            return np.array(found, np.float64).reshape(len(each), len(self.words))
        numbers = _numbers(values)
        numbers = np.where(np.isfinite(numbers), numbers, self.usual)
        if not self.edges:
            return numbers[:, None]
        part = np.searchsorted(self.edges, numbers, side="right")
        return np.column_stack([numbers, part[:, None] == np.arange(len(self.edges) + 1)])


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How a table of features becomes numbers."""

    columns: tuple[Column, ...]
    mean: tuple[float, ...]  # of each number
    spread: tuple[float, ...]  # 0: the same for all of them, and left out

    @classmethod
    def learn(cls, columns: Mapping[str, Sequence[Any]], known: NDArray[np.bool_]) -> Self:
        """Words and fifths from all rows, means over those that are `known`."""
        found = tuple(Column.learn(name, values) for name, values in columns.items())
        parts = [x.read(columns[x.name])[known] for x in found]
        table = np.hstack(parts) if parts else np.empty((int(known.sum()), 0))
        none = np.zeros(table.shape[1])
        mean, spread = (table.mean(0), table.std(0)) if len(table) else (none, none)
        return cls(columns=found, mean=tuple(mean.tolist()), spread=tuple(spread.tolist()))

    @property
    def names(self) -> list[str]:
        """Of the columns that say anything."""
        ends = np.cumsum([x.width for x in self.columns]).tolist()
        both = zip(self.columns, ends, strict=True)
        return [x.name for x, end in both if any(self.spread[end - x.width : end])]

    def _first(self) -> Iterator[tuple[float, float] | None]:
        """Mean and spread of each column of numbers."""
        at = 0
        for column in self.columns:
            yield None if column.words is not None else (self.mean[at], self.spread[at])
            at += column.width

    def read(self, columns: Mapping[str, Sequence[Any]]) -> Floats:
        """[n, F]; a column that is not there is unknown of everybody."""
        spread, mean = np.array(self.spread), np.array(self.mean)
        n, at, parts = len(next(iter(columns.values()), ())), 0, []
        for column in self.columns:
            own = slice(at, at := at + column.width)
            if column.name in columns:
                parts.append(column.read(columns[column.name]) - mean[own])
            else:
                parts.append(np.zeros((n, column.width)))
        table = np.hstack(parts) if parts else np.empty((n, 0))
        out: Floats = (table[:, spread > 0] / spread[spread > 0]).astype(np.float32)
        return out

    def one(self, told: Mapping[str, Any]) -> Floats:
        """[F] of a newcomer. What they do not say, or nobody said before, counts as the average."""
        if not isinstance(told, Mapping):
            raise DataError(f"features must be a dict {{name: value}}, got {told!r:.80}")
        usual = dict(zip((x.name for x in self.columns), self._first(), strict=True))
        for name, value in told.items():
            if name not in usual:
                raise DataError(unknown("feature", str(name), self.names))
            if (around := usual[name]) is not None:
                _check_number(name, value, *around)
        said = {name: [value] for name, value in told.items() if _words(value)}
        wide = sum(x > 0 for x in self.spread)
        return self.read(said)[0] if said else np.zeros(wide, np.float32)


def encode(vocab: Vocab, ids: Sequence[Hashable], columns: Mapping[str, Sequence[Any]]) -> Floats:
    """[n, F] for the ids of a vocabulary, from columns that stand beside `ids`."""
    return encoded(vocab, ids, columns)[0]


def encoded(
    vocab: Vocab, ids: Sequence[Hashable], columns: Mapping[str, Sequence[Any]]
) -> tuple[Floats, Encoding]:
    """The same, and how it was done."""
    for name, values in columns.items():
        if len(values) != len(ids):
            raise DataError(f"features: column {name!r} has {len(values)} rows, not {len(ids)}")
    at = vocab.rows(ids)
    known = at >= 0
    encoding = Encoding.learn(columns, known)
    table = encoding.read(columns)
    out = np.zeros((len(vocab), table.shape[1]), np.float32)
    out[at[known]] = table[known] if len(table) else 0.0
    return out, encoding


def _numbers(values: Sequence[Any]) -> Numbers:
    return np.array([np.nan if x in (None, "") else float(x) for x in values], np.float64)


def _words(value: Any) -> set[str]:
    """In a cell: separated by `|`, or a list of them. A gap has none."""
    if value is None or (isinstance(value, float) and value != value):
        return set()
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return {str(x).strip() for x in value} - {""}
    return {w.strip() for w in str(value).split("|")} - {""}


def _frequent(values: Sequence[Any]) -> tuple[str, ...]:
    count: dict[str, int] = {}
    for value in values:
        for w in _words(value):
            count[w] = count.get(w, 0) + 1
    kept = sorted((w for w in count if count[w] >= _LEAST), key=lambda w: (-count[w], w))
    return tuple(kept[:_MOST])


def _check_number(name: str, value: Any, mean: float, spread: float) -> None:
    try:
        number = mean if value in (None, "") else float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"feature {name!r} is a number, got {value!r:.80}") from None
    if not abs(number - mean) <= _FAR * spread + 1e-9:
        raise DataError(
            f"feature {name!r} is {value!r:.80}, far outside what was trained on: about "
            f"{mean:.3g}, give or take {spread:.3g}"
        )


def movielens(table: Interactions, users: Path, items: Path) -> dict[str, Floats]:
    """Of users age, gender and occupation, of films genres and year, as far as files are there."""
    out = {}
    if users.is_file():
        found = formats.side_table(users)
        codes = {"age": found["age"], "gender": found["gender"]}
        codes["occupation"] = [f"job {x}" for x in found["occupation"]]  # ML-1M's are numbers
        out["user_features"] = encode(table.users, [int(x) for x in found["user_id"]], codes)
    if items.is_file():
        found = formats.side_table(items)
        ids, named = [int(x) for x in found["item_id"]], formats.titles(items)
        year = [_YEAR.search(named[x]) for x in ids]
        told = {k: v for k, v in found.items() if k in ("genres", "class") or "genre_" in k}
        if "class" in told:  # RecBole's genres, which a blank separates
            told["class"] = [x.replace(" ", "|") for x in told["class"]]
        told["year"] = [y.group(1) if y else "" for y in year]
        out["item_features"] = encode(table.items, ids, told)
    return out


def neighbours(links: NDArray[Any]) -> Floats:
    """Of each user themself and their friends: I + D^-½ W D^-½, [U, U].

    Rows of the graph, not its leading eigenvectors: most users of Douban have no friends and would
    all be alike in these, and friends there hardly rate alike (their biases correlate at .04), so
    that a graph without its own nodes says nothing. With them a row names a person, as a one-hot
    code does; of somebody who was not trained on, only the friends can say anything.
    """
    if links.ndim != 2 or len(links) != links.shape[1]:
        raise DataError(f"a graph of users must be square, got {links.shape}")
    joined = (links != 0) | (links.T != 0)
    np.fill_diagonal(joined, False)
    scale = np.maximum(joined.sum(1), 1) ** -0.5
    out: Floats = (np.eye(len(links)) + joined * scale * scale[:, None]).astype(np.float32)
    return out
