"""Histories of new users in every accepted form, and one clear error for each bad one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from idcf.data.features import fit_feature_encoder
from idcf.data.history_reader import (
    HistoryReader,
    NewUser,
    as_users,
    has_many_users,
    read_new_user,
    read_new_users,
)
from idcf.data.interactions import Vocab, titles_by_row
from idcf.errors import DataError

NUMBERS, NAMES = Vocab([10, 20, 30]), Vocab(["007", "20", "toy story"])
RATED = {10: 5.0, 30: 2.0}
USERS_TABLE = pd.DataFrame(
    {"user_id": ["b", "a", "b"], "item_id": [10, 20, 30], "rating": [1, 2, 3]}
)


def explicit(vocab: Vocab = NUMBERS) -> HistoryReader:
    """A reader of ratings from 1 to 5."""
    return HistoryReader(
        vocab, implicit=False, levels=(1, 2, 3, 4, 5), titles=("Heat", "Alien", None)
    )


def implicit() -> HistoryReader:
    """A reader of implicit feedback."""
    return HistoryReader(NUMBERS, implicit=True, levels=(1.0,))


def as_lists(new_user: NewUser) -> tuple[list[int], list[float], tuple[object, ...]]:
    """Item rows, values and unknown items of a new user."""
    return new_user.item_rows.tolist(), new_user.values.tolist(), new_user.unknown_items


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
    assert as_lists(explicit().read_history(history)) == ([0, 2], [5.0, 2.0], ())


@pytest.mark.parametrize(
    "history", [[10, 30], ["10", 30], {10: 7, 30: 1, 20: 0}, (10, 30), {10, 30}, np.array([10, 30])]
)
def test_without_ratings(history: Any) -> None:
    assert as_lists(implicit().read_history(history)) == ([0, 2], [1.0, 1.0], ())


def test_an_integer_matches_a_text_id_only_if_written_alike() -> None:
    reader = explicit(NAMES)
    assert as_lists(reader.read_history({20: 3, "toy story": 4, 7: 1})) == (
        [1, 2],
        [3.0, 4.0],
        (7,),
    )
    assert reader.item_row("007") == 0


@pytest.mark.parametrize("empty", [None, {}, [], (), pd.DataFrame({"item_id": [], "rating": []})])
def test_a_history_may_be_empty(empty: Any) -> None:
    assert as_lists(explicit().read_history(empty)) == ([], [], ())


def test_unknown_items_are_listed() -> None:
    assert explicit().read_history({99: 1, 10: 5, "x": 3}).unknown_items == (99, "x")
    with pytest.raises(DataError, match=r"'hea' is not known.*Heat"):
        explicit().read_history({"hea": 5})
    with pytest.raises(DataError, match="'99' and the 1 others are not known"):
        explicit().read_history({99: 5, 98: 4})


@pytest.mark.parametrize(
    ("history", "message"),
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
def test_bad_histories_have_clear_errors(history: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        explicit().read_history(history)


def test_counts_are_not_negative() -> None:
    with pytest.raises(DataError, match="far outside counts from 0"):
        implicit().read_history({10: -1})


def test_several_histories() -> None:
    user_ids, new_users = explicit().read_histories(USERS_TABLE)
    assert user_ids == ["b", "a"]
    assert [as_lists(x)[:2] for x in new_users] == [([0, 2], [1, 3]), ([1], [2])]
    users = as_users([*explicit().read_histories([RATED, {}])[1], *new_users])
    assert users.ids.tolist() == [-1] * 4
    assert users.history.offsets.tolist() == [0, 2, 2, 4, 5]
    assert len(as_users([])) == 0
    with pytest.raises(DataError, match="user_id"):
        explicit().read_histories(USERS_TABLE.drop(columns="user_id"))


@pytest.mark.parametrize(
    "history", [USERS_TABLE, pa.Table.from_pandas(USERS_TABLE), [RATED], [[(1, 2)]]]
)
def test_a_list_of_histories_or_a_user_column_has_many_users(history: Any) -> None:
    assert has_many_users(history)


@pytest.mark.parametrize("history", [None, {}, [], RATED, [(1, 2)], [1], pl.DataFrame()])
def test_other_histories_have_one_user(history: Any) -> None:
    assert not has_many_users(history)


def test_rows_of_ids() -> None:
    reader = explicit()
    assert reader.item_rows(["30", 10, 99, 10], "candidates").tolist() == [0, 2]
    assert reader.item_rows([99], "exclude", strict=False).tolist() == []
    for bad in ("30", 30, [[1]]):
        with pytest.raises(DataError, match="candidates must be a list of item ids"):
            reader.item_rows(bad, "candidates")
    with pytest.raises(DataError, match="candidates: '99' is not known"):
        reader.item_rows([99], "candidates")


def test_titles_by_row() -> None:
    assert titles_by_row(NUMBERS, {"10": "Heat", 99: "Nowhere", 30: "Alien"}) == (
        "Heat",
        None,
        "Alien",
    )
    assert titles_by_row(NUMBERS, None) == (None, None, None)


def test_new_users_with_features() -> None:
    _, encoder = fit_feature_encoder(Vocab(range(4)), range(4), {"age": [20, 30, 40, 50]})
    user_ids, new_users = read_new_users(
        explicit(), encoder, [RATED, None, {}], [{"age": 20}, {"age": 35}, None]
    )
    assert user_ids == [None, None, None]
    assert [x.has_data for x in new_users] == [True, True, False]
    features = as_users(new_users).features
    assert features is not None
    np.testing.assert_allclose(features[0], encoder.transform_one({"age": 20}))
    assert not features[2].any()
    assert as_users([new_users[2]]).features is None


def test_features_without_an_encoder_or_without_a_list_are_rejected() -> None:
    with pytest.raises(DataError, match="trained without any"):
        read_new_user(explicit(), None, RATED, {"age": 20})
    with pytest.raises(DataError, match="a list of dicts"):
        read_new_users(explicit(), None, USERS_TABLE, [{"age": 20}])
    with pytest.raises(DataError, match="features are 1, but there are 2"):
        read_new_users(explicit(), None, [RATED, {}], [{"age": 20}])
