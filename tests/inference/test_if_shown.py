"""Ratings of items that are shown instead of chosen: the formula, its slope, and what it gains."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from builders import board
from scipy.stats import norm

from idcf.errors import ConfigError
from idcf.inference.if_shown import rating_if_shown
from idcf.recommender import Recommender
from idcf.testing.synthetic import ChosenRatings, chosen_by_rating

LEVELS = (1.0, 2.0, 3.0, 4.0, 5.0)
SMALL = {"sweeps": 40, "burn_in": 20, "embedding_size": 4, "rank": 6}
N_TRAIN, N_USERS, N_ITEMS = 500, 650, 200


@cache
def world(slope: float) -> tuple[Recommender, ChosenRatings]:
    """Return a model of the first users of a world with this slope, and the world."""
    data = chosen_by_rating(N_USERS, N_ITEMS, np.random.default_rng(1), slope=slope)
    rows = data.interactions.where(data.interactions.user < N_TRAIN)
    return Recommender(key_threshold=25, device="cpu", **SMALL).fit(rows), data


def errors(slope: float) -> tuple[float, float]:
    """Return the RMSE of new users' ratings of random items: as if chosen, and as if shown."""
    recommender, data = world(slope)
    rng, table, squares = np.random.default_rng(2), data.interactions, []
    for user in range(N_TRAIN, N_USERS):
        items = rng.permutation(table.item[table.user == user])[:12]
        history = {f"i{x}": float(data.rating[user, x]) for x in items}
        others = rng.choice(np.setdiff1d(np.arange(N_ITEMS), items), 50, replace=False)
        names = [f"i{x}" for x in others]
        true = data.rating[user, others]
        predictions = [recommender.predict(history, names, if_shown=x) for x in (False, True)]
        squares.append([(x - true) ** 2 for x in predictions])
    chosen, shown = np.sqrt(np.mean(squares, axis=(0, 2)))
    return float(chosen), float(shown)


def test_the_slope_is_recovered() -> None:
    for slope in (0.0, 0.5, 1.0):
        estimate = world(slope)[0].manifest.choice_slope
        assert estimate == pytest.approx(slope, abs=0.2), slope


def test_random_items_are_predicted_much_better_where_users_choose_by_rating() -> None:
    chosen, shown = errors(1.0)
    assert chosen > 1.2
    assert shown < chosen - 0.2
    chosen, shown = errors(0.5)
    assert shown < chosen - 0.05


def test_nothing_is_lost_where_they_do_not() -> None:
    chosen, shown = errors(0.0)
    assert shown < chosen + 0.01


def slow_rating_if_shown(mean: float, std: float, slope: float) -> float:
    """The definition, level by level."""
    edges = [-np.inf, 1.5, 2.5, 3.5, 4.5, np.inf]
    chosen = [norm.cdf(b, mean, std) - norm.cdf(a, mean, std)
              for a, b in pairwise(edges)]  # fmt: skip
    shown = [p * np.exp(-slope * r) for p, r in zip(chosen, LEVELS, strict=True)]
    shown = [p / sum(shown) for p in shown]
    difference = sum((s - c) * r for s, c, r in zip(shown, chosen, LEVELS, strict=True))
    return float(np.clip(mean + difference, 1, 5))


def test_the_formula() -> None:
    mean = np.array([[4.2, 1.0, 5.6], [3.0, -2.0, 4.9]], np.float32)
    std = np.array([[0.9, 1.2, 0.5], [0.0, 1.0, 2.0]], np.float32)
    for slope in (0.0, 0.4, 2.5):
        result = rating_if_shown(mean, std, LEVELS, slope)
        expected = [
            [slow_rating_if_shown(m, max(s, 1e-6), slope) for m, s in zip(*row, strict=True)]
            for row in zip(mean, std, strict=True)
        ]
        np.testing.assert_allclose(result, expected, rtol=1e-4)
        assert ((result >= 1) & (result <= 5)).all()
    unchanged = rating_if_shown(mean, std, LEVELS, 0.0)
    np.testing.assert_allclose(unchanged, mean.clip(1, 5), rtol=1e-5)
    assert (rating_if_shown(mean, std, LEVELS, 1.0) <= mean.clip(1, 5) + 1e-6).all()


def test_a_fine_scale_is_computed_like_a_coarse_one() -> None:
    mean, std = np.array([0.5], np.float32), np.array([0.1], np.float32)
    levels = np.linspace(0, 1, 5000).tolist()
    # of a normal distribution the mean moves by slope · variance
    result = rating_if_shown(mean, std, levels, 3.0)
    assert result.item() == pytest.approx(0.47, abs=0.002)


def test_lists_have_the_rating_if_shown(tmp_path) -> None:
    recommender, _ = world(1.0)
    history = {"i2": 5.0, "i4": 3.0}
    loaded = Recommender.load(recommender.save(tmp_path / "model"))
    rows = loaded.recommend(history, n=8, return_std=True)
    expected = recommender.predict(history, [x.item_id for x in rows], if_shown=True)
    np.testing.assert_allclose([x.rating_if_shown for x in rows], expected, rtol=1e-4)
    assert all(x.rating_if_shown < x.rating for x in rows)
    batch = recommender.recommend([history] * 3, n=8, return_std=True, diversity=0.2)
    one = recommender.recommend(history, n=8, return_std=True, diversity=0.2)
    table = batch.to_table()["rating_if_shown"].to_pylist()
    np.testing.assert_allclose(table[:8], [x.rating_if_shown for x in one], rtol=1e-3)
    assert recommender.recommend(history)[0].rating_if_shown is None


def test_a_model_that_does_not_know_how_users_choose_refuses() -> None:
    als = Recommender("als", device="cpu").fit(board(60, 20, 6, 12))
    with pytest.raises(ConfigError, match="if_shown needs what a fit on ratings learns"):
        als.predict({"i2": 5.0}, ["i4"], if_shown=True)
    assert als.recommend({"i2": 5.0})[0].rating_if_shown is None
