"""Attributes of items: which items a filter chooses, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from idcf.data.attributes import ItemAttributes
from idcf.data.interactions import Vocab
from idcf.errors import DataError

GENRES = ["Action|Comedy", "Comedy", None, "Drama | Action", ["Drama", "War|Peace"], float("nan")]
YEARS = [1994, 1995.0, None, 1994.0, 1996, 1994]


def attributes() -> ItemAttributes:
    items = Vocab(["a", "b", "c", "d", "e", "f"])
    return ItemAttributes.from_table(
        items,
        ["b", "a", "d", "c", "e", "nowhere", "f"],
        {
            "genre": [GENRES[k] for k in (1, 0, 3, 2, 4)] + ["Comedy", GENRES[5]],
            "year": [YEARS[k] for k in (1, 0, 3, 2, 4)] + [1994, YEARS[5]],
        },
    )


def test_the_most_frequent_words_are_in_ascending_order() -> None:
    columns = attributes().columns
    assert columns["genre"].frequent_words(3) == ["Action", "Comedy", "Drama"]
    assert columns["year"].frequent_words(1) == ["1994"]
    assert columns["year"].frequent_words(9) == ["1994", "1995", "1996"]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ({"genre": "Comedy"}, [0, 1]),
        ({"genre": ["Comedy", "Drama"]}, [0, 1, 3, 4]),
        ({"genre": "Comedy|Drama"}, [0, 1, 3, 4]),
        ({"genre": ["War|Peace"]}, [4]),
        ({"genre": "Action", "year": 1994}, [0, 3]),
        ({"genre": "Comedy", "year": [1995, "1996"]}, [1]),
        ({"year": 1994.0}, [0, 3, 5]),
        ({"genre": "Comedy", "year": 1996}, []),
    ],
)
def test_a_filter_chooses_the_items_that_have_the_values(where, rows) -> None:
    assert attributes().rows(where).tolist() == rows


def test_equal_filters_give_one_array() -> None:
    """Requests are computed together if they share their candidates, which are compared by `is`."""
    table = attributes()
    first = table.rows({"genre": ["Comedy", "Drama"], "year": 1994})
    assert table.rows({"year": "1994", "genre": ("Drama", "Comedy")}) is first
    for k in range(300):  # more filters than are held
        table.rows({"genre": ["Comedy", "Drama"], "year": [1994, 1995, 1996][: k % 3 + 1]})
    assert len(table._cache) <= 256


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"gener": "Comedy"}, "no column named 'gener'; did you mean 'genre'? known: genre, year"),
        ({"genre": "comedy"}, "no item has genre 'comedy'; did you mean 'Comedy'? known: Action, "),
        ({"genre": ["Comedy", "Noir"]}, "no item has genre 'Noir'; known: Action, Comedy, Drama"),
        ({"genre": []}, "column 'genre' has no value"),
        ({"genre": None}, "column 'genre' has no value"),
        ({}, "where must be a dict"),
        ("genre=Comedy", "where must be a dict"),
    ],
)
def test_what_is_unknown_is_named(where, message: str) -> None:
    with pytest.raises(DataError) as error:
        attributes().rows(where)
    assert message in str(error.value)


def test_a_long_list_of_words_is_cut() -> None:
    table = ItemAttributes.from_cells({"tag": [f"word {n:03}" for n in range(100)]})
    with pytest.raises(DataError, match=r"word 029 and 70 more$"):
        table.rows({"tag": "else"})


def test_the_most_frequent_words_are_suggested() -> None:
    cells = [f"{n:04}" for n in range(2000)] + ["zulu", "zulu"]
    table = ItemAttributes.from_cells({"tag": cells})
    with pytest.raises(DataError, match=r"did you mean 'zulu'\? known: 0000, .*, zulu and 1,971 m"):
        table.rows({"tag": "zuluu"})


def test_cells_are_those_that_were_read() -> None:
    column = attributes().columns["genre"]
    cells = column.cells(6)
    assert cells == [["Action", "Comedy"], ["Comedy"], [], ["Action", "Drama"],
                     ["Drama", "War|Peace"], []]  # fmt: skip
    again = ItemAttributes.from_cells({"genre": cells}).columns["genre"]
    assert again.words == column.words
    np.testing.assert_array_equal(again.item_rows, column.item_rows)
    np.testing.assert_array_equal(again.offsets, column.offsets)
