"""Parameters of a recommender as scikit-learn reads and changes them, and how it is printed."""

from __future__ import annotations

import doctest
from functools import cache

import numpy as np
import pytest
from sklearn.base import clone

import idcf.inference.estimator
from idcf import ConfigError, Recommender
from idcf.testing.synthetic import checkerboard

GIVEN = {
    "model": "als",
    "key_threshold": 4,
    "key_users": "random",
    "preset": "published",
    "seed": 3,
    "device": "cpu",
    "embedding_size": 2,
    "reg": 5.0,
}


@cache
def table(implicit: bool = False):
    table = checkerboard(30, 12, np.random.default_rng(0))
    return table.as_implicit() if implicit else table


def fitted() -> Recommender:
    return Recommender("als", device="cpu", embedding_size=2, reg=5.0).fit(table())


def test_the_parameters_are_those_of_the_constructor_unchanged():
    recommender = Recommender(**GIVEN)
    assert recommender.get_params() == recommender.get_params(deep=False) == GIVEN
    assert all(recommender.get_params()[name] is value for name, value in GIVEN.items())
    assert Recommender().get_params() == {
        **{"model": "idcf-bayes", "key_threshold": None, "key_users": "threshold"},
        **{"preset": "clean", "seed": 0, "device": "auto"},
    }


def test_a_clone_has_the_parameters_and_no_model():
    recommender = fitted()
    copy = clone(recommender)
    assert copy is not recommender
    assert copy.get_params() == recommender.get_params()
    with pytest.raises(ConfigError, match="not fitted"):
        _ = copy.predictor
    lists = [x.fit(table()).recommend({"i2": 5.0}, n=3) for x in (recommender, copy)]
    assert lists[0] == lists[1]
    assert clone(Recommender(**GIVEN)).get_params() == GIVEN


def test_changed_parameters_are_used_by_the_next_fit():
    recommender = fitted()
    before = recommender.recommend({"i2": 5.0}, n=3)
    changed = recommender.set_params(model="als", reg=1.0, embedding_size=3, seed=7)
    assert changed is recommender
    assert recommender.recommend({"i2": 5.0}, n=3) == before
    assert recommender.manifest.options["embedding_size"] == 2
    expected = {**fitted().get_params(), "reg": 1.0, "embedding_size": 3, "seed": 7}
    assert recommender.get_params() == expected
    options = recommender.fit(table()).manifest.options
    assert (options["embedding_size"], options["reg"]) == (3, 1.0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"embeding_size": 3}, "did you mean 'embedding_size'"),
        ({"sede": 3}, "did you mean 'seed'"),
        ({"model": "asl"}, "no model named 'asl'; did you mean 'als'"),
        ({"model": "ease", "embedding_size": 3}, "no parameter named 'embedding_size'"),
    ],
)
def test_unknown_names_are_errors_and_change_nothing(params, message):
    recommender = Recommender("als", reg=5.0)
    before = recommender.get_params()
    with pytest.raises(ConfigError, match=message):
        recommender.set_params(seed=9, **params)
    assert recommender.get_params() == before


def test_options_of_a_model_trained_by_epochs_are_set():
    recommender = Recommender("idcf-nn").set_params(epochs=3, heads=2)
    assert recommender.get_params()["epochs"] == 3
    with pytest.raises(ConfigError, match="did you mean 'heads'"):
        recommender.set_params(headz=2).fit(table())


def test_the_printed_form_says_what_it_was_trained_on():
    recommender = fitted()
    assert repr(recommender) == "<Recommender als: 28 key users, 238 rows of ratings, 12 items>"
    assert repr(Recommender("als")) == "<Recommender als, not fitted>"
    clicks = Recommender("popularity", device="cpu").fit(table(implicit=True))
    assert "238 rows of clicks" in repr(clicks)
    factors = Recommender.from_factors([[2], [1]], item_ids="ab", implicit=True)
    assert repr(factors) == "<Recommender als: 2 items>"


def test_html_has_the_printed_form_and_the_parameters():
    html = fitted()._repr_html_()
    assert "&lt;Recommender als: 28 key users" in html
    assert "<td" in html
    assert "embedding_size" in html
    assert "<b></b>" not in Recommender(key_users="<script>")._repr_html_()
    assert "<script" not in Recommender(key_users="<script>")._repr_html_()


def test_the_examples_of_the_docstrings_run():
    results = doctest.testmod(idcf.inference.estimator)
    assert results.attempted > 2
    assert results.failed == 0
