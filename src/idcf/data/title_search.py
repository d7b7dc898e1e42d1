"""Finding an item by what people type: any order of words, no accents, small slips forgiven.

Knows rows and names, no model.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from unicodedata import combining, normalize

import numpy as np

_WORD = re.compile(r"\w+")
_CLOSE = 0.3  # share of pairs of letters in common from which a name counts as a slip of another
_NONE = np.empty(0, np.int32)
_COMPARED = 12  # letter by letter, of the names nearest by their pairs


def fold(text: str) -> str:
    """Without case and accents: é is e, ß is ss."""
    return "".join(x for x in normalize("NFKD", text.casefold()) if not combining(x))


class Titles:
    """The names of a catalogue: a title where there is one, else the id."""

    def __init__(self, ids: Sequence[Hashable], titles: Sequence[str | None]) -> None:
        self.names = [t if t is not None else str(x) for x, t in zip(ids, titles, strict=True)]
        self._ids = {str(x): n for n, x in enumerate(ids)}
        self._folded = [fold(x) for x in self.names]
        self._spaced = [" " + " ".join(_WORD.findall(x)) for x in self._folded]
        self._whole: dict[str, int] = {}
        rows: dict[str, list[int]] = {}
        for n, (text, spaced) in enumerate(zip(self._folded, self._spaced, strict=True)):
            self._whole.setdefault(text, n)
            for pair in _pairs(spaced):
                rows.setdefault(pair, []).append(n)
        self._sizes = np.array([len(_pairs(x)) for x in self._spaced], np.int64)
        self._rows = {k: np.array(v, np.int32) for k, v in rows.items()}

    def find(self, text: str) -> int | None:
        """The row of exactly this title or id."""
        by_id = self._ids.get(text)
        return self._whole.get(fold(text.strip())) if by_id is None else by_id

    def search(self, text: str, n: int = 10) -> list[int]:
        """Rows of names that have every word typed, or its beginning; else of the nearest."""
        words = _WORD.findall(fold(text))
        if not words:
            return list(range(min(n, len(self.names))))
        exact = self.find(text)
        starts = [f" {word}" for word in words]
        found = [row for row, x in enumerate(self._spaced) if all(s in x for s in starts)]
        found.sort(key=lambda row: (not self._spaced[row].startswith(starts[0]), row))
        first = [] if exact is None else [exact]
        return list(dict.fromkeys([*first, *found]))[:n] or self.nearest(text, n)

    def holds(self, row: int, text: str) -> bool:
        """Has this name every word typed, or its beginning?"""
        return all(f" {word}" in self._spaced[row] for word in _WORD.findall(fold(text)))

    def nearest(self, text: str, n: int = 3) -> list[int]:
        """Rows of the names that look like this one, for a slip of the finger."""
        asked = _pairs(" " + " ".join(_WORD.findall(fold(text))))
        common = np.zeros(len(self.names), np.int64)
        for pair in asked:
            common[self._rows.get(pair, _NONE)] += 1
        likeness = 2 * common / np.maximum(self._sizes + len(asked), 1)
        # a few words of a long title: what was typed is all in it
        likeness = np.maximum(likeness, 0.8 * common / max(len(asked), 1))
        near = np.argsort(-likeness, kind="stable")[: max(n, _COMPARED)]
        near = near[likeness[near] >= _CLOSE]
        match = SequenceMatcher(b=fold(text))

        def alike(row: int) -> float:
            match.set_seq1(self._folded[row])
            return match.ratio() + float(likeness[row])

        return sorted(near.tolist(), key=alike, reverse=True)[:n]


def _pairs(spaced: str) -> set[str]:
    """Pairs of neighbours; the space before a word is one of them."""
    return {spaced[k : k + 2] for k in range(len(spaced) - 1)}


def either(names: Iterable[str]) -> str:
    """For an error message: 'a', 'b' or 'c'."""
    said = [f"{x!r:.100}" for x in names]
    return " or ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
