"""The index of title words against a scan of all names, and how many names a search reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from idcf.data.title_search import TitleIndex, _core_words, normalize_text


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


def test_a_search_reads_no_names() -> None:
    names = [f"film {k}" for k in range(20_000)]
    index = TitleIndex(range(len(names)), names)
    spaced_words = CountedList(index._spaced_words)
    index._spaced_words = spaced_words
    assert index.search("film 1234") == [1234, *range(12340, 12349)]
    assert index.search("film", 3) == [1000, 1001, 1002]  # names that are the text and a year
    assert index.search("nothing like it", 3) == []
    assert spaced_words.n_reads == 0


@pytest.mark.parametrize("n", [1, 3, 500])
@pytest.mark.parametrize("text", ["a", "the", "mat", "ete", "2", "an word1", "the matrix", "2001"])
def test_the_order_is_that_of_a_sort_of_all_matches(text: str, n: int) -> None:
    names = random_names(500)
    popularity = np.random.default_rng(1).integers(0, 4, len(names)).astype(float)  # many are equal
    index = TitleIndex([f"i{n}" for n in range(len(names))], names, popularity)
    start, core = f" {normalize_text(text).split()[0]}", _core_words(f" {normalize_text(text)}")

    def key(row: int) -> tuple[bool, float, int]:
        spaced = index._spaced_words[row]
        begins = spaced.startswith(start) or _core_words(spaced).startswith(start)
        return _core_words(spaced) != core, -(popularity[row] + np.log(4) * begins), row

    rows = sorted((x for x in range(len(names)) if index.matches(x, text)), key=key)
    exact = index.find_exact(text)
    first = [] if exact is None else [exact]
    assert index.search(text, n) == list(dict.fromkeys([*first, *rows]))[:n]
