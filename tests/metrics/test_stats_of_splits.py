"""Comparisons over several splits, and over many systems, against loops and known worlds."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from idcf.errors import DataError
from idcf.metrics import (
    Interval,
    PerUserMetric,
    difference_over_splits,
    holm,
    mean_of_seeds,
    paired_difference,
)
from idcf.metrics.stats import Statistic

Pair = tuple[PerUserMetric, PerUserMetric]


def make_pair(seed: int, n_users: int = 50, shift: float = 0.1) -> Pair:
    """Squared errors of two systems on the rows of random users."""
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.permutation(60)[:n_users])
    weight = rng.integers(1, 9, n_users).astype(float)
    total = weight * rng.random(n_users)
    return PerUserMetric(ids, total + shift * weight, weight), PerUserMetric(ids, total, weight)


@pytest.mark.parametrize("statistic", ["mean-ratio", "rmse"])
@pytest.mark.parametrize("test_to_train", [0.0, 0.25])
def test_a_difference_over_splits_against_loops(statistic: Statistic, test_to_train: float) -> None:
    pairs = [make_pair(seed, shift=0.1 + 0.02 * seed) for seed in range(4)]
    n_resamples = 4000
    test = difference_over_splits(
        pairs,
        statistic=statistic,
        test_to_train=test_to_train,
        rng=np.random.default_rng(0),
        n_resamples=n_resamples,
    )

    def value(drawn: list[int]) -> list[float]:
        differences = []
        for a, b in pairs:
            at = {int(user): n for n, user in enumerate(a.users)}
            rows = [at[user] for user in drawn if user in at]
            means = [x.total[rows].sum() / x.weight[rows].sum() for x in (a, b)]
            roots = means if statistic == "mean-ratio" else [x**0.5 for x in means]
            differences.append(roots[0] - roots[1])
        return differences

    all_users = sorted({int(user) for a, _ in pairs for user in a.users})
    by_split = value(all_users)
    rng = np.random.default_rng(1)
    draws = [np.mean(value(list(rng.choice(all_users, len(all_users))))) for _ in range(1500)]
    over_users = np.var(draws, ddof=1)
    over_splits = (1 / 4 + test_to_train) * np.var(by_split, ddof=1)
    variance = over_users + over_splits
    degrees = variance**2 / (over_users**2 / (len(all_users) - 1) + over_splits**2 / 3)
    expected = np.mean(by_split)
    half = scipy_stats.t.ppf(0.975, degrees) * variance**0.5
    assert test.n_splits == 4
    assert test.difference.value == pytest.approx(expected)
    assert (test.difference.high - test.difference.low) / 2 == pytest.approx(half, rel=0.06)
    assert test.p_value == pytest.approx(
        2 * scipy_stats.t.sf(abs(expected) / variance**0.5, degrees), rel=1, abs=0.02
    )
    assert (test.p_value < 0.05) == (test.difference.low > 0)


def test_one_split_has_the_interval_over_users() -> None:
    a, b = make_pair(0)
    options = {"statistic": "rmse", "rng": np.random.default_rng(0), "n_resamples": 4000}
    test = difference_over_splits([(a, b)], test_to_train=0.25, **options)  # type: ignore[arg-type]
    assert tuple(test.difference) == pytest.approx(
        tuple(paired_difference(a, b, **options)),  # type: ignore[arg-type]
        abs=0.003,
    )


def test_equal_systems_are_not_distinguished() -> None:
    a, _ = make_pair(0)
    test = difference_over_splits([(a, a)] * 3, test_to_train=0.1, rng=np.random.default_rng(0))
    assert test.difference == Interval(0, 0, 0)
    assert test.p_value == 1
    ones = PerUserMetric(a.users, a.total + a.weight, a.weight)
    shifted = difference_over_splits(
        [(ones, a)] * 3, test_to_train=0.1, rng=np.random.default_rng(0)
    )
    assert shifted.p_value < 1e-9


def _coverage(n_worlds: int, test_to_train: float, over_users: bool) -> float:
    """Return how often an interval of random splits of fixed rows contains the true difference, 0,
    in worlds where users differ in which system is better for them."""
    n_users, n_rows, n_splits, covered = 80, 10, 6, 0
    for world in range(n_worlds):
        rng = np.random.default_rng(world)
        taste = rng.normal(0, 0.5, (n_users, 1))
        difference = taste + rng.normal(0, 1, (n_users, n_rows))
        pairs = []
        for _ in range(n_splits):
            is_test = rng.random((n_users, n_rows)).argsort(1) < 2
            total = (difference * is_test).sum(1)
            weight = np.full(n_users, 2.0)
            zero = PerUserMetric(np.arange(n_users), np.zeros(n_users), weight)
            pairs.append((PerUserMetric(np.arange(n_users), total, weight), zero))
        if over_users:
            interval = difference_over_splits(
                pairs, test_to_train=test_to_train, rng=rng, n_resamples=200
            ).difference
        else:
            points = [Interval(*[a.mean()] * 3) for a, _ in pairs]
            interval = mean_of_seeds(points, test_to_train=test_to_train)
        covered += interval.low <= 0 <= interval.high
    return covered / n_worlds


def test_intervals_over_splits_hold_what_they_promise() -> None:
    """Splits of one table agree more than splits of new tables would: taken as independent, they
    give intervals that are far too narrow."""
    assert _coverage(300, 0.25, over_users=True) >= 0.94
    assert _coverage(300, 0.0, over_users=False) < 0.9


def test_the_mean_of_splits_by_hand() -> None:
    points = [Interval(x, x - 3, x + 4) for x in (1.0, 2.0, 3.0)]
    half = scipy_stats.t.ppf(0.975, 2) * (1 / 3 + 0.25) ** 0.5
    expected = (2, 2 - np.hypot(3, half), 2 + np.hypot(4, half))
    assert mean_of_seeds(points, test_to_train=0.25) == pytest.approx(expected)


def slow_holm(p_values: list[float]) -> list[float]:
    """The closed testing procedure: a hypothesis is rejected if every set of hypotheses that holds
    it is, by Bonferroni's test of the set."""
    n = len(p_values)
    sets = list(chain.from_iterable(combinations(range(n), k) for k in range(1, n + 1)))
    by_set = {s: min(1.0, len(s) * min(p_values[i] for i in s)) for s in sets}
    return [max(p for s, p in by_set.items() if i in s) for i in range(n)]


@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.02, 0.04, 0.3, 1.0]), max_size=7))
def test_holm_against_closed_testing(p_values: list[float]) -> None:
    assert holm(p_values) == pytest.approx(slow_holm(p_values))


def test_what_cannot_be_compared() -> None:
    (a, b), (c, _), rng = make_pair(0), make_pair(1), np.random.default_rng(0)
    with pytest.raises(DataError, match="no splits to compare on"):
        difference_over_splits([], test_to_train=0.1, rng=rng)
    with pytest.raises(DataError, match="measured on different rows"):
        difference_over_splits([(a, b), (a, c)], test_to_train=0.1, rng=rng)
    with pytest.raises(DataError, match="p-values must lie between 0 and 1"):
        holm([0.5, float("nan")])
