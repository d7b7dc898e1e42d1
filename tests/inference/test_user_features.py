"""Features of new users: lists, intervals, explanations and errors."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import board

from idcf import ConfigError, DataError, Recommender
from idcf.data.interactions import Interactions

EVEN = {"i2": 5.0, "i4": 5.0, "i3": 1.0}


def interactions(implicit: bool = False) -> Interactions:
    return board(90, 30, 6, 16, implicit=implicit)


@cache
def fitted_with_features() -> Recommender:
    """Fit on features that say whether a user likes even items and whether an item is even."""
    table = interactions()
    users = pd.DataFrame({"user_id": table.users.ids, "age": np.arange(len(table.users)) % 50})
    users["likes"] = [("odd", "even")[int(x[1:]) % 2 == 0] for x in table.users.ids]
    items = pd.DataFrame({"item_id": table.items.ids, "title": [f"Film {x}" for x in range(30)]})
    items["colour"] = [("odd", "even")[int(x[1:]) % 2 == 0] for x in table.items.ids]
    recommender = Recommender("idcf-bayes", key_threshold=10, device="cpu", sweeps=40, burn_in=20)
    return recommender.fit(table, users=users, items=items)


def even_share(recommendations: Any) -> float:
    """Return the share of even items."""
    return float(np.mean([int(x.item_id[1:]) % 2 == 0 for x in recommendations]))


def test_features_alone_give_a_list(tmp_path: Path) -> None:
    recommender = fitted_with_features()
    assert recommender.manifest.options["user_features"]
    assert recommender.manifest.options["item_features"]
    liked = {x: recommender.recommend(features={"likes": x}, n=10) for x in ("even", "odd")}
    assert even_share(liked["even"]) > 0.8 > 0.2 > even_share(liked["odd"])
    assert {x.source for x in liked["even"]} == {"features"}
    assert liked["even"][0].title == f"Film {liked['even'][0].item_id[1:]}"
    assert {x.source for x in recommender.recommend(features={"age": None})} == {"popular"}
    assert {x.source for x in recommender.recommend(EVEN, features={"age": 9})} == {
        recommender.predictor.source
    }
    loaded = Recommender.load(recommender.save(tmp_path / "model"))
    assert loaded.recommend(features={"likes": "odd"}, n=10) == liked["odd"]
    assert "features (age, likes)" in (tmp_path / "model" / "card.md").read_text()


def test_features_of_several_users() -> None:
    recommender = fitted_with_features()
    histories, features = [EVEN, {}, {}, EVEN], [{"likes": "odd"}, {"likes": "even"}, {}, None]
    batch = recommender.recommend(histories, features=features, n=6)
    for history, values, in_batch in zip(histories, features, batch, strict=True):
        single = recommender.recommend(history, features=values, n=6)
        assert [x.item_id for x in single] == [x.item_id for x in in_batch]
        assert [x.source for x in single] == [x.source for x in in_batch]
    vectors = recommender.embed(histories, features=features)
    single_vector = recommender.embed(EVEN, features=features[0])
    np.testing.assert_allclose(vectors[0], single_vector, rtol=1e-4, atol=1e-5)
    scores = recommender.predict({}, ["i8"], features={"likes": "even"})
    assert scores > recommender.predict({}, ["i8"], features={"likes": "odd"})
    assert len(recommender.recommend(users=["u0", "u1"])) == 2


def test_errors_of_features() -> None:
    table = interactions()
    users = pd.DataFrame({"user_id": table.users.ids, "age": range(len(table.users))})
    items = pd.DataFrame({"item_id": table.items.ids, "year": range(len(table.items))})
    with pytest.raises(ConfigError, match=r"'als' reads no user features; idcf-bayes, nimc, .* do"):
        Recommender("als", device="cpu").fit(table, users=users)
    with pytest.raises(DataError, match=r"trained without any; fit idcf-bayes with users="):
        Recommender("als", device="cpu").fit(table).recommend(EVEN, features={"age": 3})
    with pytest.raises(ConfigError, match="not both"):
        fitted_with_features().recommend(users="u0", features={"age": 3})
    with pytest.raises(DataError, match="features are 1, but there are 2"):
        fitted_with_features().recommend([EVEN, EVEN], features=[{}])
    with pytest.raises(DataError, match="a list of dicts"):
        fitted_with_features().recommend([EVEN, EVEN], features={"age": 3})
    with_titles = Recommender("als", device="cpu").fit(
        table, items=items[["item_id"]].assign(title=[f"T{x}" for x in range(30)])
    )
    assert {x.item_id: x.title for x in with_titles.recommend(n=30)}["i3"] == "T3"


def test_standard_deviations_with_features() -> None:
    recommender = fitted_with_features()
    features = [None, {"likes": "even"}]
    batch = recommender.recommend([EVEN, {}], features=features, n=3, return_std=True)
    rows = batch.to_table().to_pylist()
    assert [x["source"] for x in rows] == ["posterior"] * 3 + ["features"] * 3
    assert all(x["std"] > 0 for x in rows)
    single = recommender.recommend(features={"likes": "even"}, n=3, return_std=True)
    np.testing.assert_allclose([x["std"] for x in rows[3:]], [x.std for x in single], rtol=1e-4)
    with_features = recommender.predict_interval({}, ["i8"], features={"likes": "even"})
    assert with_features.score > recommender.predict_interval({}, ["i8"]).score


def test_explanations_and_questions_with_features() -> None:
    recommender, features = fitted_with_features(), {"likes": "even"}
    explanation = recommender.explain(EVEN, "i9", features=features)

    def list_score(history: dict[str, float]) -> float:
        options = {"candidates": ["i9"], "filter_seen": False, "features": features}
        return recommender.recommend(history, **options)[0].score

    assert explanation.score == pytest.approx(list_score(EVEN), abs=1e-4)
    for reason in explanation.reasons:
        others = {k: v for k, v in EVEN.items() if k != reason.item_id}
        without = list_score(others)
        assert reason.effect == pytest.approx(explanation.score - without, abs=1e-4)
    # features change the posterior mean, not the covariance, so that questions do not change
    assert recommender.next_question(EVEN, 3, features=features) == recommender.next_question(
        EVEN, 3
    )
    with pytest.raises(DataError, match="lieks"):
        recommender.next_question(features={"lieks": "odd"})
