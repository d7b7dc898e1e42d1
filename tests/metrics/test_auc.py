"""AUC, compared with all pairs, scikit-learn and a bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_rows import Array, few, rows, seeds
from sklearn.metrics import roc_auc_score

from idcf.errors import DataError
from idcf.metrics import auc_contributions, auc_interval, auc_per_user, auc_pooled


def slow_auc(score: Array, positive: Array) -> float:
    """AUC by its definition, over all pairs."""
    wins = [(p > q) + (p == q) / 2 for p in score[positive] for q in score[~positive]]
    return float(sum(wins)) / len(wins)


@few
@given(seeds, st.integers(2, 60))
def test_auc_against_all_pairs_and_sklearn(seed: int, n: int) -> None:
    user, score, label = rows(seed, n, 5)
    positive = label > 2
    got = auc_per_user(user, score, positive)
    users = [u for u in np.unique(user) if 0 < positive[user == u].mean() < 1]
    assert got.users.tolist() == users
    expected = [slow_auc(score[user == u], positive[user == u]) for u in users]
    np.testing.assert_allclose(got.values, expected)
    np.testing.assert_allclose(auc_per_user(user, -score, positive).values, 1 - got.values)
    np.testing.assert_allclose(auc_per_user(user, np.ones(n), positive).values, 0.5)
    if 0 < positive.mean() < 1:
        pooled = auc_pooled(score, positive)
        assert pooled == pytest.approx(slow_auc(score, positive))
        assert pooled == pytest.approx(roc_auc_score(positive, score))
        assert auc_pooled(-score, positive) == pytest.approx(1 - pooled)
        assert auc_pooled(score**3, positive.astype(int)) == pytest.approx(pooled)
        assert auc_pooled(np.zeros(n), positive) == pytest.approx(0.5)
        whole = auc_interval(user, score, positive)
        assert 0 <= whole.low <= whole.value == pooled <= whole.high <= 1


def test_auc_interval_is_as_wide_as_the_bootstrap_over_users() -> None:
    rng = np.random.default_rng(5)
    user = np.repeat(np.arange(80), 6)
    positive = rng.random(480) < 0.3
    score = rng.normal(size=80)[user] + rng.normal(size=480) + positive
    got = auc_interval(user, score, positive)
    draws = []
    for _ in range(400):
        drawn = (rng.integers(0, 80, 80)[:, None] * 6 + np.arange(6)).ravel()
        draws.append(roc_auc_score(positive[drawn], score[drawn]))
    low, high = np.quantile(draws, [0.025, 0.975])
    assert got.high - got.low == pytest.approx(high - low, rel=0.15)
    assert got.low == pytest.approx(low, abs=0.02)


@few
@given(seeds, st.integers(4, 60))
def test_contributions_average_to_the_pooled_auc(seed: int, n: int) -> None:
    user, score, label = rows(seed, n, 5)
    positive = label > 2
    positive[:2] = [True, False]
    got = auc_contributions(user, score, positive)
    assert got.users.tolist() == sorted(set(user.tolist()))
    assert got.weight.tolist() == [1.0] * len(got)
    assert got.mean() == pytest.approx(auc_pooled(score, positive))
    # c_u by its definition, over all pairs
    auc, others = auc_pooled(score, positive), [score[~positive], score[positive]]
    for u, value in zip(got.users, got.values, strict=True):
        c = 0.0
        for s, p in zip(score[user == u], positive[user == u], strict=True):
            lower, equal = (others[0] < s, others[0] == s) if p else (others[1] > s, others[1] == s)
            c += (np.mean(lower + equal / 2) - auc) / (positive.sum() if p else (~positive).sum())
        assert value == pytest.approx(auc + len(got) * c)


def test_the_level_widens_the_interval_and_bounds_are_clipped() -> None:
    user, score, label = rows(2, 40, 8)
    widths = []
    for level in (0.5, 0.9, 0.99):
        got = auc_interval(user, score, label > 2, confidence_level=level)
        widths.append(got.high - got.low)
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]
    perfect = auc_interval(np.arange(4), np.arange(4.0), np.array([0, 0, 1, 1]))
    assert perfect == (1.0, 1.0, 1.0)


def test_scores_may_be_infinite_but_not_nan() -> None:
    positive = np.array([1, 0, 1, 0])
    assert auc_pooled(np.array([np.inf, -np.inf, 0.0, -np.inf]), positive) == 1
    assert auc_pooled(np.array([np.inf, np.inf, np.inf, np.inf]), positive) == 0.5
    for metric in (auc_contributions, auc_per_user, auc_interval):
        with pytest.raises(DataError, match="score is NaN in 1 rows, first in row 2"):
            metric(np.arange(4), np.array([0, 1, np.nan, 2]), positive)


def test_users_of_one_class_have_no_auc_of_their_own() -> None:
    user, score = np.array([1, 1, 2, 2]), np.array([4.0, 3.0, 2.0, 1.0])
    positive = np.array([1, 1, 0, 0])
    assert len(auc_per_user(user, score, positive)) == 0
    assert auc_pooled(score, positive) == 1
    with pytest.raises(DataError, match="0 positive and 4 negative rows"):
        auc_contributions(user, score, positive * 0)
