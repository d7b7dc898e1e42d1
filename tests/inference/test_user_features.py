"""What is told of a newcomer beside what they did."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from idcf import ConfigError, DataError, Recommender
from idcf.data.interactions import Interactions
from idcf.testing.synthetic import checkerboard

torch.set_num_threads(1)
EVEN = {"i2": 5.0, "i4": 5.0, "i3": 1.0}


@cache
def world(implicit: bool = False) -> Interactions:
    return checkerboard(90, 30, np.random.default_rng(0), few=6, many=16, implicit=implicit)


@cache
def knowing() -> Recommender:
    """Of users it is told which colour they like, of items which they have."""
    table = world()
    users = pd.DataFrame({"user_id": table.users.ids, "age": np.arange(len(table.users)) % 50})
    users["likes"] = [("odd", "even")[int(x[1:]) % 2 == 0] for x in table.users.ids]
    items = pd.DataFrame({"item_id": table.items.ids, "title": [f"Film {x}" for x in range(30)]})
    items["colour"] = [("odd", "even")[int(x[1:]) % 2 == 0] for x in table.items.ids]
    made = Recommender("idcf-bayes", key_threshold=10, device="cpu", sweeps=40, burn_in=20)
    return made.fit(table, users=users, items=items)


def even(found: Any) -> float:
    return float(np.mean([int(x.item_id[1:]) % 2 == 0 for x in found]))


def test_features_alone_tell_what_people_like(tmp_path: Path) -> None:
    made = knowing()
    assert made.about.options["user_features"]
    assert made.about.options["item_features"]
    liked = {x: made.recommend(features={"likes": x}, n=10) for x in ("even", "odd")}
    assert even(liked["even"]) > 0.8 > 0.2 > even(liked["odd"])
    assert {x.source for x in liked["even"]} == {"features"}
    assert liked["even"][0].title == f"Film {liked['even'][0].item_id[1:]}"
    assert {x.source for x in made.recommend(features={"age": None})} == {"popular"}
    assert {x.source for x in made.recommend(EVEN, features={"age": 9})} == {made.desk.source}
    again = Recommender.load(made.save(tmp_path / "model"))
    assert again.recommend(features={"likes": "odd"}, n=10) == liked["odd"]
    assert "features (age, likes)" in (tmp_path / "model" / "card.md").read_text()


def test_features_of_many_are_those_of_each() -> None:
    made = knowing()
    histories, told = [EVEN, {}, {}, EVEN], [{"likes": "odd"}, {"likes": "even"}, {}, None]
    many = made.recommend(histories, features=told, n=6)
    for history, features, found in zip(histories, told, many, strict=True):
        one = made.recommend(history, features=features, n=6)
        assert [x.item_id for x in one] == [x.item_id for x in found]
        assert [x.source for x in one] == [x.source for x in found]
    vectors = made.embed(histories, features=told)
    np.testing.assert_allclose(vectors[0], made.embed(EVEN, features=told[0]), rtol=1e-4, atol=1e-5)
    scores = made.predict({}, ["i8"], features={"likes": "even"})
    assert scores > made.predict({}, ["i8"], features={"likes": "odd"})
    assert len(made.recommend(users=["u0", "u1"])) == 2


def test_features_are_refused_where_they_cannot_be_read() -> None:
    table = world()
    users = pd.DataFrame({"user_id": table.users.ids, "age": range(len(table.users))})
    items = pd.DataFrame({"item_id": table.items.ids, "year": range(len(table.items))})
    for more, says in (
        ({"users": users}, "'als' reads no user features; idcf-bayes and nimc do"),
        ({"items": items}, "'als' reads no item features; idcf-bayes and nimc do"),
    ):
        with pytest.raises(ConfigError, match=says):
            Recommender("als", device="cpu").fit(table, **more)
    with pytest.raises(DataError, match=r"trained without any; fit it with users="):
        Recommender("als", device="cpu").fit(table).recommend(EVEN, features={"age": 3})
    with pytest.raises(ConfigError, match="not both"):
        knowing().recommend(users="u0", features={"age": 3})
    with pytest.raises(DataError, match="features are 1, but there are 2 people"):
        knowing().recommend([EVEN, EVEN], features=[{}])
    with pytest.raises(DataError, match="a list of dicts"):
        knowing().recommend([EVEN, EVEN], features={"age": 3})
    named = Recommender("als", device="cpu").fit(
        table, items=items[["item_id"]].assign(title=[f"T{x}" for x in range(30)])
    )
    assert {x.item_id: x.title for x in named.recommend(n=30)}["i3"] == "T3"


def test_how_sure_features_make_a_posterior() -> None:
    made = knowing()
    found = made.recommend([EVEN, {}], features=[None, {"likes": "even"}], n=3, std=True)
    rows = found.to_table().to_pylist()
    assert [x["source"] for x in rows] == ["posterior"] * 3 + ["features"] * 3
    assert all(x["std"] > 0 for x in rows)
    alone = made.recommend(features={"likes": "even"}, n=3, std=True)
    np.testing.assert_allclose([x["std"] for x in rows[3:]], [x.std for x in alone], rtol=1e-4)
    sure = made.predict_interval({}, ["i8"], features={"likes": "even"})
    unsure = made.predict_interval({}, ["i8"])
    assert sure.score > unsure.score


def test_reasons_and_questions_know_the_features_too() -> None:
    made, told = knowing(), {"likes": "even"}
    why = made.explain(EVEN, "i9", features=told)
    assert why.score == pytest.approx(made.predict(EVEN, ["i9"], features=told)[0], abs=1e-4)
    for reason in why.reasons:  # what is left out is the item alone, the features stay
        rest = {k: v for k, v in EVEN.items() if k != reason.item_id}
        without = made.predict(rest, ["i9"], features=told)[0]
        assert reason.effect == pytest.approx(why.score - without, abs=1e-4)
    # they move what is expected of somebody, not how sure it is, so the questions stay
    assert made.next_question(EVEN, 3, features=told) == made.next_question(EVEN, 3)
    with pytest.raises(DataError, match="lieks"):
        made.next_question(features={"lieks": "odd"})
