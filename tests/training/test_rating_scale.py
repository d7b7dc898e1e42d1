"""Models of ratings do not depend on the unit of the ratings: stars, percent or money."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from shard_files import write_shards

from idcf import Recommender
from idcf.data.columns import MAX_RATING
from idcf.data.readers import read_interactions
from idcf.types import rating_unit

MODELS = ("bias", "item-mean", "item-knn", "ease", "als", "idcf-bayes")
OPTIONS: dict[str, dict[str, Any]] = {
    "idcf-bayes": {"embedding_size": 4, "sweeps": 12, "burn_in": 8, "blocks": 2}
}
HISTORY = {1: 5.0, 4: 1.0, 9: 4.0, 22: 2.0}
N_USERS, N_ITEMS = 80, 40


@cache
def stars() -> pd.DataFrame:
    """Ratings from 1 to 5, rounded products of three factors and two biases."""
    rng = np.random.default_rng(0)
    p, q = rng.normal(0, 0.7, (N_USERS, 3)), rng.normal(0, 0.7, (N_ITEMS, 3))
    users, items = (rng.normal(0, 0.4, n) for n in (N_USERS, N_ITEMS))
    rows = []
    for user in range(N_USERS):
        for item in rng.choice(N_ITEMS, 15, replace=False):
            rating = 3.5 + users[user] + items[item] + p[user] @ q[item] + rng.normal(0, 0.3)
            rows.append((user, item, float(np.clip(np.rint(rating), 1, 5))))
    return pd.DataFrame(rows, columns=["user_id", "item_id", "rating"])


@cache
def fitted(name: str, scale: float = 1.0, shift: float = 0.0) -> Recommender:
    """The model of stars times `scale` plus `shift`."""
    table = stars()
    table = table.assign(rating=table.rating * scale + shift)
    return Recommender(name, key_threshold=10, device="cpu", **OPTIONS.get(name, {})).fit(table)


def history(scale: float, shift: float = 0.0) -> dict[int, float]:
    """The history in another unit."""
    return {item: x * scale + shift for item, x in HISTORY.items()}


def scores(name: str, scale: float = 1.0, shift: float = 0.0) -> np.ndarray:
    """Scores of all items in stars, by a model of ratings in another unit."""
    model = fitted(name, scale, shift)
    found = np.array(model.predict(history(scale, shift), list(range(N_ITEMS))), np.float64)
    return (found - shift) / scale


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scale", [2.0**14, 2.0**-12, 2.0**27])
def test_a_power_of_two_changes_no_digit(name: str, scale: float) -> None:
    assert np.array_equal(scores(name, scale), scores(name))


@pytest.mark.parametrize("name", MODELS)
def test_other_factors_change_scores_by_less_than_their_error(name: str) -> None:
    # 1000 is 0.98 of a power of two, and so are priors and penalties in stars
    change = np.abs(scores(name, 1000.0, 5.0) - scores(name))
    assert change.max() < 0.1 * scores(name).std(), change.max()


def test_everything_that_is_in_stars_is_scaled() -> None:
    scale = 2.0**14
    plain, scaled = fitted("idcf-bayes"), fitted("idcf-bayes", scale)
    items, large = [0, 1, 2, 3], history(scale)

    interval, other = plain.predict_interval(HISTORY, items), scaled.predict_interval(large, items)
    for a, b in ((interval.std, other.std), (interval.low, other.low), (interval.high, other.high)):
        assert np.allclose(np.asarray(b) / scale, a, rtol=1e-5)
    assert np.array_equal(scaled.embed(large) / scale, plain.embed(HISTORY))
    gain = plain.next_question(HISTORY)
    other_gain = scaled.next_question(large)
    assert [x.item_id for x in gain] == [x.item_id for x in other_gain]
    lists = plain.recommend(HISTORY, n=10), scaled.recommend(large, n=10)
    assert [x.item_id for x in lists[0]] == [x.item_id for x in lists[1]]
    assert math.isclose(
        plain.manifest.choice_slope or 0, (scaled.manifest.choice_slope or 0) * scale
    )
    effects = plain.explain(HISTORY, 2), scaled.explain(large, 2)
    assert effects[0].score == effects[1].score  # an expected benefit, which has no unit
    assert math.isclose(effects[0].std or 0, (effects[1].std or 0) / scale, rel_tol=1e-5)


def test_ratings_of_new_items_are_scaled() -> None:
    results = []
    for scale in (1.0, 2.0**14):
        model = Recommender.from_artifact(fitted("idcf-bayes", scale).artifact)
        rows = pd.DataFrame(
            {
                "user_id": range(900, 906),
                "item_id": 99,
                "rating": np.array([5, 4, 5, 3, 4, 5]) * scale,
            }
        )
        histories = pd.DataFrame(
            [(u, i, r * scale) for u in range(900, 906) for i, r in HISTORY.items()],
            columns=["user_id", "item_id", "rating"],
        )
        model.partial_fit_items(rows, histories=histories)
        results.append(np.array(model.predict(history(scale), [99, 3])) / scale)
    assert np.allclose(*results, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("limit", [1e5, MAX_RATING, -MAX_RATING])
def test_the_largest_ratings_are_fitted(name: str, limit: float) -> None:
    found = scores(name, limit / 5)
    assert np.isfinite(found).all()
    assert np.abs(found - scores(name)).max() < 1


@pytest.mark.parametrize("name", MODELS)
def test_one_rating_of_a_hundred_thousand_among_stars(name: str) -> None:
    table = stars().copy()
    table.loc[7, "rating"] = 1e5
    model = Recommender(name, key_threshold=10, device="cpu", **OPTIONS.get(name, {})).fit(table)
    assert np.isfinite(model.predict(HISTORY, list(range(N_ITEMS)))).all()


@pytest.mark.parametrize(
    ("std", "unit"), [(0, 1), (1.126, 1), (1.4, 1), (1.5, 2), (0.6, 0.5), (1e-30, 2.0**-30)]
)
def test_the_unit_is_the_nearest_power_of_two(std: float, unit: float) -> None:
    assert rating_unit(std) == unit


@pytest.mark.parametrize("name", ["bias", "als", "ease", "item-knn"])
def test_sums_over_shards_hold_the_largest_ratings(name: str, tmp_path: Path) -> None:
    found = []
    for scale in (1.0, 2.0**27):
        folder, table = tmp_path / f"shards{scale}", stars()
        write_shards(read_interactions(table.assign(rating=table.rating * scale)), folder)
        model = Recommender(name, key_threshold=10, device="cpu").fit(folder, engine="local")
        found.append(np.array(model.predict(history(scale), list(range(N_ITEMS)))) / scale)
    assert np.allclose(*found, atol=1e-5)
