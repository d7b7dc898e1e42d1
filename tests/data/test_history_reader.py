"""Histories of new users in every accepted form, and one clear error for each bad one."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from idcf.data.columns import DataWarning
from idcf.data.features import fit_feature_encoder
from idcf.data.history_reader import (
    HistoryReader,
    NewUser,
    as_users,
    has_many_users,
    history_from_item_rows,
    read_new_user,
    read_new_users,
    require_one_user,
    warn_unknown_histories,
    warn_unknown_items,
)
from idcf.data.interactions import Vocab, titles_by_row
from idcf.errors import DataError

NUMBERS, NAMES = Vocab([10, 20, 30]), Vocab(["007", "20", "toy story"])
RATED = {10: 5.0, 30: 2.0}
RATED_TABLE = {"item_id": [10, 30], "rating": [5.0, 2.0]}
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
        explicit().item_rows(["hea"], "exclude")
    with pytest.raises(DataError, match="'99' and the 1 others are not known"):
        explicit().item_rows([99, 98], "exclude")


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ({10: float("nan")}, "rating nan of item 10 is not finite"),
        ({10: 5, 20: float("inf")}, "rating inf of item 20 is not finite"),
        ({10: 500}, "rating 500 of item 10 is outside"),
        ({10: -1e30}, "outside"),
        ({10: "good"}, "rating 'good' of item 10 is not a number"),
        ({10: None}, "item 10 has no rating"),
        ({20: 4, 10: True}, "rating True of item 10 is no number"),
        ({10: False}, "rating False of item 10 is no number"),
        (pd.DataFrame({"item_id": [10], "rating": [True]}), "rating True of item 10"),
        (pd.Series({10: 5.0}), r"cannot read Series as a history; pass \.to_dict\(\)"),
        (pl.Series([10]), r"\.to_list\(\) of one of ids"),
        ({10: 10**400}, "is not a number"),
        ([10, 20], "ratings are needed"),
        ([(10, 5), 20], "mixes ids, pairs and triples"),
        ([([10], 5)], "of type list"),
        ("10", "cannot read str"),
        (10, "cannot read int"),
        (object(), "cannot read object"),
        (
            pd.DataFrame({"item_i": [10], "rating": [5]}),
            "no column named 'item_id'; did you mean 'item_i'",
        ),
        (pd.DataFrame({"item_id": [10]}), "no column named 'rating'"),
    ],
)
def test_bad_histories_have_clear_errors(history: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        explicit().read_history(history)


def test_counts_are_not_negative() -> None:
    with pytest.raises(DataError, match="outside counts from 0"):
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


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (USERS_TABLE, "the table holds histories of 2 users, .* one user at a time"),
        (pa.Table.from_pandas(USERS_TABLE), "histories of 2 users"),
        ([RATED, RATED, {}], "the list holds histories of 3 users.*pass one history"),
        ([[10, 30]], "histories of 1 user, "),
    ],
)
def test_several_users_are_not_read_as_one(history: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        require_one_user(history)


@pytest.mark.parametrize(
    "history", [None, RATED, [(10, 5)], USERS_TABLE[USERS_TABLE.user_id == "b"]]
)
def test_rows_of_one_user_are_one_user(history: Any) -> None:
    require_one_user(history)


def test_a_lazy_table_is_to_be_collected() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=r"LazyFrame; collect\(\) it first"):
            require_one_user(pl.LazyFrame(RATED_TABLE))


def test_a_title_and_a_table_are_no_ids() -> None:
    with pytest.raises(DataError, match="'Alien' is a title; pass its id, 20"):
        explicit().item_row("Alien")
    with pytest.raises(DataError, match="pass its item_id column"):
        explicit().item_rows(pd.DataFrame(RATED_TABLE), "candidates")


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


def test_hints_are_the_names_that_resemble_or_contain_the_text() -> None:
    vocab = Vocab(["heat", "heater", "alien", "cheat sheet", "the heat is on"])
    reader = HistoryReader(vocab, implicit=True, titles=("Heat (1995)", None, "Alien", None, None))
    assert reader.nearest_names("haet", 1) == ["heat"]
    assert reader.nearest_names("HEAT") == ["heat", "heater", "cheat sheet"]
    assert "the heat is on" in reader.nearest_names("heat is")
    assert reader.nearest_names("xx") == []
    assert reader.nearest_names("is") == [], "two letters are contained in too many names"
    assert reader.nearest_names("") == []


def test_an_unknown_item_is_named_with_the_nearest() -> None:
    reader = explicit(Vocab(["heat", "alien", "up"]))
    with pytest.raises(
        DataError, match=r"item: 'haet' is not known to the model; nearest known: H?h?eat"
    ):
        reader.item_row("haet")
    with pytest.raises(
        DataError, match=r"exclude: 'zz' and the 2 others are not known to the model$"
    ):
        reader.item_rows(["zz", "yy", "qq"], "exclude")
    with pytest.raises(DataError, match="is not known"):
        reader.item_row(["heat"])
    assert not reader.knows_item({"heat"})
    assert reader.item_row("up") == 2


@pytest.mark.parametrize(
    ("levels", "rating", "accepted"),
    [
        ((1, 2, 3, 4, 5), 6, True),  # one step more: a rare level may be missing
        ((1, 2, 3, 4, 5), 6.1, False),
        ((1, 2, 3, 4, 5), 0, True),
        ((1, 2, 3, 4, 5), -0.1, False),
        ((1, 4, 5), 8, True),  # the largest step
        ((0.5, 1, 1.5, 2), 2.6, False),
        (tuple(range(101)), 110, True),  # at least a tenth of the scale
        (tuple(range(101)), 111, False),
        ((3.0,), 4, True),  # one level: a margin of 1
        ((3.0,), 4.1, False),
        ((), 1e9, True),
    ],
)
def test_ratings_of_another_scale_are_rejected(levels: Any, rating: float, accepted: bool) -> None:
    reader = HistoryReader(NUMBERS, implicit=False, levels=levels)
    if accepted:
        assert reader.read_history({10: rating}).values.tolist() == [np.float32(rating)]
        return
    with pytest.raises(DataError, match=r"of item 10 is outside the scale of the model"):
        reader.read_history({10: rating})


def test_a_history_of_unknown_items_is_empty() -> None:
    reader = explicit(Vocab(["heat", "alien", "up"]))
    new_user = reader.read_history({"haet": 5, "zz": 1})
    assert (len(new_user.item_rows), new_user.unknown_items) == (0, ("haet", "zz"))
    with pytest.warns(DataWarning, match=r"no item of the history is known .* 'haet' \(nearest kn"):
        warn_unknown_histories(reader, [new_user])
    known = reader.read_history({"heat": 5, "zz": 1})
    with pytest.warns(DataWarning, match="no item of users 'ann', 2 is known to the model"):
        warn_unknown_histories(reader, [new_user, known, new_user], ["ann", "bob", None])
    with warnings.catch_warnings(action="error"):
        warn_unknown_histories(reader, [known, reader.read_history(None)])


def test_unknown_items_are_warned_of_once_with_an_example() -> None:
    reader = explicit()
    new_users = [reader.read_history({10: 5, 99: 1, "x": 2}), reader.read_history({20: 3, 98: 1})]
    assert [x.unknown_items for x in new_users] == [(99, "x"), (98,)]
    with pytest.warns(DataWarning, match=r"^3 items of the history are unknown .* such as 99$"):
        warn_unknown_items(new_users)
    warn_unknown_items([reader.read_history(RATED)])  # no warning: it would be an error


def test_histories_from_rows_have_values_of_one() -> None:
    rows = [np.array([2, 0]), np.empty(0, np.int64), np.array([1])]
    history = history_from_item_rows(rows)
    assert history.items.tolist() == [2, 0, 1]
    assert history.offsets.tolist() == [0, 2, 2, 3]
    assert history.values.tolist() == [1, 1, 1]
    assert history_from_item_rows([]).offsets.tolist() == [0]


def test_new_users_as_the_models_expect_them() -> None:
    reader = explicit()
    users = as_users([reader.read_history(x) for x in ({30: 2, 10: 5}, None, {20: 4})])
    assert users.ids.tolist() == [-1, -1, -1]
    assert users.history.items.tolist() == [0, 2, 1]
    assert users.history.values.tolist() == [5, 2, 4]
    assert users.history.offsets.tolist() == [0, 2, 2, 3]
    assert len(as_users([]).ids) == 0
