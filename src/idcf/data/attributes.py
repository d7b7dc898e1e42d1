"""Attributes of items, such as genres, by which a list can be restricted.

A cell holds one word, several separated by `|`, or a list of words, as in `features`; a number
counts as a word. Unlike features, all words are held, however rare.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Self

import numpy as np

from idcf.data.features import split_words
from idcf.data.interactions import Ints, Vocab, group_rows_by_key, row_lookup
from idcf.errors import DataError, unknown_name_message

_MAX_CACHED_FILTERS = 256  # row sets of recent filters that are held
_MAX_COMPARED_WORDS = (
    1000  # most frequent words of a column among which an error message looks for the nearest
)
_MAX_LISTED_WORDS = 30  # most frequent words of a column that an error message names


@dataclass(frozen=True, eq=False)
class AttributeColumn:
    """The words of one column, and the items that have each of them."""

    words: tuple[str, ...]  # in ascending order
    item_rows: Ints  # grouped by word, ascending within a word
    offsets: Ints  # [len(words) + 1]: where the items of each word start

    @classmethod
    def from_pairs(cls, item_rows: Sequence[int], words: Sequence[str]) -> Self:
        """Build the column of pairs of an item and one of its words, sorted by item."""
        vocab, codes = np.unique(np.array(words, dtype=object), return_inverse=True)
        order, offsets = group_rows_by_key(codes.astype(np.int64), len(vocab))
        return cls(tuple(vocab.tolist()), np.array(item_rows, np.int64)[order], offsets)

    def rows(self, word: str) -> Ints | None:
        """Return the items that have a word; None: no item has it."""
        position = int(np.searchsorted(np.array(self.words, dtype=object), word))
        if position == len(self.words) or self.words[position] != word:
            return None
        return self.item_rows[self.offsets[position] : self.offsets[position + 1]]

    def frequent_words(self, n: int) -> list[str]:
        """Return the n words that most items have, in ascending order."""
        most = np.argsort(-np.diff(self.offsets), kind="stable")[:n]
        return [self.words[k] for k in np.sort(most)]

    def cells(self, n_items: int) -> list[list[str]]:
        """Return the words of every item."""
        cells: list[list[str]] = [[] for _ in range(n_items)]
        word_of_entry = np.repeat(np.arange(len(self.words)), np.diff(self.offsets))
        for row, word in zip(self.item_rows.tolist(), word_of_entry.tolist(), strict=True):
            cells[row].append(self.words[word])
        return cells


class ItemAttributes:
    """The columns of a table of items as filters; items are rows of the catalogue."""

    def __init__(self, columns: Mapping[str, AttributeColumn]) -> None:
        self.columns = dict(columns)
        self._cache: dict[Hashable, Ints] = {}

    @classmethod
    def from_table(
        cls, items: Vocab, ids: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> Self:
        """Read columns whose rows are those of `ids`; ids that are no items are left out."""
        row_by_id = row_lookup(items)
        rows = [row_by_id.get(x, -1) for x in ids]
        return cls({name: _read_column(rows, cells) for name, cells in columns.items()})

    @classmethod
    def from_cells(cls, columns: Mapping[str, Sequence[Any]]) -> Self:
        """Read columns with one cell per row of the catalogue."""
        return cls({k: _read_column(range(len(v)), v) for k, v in columns.items()})

    def updated(self, other: ItemAttributes) -> ItemAttributes:
        """Return these columns and those of other attributes of the same items, which win."""
        return ItemAttributes({**self.columns, **other.columns})

    def rows(self, where: Mapping[str, Any]) -> Ints:
        """Return the rows of the items that have, in every column of `where`, one of its values.

        The same filter gives the same array, which must not be changed. DataError: a column or a
        value is unknown.
        """
        if not isinstance(where, Mapping) or not where:
            raise DataError(f"where must be a dict {{column: value or list}}, got {where!r:.80}")
        words = {str(name): tuple(sorted(_cell_words(x))) for name, x in where.items()}
        key = tuple(sorted(words.items()))
        rows = self._cache.get(key)
        if rows is None:
            matches = [self._column_rows(name, values) for name, values in words.items()]
            rows = matches[0]
            for other in matches[1:]:
                rows = np.intersect1d(rows, other, assume_unique=True)
            if len(self._cache) >= _MAX_CACHED_FILTERS:
                self._cache.clear()
            self._cache[key] = rows
        return rows

    def _column_rows(self, name: str, words: Iterable[str]) -> Ints:
        """Return the rows of the items that have one of the words in a column, ascending."""
        column = self.columns.get(name)
        if column is None:
            raise DataError(f"where: {unknown_name_message('column', name, self.columns)}")
        parts = []
        for word in words:
            rows = column.rows(word)
            if rows is None:
                raise DataError(f"where: {_unknown_word_message(name, word, column)}")
            parts.append(rows)
        if not parts:
            raise DataError(f"where: column {name!r} has no value; give a word or a list of words")
        return np.unique(np.concatenate(parts)) if len(parts) > 1 else parts[0]


def _read_column(rows: Iterable[int], cells: Sequence[Any]) -> AttributeColumn:
    """Return the column of cells of items; row -1 is no item."""
    pairs = sorted(
        (row, word)
        for row, cell in zip(rows, cells, strict=True)
        if row >= 0
        for word in _cell_words(cell)
    )
    return AttributeColumn.from_pairs([x for x, _ in pairs], [x for _, x in pairs])


def _cell_words(cell: Any) -> set[str]:
    """Return the words of a cell; a whole number is written without a decimal point."""
    values = cell if isinstance(cell, list | tuple | set | frozenset) else [cell]
    if any(isinstance(x, float) for x in values):
        cell = [int(x) if isinstance(x, float) and x.is_integer() else x for x in values if x == x]
    return split_words(cell)


def _unknown_word_message(name: str, word: str, column: AttributeColumn) -> str:
    """Return the error text of a word that no item has in a column: the nearest word, and those
    that most items have."""
    matches = get_close_matches(word, column.frequent_words(_MAX_COMPARED_WORDS), n=1)
    hint = f"did you mean {matches[0]!r}? " if matches else ""
    n_more = len(column.words) - _MAX_LISTED_WORDS
    more = f" and {n_more:,} more" if n_more > 0 else ""
    known = ", ".join(column.frequent_words(_MAX_LISTED_WORDS))
    return f"no item has {name} {word!r:.80}; {hint}known: {known}{more}"
