"""AUC, compared with all pairs, scikit-learn and a bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_rows import Array, few, rows, seeds
from sklearn.metrics import roc_auc_score

from idcf.metrics import auc_interval, auc_per_user, auc_pooled


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
