from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from idcf.data.history_reader import Read, Reader, as_users, is_many, named
from idcf.data.interactions import Vocab
from idcf.errors import DataError

NUMBERS, NAMES = Vocab([10, 20, 30]), Vocab(["007", "20", "toy story"])
RATED = {10: 5.0, 30: 2.0}


def explicit(vocab: Vocab = NUMBERS) -> Reader:
    return Reader(vocab, implicit=False, levels=(1, 2, 3, 4, 5), titles=("Heat", "Alien", None))


def implicit() -> Reader:
    return Reader(NUMBERS, implicit=True, levels=(1.0,))


def plain(read: Read) -> tuple[list[int], list[float], tuple[object, ...]]:
    return read.rows.tolist(), read.values.tolist(), read.unknown


@pytest.mark.parametrize(
    "history",
    [
        RATED,
        {"30": 2, "10": "5"},
        [(10, 5), (30, 2)],
        ((30, 2.0), ("10", 5.0)),
        [(10, 1), (30, 2), (10, 5)],  # the last rating counts
        np.array([[10, 5], [30, 2]]),
        pd.DataFrame({"item_id": [10, 30], "rating": [5, 2]}),
        pl.DataFrame({"item_id": ["30", "10"], "rating": [2.0, 5.0]}),
        pa.table({"rating": [2.0, 5.0], "item_id": [30, 10]}),
    ],
)
def test_every_form_reads_the_same(history: Any) -> None:
    assert plain(explicit().one(history)) == ([0, 2], [5.0, 2.0], ())


@pytest.mark.parametrize(
    "history", [[10, 30], ["10", 30], {10: 7, 30: 1, 20: 0}, (10, 30), {10, 30}, np.array([10, 30])]
)
def test_without_ratings(history: Any) -> None:
    assert plain(implicit().one(history)) == ([0, 2], [1.0, 1.0], ())


def test_numbers_find_names_but_only_if_written_alike() -> None:
    reader = explicit(NAMES)
    assert plain(reader.one({20: 3, "toy story": 4, 7: 1})) == ([1, 2], [3.0, 4.0], (7,))
    assert reader.row("007") == 0


@pytest.mark.parametrize("nothing", [None, {}, [], (), pd.DataFrame({"item_id": [], "rating": []})])
def test_nothing_is_a_history(nothing: Any) -> None:
    assert plain(explicit().one(nothing)) == ([], [], ())


def test_unknown_items_are_kept_apart() -> None:
    assert explicit().one({99: 1, 10: 5, "x": 3}).unknown == (99, "x")
    with pytest.raises(DataError, match=r"'hea' is not known.*Heat"):
        explicit().one({"hea": 5})
    with pytest.raises(DataError, match="'99' and the 1 others are not known"):
        explicit().one({99: 5, 98: 4})


@pytest.mark.parametrize(
    ("history", "match"),
    [
        ({10: float("nan")}, "rating nan of item 10 is not finite"),
        ({10: 5, 20: float("inf")}, "rating inf of item 20 is not finite"),
        ({10: 500}, "rating 500 of item 10 is far outside"),
        ({10: -1e30}, "far outside"),
        ({10: "good"}, "rating 'good' of item 10 is not a number"),
        ({10: None}, "item 10 has no rating"),
        ({10: 10**400}, "is not a number"),
        ([10, 20], "ratings are needed"),
        ([(10, 5), 20], "mixes ids and pairs"),
        ([([10], 5)], "of type list"),
        ("10", "cannot read str"),
        (10, "cannot read int"),
        (object(), "cannot read object"),
        (
            pd.DataFrame({"item": [10], "rating": [5]}),
            "no column named 'item_id'; did you mean 'item'",
        ),
        (pd.DataFrame({"item_id": [10]}), "no column named 'rating'"),
    ],
)
def test_bad_histories_say_why(history: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        explicit().one(history)


def test_counts_are_not_negative() -> None:
    with pytest.raises(DataError, match="far outside counts from 0"):
        implicit().one({10: -1})


def test_many() -> None:
    frame = pd.DataFrame({"user_id": ["b", "a", "b"], "item_id": [10, 20, 30], "rating": [1, 2, 3]})
    who, reads = explicit().many(frame)
    assert who == ["b", "a"]
    assert [plain(x)[:2] for x in reads] == [([0, 2], [1, 3]), ([1], [2])]
    users = as_users([*explicit().many([RATED, {}])[1], *reads])
    assert users.ids.tolist() == [-1] * 4
    assert users.history.offsets.tolist() == [0, 2, 2, 4, 5]
    assert len(as_users([])) == 0
    with pytest.raises(DataError, match="user_id"):
        explicit().many(frame.drop(columns="user_id"))
    assert [is_many(x) for x in (frame, pa.Table.from_pandas(frame), [RATED], [[(1, 2)]])] == [
        True
    ] * 4
    assert not any(is_many(x) for x in (None, {}, [], RATED, [(1, 2)], [1], pl.DataFrame()))


def test_rows_of_ids() -> None:
    reader = explicit()
    assert reader.rows(["30", 10, 99, 10], "candidates").tolist() == [0, 2]
    assert reader.rows([99], "exclude", strict=False).tolist() == []
    for bad in ("30", 30, [[1]]):
        with pytest.raises(DataError, match="candidates must be a list of item ids"):
            reader.rows(bad, "candidates")
    with pytest.raises(DataError, match="candidates: '99' is not known"):
        reader.rows([99], "candidates")


def test_titles_find_their_items() -> None:
    assert named(NUMBERS, {"10": "Heat", 99: "Nowhere", 30: "Alien"}) == ("Heat", None, "Alien")
    assert named(NUMBERS, None) == (None, None, None)
