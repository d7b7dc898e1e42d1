"""Search items by title: words in any order, accents ignored, spelling mistakes tolerated.

Knows rows and names of items. Does not know any model.
"""

from __future__ import annotations

import math
import re
import sys
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from itertools import chain
from unicodedata import combining, normalize

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idcf.errors import DataError

_WORD = re.compile(r"\w+")
_MIN_SIMILARITY = 0.3  # bigram similarity below which two names are not a spelling mistake
_NO_ROWS = np.empty(0, np.int32)
_MAX_SUGGESTIONS = 4  # names in the error message of an unknown one
_LAST_CHARACTER = chr(sys.maxunicode)  # part of no word
_MAX_COMPARED = 12  # names, nearest by bigrams, that are then compared letter by letter
_START_WEIGHT = math.log(4)  # a name that begins with the text counts as four times as popular
_YEAR = re.compile(r" \d{4}$")
_ARTICLES = frozenset(["the", "a", "an", "la", "le", "les", "l", "der", "die", "das", "il", "el"])


def normalize_text(text: str) -> str:
    """Text in lower case without accents: é becomes e, ß becomes ss."""
    return "".join(x for x in normalize("NFKD", text.casefold()) if not combining(x))


class TitleIndex:
    """Search index over the names of a catalogue; an item without a title is named by its id.

    `log_popularity` [I] orders names that fit a text alike; None: the order of the catalogue.
    """

    def __init__(
        self,
        ids: Sequence[Hashable],
        titles: Sequence[str | None],
        log_popularity: ArrayLike | None = None,
    ) -> None:
        self.names = [t if t is not None else str(x) for x, t in zip(ids, titles, strict=True)]
        self._row_by_id = {str(x): n for n, x in enumerate(ids)}
        self._normalized = [normalize_text(x) for x in self.names]
        self._spaced_words = [" " + " ".join(_WORD.findall(x)) for x in self._normalized]
        self._cores = [_core_words(x) for x in self._spaced_words]
        self._log_popularity = [0.0] * len(self.names)
        if log_popularity is not None:
            self._log_popularity = np.asarray(log_popularity, np.float64).tolist()
        self._row_by_title: dict[str, int] = {}
        rows: dict[str, list[int]] = {}
        for n, (text, spaced) in enumerate(zip(self._normalized, self._spaced_words, strict=True)):
            self._row_by_title.setdefault(text, n)
            for bigram in _bigrams(spaced):
                rows.setdefault(bigram, []).append(n)
        self._bigram_counts = np.array([len(_bigrams(x)) for x in self._spaced_words], np.int64)
        self._rows_by_bigram = {k: np.array(v, np.int32) for k, v in rows.items()}
        self._words, self._word_starts, self._word_rows = _index_words(self._spaced_words)

    def find_exact(self, text: str) -> int | None:
        """Row of the item with this id, or with this title but for case and accents."""
        row = self._row_by_id.get(text)
        return self._row_by_title.get(normalize_text(text.strip())) if row is None else row

    def resolve(self, text: str) -> int:
        """Row of the item with this id or title, or of the only one whose title has these words.
        DataError: there is none, or several."""
        row = self.find_exact(text)
        if row is not None:
            return row
        rows = self.search(text, _MAX_SUGGESTIONS)
        if len(rows) == 1 and self.matches(rows[0], text):
            return rows[0]
        hint = f"; did you mean {join_alternatives(self.names[x] for x in rows)}?" if rows else ""
        raise DataError(f"no item named {text!r:.100}{hint}")

    def search(self, text: str, n: int = 10) -> list[int]:
        """Rows of up to n names that contain every word, or beginning of a word, of a text: an
        exact match, then names that are the text but for year and article, then by popularity,
        names that begin with the text raised. If there are none, the most similar names; without
        words, the first rows."""
        starts = _word_starts(text)
        if not starts:
            return list(range(min(n, len(self.names))))
        exact_row = self.find_exact(text)
        core = _core_words("".join(starts))

        def order(row: int) -> tuple[bool, float, int]:
            """Return the sort key of a name that contains the text."""
            spaced = self._spaced_words[row]
            begins = spaced.startswith(starts[0]) or self._cores[row].startswith(starts[0])
            weight = self._log_popularity[row] + _START_WEIGHT * begins
            return self._cores[row] != core, -weight, row

        rows = self._rows_with(starts)
        rows.sort(key=order)
        first = [] if exact_row is None else [exact_row]
        return list(dict.fromkeys([*first, *rows]))[:n] or self.nearest(text, n)

    def _rows_with(self, starts: Sequence[str]) -> list[int]:
        """Rows of the names in which every text of `starts` begins a word, in their order.

        Words that begin alike are neighbors in the index, so this reads no names.
        """
        candidates = []
        for word in {x[1:] for x in starts}:
            first, end = (bisect_left(self._words, x) for x in (word, word + _LAST_CHARACTER))
            candidates.append(self._word_rows[self._word_starts[first] : self._word_starts[end]])
        candidates.sort(key=len)
        rows = np.unique(candidates[0])
        for other in candidates[1:]:
            is_candidate = np.zeros(len(self.names), np.bool_)
            is_candidate[other] = True
            rows = rows[is_candidate[rows]]
        result: list[int] = rows.tolist()
        return result

    def matches(self, row: int, text: str) -> bool:
        """Whether the name of a row contains every word of a text, or words that begin so."""
        return all(start in self._spaced_words[row] for start in _word_starts(text))

    def nearest(self, text: str, n: int = 3) -> list[int]:
        """Rows of up to n names that resemble a text, the most similar first."""
        bigrams = _bigrams("".join(_word_starts(text)))
        n_common = np.zeros(len(self.names), np.int64)
        for bigram in bigrams:
            n_common[self._rows_by_bigram.get(bigram, _NO_ROWS)] += 1
        similarity = 2 * n_common / np.maximum(self._bigram_counts + len(bigrams), 1)
        # a few words of a long title are similar to it if all their bigrams are in it
        similarity = np.maximum(similarity, 0.8 * n_common / max(len(bigrams), 1))
        rows = np.flatnonzero(similarity >= _MIN_SIMILARITY)
        rows = rows[np.argsort(-similarity[rows], kind="stable")][: max(n, _MAX_COMPARED)]
        matcher = SequenceMatcher(b=normalize_text(text))

        def total_similarity(row: int) -> float:
            """Return the sort key of a title: both similarities to the query, added."""
            matcher.set_seq1(self._normalized[row])
            return matcher.ratio() + float(similarity[row])

        return sorted(rows.tolist(), key=total_similarity, reverse=True)[:n]


def _index_words(
    spaced_words: Sequence[str],
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int32]]:
    """Return the words of names in order, where the rows of each word start, and these rows."""
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(spaced_words):
        for word in set(text.split()):
            rows.setdefault(word, []).append(row)
    words = sorted(rows)
    starts = np.cumsum([0, *(len(rows[x]) for x in words)])
    return words, starts, np.fromiter(chain.from_iterable(rows[x] for x in words), np.int32)


def _word_starts(text: str) -> list[str]:
    """The normalized words of a text, each after a space."""
    return [f" {word}" for word in _WORD.findall(normalize_text(text))]


def _core_words(spaced_words: str) -> str:
    """The words, each after a space, without a year at the end and an article at either end:
    those of "The Matrix" and of "Matrix, The (1999)" are the same."""
    words = _YEAR.sub("", spaced_words).split()
    if len(words) > 1 and words[-1] in _ARTICLES:
        words.pop()
    if len(words) > 1 and words[0] in _ARTICLES:
        words.pop(0)
    return " " + " ".join(words)


def _bigrams(spaced_words: str) -> set[str]:
    """Pairs of adjacent characters; the space before each word is a character too."""
    return {spaced_words[k : k + 2] for k in range(len(spaced_words) - 1)}


def join_alternatives(names: Iterable[str]) -> str:
    """Names joined for an error message, as in "'a', 'b' or 'c'"."""
    quoted = [f"{x!r:.100}" for x in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
