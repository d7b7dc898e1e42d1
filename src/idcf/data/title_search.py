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
        self._ids = [str(x) for x in ids]
        self._row_by_id = {x: n for n, x in enumerate(self._ids)}
        self._normalized = [normalize_text(x) for x in self.names]
        self._spaced_words = [" " + " ".join(_WORD.findall(x)) for x in self._normalized]
        self._log_popularity = np.zeros(len(self.names))
        if log_popularity is not None:
            self._log_popularity = np.asarray(log_popularity, np.float64)
        self._row_by_title: dict[str, int] = {}  # the first row of a title that items share
        self._rows_by_shared_title: dict[str, list[int]] = {}
        rows: dict[str, list[int]] = {}
        for n, (text, spaced) in enumerate(zip(self._normalized, self._spaced_words, strict=True)):
            first = self._row_by_title.setdefault(text, n)
            if first != n:
                self._rows_by_shared_title.setdefault(text, [first]).append(n)
            for bigram in _bigrams(spaced):
                rows.setdefault(bigram, []).append(n)
        self._bigram_counts = np.array([len(_bigrams(x)) for x in self._spaced_words], np.int64)
        self._rows_by_bigram = {k: np.array(v, np.int32) for k, v in rows.items()}
        self._words, self._word_starts, self._word_rows = _index_words(self._spaced_words)
        cores = [_core_words(x) for x in self._spaced_words]
        self._rows_by_core: dict[str, list[int]] = {}
        for n, core in enumerate(cores):
            self._rows_by_core.setdefault(core, []).append(n)
        number = {word: n for n, word in enumerate(self._words)}
        # the numbers of the words that names begin with, with and without their article: [2, I]
        self._first_words = np.array(
            [
                [number.get(text.split(None, 1)[0] if text.strip() else "", -1) for text in texts]
                for texts in (self._spaced_words, cores)
            ],
            np.int32,
        )

    def find_exact(self, text: str) -> int | None:
        """Row of the item with this id, or with this title but for case and accents."""
        row = self._row_by_id.get(text)
        return self._row_by_title.get(normalize_text(text.strip())) if row is None else row

    def resolve(self, text: str) -> int:
        """Row of the item with this id or title, or of the only one whose title has these words.
        DataError: there is none, or several."""
        row = self.find_exact(text)
        if row is not None:
            if text not in self._row_by_id:
                self._require_own_title(row, text)
            return row
        rows = self.search(text, _MAX_SUGGESTIONS)
        if rows and len({self._normalized[x] for x in rows}) == 1 and self.matches(rows[0], text):
            self._require_own_title(rows[0], text)
        if len(rows) == 1 and self.matches(rows[0], text):
            return rows[0]
        hint = f"; did you mean {join_alternatives(self.names[x] for x in rows)}?" if rows else ""
        raise DataError(f"no item named {text!r:.100}{hint}")

    def _require_own_title(self, row: int, text: str) -> None:
        """Raise DataError if other items have the title of an item that a text names."""
        rows = self._rows_by_shared_title.get(self._normalized[row])
        if rows is None:
            return
        ids = " or ".join([", ".join(self._ids[x] for x in rows[:-1]), self._ids[rows[-1]]])
        number = "both" if len(rows) == 2 else f"all {len(rows)}"
        raise DataError(
            f"no single item is named {text!r:.100}; did you mean {ids}: {number} are "
            f"{self.names[row]!r:.100}; give the id"
        )

    def search(self, text: str, n: int = 10) -> list[int]:
        """Rows of up to n names that contain every word, or beginning of a word, of a text: an
        exact match, then names that are the text but for year and article, then by popularity,
        names that begin with the text raised. If there are none, the most similar names; without
        words, the first rows."""
        starts = _word_starts(text)
        if not starts:
            return list(range(min(n, len(self.names))))
        exact_row = self.find_exact(text)
        rows = self._rows_with(starts)
        weights = self._log_popularity[rows]
        first, end = self._words_with_start(starts[0][1:])
        first_words = self._first_words[:, rows]
        weights[((first_words >= first) & (first_words < end)).any(0)] += _START_WEIGHT
        is_core = np.isin(rows, self._rows_by_core.get(_core_words("".join(starts)), ()))
        best = [[] if exact_row is None else [exact_row]]
        best += [_heaviest(rows[part], weights[part], n) for part in (is_core, ~is_core)]
        return list(dict.fromkeys(chain.from_iterable(best)))[:n] or self.nearest(text, n)

    def _words_with_start(self, start: str) -> tuple[int, int]:
        """Number of the first word that begins with a text, and of the one after the last."""
        return bisect_left(self._words, start), bisect_left(self._words, start + _LAST_CHARACTER)

    def _rows_with(self, starts: Sequence[str]) -> NDArray[np.int64]:
        """Rows of the names in which every text of `starts` begins a word, in their order.

        Words that begin alike are neighbors in the index, so this reads no names.
        """
        is_match = np.ones(len(self.names), np.bool_)
        for word in {x[1:] for x in starts}:
            first, end = self._words_with_start(word)
            has_word = np.zeros(len(self.names), np.bool_)
            has_word[self._word_rows[self._word_starts[first] : self._word_starts[end]]] = True
            is_match &= has_word
        return np.flatnonzero(is_match)

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


def _heaviest(rows: NDArray[np.int64], weights: NDArray[np.float64], n: int) -> list[int]:
    """The n rows of largest weight in order, of equal ones the first rows; without a whole sort."""
    if len(rows) > n:
        least = np.partition(weights, -n)[-n]
        above = np.flatnonzero(weights > least)
        chosen = np.concatenate([above, np.flatnonzero(weights == least)[: n - len(above)]])
        rows, weights = rows[chosen], weights[chosen]
    order: list[int] = rows[np.lexsort((rows, -weights))].tolist()
    return order


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
