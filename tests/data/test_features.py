"""Features as numbers: the encoder, new users, and the features of the public datasets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from idcf.config import dataclass_from_dict, dataclass_to_dict
from idcf.data.datasets.catalog import find_dataset_folder, load_dataset
from idcf.data.datasets.side_features import friend_graph_features
from idcf.data.features import FeatureEncoder, fit_feature_encoder
from idcf.data.interactions import Interactions, Vocab
from idcf.errors import DataError


def test_numbers_words_and_gaps() -> None:
    vocab = Vocab(["a", "b", "c", "d", "e", "f", "g"])
    features, _ = fit_feature_encoder(
        vocab,
        ["f", "e", "d", "c", "b", "a", "not in the vocabulary"],
        {"age": [1, 2, 3, 4, 5, "", 99], "kind": ["x|y", "x", "y", "x|y", "z", "", "x"]},
    )
    assert features.shape[0] == 7
    assert (features[6] == 0).all()  # "g" is not in the table
    encoded = features[:6].astype(np.float64)
    np.testing.assert_allclose(encoded.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(encoded.std(0), 1, atol=1e-5)
    signs = {tuple((column > 0).tolist()) for column in encoded.T}
    assert (False, False, True, False, True, True) in signs  # "x" of c, e and f
    assert (False, False, True, True, False, True) in signs  # "y" of c, d and f


def test_rare_words_and_constants_say_nothing() -> None:
    vocab = Vocab(range(4))
    columns = {"once": list("wxyz"), "same": [1, 1, 1, 1]}
    assert fit_feature_encoder(vocab, range(4), columns)[0].shape == (4, 0)
    with pytest.raises(DataError, match=r"'age' has 2 rows, not 4"):
        fit_feature_encoder(vocab, range(4), {"age": [1, 2]})


def test_users_carry_their_features() -> None:
    features = np.arange(6, dtype=np.float32).reshape(3, 2)
    table = Interactions.from_columns(np.array([0, 1, 2]), np.array([5, 6, 7]), np.ones(3))
    assert table.build_users(np.array([0])).features is None
    table = replace(table, user_features=features).where(np.array([True, False, True]))
    users = table.build_users(np.array([2, -1, 0]))
    assert users.features is not None
    assert users.features.tolist() == [[4, 5], [0, 0], [0, 1]]
    assert users.history.lengths().tolist() == [1, 0, 1]


@pytest.mark.accuracy
@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
def test_films_and_users_of_movielens(name: str) -> None:
    if find_dataset_folder(name) is None:
        pytest.skip(f"{name} is not on this machine (set IDCF_DATA)")
    table = load_dataset(name, progress=False).interactions
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


def fitted_encoder() -> FeatureEncoder:
    return fit_feature_encoder(Vocab(range(8)), range(8), COLUMNS)[1]


def test_a_new_user_is_encoded_as_the_table_was() -> None:
    table, encoder = fit_feature_encoder(Vocab(range(8)), range(8), COLUMNS)
    for row in range(8):
        features = {
            name: values[row] for name, values in COLUMNS.items() if values[row] is not None
        }
        if row not in (2, 5, 7):  # a gap in a table is an average number, and no word at all
            np.testing.assert_allclose(encoder.transform_one(features), table[row], rtol=1e-6)
    assert encoder.feature_names == ["age", "kind", "old"]


def test_an_encoder_survives_json() -> None:
    encoder = fitted_encoder()
    text = json.dumps(dataclass_to_dict(encoder))
    loaded = dataclass_from_dict(FeatureEncoder, json.loads(text))
    assert loaded == encoder
    np.testing.assert_array_equal(
        loaded.transform_one({"age": 31, "kind": ["x"]}),
        encoder.transform_one({"kind": "x", "age": "31"}),
    )


def test_a_missing_feature_of_a_new_user_is_average() -> None:
    encoder = fitted_encoder()
    for features in ({}, {"age": None}, {"kind": "", "age": ""}, {"kind": float("nan")}):
        assert not encoder.transform_one(features).any()
    age, kind = encoder.transform_one({"age": 20}), encoder.transform_one({"kind": "x"})
    assert age.any()
    assert kind.any()
    np.testing.assert_allclose(encoder.transform_one({"age": 20, "kind": "x"}), age + kind)
    # an unknown word is informative: it is neither x nor y
    assert encoder.transform_one({"kind": "unknown word"}).any()


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"agee": 3}, "no feature named 'agee'; did you mean 'age'"),
        ({"age": "old"}, "'age' is a number, got 'old'"),
        ({"age": [3]}, "'age' is a number"),
        ({"age": 1e30}, r"far outside the training data \(mean 39, standard deviation 1\d"),
        ({"age": "nan"}, "far outside"),
        (["age"], "must be a dict"),
    ],
)
def test_features_that_cannot_be_read(features: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fitted_encoder().transform_one(features)


def test_a_row_of_the_friend_graph_is_the_user_and_their_friends() -> None:
    """Links count in both directions, links to oneself do not, and a user may have no friend."""
    links = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    half = 2**-0.5
    features = friend_graph_features(links)
    expected = [[1, half, 0, 0], [half, 1, half, 0], [0, half, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(features, expected, rtol=1e-6)
    assert features.dtype == np.float32
    with pytest.raises(DataError, match=r"square, got \(4, 3\)"):
        friend_graph_features(links[:, :3])


@pytest.mark.accuracy
@pytest.mark.skipif(find_dataset_folder("douban") is None, reason="Douban is not on this machine")
def test_douban_has_a_graph() -> None:
    data = load_dataset("douban", progress=False)
    assert data.train is not None
    for table in (data.interactions, data.train):
        assert table.user_features is not None
        assert table.item_features is None
        assert table.user_features.shape == (3000, 3000)
    friends = (data.interactions.user_features > 0).sum(1) - 1
    assert (friends > 0).sum() == 1168
    assert friends.sum() == 2688
