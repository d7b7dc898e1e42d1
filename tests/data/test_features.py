"""Features as numbers: the encoder, new users, and the features of the public datasets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import table_from_columns
from hypothesis import given
from hypothesis import strategies as st

from idcf.config import dataclass_from_dict, dataclass_to_dict
from idcf.data.datasets.catalog import find_dataset_folder, load_dataset
from idcf.data.datasets.side_features import friend_graph_features
from idcf.data.features import FeatureEncoder, fit_feature_encoder
from idcf.data.interactions import Vocab
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
    table = table_from_columns(np.array([0, 1, 2]), np.array([5, 6, 7]), np.ones(3))
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


def slow_column(values: list[Any]) -> dict[str, list[float]]:
    """The features of one column, by name, before they are standardized."""
    if all(x is None or isinstance(x, int | float) for x in values):
        known = [float(x) for x in values if x is not None and x == x]
        mean = float(np.mean(known))  # `sum` rounds otherwise, which may move a gap to another bin
        numbers = [mean if x is None or x != x else float(x) for x in values]
        features = {"number": numbers}
        if len(set(numbers)) > 2:
            edges = sorted({float(np.quantile(numbers, q / 5)) for q in range(1, 5)})
            bins = [sum(edge <= x for edge in edges) for x in numbers]
            features |= {f"bin {b}": [float(x == b) for x in bins] for b in range(len(edges) + 1)}
        return features
    cells = [set(x.split("|")) - {""} if x else set() for x in values]
    words = sorted({w for cell in cells for w in cell})
    return {
        w: [float(w in cell) for cell in cells] for w in words if sum(w in c for c in cells) >= 3
    }


NUMBERS = st.lists(st.none() | st.integers(-5, 5) | st.floats(-3, 3), min_size=1, max_size=12)
WORDS = st.lists(
    st.none() | st.sampled_from(["", "a", "b", "a|b", "b|c", "c|a|"]), min_size=1, max_size=12
)


@given(NUMBERS.filter(lambda x: any(v is not None for v in x)) | WORDS.filter(any))
def test_every_column_is_encoded_as_by_a_loop(values: list[Any]) -> None:
    features, encoder = fit_feature_encoder(
        Vocab(range(len(values))), range(len(values)), {"x": values}
    )
    expected = []
    for column in slow_column(values).values():
        x = np.array(column)
        if x.std() > 1e-12 * abs(x.mean()):  # that of equal numbers is above 0 by rounding
            expected.append((x - x.mean()) / x.std())
    assert features.shape == (len(values), len(expected))
    got = sorted(features.T.round(3).tolist())
    np.testing.assert_allclose(got, sorted(np.round(expected, 3).tolist()), atol=2e-3)
    assert encoder.feature_names == (["x"] if expected else [])


def test_means_are_of_known_rows_and_bins_of_all() -> None:
    ages = [10.0, 20.0, 30.0, 40.0, 1000.0]
    features, encoder = fit_feature_encoder(Vocab(range(4)), range(5), {"age": ages})
    assert encoder.mean[0] == 25, "row 4 is no user of the table"
    assert encoder.columns[0].bin_edges == tuple(np.quantile(ages, [0.2, 0.4, 0.6, 0.8]))
    np.testing.assert_allclose(features[:, 0].std(), 1, atol=1e-6)


def test_only_the_most_frequent_words_are_encoded() -> None:
    words = [f"w{n:02}" for n in range(70)]
    cells = [words[: n % 70 + 1] for n in range(280)]  # w00 is in all cells, w69 in 4 of them
    _, encoder = fit_feature_encoder(Vocab(range(280)), range(280), {"tags": cells})
    assert encoder.columns[0].words == tuple(words[:64])


def test_a_word_occurs_in_a_cell_once_and_without_its_spaces() -> None:
    cells = [" a | a", "a", ("a", "b "), {"b"}, np.array(["b", ""]), float("nan"), None]
    features, encoder = fit_feature_encoder(Vocab(range(7)), range(7), {"tags": cells})
    assert encoder.columns[0].words == ("a", "b")
    assert (features > 0).tolist() == [[x in (0, 1, 2), x in (2, 3, 4)] for x in range(7)]


def test_numbers_as_text_are_numbers_and_one_word_makes_words() -> None:
    numbers = fit_feature_encoder(Vocab(range(4)), range(4), {"x": ["1", "2", "", "1e3"]})[1]
    assert numbers.columns[0].words is None
    assert numbers.columns[0].fill_value == pytest.approx(1003 / 3)
    words = fit_feature_encoder(Vocab(range(4)), range(4), {"x": ["1", "1", "1", "one"]})[1]
    assert words.columns[0].words == ("1",)


def test_a_new_user_is_rejected_far_outside_the_data_only() -> None:
    ages = [20.0, 30.0, 40.0]
    _, encoder = fit_feature_encoder(Vocab(range(3)), range(3), {"age": ages, "same": [5, 5, 5]})
    limit = 20 * float(np.std(ages))
    for age in (30 + limit, 30 - limit, "35", True):
        assert np.isfinite(encoder.transform_one({"age": age})).all()
    for age in (30 + limit + 1, 30 - limit - 1, float("inf"), float("nan"), 10**400, "old", [30]):
        with pytest.raises(DataError, match=r"feature 'age' is "):
            encoder.transform_one({"age": age})
    assert encoder.transform_one({"same": 5}).tolist() == [0] * encoder.transform_one({}).size
    with pytest.raises(DataError, match=r"feature 'same' is 6, far outside .*deviation 0\)"):
        encoder.transform_one({"same": 6})


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc")), min_size=3, max_size=9))
def test_a_new_user_with_the_features_of_a_row_gets_its_features(rows: list[Any]) -> None:
    ages, kinds = map(list, zip(*rows, strict=True))
    features, encoder = fit_feature_encoder(
        Vocab(range(len(rows))), range(len(rows)), {"age": ages, "kind": kinds}
    )
    for n, (age, kind) in enumerate(rows):
        np.testing.assert_allclose(
            encoder.transform_one({"kind": kind, "age": age}), features[n], atol=1e-6
        )


def test_an_empty_table_of_features_has_none() -> None:
    features, encoder = fit_feature_encoder(Vocab(["a", "b"]), ["a"], {})
    assert features.shape == (2, 0)
    assert encoder.feature_names == []
    features, encoder = fit_feature_encoder(Vocab(["a", "b"]), ["c"], {"age": [3]})
    assert features.shape == (2, 0), "no row of the table is known"
    assert encoder.std == (0.0,)
    empty = fit_feature_encoder(Vocab(range(3)), range(3), {"gap": [None, "", float("nan")]})[1]
    assert empty.columns[0].width == 0
