from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from idcf import ColdUserError, ConfigError, DataError, Recommender
from idcf.data.columns import DataWarning
from idcf.data.history_reader import as_users
from idcf.data.interactions import Interactions
from idcf.models.registry import all_models
from idcf.results import Recommendation
from idcf.testing.synthetic import checkerboard

torch.set_num_threads(1)
EVEN = {"i2": 5.0, "i4": 5.0, "i3": 1.0}
INDUCTIVE = [
    name
    for name, row in all_models().items()
    if getattr(row.model_class, "inductive", False) and not row.implicit_only
]
TITLES = {f"i{n}": f"Film {n}" for n in range(20)}


@cache
def world(implicit: bool = False) -> Interactions:
    return checkerboard(90, 30, np.random.default_rng(0), few=6, many=16, implicit=implicit)


@cache
def fitted(name: str = "idcf-dot", implicit: bool = False) -> Recommender:
    options = {} if all_models()[name].solver else {"epochs": 8}
    made = Recommender(name, key_threshold=10, device="cpu", **options)
    return made.fit(world(implicit), titles=TITLES)


def ids(found: Any) -> list[Any]:
    return [x.item_id for x in found]


@pytest.mark.parametrize("name", INDUCTIVE)
def test_every_inductive_model_answers_one_and_many_alike(name: str) -> None:
    recommender = fitted(name)
    histories = [EVEN, {}, {"i7": 4.0, "i1": 2.0}, [("i9", 5), ("i2", 1)]]
    many = recommender.recommend(histories, n=7)
    for history, list_ in zip(histories, many, strict=True):
        one = recommender.recommend(history, n=7)
        assert ids(one) == ids(list_)
        assert [x.rank for x in one] == [1, 2, 3, 4, 5, 6, 7]
        np.testing.assert_allclose([x.score for x in one], [x.score for x in list_], rtol=1e-4)
        if one[0].source != "popular":  # then the order is that of popularity
            assert [x.score for x in one] == sorted((x.score for x in one), reverse=True)


@pytest.mark.parametrize("name", INDUCTIVE)
def test_scores_are_those_of_the_plain_model(name: str) -> None:
    recommender = fitted(name)
    desk, model = recommender._desk(), recommender._fitted().model
    with torch.no_grad():
        plain = model.rank(as_users([desk.reader.one(EVEN)]))[0].numpy()
    np.testing.assert_allclose(recommender.predict(EVEN, desk.ids), plain, rtol=1e-4, atol=1e-5)
    best = recommender.recommend(EVEN, n=4, filter_seen=False)
    np.testing.assert_allclose([x.score for x in best], np.sort(plain)[::-1][:4], rtol=1e-4)


def test_even_people_get_even_items() -> None:
    world_ = checkerboard(200, 40, np.random.default_rng(1))
    recommender = Recommender("ease", key_threshold=15, device="cpu").fit(world_)
    for colour in (0, 1):
        told = {f"i{n}": 5 if n % 2 == colour else 1 for n in range(8)}
        assert all(int(x[1:]) % 2 == colour for x in ids(recommender.recommend(told, n=8)))


def test_a_recommendation_is_a_plain_tuple_in_a_plain_list() -> None:
    found = fitted().recommend(EVEN, n=30)
    assert isinstance(found, list)
    assert isinstance(found[0], Recommendation)
    titles = {x.item_id: x.title for x in found}
    assert titles["i8"] == "Film 8"
    assert titles["i25"] is None
    assert found.unknown_items == ()
    assert fitted().recommend({**EVEN, "nowhere": 3}).unknown_items == ("nowhere",)
    assert ids(fitted().recommend({**EVEN, "nowhere": 3})) == ids(found)[:10]


def test_filters() -> None:
    recommender = fitted()
    everything = ids(recommender.recommend(EVEN, n=100, filter_seen=False))
    assert len(everything) == 30  # what there is
    unseen = ids(recommender.recommend(EVEN, n=100))
    assert unseen == [x for x in everything if x not in EVEN]
    some = {"candidates": ["i9", "i2", "i12", "nowhere"], "exclude": ["i12", "nowhere"]}
    assert ids(recommender.recommend(EVEN, **some)) == ["i9"]
    assert ids(recommender.recommend([EVEN], **some)[0]) == ["i9"]
    assert ids(recommender.recommend(EVEN, exclude=["i9"])) == [x for x in unseen if x != "i9"][:10]
    assert recommender.recommend(EVEN, candidates=[]) == []
    assert recommender.recommend([EVEN], candidates=[]) == [[]]


def test_the_order_of_a_history_does_not_matter() -> None:
    turned = dict(reversed(EVEN.items()))
    assert fitted().recommend(EVEN) == fitted().recommend(turned)
    assert np.array_equal(fitted().embed(EVEN), fitted().embed(turned))


def test_embed() -> None:
    recommender = fitted("als")
    both = recommender.embed([EVEN, {"i7": 4.0}])
    assert both.ndim == 2
    np.testing.assert_allclose(recommender.embed(EVEN), both[0], rtol=1e-5)
    with pytest.raises(ConfigError, match="ItemItem scores items without vectors"):
        fitted("ease").embed(EVEN)
    with pytest.warns(DataWarning, match="1 items of the history are unknown"):
        recommender.embed({**EVEN, "nowhere": 3})


def test_predict_and_similar() -> None:
    recommender = fitted("als")
    assert recommender.predict(EVEN, ["i8", "i9"]).shape == (2,)
    with pytest.raises(DataError, match=r"item: 'film 1'.*Film 1"):
        recommender.predict(EVEN, ["film 1"])
    for name in ("als", "ease", "item-knn"):
        alike = ids(fitted(name).similar_items("i4", n=4))
        assert len(alike) == 4
        assert "i4" not in alike
    assert len(recommender.similar_items("i4", n=99)) == 29


def test_known_users() -> None:
    recommender, table = fitted(), world()
    rows = np.array([0, 5])
    history = table.history(rows[:1])
    told = {f"i{i}": float(v) for i, v in zip(history.items.tolist(), history.values, strict=True)}
    two = recommender.recommend(users=["u0", "u5"])
    assert [x.user_id for x in two] == ["u0", "u5"]
    assert ids(recommender.recommend(users="u0")) == ids(two[0]) == ids(recommender.recommend(told))
    with pytest.raises(ColdUserError, match="'u999' was not trained on"):
        recommender.recommend(users=["u999"])


def test_a_transductive_model_knows_its_users_and_nobody_else() -> None:
    recommender, counts = fitted("pmf"), world().counts()
    assert len(recommender.recommend(users=f"u{counts.argmax()}")) == 10
    with pytest.raises(ColdUserError, match="was not trained on"):
        recommender.recommend(users=f"u{counts.argmin()}")
    for history in (EVEN, {}, [EVEN]):
        with pytest.raises(ColdUserError, match="knows only the users it was trained on"):
            recommender.recommend(history)


@pytest.mark.parametrize("name", ["popularity", "ease", "als", "idcf-dot", "idcf-nn"])
def test_implicit_feedback(name: str) -> None:
    recommender = fitted(name, implicit=True)
    assert recommender.recommend(["i2", "i4"]) == recommender.recommend({"i4": 3, "i2": 1})
    assert ids(recommender.recommend([["i2", "i4"]])[0]) == ids(recommender.recommend(["i2", "i4"]))
    assert len(recommender.recommend()) == 10


def test_tables_of_newcomers() -> None:
    frame = pd.DataFrame(
        {"user_id": [7, 9, 7], "item_id": ["i2", "i4", "i3"], "rating": [5.0, 5.0, 1.0]}
    )
    found = fitted().recommend(frame, n=3)
    assert [x.user_id for x in found] == [7, 9]
    assert ids(found[0]) == ids(fitted().recommend({"i2": 5, "i3": 1}, n=3))
    assert ids(found[1]) == ids(fitted().recommend(frame[1:2].drop(columns="user_id"), n=3))


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
        Recommender("bias", key_threshold=400, device="cpu").fit(world())
    with pytest.raises(ConfigError, match="did you mean 'heads'"):
        Recommender("idcf-dot", head=3, device="cpu").fit(world())
    with pytest.raises(DataError, match="ratings are needed"):
        fitted().recommend(["i2"])
    with pytest.raises(ConfigError, match="device"):
        Recommender.load("nowhere", device="tpu")


def test_the_usual_threshold_is_the_median_where_people_are_few() -> None:
    recommender = Recommender("popularity", device="cpu").fit(world())
    assert recommender._fitted().manifest.data.key_threshold == int(np.median(world().counts()))


@pytest.mark.parametrize("name", INDUCTIVE)
def test_a_handful_of_people_is_enough_and_two_are_not(name: str) -> None:
    rows = [(u, i, 1 + (u + i) % 5) for u in range(5) for i in range(6) if u * i % 3 != 2]
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "rating"])
    options = {} if all_models()[name].solver else {"epochs": 2}
    made = Recommender(name, device="cpu", **options).fit(frame)
    assert len(made.recommend({1: 5}, n=3)) == 3
    with pytest.raises(DataError, match="only 2 of 2 users"):
        Recommender(name, key_threshold=1, device="cpu").fit(frame[frame.user_id < 2])


@pytest.mark.parametrize("name", INDUCTIVE)
def test_a_loaded_recommender_says_the_same(name: str, tmp_path: Path) -> None:
    made = fitted(name)
    again = Recommender.load(made.save(tmp_path / "model"))
    for history in (EVEN, {}, [EVEN, {}]):
        assert again.recommend(history) == made.recommend(history)


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
    every = fitted("als").about.data
    made = {
        k: Recommender("als", key_threshold=10, key_users=k, device="cpu").fit(world())
        for k in ("random", "informative", 20)
    }
    assert (every.chosen, made[20].about.data.key_users) == ("threshold", 20)
    assert made["random"].about.data.key_users == round(every.key_users / 2)
    assert made["informative"].about.data.key_users < every.key_users
    for chosen, one in made.items():
        again = Recommender.load(one.save(tmp_path / str(chosen)))
        assert again.wish.key_users == again.about.data.chosen == chosen
        assert f"key_users={chosen}" in (tmp_path / str(chosen) / "card.md").read_text()
        assert again.recommend(EVEN) == one.recommend(EVEN)
    with pytest.raises(DataError, match="chosen by key_users=2; at least 3"):
        Recommender("als", key_threshold=10, key_users=2, device="cpu").fit(world())
    with pytest.raises(ConfigError, match="did you mean 'informative'"):
        Recommender("als", key_users="informativ", device="cpu").fit(world())


def test_who_was_not_chosen_was_not_trained_on() -> None:
    table = world()
    made = Recommender("pmf", key_threshold=10, key_users=20, epochs=1, device="cpu").fit(table)
    every = [f"u{x}" for x in np.flatnonzero(table.counts() >= 10)]
    known = 0
    for user in every:
        try:
            known += len(made.recommend(users=user, n=1))
        except ColdUserError:
            continue
    assert known == 20 < len(every)


def test_answers_as_a_table() -> None:
    frame = pd.DataFrame({"user_id": ["b", "a", "b"], "item_id": ["i2", "i4", "i3"]})
    found = fitted().recommend(frame.assign(rating=[5.0, 5.0, 1.0]), n=3)
    table = found.to_table()
    assert table.column_names == ["user_id", "item_id", "score", "rank", "std", "source"]
    rows = table.to_pylist()
    assert [x["user_id"] for x in rows] == ["b"] * 3 + ["a"] * 3
    assert [x["item_id"] for x in rows] == [x.item_id for answer in found for x in answer]
    assert [x["rank"] for x in rows] == [1, 2, 3, 1, 2, 3]
    assert {x["std"] for x in rows} == {None}
    listed = fitted().recommend([EVEN, {}], n=2)
    assert isinstance(listed, list)
    assert listed.to_table()["user_id"].to_pylist() == [0, 0, 1, 1]
    assert listed.to_table()["source"].to_pylist() == ["relation"] * 2 + ["popular"] * 2
    known = fitted().recommend(users=["u0", "u5"], n=1)
    assert known.to_table()["user_id"].to_pylist() == ["u0", "u5"]
    assert len(fitted().recommend([EVEN], candidates=[]).to_table()) == 0
