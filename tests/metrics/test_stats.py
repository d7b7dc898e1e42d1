"""Intervals and paired tests, compared with loops and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats as scipy_stats

import idcf.metrics
from idcf.errors import ConfigError, DataError
from idcf.metrics import (
    Interval,
    PerUserMetric,
    bootstrap_interval,
    mean_of_seeds,
    paired_difference,
    paired_test,
)
from idcf.metrics import stats as module

Array = NDArray[Any]


def users(seed: int, n: int) -> tuple[Array, Array]:
    """Random totals and weights of n users."""
    rng = np.random.default_rng(seed)
    weight = rng.integers(1, 20, n).astype(float)
    return weight * rng.random(n), weight


@pytest.mark.parametrize("statistic", ["mean-ratio", "rmse"])
def test_bootstrap_against_a_loop(statistic: Any) -> None:
    total, weight = users(0, 60)
    got = bootstrap_interval(
        total, weight, statistic=statistic, rng=np.random.default_rng(1), n_resamples=4000
    )
    rng = np.random.default_rng(2)
    draws = []
    for _ in range(4000):
        drawn = rng.integers(0, 60, 60)
        ratio = total[drawn].sum() / weight[drawn].sum()
        draws.append(ratio**0.5 if statistic == "rmse" else ratio)
    low, high = np.quantile(draws, [0.025, 0.975])
    ratio = total.sum() / weight.sum()
    assert got.value == pytest.approx(ratio**0.5 if statistic == "rmse" else ratio)
    width = high - low
    assert got.low == pytest.approx(low, abs=width / 15)
    assert got.high == pytest.approx(high, abs=width / 15)


def test_chunks_do_not_change_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    total, weight = users(3, 50)
    whole = bootstrap_interval(total, weight, rng=np.random.default_rng(4), n_resamples=300)
    monkeypatch.setattr(module, "MAX_COUNT_CELLS", 170)
    parts = bootstrap_interval(total, weight, rng=np.random.default_rng(4), n_resamples=300)
    np.testing.assert_allclose(whole, parts)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([0.5, 0.9, 0.99]))
def test_interval_holds_the_value_and_repeats(seed: int, n: int, level: float) -> None:
    total, weight = users(seed, n)
    a, b = (
        bootstrap_interval(
            total, weight, rng=np.random.default_rng(seed), n_resamples=50, confidence_level=level
        )
        for _ in range(2)
    )
    assert a == b
    assert a.low <= a.value <= a.high
    assert total.min() >= 0
    assert a.high <= (total / weight).max() + 1e-9
    if n == 1:
        assert a.low == pytest.approx(a.high)


def test_interval_shrinks_with_users_and_grows_with_level() -> None:
    rng = np.random.default_rng(6)

    def width(n: int, level: float = 0.95) -> float:
        total, weight = users(7, n)
        got = bootstrap_interval(total, weight, rng=rng, n_resamples=500, confidence_level=level)
        return got.high - got.low

    assert width(3000) == pytest.approx(width(30) / 10, rel=0.5)
    assert width(100, 0.5) < width(100, 0.9) < width(100, 0.99)


def test_interval_covers_the_truth_as_often_as_its_level() -> None:
    rng = np.random.default_rng(8)
    inside = 0
    for _ in range(300):
        got = bootstrap_interval(rng.exponential(1, 80), np.ones(80), rng=rng, n_resamples=200)
        inside += got.low <= 1 <= got.high
    assert 0.88 <= inside / 300 <= 0.98


def per_user(seed: int, n: int, shift: float = 0.0) -> PerUserMetric:
    total, weight = users(seed, n)
    noise = np.random.default_rng(seed + 1).normal(0, 0.1, n)
    return PerUserMetric(np.arange(n), total + weight * np.abs(noise + shift), weight)


@pytest.mark.parametrize("statistic", ["mean-ratio", "rmse"])
def test_paired_against_scipy(statistic: Any) -> None:
    a, b = per_user(0, 120, 0.1), per_user(0, 120)
    got = paired_test(a, b, statistic=statistic, rng=np.random.default_rng(0))
    assert got.n_users == 120
    assert got.t_test_p_value == pytest.approx(scipy_stats.ttest_rel(a.values, b.values).pvalue)
    assert got.wilcoxon_p_value == pytest.approx(scipy_stats.wilcoxon(a.values, b.values).pvalue)
    power = 0.5 if statistic == "rmse" else 1
    assert got.difference.value == pytest.approx(a.mean() ** power - b.mean() ** power)
    assert 0 < got.difference.low < got.difference.value < got.difference.high
    # the interval of a paired difference is far narrower than that of one system
    alone = bootstrap_interval(a.total, a.weight, statistic=statistic, rng=np.random.default_rng(0))
    assert got.difference.high - got.difference.low < (alone.high - alone.low) / 2
    back = paired_test(b, a, statistic=statistic, rng=np.random.default_rng(0))
    assert back.t_test_p_value == pytest.approx(got.t_test_p_value)
    assert back.difference.low == pytest.approx(-got.difference.high)


def test_paired_without_any_spread() -> None:
    a = PerUserMetric.from_values(np.array([0.25, 0.5, 0.75]))
    rng = np.random.default_rng(0)
    same = paired_test(a, a, rng=rng)
    assert same == (Interval(0, 0, 0), 1, 1, 3)
    shifted = paired_test(PerUserMetric.from_values(a.values + 1), a, rng=rng)
    assert shifted.t_test_p_value == 0
    assert shifted.difference == pytest.approx((1, 1, 1))


def test_paired_tests_of_noise_are_rarely_significant() -> None:
    rng = np.random.default_rng(9)
    p = [
        paired_test(
            PerUserMetric.from_values(rng.random(30)),
            PerUserMetric.from_values(rng.random(30)),
            rng=rng,
            n_resamples=1,
        )[1:3]
        for _ in range(200)
    ]
    assert np.all(np.mean(np.array(p) < 0.05, 0) < 0.12)


def test_mean_of_seeds_by_hand() -> None:
    interval = Interval(0.5, 0.4, 0.7)
    assert mean_of_seeds([interval]) == pytest.approx(interval)
    assert mean_of_seeds([interval, interval, interval]) == pytest.approx(
        interval
    )  # seeds do not add users
    points = [Interval(x, x, x) for x in (1.0, 2.0, 3.0)]
    half = scipy_stats.t.ppf(0.975, 2) / 3**0.5
    assert mean_of_seeds(points) == pytest.approx((2, 2 - half, 2 + half))
    joined = mean_of_seeds([Interval(x, x - 3, x + 4) for x in (1.0, 2.0, 3.0)])
    assert joined == pytest.approx((2, 2 - np.hypot(3, half), 2 + np.hypot(4, half)))


def test_two_seeds_have_the_interval_over_users_only() -> None:
    two = [Interval(1.0, 0.5, 1.25), Interval(3.0, 2.0, 3.75)]
    assert mean_of_seeds(two) == (2.0, 1.25, 2.5)


def test_from_values_leaves_out_nan_and_sorts() -> None:
    got = PerUserMetric.from_values(np.array([0.5, np.nan, 0.25]), np.array([9, 4, 2]))
    assert got.users.tolist() == [2, 9]
    assert got.values.tolist() == [0.25, 0.5]
    assert got.weight.tolist() == [1, 1]
    assert (len(got), got.mean()) == (2, 0.375)


def test_bad_input_is_named() -> None:
    rng, ones = np.random.default_rng(0), np.ones(3)
    with pytest.raises(ConfigError, match="no statistic named 'rsme'; did you mean 'rmse'"):
        bootstrap_interval(ones, ones, statistic="rsme", rng=rng)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="confidence_level is 95"):
        bootstrap_interval(ones, ones, rng=rng, confidence_level=95)
    with pytest.raises(ConfigError, match="n_resamples is 0"):
        bootstrap_interval(ones, ones, rng=rng, n_resamples=0)
    with pytest.raises(DataError, match="no users"):
        bootstrap_interval(ones[:0], ones[:0], rng=rng)
    with pytest.raises(DataError, match="no users"):
        PerUserMetric.from_values(ones * np.nan).mean()
    with pytest.raises(DataError, match="not finite"):
        bootstrap_interval(ones * np.nan, ones, rng=rng)
    with pytest.raises(DataError, match="has weight 0"):
        bootstrap_interval(ones, ones * 0, rng=rng)
    with pytest.raises(DataError, match=r"different rows \(3 and 2 users\)"):
        paired_test(PerUserMetric.from_values(ones), PerUserMetric.from_values(ones[:2]), rng=rng)
    with pytest.raises(DataError, match="at least 2 users"):
        paired_test(
            PerUserMetric.from_values(ones[:1]), PerUserMetric.from_values(ones[:1]), rng=rng
        )
    with pytest.raises(DataError, match="twice"):
        PerUserMetric.from_values(ones, np.zeros(3, int))
    with pytest.raises(DataError, match="no seeds"):
        mean_of_seeds([])


def test_public_names() -> None:
    assert all(hasattr(idcf.metrics, name) for name in idcf.metrics.__all__)
    assert idcf.metrics.__all__ == sorted(idcf.metrics.__all__)


def metric(values: Any, ids: Any = None) -> PerUserMetric:
    return PerUserMetric.from_values(np.array(values, float), ids)


@given(st.integers(0, 500), st.integers(2, 25), st.sampled_from(["mean-ratio", "rmse"]))
@settings(deadline=None, max_examples=25)
def test_a_difference_pairs_the_users_of_every_draw(seed: int, n: int, statistic: Any) -> None:
    """Against the draws of a loop, which takes the users of both systems together."""
    (total_a, weight), (total_b, _) = users(seed, n), users(seed + 1, n)
    a, b = (PerUserMetric(np.arange(n), x, weight) for x in (total_a, total_b))
    rng = np.random.default_rng
    got = paired_difference(a, b, statistic=statistic, rng=rng(3), n_resamples=20)
    drawn = rng(3).integers(0, n, size=(20, n))

    def value(total: Array, rows: Array) -> float:
        ratio = total[rows].sum() / weight[rows].sum()
        return float(ratio**0.5 if statistic == "rmse" else ratio)

    draws = [value(total_a, rows) - value(total_b, rows) for rows in drawn]
    everyone = np.arange(n)
    expected = value(total_a, everyone) - value(total_b, everyone)
    assert got.value == pytest.approx(expected)
    low, high = np.quantile(draws, [0.025, 0.975])
    assert got.low == pytest.approx(min(low, expected))
    assert got.high == pytest.approx(max(high, expected))


def test_differences_are_antisymmetric_and_zero_for_equal_systems() -> None:
    a, b = (metric(users(seed, 30)[0]) for seed in (0, 1))
    rng = np.random.default_rng
    forth = paired_difference(a, b, rng=rng(0))
    back = paired_difference(b, a, rng=rng(0))
    np.testing.assert_allclose([-forth.value, -forth.high, -forth.low], back, atol=1e-12)
    test = paired_test(a, a, rng=rng(0))
    assert tuple(test.difference) == (0, 0, 0)
    assert (test.t_test_p_value, test.wilcoxon_p_value, test.n_users) == (1.0, 1.0, 30)


def test_one_user_has_an_interval_of_no_width() -> None:
    interval = bootstrap_interval(
        np.array([9.0]), np.array([1.0]), statistic="rmse", rng=np.random.default_rng(0)
    )
    assert tuple(interval) == (3.0, 3.0, 3.0)
    with pytest.raises(DataError, match="at least 2 users, not 1"):
        paired_difference(metric([1.0]), metric([2.0]), rng=np.random.default_rng(0))


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_intervals_scale_with_the_values(scale: float) -> None:
    total, weight = users(5, 40)
    base, scaled = (
        bootstrap_interval(total * s, weight, rng=np.random.default_rng(0)) for s in (1.0, scale)
    )
    np.testing.assert_allclose(np.array(scaled), np.array(base) * scale, rtol=1e-12)


def test_systems_on_different_users_or_rows_are_not_compared() -> None:
    a = PerUserMetric(np.array([1, 2]), np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    other_user = PerUserMetric(np.array([1, 3]), a.total, a.weight)
    other_rows = PerUserMetric(a.users, a.total, np.array([2.0, 1.0]))
    fewer = PerUserMetric(a.users[:1], a.total[:1], a.weight[:1])
    for b in (other_user, other_rows, fewer):
        with pytest.raises(DataError, match=r"different rows \(2 and \d users\): score the same"):
            paired_test(a, b, rng=np.random.default_rng(0))


def test_users_in_any_order_are_paired_by_their_id() -> None:
    a = metric([0.1, 0.2, 0.3], np.array([7, 5, 6]))
    b = metric([0.3, 0.1, 0.2], np.array([6, 7, 5]))
    assert a.users.tolist() == b.users.tolist() == [5, 6, 7]
    assert tuple(paired_difference(a, b, rng=np.random.default_rng(0))) == (0, 0, 0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(0, 2), st.floats(0, 2))
def test_the_mean_of_seeds_lies_in_its_interval(
    values: list[float], below: float, above: float
) -> None:
    intervals = [Interval(x, x - below, x + above) for x in values]
    mean = mean_of_seeds(intervals)
    assert mean.value == pytest.approx(np.mean(values))
    assert mean.low <= mean.value + 1e-9
    assert mean.high >= mean.value - 1e-9
    assert mean.high - mean.low >= below + above - 1e-9, "seeds never narrow the interval"
    shuffled = mean_of_seeds(intervals[::-1])
    np.testing.assert_allclose(shuffled, mean, atol=1e-12)


def test_more_spread_over_seeds_widens_the_interval() -> None:
    def width(spread: float) -> float:
        interval = mean_of_seeds([Interval(x, x - 1, x + 1) for x in (0, spread, -spread)])
        return interval.high - interval.low

    assert width(0) == pytest.approx(2)
    assert width(0) < width(0.5) < width(1)
    by_hand = scipy_stats.t.ppf(0.975, 2) * 1 / 3**0.5
    assert width(1) == pytest.approx(2 * np.hypot(1, by_hand))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_resamples": 0}, ConfigError, "n_resamples is 0: draw at least 1"),
        ({"statistic": "rsme"}, ConfigError, "no statistic named 'rsme'; did you mean 'rmse'"),
        ({"confidence_level": 95}, ConfigError, "confidence_level is 95: give a share"),
    ],
)
def test_options_out_of_range(options: Any, error: type[Exception], message: str) -> None:
    a, b = metric([1.0, 2.0]), metric([2.0, 1.0])
    for call in (
        lambda: bootstrap_interval(a.total, a.weight, rng=np.random.default_rng(0), **options),
        lambda: paired_difference(a, b, rng=np.random.default_rng(0), **options),
    ):
        with pytest.raises(error, match=message):
            call()
