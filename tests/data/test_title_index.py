"""The index of title words against a scan of all names, and how many names a search reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from idcf.data.title_search import TitleIndex


def random_names(n: int) -> list[str | None]:
    """Return names of some words, many of which begin alike."""
    rng = np.random.default_rng(0)
    words = ["the", "a", "an", "and", "an7", "été", "été2", "matrix", "mat", "x", "2", "20", "2001"]
    words += [f"word{k}" for k in range(40)]
    return [" ".join(rng.choice(words, rng.integers(1, 6))) for _ in range(n)] + [None, "", "- -"]


@pytest.mark.parametrize(
    "text",
    ["a", "an a", "THE Matrix", "ete", "2 20", "word1 word", "x x", "word39 the", "none", "i"],
)
def test_the_names_of_the_index_are_those_of_a_scan(text: str) -> None:
    names = random_names(500)
    index = TitleIndex([f"i{n}" for n in range(len(names))], names)
    expected = {row for row in range(len(names)) if index.matches(row, text)}
    if expected:
        assert {*index.search(text, len(names))} == expected


class CountedList(list[str]):
    """Counts the names that are read."""

    n_reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.n_reads += 1
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        self.n_reads += len(self)
        return super().__iter__()


def test_a_search_reads_the_names_that_match_and_no_others() -> None:
    names = [f"film {k}" for k in range(20_000)]
    index = TitleIndex(range(len(names)), names)
    spaced_words = CountedList(index._spaced_words)
    index._spaced_words = spaced_words
    assert index.search("film 1234") == [1234, *range(12340, 12349)]
    assert 0 < spaced_words.n_reads <= 2 * 11
    assert index.search("nothing like it", 3) == []
    assert spaced_words.n_reads <= 2 * 11
