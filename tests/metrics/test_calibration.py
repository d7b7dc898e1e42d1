from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from idcf.errors import ConfigError, DataError
from idcf.metrics import covered, negative_log_likelihood, reliability
from idcf.metrics.calibration import LEVELS, half_width


def rows(n: int = 20_000, seed: int = 0):
    rng = np.random.default_rng(seed)
    score, std = rng.normal(3, 1, n), rng.uniform(0.2, 2, n)
    return rng.integers(0, 40, n), score, std, rng.normal(score, std)


def test_whoever_is_right_about_the_spread_is_calibrated() -> None:
    user, score, std, label = rows()
    np.testing.assert_allclose(reliability(score, std, label), LEVELS, atol=0.015)
    for level in (0.5, 0.9):
        assert covered(user, score, std, label, level).mean() == pytest.approx(level, abs=0.01)


def test_too_sure_covers_less_and_is_more_surprised() -> None:
    user, score, std, label = rows()
    sure = covered(user, score, std / 2, label).mean()
    assert sure == pytest.approx(2 * stats.norm.cdf(half_width(0.9) / 2) - 1, abs=0.015)
    fit = negative_log_likelihood(user, score, std, label).mean()
    for wrong in (0.5, 0.8, 1.3, 2):
        assert negative_log_likelihood(user, score, std * wrong, label).mean() > fit


def test_likelihood_is_scipys_per_user() -> None:
    user, score, std, label = rows(500)
    got = negative_log_likelihood(user, score, std, label)
    each = -stats.norm(score, std).logpdf(label)
    for place, who in enumerate(got.users):
        assert got.total[place] == pytest.approx(each[user == who].sum())
        assert got.weight[place] == (user == who).sum()


def test_the_edge_of_an_interval_is_inside() -> None:
    wide = half_width(0.9)
    assert wide == pytest.approx(stats.norm.ppf(0.95))
    got = covered(np.zeros(3), np.zeros(3), np.ones(3), np.array([wide, -wide, wide + 1e-6]))
    assert got.total.tolist() == [2]


@pytest.mark.parametrize("std", [0.0, -1.0, np.nan, np.inf])
def test_a_deviation_must_be_one(std: float) -> None:
    with pytest.raises(DataError, match=r"row 1"):
        covered(np.zeros(2), np.zeros(2), np.array([1.0, std]), np.zeros(2))


def test_bad_levels_and_lengths_are_said() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        half_width(90)
    with pytest.raises(DataError, match="2 scores"):
        reliability(np.zeros(2), np.ones(3), np.zeros(2))
