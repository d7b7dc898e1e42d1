"""Search by title: case, accents, word order and spelling mistakes."""

from __future__ import annotations

import time

import numpy as np
import pytest

from idcf.data.title_search import TitleIndex, join_alternatives, normalize_text
from idcf.errors import DataError

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


def test_a_title_that_items_share_is_refused_with_their_ids() -> None:
    names = ["Chasing Amy (1997)", "Kull (1997)", "chasing amy (1997)", None]
    index = TitleIndex([246, 1, 268, "Kull"], names)
    for text in ("Chasing Amy (1997)", "chasing amy"):
        message = r"did you mean 246 or 268: both are 'Chasing Amy \(1997\)'; give the id"
        with pytest.raises(DataError, match=message):
            index.resolve(text)
    assert [index.resolve(x) for x in ("246", "268", "kull (1997)", "Kull")] == [0, 2, 1, 3]


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


def test_names_that_begin_with_the_first_word_come_first() -> None:
    names = ["The Story of Us", "Us and the Story", "Story, A", "Love Story", "Storyville"]
    index = TitleIndex(range(5), names)
    assert index.search("story") == [2, 0, 4, 1, 3], "the article of a title does not count"
    assert index.search("story", 2) == [2, 0]
    assert index.search("Love Story") == [3]
    assert index.search("STORY, a") == [2, 1], "the exact name, then a word that begins with a"


def test_the_exact_name_is_first_even_where_others_begin_alike() -> None:
    index = TitleIndex([1, 2, 3], ["Alien Nation", "Aliens", "Alien"])
    assert index.search("alien") == [2, 0, 1]
    assert index.search("2") == [1], "an id"
    assert TitleIndex(["alien", "x"], ["Heat", "Alien"]).find_exact("alien") == 0, (
        "ids before names"
    )


def test_titles_that_are_the_text_come_first_then_popular_ones() -> None:
    names = ["Aliens (1986)", "Star Maker, The (1995)", "Alien (1979)", "Alien Nation (1988)"]
    names += ["Star Wars (1977)", "Lone Star (1996)", "Love Story (1970)", "Story of X, A (1994)"]
    index = TitleIndex(range(8), names, np.log([300, 2, 200, 9, 500, 30, 90, 2]))
    assert index.search("alien") == [2, 0, 3], "the title itself, though fewer know it"
    assert index.search("star") == [4, 5, 1]
    assert index.search("story") == [6, 7], "much more popular, though the other begins so"
    assert index.search("the star maker") == [1], "the article may stand before"
    assert index.search("star 1995") == [1]


def test_of_equal_names_the_first_is_found() -> None:
    index = TitleIndex([7, 8], ["Heat (1995)", "HEAT (1995)"])
    assert index.find_exact("heat (1995)") == 0
    assert index.search("heat (1995)") == [0, 1]


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("", True),
        ("toy", True),
        ("STO to", True),
        ("1995 toy", True),
        ("oy", False),
        ("toys", False),
    ],
)
def test_a_name_matches_if_every_word_begins_one_of_its_words(text: str, matched: bool) -> None:
    assert TITLES.matches(0, text) is matched
    assert (0 in TITLES.search(text)) or not matched


def test_the_nearest_names_are_sorted_and_limited() -> None:
    assert TITLES.nearest("Toy Storry (1995)", 1) == [0]
    assert sorted(TITLES.nearest("Toy Storry (1999)", 2)) == [0, 1]
    assert TITLES.nearest("", 3) == []
    assert TitleIndex([], []).nearest("x") == []


def test_one_name_and_no_name_joined() -> None:
    assert join_alternatives(["a", "b"]) == "'a' or 'b'"
    assert join_alternatives([]) == ""
    assert len(join_alternatives(["x" * 500])) <= 102, "a long name is cut short"
