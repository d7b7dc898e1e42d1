"""The public class: lists, predictions, training users, errors, saving, and its examples."""

from __future__ import annotations

import doctest
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from builders import board

import idcf.recommender
from idcf import ColdUserError, ConfigError, DataError, Recommender
from idcf.data.columns import DataWarning
from idcf.data.history_reader import as_users
from idcf.data.interactions import Interactions
from idcf.models.registry import all_models
from idcf.results import Recommendation
from idcf.testing.synthetic import checkerboard

EVEN = {"i2": 5.0, "i4": 5.0, "i3": 1.0}
INDUCTIVE = [name for name, row in all_models().items() if row.inductive and not row.implicit_only]
TITLES = {f"i{n}": f"Film {n}" for n in range(20)}


def interactions(implicit: bool = False) -> Interactions:
    return board(90, 30, 6, 16, implicit=implicit)


@cache
def fitted(name: str = "idcf-dot", implicit: bool = False) -> Recommender:
    options = {} if all_models()[name].solver else {"epochs": 8}
    recommender = Recommender(name, key_threshold=10, device="cpu", **options)
    return recommender.fit(interactions(implicit), titles=TITLES)


def ids(recommendations: Any) -> list[Any]:
    """Return the item ids of a list."""
    return [x.item_id for x in recommendations]


@pytest.mark.parametrize("name", INDUCTIVE)
def test_a_batch_gives_the_lists_of_single_users(name: str) -> None:
    recommender = fitted(name)
    histories = [EVEN, {}, {"i7": 4.0, "i1": 2.0}, [("i9", 5), ("i2", 1)]]
    batch = recommender.recommend(histories, n=7)
    for history, in_batch in zip(histories, batch, strict=True):
        single = recommender.recommend(history, n=7)
        assert ids(single) == ids(in_batch)
        assert [x.rank for x in single] == [1, 2, 3, 4, 5, 6, 7]
        scores = [x.score for x in single]
        np.testing.assert_allclose(scores, [x.score for x in in_batch], rtol=1e-4)
        if single[0].source != "popular":  # popular items are not ordered by score
            assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("name", INDUCTIVE)
def test_scores_are_those_of_the_model(name: str) -> None:
    recommender = fitted(name)
    predictor, model = recommender.predictor, recommender.artifact.model
    with torch.no_grad():
        expected = model.score_catalog(as_users([predictor.read_new_user(EVEN)]))[0].numpy()
    scores = recommender.predict(EVEN, predictor.item_ids)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    quality = 1.0 if recommender.artifact.take_up_model else None
    best = recommender.recommend(EVEN, n=4, filter_seen=False, quality=quality)
    best_scores = [x.score if quality is None else x.rating for x in best]
    np.testing.assert_allclose(best_scores, np.sort(expected)[::-1][:4], rtol=1e-4)


def test_a_history_of_even_items_gets_even_items() -> None:
    table = checkerboard(200, 40, np.random.default_rng(1))
    recommender = Recommender("ease", key_threshold=15, device="cpu").fit(table)
    for parity in (0, 1):
        history = {f"i{n}": 5 if n % 2 == parity else 1 for n in range(8)}
        assert all(int(x[1:]) % 2 == parity for x in ids(recommender.recommend(history, n=8)))


def test_a_recommendation_is_a_plain_tuple_in_a_plain_list() -> None:
    recommendations = fitted().recommend(EVEN, n=30)
    assert isinstance(recommendations, list)
    assert isinstance(recommendations[0], Recommendation)
    titles = {x.item_id: x.title for x in recommendations}
    assert titles["i8"] == "Film 8"
    assert titles["i25"] is None
    assert recommendations.unknown_items == ()
    assert fitted().recommend({**EVEN, "nowhere": 3}).unknown_items == ("nowhere",)
    assert ids(fitted().recommend({**EVEN, "nowhere": 3})) == ids(recommendations)[:10]
    with pytest.warns(DataWarning, match="no item of the history is known to the model"):
        popular = fitted().recommend({"nowhere": 3})
    assert ids(popular) == ids(fitted().recommend())
    assert {x.source for x in popular} == {"popular"}
    assert (recommendations.basis, popular.basis) == ("history", "popularity")
    with pytest.warns(DataWarning, match="no item of user 1 is known to the model"):
        batch = fitted().recommend([EVEN, {"nowhere": 3}])  # one does not stop the others
    assert [ids(x) for x in batch] == [ids(recommendations)[:10], ids(popular)]


def test_filters() -> None:
    recommender = fitted()
    everything = ids(recommender.recommend(EVEN, n=100, filter_seen=False))
    assert len(everything) == 30  # all items
    unseen = ids(recommender.recommend(EVEN, n=100))
    assert unseen == [x for x in everything if x not in EVEN]
    filters = {"candidates": ["i9", "i2", "i12", "nowhere"], "exclude": ["i12", "nowhere"]}
    assert ids(recommender.recommend(EVEN, **filters)) == ["i9"]
    assert ids(recommender.recommend([EVEN], **filters)[0]) == ["i9"]
    assert ids(recommender.recommend(EVEN, exclude=["i9"])) == [x for x in unseen if x != "i9"][:10]
    assert recommender.recommend(EVEN, candidates=[]) == []
    assert recommender.recommend([EVEN], candidates=[]) == [[]]


def test_the_order_of_a_history_does_not_matter() -> None:
    reverse = dict(reversed(EVEN.items()))
    assert fitted().recommend(EVEN) == fitted().recommend(reverse)
    assert np.array_equal(fitted().embed(EVEN), fitted().embed(reverse))


def test_embed() -> None:
    recommender = fitted("als")
    vectors = recommender.embed([EVEN, {"i7": 4.0}])
    assert vectors.ndim == 2
    np.testing.assert_allclose(recommender.embed(EVEN), vectors[0], rtol=1e-5)
    with pytest.raises(ConfigError, match="ItemItemModel scores items without user vectors"):
        fitted("ease").embed(EVEN)
    with pytest.warns(DataWarning, match="1 items of the history are unknown"):
        recommender.embed({**EVEN, "nowhere": 3})


def test_predict_and_similar() -> None:
    recommender = fitted("als")
    assert recommender.predict(EVEN, ["i8", "i9"]).shape == (2,)
    with pytest.raises(DataError, match=r"item: 'film 1'.*Film 1"):
        recommender.predict(EVEN, ["film 1"])
    for name in ("als", "ease", "item-knn"):
        similar = ids(fitted(name).similar_items("i4", n=4))
        assert len(similar) == 4
        assert "i4" not in similar
    assert len(recommender.similar_items("i4", n=99)) == 29


def test_known_users() -> None:
    recommender, table = fitted(), interactions()
    rows = np.array([0, 5])
    history = table.history(rows[:1])
    pairs = zip(history.items.tolist(), history.values.tolist(), strict=True)
    ratings = {f"i{item}": value for item, value in pairs}
    batch = recommender.recommend(users=["u0", "u5"])
    assert [x.user_id for x in batch] == ["u0", "u5"]
    assert ids(recommender.recommend(users="u0")) == ids(batch[0])
    assert ids(batch[0]) == ids(recommender.recommend(ratings))
    with pytest.warns(DataWarning, match="user 'u999' is not in the table") as warnings:
        batch = recommender.recommend(users=["u0", "u999"])  # one does not stop the others
    assert warnings[0].filename == __file__
    assert [x.basis for x in batch] == ["history", "popularity"]
    assert [ids(x) for x in batch] == [
        ids(recommender.recommend(users="u0")),
        ids(recommender.recommend()),
    ]


def test_a_transductive_model_scores_training_users_only() -> None:
    recommender, counts = fitted("pmf"), interactions().user_counts()
    assert len(recommender.recommend(users=f"u{counts.argmax()}")) == 10
    with pytest.raises(ColdUserError, match="was not trained on"):
        recommender.recommend(users=f"u{counts.argmin()}")
    for history in (EVEN, {}, [EVEN]):
        with pytest.raises(ColdUserError, match="knows only the users it was trained on"):
            recommender.recommend(history)


@pytest.mark.parametrize("name", ["popularity", "ease", "als", "idcf-dot", "idcf-nn"])
def test_implicit_feedback(name: str) -> None:
    recommender = fitted(name, implicit=True)
    with pytest.warns(DataWarning, match="ratings of the history are ignored, low ones too"):
        rated = recommender.recommend({"i4": 3, "i2": 1})
    assert recommender.recommend(["i2", "i4"]) == rated == recommender.recommend({"i4": 3, "i2": 3})
    assert ids(recommender.recommend([["i2", "i4"]])[0]) == ids(recommender.recommend(["i2", "i4"]))
    assert len(recommender.recommend()) == 10


def test_tables_of_new_users() -> None:
    frame = pd.DataFrame(
        {"user_id": [7, 9, 7], "item_id": ["i2", "i4", "i3"], "rating": [5.0, 5.0, 1.0]}
    )
    batch = fitted().recommend(frame, n=3)
    assert [x.user_id for x in batch] == [7, 9]
    assert ids(batch[0]) == ids(fitted().recommend({"i2": 5, "i3": 1}, n=3))
    assert ids(batch[1]) == ids(fitted().recommend(frame[1:2].drop(columns="user_id"), n=3))


@pytest.mark.parametrize("n", [0, -1, 2.5, "3", None])
def test_n_is_a_count(n: Any) -> None:
    with pytest.raises(ConfigError, match="n must be a whole number"):
        fitted().recommend(EVEN, n=n)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="did you mean 'idcf-nn'"):
        Recommender("idcf-n")
    with pytest.raises(ConfigError, match="not fitted"):
        Recommender().recommend(EVEN)
    with pytest.raises(ConfigError, match="not both"):
        fitted().recommend(EVEN, users=["u0"])
    with pytest.raises(DataError, match="threshold 400 leaves no key user: the most active has"):
        Recommender("bias", key_threshold=400, device="cpu").fit(interactions())
    with pytest.raises(ConfigError, match="did you mean 'heads'"):
        Recommender("idcf-dot", head_s=3, device="cpu").fit(interactions())
    with pytest.raises(DataError, match="ratings are needed"):
        fitted().recommend(["i2"])
    with pytest.raises(ConfigError, match="device"):
        Recommender.load("nowhere", device="tpu")


def test_the_default_threshold_is_the_median_of_small_tables() -> None:
    recommender = Recommender("popularity", device="cpu").fit(interactions())
    assert recommender.manifest.training_data.key_threshold == int(
        np.median(interactions().user_counts())
    )


@pytest.mark.parametrize("name", INDUCTIVE)
def test_five_users_are_enough_and_two_are_not(name: str) -> None:
    rows = [(u, i, 1 + (u + i) % 5) for u in range(5) for i in range(6) if u * i % 3 != 2]
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "rating"])
    options = {} if all_models()[name].solver else {"epochs": 2}
    recommender = Recommender(name, device="cpu", **options).fit(frame)
    assert len(recommender.recommend({1: 5}, n=3)) == 3
    with pytest.raises(DataError, match="only 2 of 2 users"):
        Recommender(name, key_threshold=1, device="cpu").fit(frame[frame.user_id < 2])


@pytest.mark.parametrize("name", INDUCTIVE)
def test_a_loaded_recommender_gives_the_same_lists(name: str, tmp_path: Path) -> None:
    recommender = fitted(name)
    loaded = Recommender.load(recommender.save(tmp_path / "model", allow_training_rows=True))
    for history in (EVEN, {}, [EVEN, {}]):
        assert loaded.recommend(history) == recommender.recommend(history)


def test_a_recommender_of_an_artifact_has_its_configuration() -> None:
    recommender = fitted("als")
    copy = Recommender.from_artifact(recommender.artifact)
    assert copy.artifact is recommender.artifact
    assert copy.recommend(EVEN) == recommender.recommend(EVEN)
    assert copy.config.options == recommender.manifest.options
    assert (copy.config.model, copy.config.key_threshold) == ("als", 10)
    with pytest.raises(ConfigError, match="not fitted"):
        _ = Recommender().artifact


def test_serving_never_imports_training(tmp_path: Path) -> None:
    fitted().save(tmp_path / "model")
    program = f"""
import sys
from idcf import Recommender
recommender = Recommender.load({str(tmp_path / "model")!r})
assert len(recommender.recommend({EVEN!r})) == 10
recommender.recommend([{EVEN!r}], n=3), recommender.embed({EVEN!r})
heavy = ("idcf.training", "idcf.evaluation", "idcf.paper", "idcf.cli")
loaded = [x for x in sys.modules if x.startswith(heavy)]
assert not loaded, loaded
assert "idcf.data.datasets.catalog" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_fewer_key_users_by_choice(tmp_path: Path) -> None:
    all_users = fitted("als").manifest.training_data
    by_rule = {
        k: Recommender("als", key_threshold=10, key_users=k, device="cpu").fit(interactions())
        for k in ("random", "informative", 20)
    }
    assert (all_users.key_user_rule, by_rule[20].manifest.training_data.n_key_users) == (
        "threshold",
        20,
    )
    assert by_rule["random"].manifest.training_data.n_key_users == round(all_users.n_key_users / 2)
    assert by_rule["informative"].manifest.training_data.n_key_users < all_users.n_key_users
    for rule, recommender in by_rule.items():
        loaded = Recommender.load(recommender.save(tmp_path / str(rule)))
        assert loaded.config.key_users == loaded.manifest.training_data.key_user_rule == rule
        assert f"key_users={rule}" in (tmp_path / str(rule) / "card.md").read_text()
        assert loaded.recommend(EVEN) == recommender.recommend(EVEN)
    with pytest.raises(DataError, match="chosen by key_users=2; at least 3"):
        Recommender("als", key_threshold=10, key_users=2, device="cpu").fit(interactions())
    with pytest.raises(ConfigError, match="did you mean 'informative'"):
        Recommender("als", key_users="informativ", device="cpu").fit(interactions())


def test_users_that_are_not_key_users_are_not_trained_on() -> None:
    table = interactions()
    recommender = Recommender("pmf", key_threshold=10, key_users=20, epochs=1, device="cpu")
    recommender.fit(table)
    users = [f"u{x}" for x in np.flatnonzero(table.user_counts() >= 10)]
    n_trained = 0
    for user in users:
        try:
            n_trained += len(recommender.recommend(users=user, n=1))
        except ColdUserError:
            continue
    assert n_trained == 20 < len(users)


def test_a_batch_as_a_table() -> None:
    frame = pd.DataFrame({"user_id": ["b", "a", "b"], "item_id": ["i2", "i4", "i3"]})
    batch = fitted().recommend(frame.assign(rating=[5.0, 5.0, 1.0]), n=3)
    table = batch.to_table()
    columns = ["item_id", "score", "rank", "std", "source", "probability", "rating"]
    columns += ["rating_if_shown"]
    assert table.column_names == ["user_id", *columns]
    rows = table.to_pylist()
    assert [x["user_id"] for x in rows] == ["b"] * 3 + ["a"] * 3
    assert [x["item_id"] for x in rows] == [
        x.item_id for recommendations in batch for x in recommendations
    ]
    assert [x["rank"] for x in rows] == [1, 2, 3, 1, 2, 3]
    assert {x["std"] for x in rows} == {None}
    unnamed = fitted().recommend([EVEN, {}], n=2)
    assert isinstance(unnamed, list)
    assert unnamed.to_table()["user_id"].to_pylist() == [0, 0, 1, 1]
    assert unnamed.to_table()["source"].to_pylist() == ["relation"] * 2 + ["popular"] * 2
    training_users = fitted().recommend(users=["u0", "u5"], n=1)
    assert training_users.to_table()["user_id"].to_pylist() == ["u0", "u5"]
    assert len(fitted().recommend([EVEN], candidates=[]).to_table()) == 0


def test_the_examples_of_the_docstrings_run() -> None:
    results = doctest.testmod(idcf.recommender)
    assert results.attempted > 30
    assert results.failed == 0
