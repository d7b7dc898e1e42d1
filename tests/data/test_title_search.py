"""Search by title: case, accents, word order and spelling mistakes."""

from __future__ import annotations

import time

import pytest

from idcf.data.title_search import TitleIndex, join_alternatives, normalize_text

NAMES = [
    "Toy Story (1995)", "Toy Story 2 (1999)", "Matrix, The (1999)", "Amélie (2001)", None,
    "Godfather, The (1972)", "Godfather: Part II, The (1974)", "Toys (1992)", "Straße (1954)",
]  # fmt: skip
TITLES = TitleIndex([f"i{n}" for n in range(len(NAMES))], NAMES)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("toy story", [0, 1]),
        ("TOY", [0, 1, 7]),
        ("story toy", [0, 1]),
        ("the godfather", [5, 6]),
        ("matrix", [2]),
        ("amelie", [3]),
        ("strasse", [8]),
        ("i4", [4]),
        ("god 2", []),
        ("toy stroy", [0]),
        ("mtarix", [2]),
        ("godfahter part", [6]),
    ],
)
def test_search(text: str, rows: list[int]) -> None:
    assert TITLES.search(text)[: len(rows)] == rows


def test_find_exact_ignores_case_and_accents() -> None:
    assert TITLES.find_exact("toy story (1995)") == 0
    assert TITLES.find_exact(" AMELIE (2001) ") == 3
    assert TITLES.find_exact("i2") == 2
    assert TITLES.find_exact("toy story") is None


def test_an_empty_text_and_a_text_like_no_title() -> None:
    assert TITLES.search("", 3) == [0, 1, 2]
    assert TITLES.search("  !? ", 2) == [0, 1]
    assert TITLES.search("qqqqzzzz") == []
    assert TitleIndex([], []).search("toy") == []


def test_join_alternatives_and_normalize_text() -> None:
    assert join_alternatives(["a"]) == "'a'"
    assert join_alternatives(["a", "b", "c"]) == "'a', 'b' or 'c'"
    assert normalize_text("ÀÉß") == "aess"


def test_a_large_catalogue_is_searched_in_milliseconds() -> None:
    large = TitleIndex(
        range(50_000), [f"Film number {n} of many ({1900 + n % 100})" for n in range(50_000)]
    )
    best = 1.0
    for _ in range(3):
        began = time.perf_counter()
        assert large.search("flim nubmer 123")
        best = min(best, time.perf_counter() - began)
    assert best < 0.25
