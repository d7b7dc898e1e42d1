"""Coverage, likelihood and reliability of normal predictions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from idcf.errors import ConfigError, DataError
from idcf.metrics import interval_coverage, negative_log_likelihood, reliability_curve
from idcf.metrics.calibration import CONFIDENCE_LEVELS, interval_half_width


def rows(n: int = 20_000, seed: int = 0):
    """User, score, std and a label drawn from N(score, std²)."""
    rng = np.random.default_rng(seed)
    score, std = rng.normal(3, 1, n), rng.uniform(0.2, 2, n)
    return rng.integers(0, 40, n), score, std, rng.normal(score, std)


def test_the_true_spread_is_calibrated() -> None:
    user, score, std, label = rows()
    np.testing.assert_allclose(reliability_curve(score, std, label), CONFIDENCE_LEVELS, atol=0.015)
    for level in (0.5, 0.9):
        assert interval_coverage(user, score, std, label, level).mean() == pytest.approx(
            level, abs=0.01
        )


def test_a_wrong_spread_covers_less_and_has_a_worse_likelihood() -> None:
    user, score, std, label = rows()
    coverage = interval_coverage(user, score, std / 2, label).mean()
    assert coverage == pytest.approx(
        2 * stats.norm.cdf(interval_half_width(0.9) / 2) - 1, abs=0.015
    )
    fit = negative_log_likelihood(user, score, std, label).mean()
    for wrong in (0.5, 0.8, 1.3, 2):
        assert negative_log_likelihood(user, score, std * wrong, label).mean() > fit


def test_likelihood_is_scipys_per_user() -> None:
    user, score, std, label = rows(500)
    got = negative_log_likelihood(user, score, std, label)
    losses = -stats.norm(score, std).logpdf(label)
    for row, u in enumerate(got.users):
        assert got.total[row] == pytest.approx(losses[user == u].sum())
        assert got.weight[row] == (user == u).sum()


def test_the_edge_of_an_interval_is_inside() -> None:
    wide = interval_half_width(0.9)
    assert wide == pytest.approx(stats.norm.ppf(0.95))
    got = interval_coverage(
        np.zeros(3), np.zeros(3), np.ones(3), np.array([wide, -wide, wide + 1e-6])
    )
    assert got.total.tolist() == [2]


@pytest.mark.parametrize("std", [0.0, -1.0, np.nan, np.inf])
def test_a_standard_deviation_must_be_above_zero(std: float) -> None:
    with pytest.raises(DataError, match=r"row 1"):
        interval_coverage(np.zeros(2), np.zeros(2), np.array([1.0, std]), np.zeros(2))


def test_bad_levels_and_lengths_are_errors() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        interval_half_width(90)
    with pytest.raises(DataError, match="2 scores"):
        reliability_curve(np.zeros(2), np.ones(3), np.zeros(2))
