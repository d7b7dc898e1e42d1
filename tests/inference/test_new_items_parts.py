"""The parts of `partial_fit_items`: ids of new items, raters and their histories."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import board
from hypothesis import given
from hypothesis import strategies as st

from idcf.data.history_reader import HistoryReader
from idcf.data.interactions import Interactions, Vocab
from idcf.errors import ColdUserError, DataError
from idcf.inference.new_items import _cast_item_id, _extend_vocab, _NewItemRaters
from idcf.inference.predictor import Predictor
from idcf.recommender import Recommender

OPTIONS: dict[str, Any] = {
    "key_threshold": 1, "device": "cpu", "sweeps": 24, "burn_in": 12, "embedding_size": 2, "rank": 3
}  # fmt: skip
TRAINING = Interactions(
    Vocab(["a", "b", "c"]),
    Vocab(["x", "y", "z"]),
    np.array([0, 1, 0, 2]),
    np.array([2, 1, 0, 0]),
    np.array([3, 4, 5, 1], np.float32),
)
READER = HistoryReader(TRAINING.items, implicit=False, levels=(1, 5))


def ratings(*rows: tuple[Any, Any, float]) -> Interactions:
    """Return a table of (user, item, rating) in the order of the first appearance of ids."""
    users, items = (list(dict.fromkeys(x)) for x in list(zip(*rows, strict=True))[:2])
    columns = [
        np.array([users.index(u) for u, _, _ in rows]),
        np.array([items.index(i) for _, i, _ in rows]),
        np.array([r for _, _, r in rows], np.float32),
    ]
    return Interactions(Vocab(users), Vocab(items), *columns)


def raters(table: Interactions, training: Interactions | None = TRAINING) -> _NewItemRaters:
    _, item_rows = _extend_vocab(TRAINING.items, table.items)
    return _NewItemRaters(table, item_rows, training)


@cache
def fitted_once() -> Predictor:
    return Recommender("idcf-bayes", **OPTIONS).fit(board(30, 16, 5, 10)).predictor


def fitted() -> Recommender:
    """Return a recommender that may be changed."""
    recommender = Recommender("idcf-bayes", **OPTIONS)
    recommender._set_state(fitted_once().artifact, fitted_once().training_table)
    return recommender


@given(
    st.lists(st.integers(-5, 30), unique=True, min_size=1),
    st.lists(st.integers(-5, 30), unique=True),
)
def test_old_rows_stay_and_new_ids_follow_in_order(old: list[int], new: list[int]) -> None:
    """Text that is written like an old number is that number."""
    for given_ids in (new, [str(x) for x in new]):
        vocab, rows = _extend_vocab(Vocab(old), Vocab(given_ids))
        assert list(vocab.ids) == old + [x for x in new if x not in old]
        assert [vocab.ids[row] for row in rows] == new
        assert rows.dtype == np.int64


def test_new_ids_of_a_model_with_text_ids_become_text() -> None:
    vocab, rows = _extend_vocab(Vocab(["1", "b"]), Vocab([1, 7]))
    assert vocab.ids == ("1", "b", "7")
    assert rows.tolist() == [0, 2]


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("-3", -3), ("0", 0)])
def test_text_that_is_a_number_becomes_one(text: str, number: int) -> None:
    assert _cast_item_id(text, 1) == number
    assert _cast_item_id(np.int64(number), 1) == number
    assert type(_cast_item_id(np.int64(number), 1)) is int
    assert _cast_item_id(number, "x") == text


@pytest.mark.parametrize("text", ["007", "1.0", "x", "", "--3", "³", " 1", "1_000", "9" * 5000])
def test_other_text_is_refused_by_a_model_with_integer_ids(text: str) -> None:
    with pytest.raises(DataError, match=f"item id {text!r} is a string, but .* are integers; cast"):
        _cast_item_id(text, 1)


def test_text_ids_that_are_nearly_numbers_are_text() -> None:
    reader = HistoryReader(Vocab(["--3", "-3", "007", "-", ""]), implicit=True)
    assert reader.item_row("--3") == 0
    assert reader.item_row(-3) == reader.item_row("-3") == 1
    assert not reader.knows_item(7)


def test_histories_come_from_the_training_table_in_the_order_of_rows() -> None:
    users = raters(ratings(("a", "new", 4), ("b", "new", 2))).read_histories(READER, None)
    assert [x.item_rows.tolist() for x in users] == [[0, 2], [1]]
    assert [x.values.tolist() for x in users] == [[5, 3], [4]]


def test_given_histories_win_over_the_training_table() -> None:
    given_histories = {"a": {"y": 2.0}, "stranger": {"x": 1.0}}
    table = ratings(("a", "new", 4), ("stranger", "new", 2), ("c", "new", 1))
    users = raters(table).read_histories(READER, given_histories)
    assert [x.item_rows.tolist() for x in users] == [[1], [0], [0]]


def test_the_rated_item_is_left_out_of_the_history() -> None:
    """Else a rating would count twice: as history of the user, and as rating of the item."""
    table = ratings(("d", "x", 5), ("d", "z", 1), ("e", "new", 2))
    histories = {"d": {"x": 5.0, "y": 3.0, "z": 1.0}, "e": {"x": 5.0}}
    users = raters(table).read_histories(READER, histories)
    assert [x.item_rows.tolist() for x in users] == [[1], [0]]
    assert [x.values.tolist() for x in users] == [[3], [5]]


def test_histories_by_user_may_be_a_table_or_have_text_for_numbers() -> None:
    frame = pd.DataFrame({"user_id": ["d", "d"], "item_id": ["x", "y"], "rating": [4.0, 2.0]})
    (user,) = raters(ratings(("d", "new", 3))).read_histories(READER, frame)
    assert user.item_rows.tolist() == [0, 1]
    (user,) = raters(ratings((7, "new", 3))).read_histories(READER, {"7": {"z": 1.0}})
    assert user.item_rows.tolist() == [2]


def test_a_rater_may_have_no_history_but_must_say_so() -> None:
    table = ratings(("d", "new", 3))
    (user,) = raters(table).read_histories(READER, {"d": {}})
    assert len(user.item_rows) == 0
    for training in (TRAINING, None):
        with pytest.raises(ColdUserError) as caught:
            raters(table, training).read_histories(READER, {})
        assert str(caught.value) == (
            "the history of user 'd' is not known; pass histories={'d': {item_id: rating, ...}}, "
            "or {} if there is none"
        )


@pytest.mark.parametrize("histories", [[{"x": 5.0}], ({"x": 5.0},)])
def test_histories_without_user_ids_are_refused(histories: Any) -> None:
    with pytest.raises(DataError, match=r"histories has no user ids; pass \{user_id: history\}"):
        raters(ratings(("a", "new", 4))).read_histories(READER, histories)


def test_ratings_of_the_training_table_are_refused_with_their_number() -> None:
    table = ratings(("a", "new", 1), ("a", "z", 3), ("c", "x", 1), ("d", "x", 2))
    with pytest.raises(
        DataError, match=r"user 'a' has rated item 'z' in training already \(2 such"
    ):
        raters(table)
    raters(table, None)  # a loaded model does not know


def test_a_new_user_with_the_row_minus_one_repeats_nothing() -> None:
    """Pairs are numbered user · items + item; those of unknown users must not collide."""
    table = ratings(*((f"new{n}", item, 3.0) for n in range(3) for item in ("x", "y", "z", "w")))
    assert raters(table).training_rows.tolist() == [-1, -1, -1]


def test_the_training_table_gets_the_new_ratings_of_its_users_only() -> None:
    table = ratings(("a", "new", 4), ("stranger", "new", 2), ("b", "x", 1))
    items, _ = _extend_vocab(TRAINING.items, table.items)
    extended = raters(table).extended_training_table(items)
    assert extended is not None
    rows = list(
        zip(extended.user.tolist(), extended.item.tolist(), extended.rating.tolist(), strict=True)
    )
    assert rows[:4] == [(0, 2, 3.0), (1, 1, 4.0), (0, 0, 5.0), (2, 0, 1.0)]
    assert rows[4:] == [(0, 3, 4.0), (1, 0, 1.0)]
    assert extended.items.ids == ("x", "y", "z", "new")
    assert TRAINING.items.ids == ("x", "y", "z")
    assert raters(table, None).extended_training_table(items) is None


def test_the_ratings_of_strangers_teach_an_item() -> None:
    """Even users like even items: one liked by even strangers is liked by even users."""
    even = {f"i{n}": 5.0 if n % 2 == 0 else 1.0 for n in range(10)}
    odd = {item: 6.0 - value for item, value in even.items()}
    rows = pd.DataFrame(
        {
            "user_id": [f"n{k}" for k in range(12)],
            "item_id": ["new"] * 12,
            "rating": [5.0, 1.0] * 6,
        }
    )
    histories = {f"n{k}": odd if k % 2 else even for k in range(12)}
    recommender = fitted().partial_fit_items(rows, histories=histories, titles={"new": "New"})
    liked, disliked = (float(recommender.predict(x, ["new"])[0]) for x in (even, odd))
    assert liked > disliked + 1
    assert recommender.artifact.titles[-1] == "New"
    assert fitted_once().artifact.titles == (None,) * 16  # the old predictor is as it was


def test_columns_may_have_other_names_and_old_titles_stay() -> None:
    frame = pd.DataFrame({"who": ["n1"], "what": ["new"], "stars": [4.0]})
    recommender = fitted().partial_fit_items(
        frame,
        columns={"user_id": "who", "item_id": "what", "rating": "stars"},
        histories={"n1": {"i2": 5.0}},
        titles={"i2": "Two"},
    )
    again = recommender.partial_fit_items(
        pd.DataFrame({"user_id": ["n2"], "item_id": ["newer"], "rating": [2.0]}),
        histories={"n2": {"new": 5.0}},
    )
    titles = dict(zip(again.artifact.items.ids, again.artifact.titles, strict=True))
    assert (titles["i2"], titles["new"], titles["newer"]) == ("Two", None, None)
    assert again.artifact.manifest.domain.n_items == 18


@pytest.mark.parametrize("rating", [-50.0, 11.0])
def test_a_rating_of_another_scale_is_refused(rating: float) -> None:
    frame = pd.DataFrame({"user_id": ["n1"], "item_id": ["new"], "rating": [rating]})
    with pytest.raises(DataError, match=f"rating {rating:g} of item 'new' is outside the scale"):
        fitted().partial_fit_items(frame, histories={"n1": {}})
