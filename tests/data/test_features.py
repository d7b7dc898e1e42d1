from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from idcf.config import plain, read
from idcf.data.datasets.catalog import find, load
from idcf.data.features import Encoding, encode, encoded, neighbours
from idcf.data.interactions import Interactions, Vocab
from idcf.errors import DataError


def test_numbers_words_and_gaps() -> None:
    vocab = Vocab(["a", "b", "c", "d", "e", "f", "nobody"])
    found = encode(
        vocab,
        ["f", "e", "d", "c", "b", "a", "stranger"],
        {"age": [1, 2, 3, 4, 5, "", 99], "kind": ["x|y", "x", "y", "x|y", "z", "", "x"]},
    )
    assert found.shape[0] == 7
    assert (found[6] == 0).all()  # of whom nothing is known
    known = found[:6].astype(np.float64)
    np.testing.assert_allclose(known.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(known.std(0), 1, atol=1e-5)
    signs = {tuple((column > 0).tolist()) for column in known.T}
    assert (False, False, True, False, True, True) in signs  # "x" of c, e and f
    assert (False, False, True, True, False, True) in signs  # "y" of c, d and f


def test_rare_words_and_constants_say_nothing() -> None:
    vocab = Vocab(range(4))
    assert encode(vocab, range(4), {"once": list("wxyz"), "same": [1, 1, 1, 1]}).shape == (4, 0)
    with pytest.raises(DataError, match=r"'age' has 2 rows, not 4"):
        encode(vocab, range(4), {"age": [1, 2]})


def test_people_carry_what_is_known_of_them() -> None:
    features = np.arange(6, dtype=np.float32).reshape(3, 2)
    table = Interactions.from_columns(np.array([0, 1, 2]), np.array([5, 6, 7]), np.ones(3))
    assert table.people(np.array([0])).features is None
    from dataclasses import replace

    table = replace(table, user_features=features).where(np.array([True, False, True]))
    people = table.people(np.array([2, -1, 0]))
    assert people.features is not None
    assert people.features.tolist() == [[4, 5], [0, 0], [0, 1]]
    assert people.history.lengths().tolist() == [1, 0, 1]


@pytest.mark.accuracy
@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
def test_films_and_people_of_movielens(name: str) -> None:
    if find(name) is None:
        pytest.skip(f"{name} is not on this machine (set IDCF_DATA)")
    table = load(name, progress=False).interactions
    users, items = table.user_features, table.item_features
    assert users is not None
    assert items is not None
    assert users.shape[1] > 20  # occupations alone
    assert items.shape[1] > 18  # genres alone
    assert (np.abs(items).sum(1) > 0).mean() > 0.99


COLUMNS = {
    "age": [20.0, 31.0, None, 44.0, 58.0, 62.0, 23.0, 35.0],
    "kind": ["x|y", "x", "y", "x|y", "z", "", "x", float("nan")],
    "old": [0, 1, 0, 1, 1, 1, 0, 0],
    "same": [7] * 8,
}


def learnt() -> Encoding:
    return encoded(Vocab(range(8)), range(8), COLUMNS)[1]


def test_a_newcomer_is_read_as_the_table_was() -> None:
    found, encoding = encoded(Vocab(range(8)), range(8), COLUMNS)
    for row in range(8):
        told = {name: values[row] for name, values in COLUMNS.items() if values[row] is not None}
        if row not in (2, 5, 7):  # a gap in a table is an average number, and no word at all
            np.testing.assert_allclose(encoding.one(told), found[row], rtol=1e-6)
    assert encoding.names == ["age", "kind", "old"]
    again = read(Encoding, json.loads(json.dumps(plain(encoding))))
    assert again == encoding
    np.testing.assert_array_equal(again.one({"age": 31, "kind": ["x"]}), encoding.one(
        {"kind": "x", "age": "31"}))  # fmt: skip


def test_what_a_newcomer_does_not_say_is_average() -> None:
    encoding = learnt()
    for told in ({}, {"age": None}, {"kind": "", "age": ""}, {"kind": float("nan")}):
        assert not encoding.one(told).any()
    young, wordy = encoding.one({"age": 20}), encoding.one({"kind": "x"})
    assert young.any()
    assert wordy.any()
    np.testing.assert_allclose(encoding.one({"age": 20, "kind": "x"}), young + wordy)
    assert encoding.one({"kind": "never heard"}).any()  # not x and not y says something


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"agee": 3}, "no feature named 'agee'; did you mean 'age'"),
        ({"age": "old"}, "'age' is a number, got 'old'"),
        ({"age": [3]}, "'age' is a number"),
        ({"age": 1e30}, r"far outside what was trained on: about 39, give or take 1\d"),
        ({"age": "nan"}, "far outside"),
        (["age"], "must be a dict"),
    ],
)
def test_features_that_cannot_be_read(told: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        learnt().one(told)


def test_a_row_of_the_graph_is_oneself_and_one_s_friends() -> None:
    """Whoever follows or is followed is a friend; nobody is their own; alone is alone."""
    links = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    half = 2**-0.5
    found = neighbours(links)
    expected = [[1, half, 0, 0], [half, 1, half, 0], [0, half, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32
    with pytest.raises(DataError, match=r"square, got \(4, 3\)"):
        neighbours(links[:, :3])


@pytest.mark.accuracy
@pytest.mark.skipif(find("douban") is None, reason="Douban is not on this machine")
def test_douban_has_a_graph() -> None:
    data = load("douban", progress=False)
    assert data.train is not None
    for table in (data.interactions, data.train):
        assert table.user_features is not None
        assert table.item_features is None
        assert table.user_features.shape == (3000, 3000)
    friends = (data.interactions.user_features > 0).sum(1) - 1
    assert (friends > 0).sum() == 1168
    assert friends.sum() == 2688
