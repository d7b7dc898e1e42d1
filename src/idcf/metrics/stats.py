"""One value per user, and statistics of their average: intervals and paired tests.

The user is the unit of sampling everywhere, because the ratings of one user are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
from scipy.special import stdtr, stdtrit

from idcf.errors import ConfigError, DataError, unknown_name_message
from idcf.metrics.arrays import Array, Float64Array, Ints, check_columns, check_confidence_level

Statistic = Literal["mean-ratio", "rmse"]

MAX_COUNT_CELLS = 1 << 20  # of a matrix of resampling counts held at once: 8 MB


@dataclass(frozen=True, eq=False, slots=True)
class PerUserMetric:
    """What each user adds to an average Σ total / Σ weight.

    The weight of a user is the number of the user's rows where rows are averaged, and 1 where users
    are averaged.

    Examples
    --------
    >>> errors = PerUserMetric(np.array([4, 9]), np.array([6.0, 1.0]), np.array([3.0, 1.0]))
    >>> errors.values.tolist(), errors.mean()
    ([2.0, 1.0], 1.75)
    """

    users: Ints  # [U], distinct and sorted
    total: Float64Array  # [U]
    weight: Float64Array  # [U], > 0

    @classmethod
    def from_values(cls, values: Array, users: Array | None = None) -> Self:
        """Make an average over users, each with weight 1; users whose value is NaN are left out.

        `users` [U] are distinct and in any order; 0..U-1 by default.

        Examples
        --------
        >>> metric = PerUserMetric.from_values(np.array([0.5, np.nan]), np.array([4, 9]))
        >>> metric.users.tolist(), metric.weight.tolist()
        ([4], [1.0])
        """
        values = np.asarray(values, np.float64)
        ids = np.arange(len(values)) if users is None else np.asarray(users)
        ids, values = check_columns(users=ids, value=values)
        rows = np.flatnonzero(~np.isnan(values))
        rows = rows[np.argsort(ids[rows], kind="stable")]
        if np.any(np.diff(ids[rows]) == 0):
            raise DataError("a user occurs twice among the values: give each user one value")
        return cls(ids[rows], values[rows], np.ones(len(rows)))

    def __len__(self) -> int:
        return len(self.users)

    @property
    def values(self) -> Float64Array:
        """The average of each user, total / weight [U]."""
        return self.total / self.weight

    def mean(self) -> float:
        """Return Σ total / Σ weight."""
        return float(np.divide(*_stack_user_sums(total=self.total, weight=self.weight).sum(0)))


class Interval(NamedTuple):
    """A value with the bounds of its confidence interval."""

    value: float
    low: float  # lower bound
    high: float  # upper bound


class SplitTest(NamedTuple):
    """System a compared with system b on several splits; the p-value is two-sided."""

    difference: Interval  # mean over splits of the statistic of a - that of b
    p_value: float
    n_splits: int


class PairedTest(NamedTuple):
    """System a compared with system b on the same users; p-values are two-sided."""

    difference: Interval  # statistic of a - statistic of b
    t_test_p_value: float  # paired t-test of the users' averages
    wilcoxon_p_value: float  # signed-rank test of the users' averages, zero differences dropped
    n_users: int  # users that both systems were measured on


def bootstrap_interval(
    total: Array,
    weight: Array,
    *,
    statistic: Statistic = "mean-ratio",
    rng: np.random.Generator,
    n_resamples: int = 1000,
    confidence_level: float = 0.95,
) -> Interval:
    """Return Σ total / Σ weight with a percentile interval over resampled users.

    `total` and `weight` [U] are those of a `PerUserMetric`; the statistic "rmse" is the square root
    of the ratio. The interval is widened, where need be, to include the value itself.

    Examples
    --------
    >>> errors, rows = np.array([4.0, 1.0, 3.0]), np.array([2.0, 1.0, 1.0])
    >>> bootstrap_interval(errors, rows, rng=np.random.default_rng(0)).value
    2.0
    """
    return _percentile_interval(
        _stack_user_sums(total=total, weight=weight),
        lambda sums: _compute_statistic(sums, statistic),
        rng,
        n_resamples,
        confidence_level,
    )


def paired_test(
    a: PerUserMetric,
    b: PerUserMetric,
    *,
    statistic: Statistic = "mean-ratio",
    rng: np.random.Generator,
    n_resamples: int = 1000,
    confidence_level: float = 0.95,
) -> PairedTest:
    """Test whether two systems differ on the same users.

    The `paired_difference`, with its options, and two tests of the users' averages (for "rmse": of
    the users' mean squared errors).

    Examples
    --------
    >>> a = PerUserMetric.from_values(np.array([0.5, 0.7, 0.9]))
    >>> b = PerUserMetric.from_values(np.array([0.4, 0.5, 0.6]))
    >>> test = paired_test(a, b, rng=np.random.default_rng(0))
    >>> round(test.difference.value, 3), round(test.t_test_p_value, 3), test.wilcoxon_p_value
    (0.2, 0.074, 0.25)
    """
    difference = paired_difference(
        a,
        b,
        statistic=statistic,
        rng=rng,
        n_resamples=n_resamples,
        confidence_level=confidence_level,
    )
    differences = a.values - b.values
    return PairedTest(
        difference, _t_test_p_value(differences), _wilcoxon_p_value(differences), len(a)
    )


def paired_difference(
    a: PerUserMetric,
    b: PerUserMetric,
    *,
    statistic: Statistic = "mean-ratio",
    rng: np.random.Generator,
    n_resamples: int = 1000,
    confidence_level: float = 0.95,
) -> Interval:
    """Return statistic of a - statistic of b; each resample draws the same users for both.

    `a` and `b` are one metric of two systems on the same rows of at least 2 users. The options are
    those of `bootstrap_interval`.

    Examples
    --------
    >>> a = PerUserMetric.from_values(np.array([0.75, 1.0]))
    >>> b = PerUserMetric.from_values(np.array([0.5, 0.75]))
    >>> tuple(paired_difference(a, b, rng=np.random.default_rng(0)))
    (0.25, 0.25, 0.25)
    """
    _check_same_rows(a, b)
    if len(a) < 2:
        raise DataError(f"a paired test needs at least 2 users, not {len(a)}")

    def difference(sums: Float64Array) -> Float64Array:
        """Return the statistic of a minus that of b from sums [..., 3]: totals, then weight."""
        first = _compute_statistic(sums[..., [0, 2]], statistic)
        return first - _compute_statistic(sums[..., [1, 2]], statistic)

    sums = _stack_user_sums(total=a.total, total_b=b.total, weight=a.weight)
    return _percentile_interval(sums, difference, rng, n_resamples, confidence_level)


def mean_of_seeds(
    intervals: Sequence[Interval], *, confidence_level: float = 0.95, test_to_train: float = 0.0
) -> Interval:
    """Average the intervals of S runs that were measured on the same users: seeds, or splits.

    The half-width over users is averaged, as more runs add no users. From three runs on, the
    half-width over runs t · sd · √(1/S + `test_to_train`) joins it as a sum of squares; two runs
    tell too little about their spread. `test_to_train` is 0 for seeds and, for random splits, the
    ratio of test to training rows, see `difference_over_splits`. `confidence_level` is that of the
    given intervals.

    Examples
    --------
    >>> tuple(mean_of_seeds([Interval(0.5, 0.25, 0.75), Interval(1.0, 0.75, 1.25)]))
    (0.75, 0.5, 1.0)
    """
    if not intervals:
        raise DataError("no seeds to average over: give at least one interval")
    check_confidence_level(confidence_level)
    value, low, high = np.array(intervals, np.float64).T
    n_seeds, mean = len(value), float(value.mean())
    if n_seeds == 2:
        return Interval(mean, float(low.mean()), float(high.mean()))
    over_seeds = 0.0
    if n_seeds > 2:
        t = float(stdtrit(n_seeds - 1, 0.5 + confidence_level / 2))
        over_seeds = t * float(np.std(value, ddof=1)) * (1 / n_seeds + test_to_train) ** 0.5
    below, above = float(np.mean(value - low)), float(np.mean(high - value))
    return Interval(
        mean, mean - float(np.hypot(below, over_seeds)), mean + float(np.hypot(above, over_seeds))
    )


def difference_over_splits(
    pairs: Sequence[tuple[PerUserMetric, PerUserMetric]],
    *,
    statistic: Statistic = "mean-ratio",
    test_to_train: float,
    rng: np.random.Generator,
    n_resamples: int = 1000,
    confidence_level: float = 0.95,
) -> SplitTest:
    """Compare two systems by the mean of their paired differences over S splits of one dataset.

    `pairs` holds systems a and b of each split, on the same rows. With the difference d_s of split
    s, the variance of the mean has two parts:

    - over users: that of a bootstrap in which a resample draws the same users in every split, as
      splits are made of the same users;
    - over splits: (1/S + `test_to_train`) · var(d_s), where `test_to_train` is the ratio of test to
      training rows of random splits. As their training tables overlap, var(d_s) / S would be too
      small (Nadeau & Bengio 2003). The ratio is 0 for seeds on one split.

    Both hold a part of the noise of the test rows, so that their sum is rather too large. Interval
    and p-value are those of Student's t with the degrees of freedom of Welch and Satterthwaite. A
    single split has the first part alone.

    Examples
    --------
    >>> a = PerUserMetric.from_values(np.array([0.5, 0.7, 0.9]))
    >>> b = PerUserMetric.from_values(np.array([0.4, 0.5, 0.6]))
    >>> pairs = [(a, b), (a, b)]
    >>> test = difference_over_splits(pairs, test_to_train=0.25, rng=np.random.default_rng(0))
    >>> round(test.difference.value, 3), test.n_splits
    (0.2, 2)
    """
    check_confidence_level(confidence_level)
    sums = _sums_of_splits(pairs)

    def mean_difference(sums: Float64Array) -> Float64Array:
        """Return the differences [..., S] from sums [..., S, 3]: totals, then weight."""
        first = _compute_statistic(sums[..., [0, 2]], statistic)
        return first - _compute_statistic(sums[..., [1, 2]], statistic)

    n_users, n_splits, _ = sums.shape
    by_split = mean_difference(sums.sum(0))
    flat = _resample_sums(sums.reshape(n_users, -1), rng, n_resamples)
    with np.errstate(invalid="ignore"):  # a resample without the users of a split counts not
        resampled = mean_difference(flat.reshape(n_resamples, n_splits, 3)).mean(-1)
    variances = [float(np.var(resampled[np.isfinite(resampled)], ddof=1))]
    if n_splits > 1:
        variances.append((1 / n_splits + test_to_train) * float(np.var(by_split, ddof=1)))
    value, variance = float(by_split.mean()), sum(variances)
    if variance == 0:  # every user differs by the same amount
        return SplitTest(Interval(value, value, value), float(value == 0), n_splits)
    parts = zip(variances, (n_users - 1, n_splits - 1), strict=False)
    degrees = variance**2 / sum(part**2 / degree for part, degree in parts)
    half_width = float(stdtrit(degrees, 0.5 + confidence_level / 2)) * variance**0.5
    p_value = 2 * float(stdtr(degrees, -abs(value) / variance**0.5))
    return SplitTest(Interval(value, value - half_width, value + half_width), p_value, n_splits)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of a family of comparisons after the correction of Holm (1979).

    The k-th smallest of m p-values is multiplied by m + 1 - k; none is below an earlier one, or
    above 1. Rejecting where the result is below α errs anywhere in the family with probability α.

    Examples
    --------
    >>> [round(p, 3) for p in holm([0.03, 0.01, 0.6])]
    [0.06, 0.03, 0.6]
    """
    values = np.asarray(p_values, np.float64)
    if not ((values >= 0) & (values <= 1)).all():  # NaN as well
        raise DataError(f"p-values must lie between 0 and 1, got {values.tolist()}")
    order = np.argsort(values, kind="stable")
    corrected = np.empty(len(values))
    factors = np.arange(len(values), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1)
    return [float(p) for p in corrected]


def _sums_of_splits(pairs: Sequence[tuple[PerUserMetric, PerUserMetric]]) -> Float64Array:
    """Stack totals of a and b and the weight for all users of any split: [U, S, 3]; users that a
    split does not have are 0 there."""
    if not pairs:
        raise DataError("no splits to compare on: give at least one pair")
    users = np.unique(np.concatenate([a.users for a, _ in pairs]))
    if len(users) < 2:
        raise DataError(f"a paired test needs at least 2 users, not {len(users)}")
    sums = np.zeros((len(users), len(pairs), 3))
    for split, (a, b) in enumerate(pairs):
        _check_same_rows(a, b)
        rows = np.searchsorted(users, a.users)
        sums[rows, split] = _stack_user_sums(total=a.total, total_b=b.total, weight=a.weight)
    return sums


def _check_same_rows(a: PerUserMetric, b: PerUserMetric) -> None:
    """Raise DataError if two systems were not measured on the same rows."""
    if not (np.array_equal(a.users, b.users) and np.array_equal(a.weight, b.weight)):
        raise DataError(
            f"the two systems were measured on different rows ({len(a)} and {len(b)} users): "
            "score the same rows with both"
        )


def _stack_user_sums(**arrays: Array) -> Float64Array:
    """Stack the columns [U, C], the last of which is the weight; check that they are usable."""
    sums = np.stack([x.astype(np.float64) for x in check_columns(**arrays)], axis=1)
    if not len(sums):
        raise DataError("no users to average over: none was given, or every value is NaN")
    if not np.isfinite(sums).all():
        raise DataError(
            "a user's total or weight is not finite: leave that user out, as "
            "PerUserMetric.from_values does with NaN"
        )
    if sums[:, -1].min() <= 0:
        raise DataError(f"a user has weight {sums[:, -1].min():g}: leave out users without rows")
    return sums


def _compute_statistic(sums: Float64Array, statistic: Statistic) -> Float64Array:
    """Compute the statistic of sums [..., 2] of totals and weights: [...]."""
    if statistic not in get_args(Statistic):
        raise ConfigError(unknown_name_message("statistic", statistic, get_args(Statistic)))
    ratio: Float64Array = sums[..., 0] / sums[..., 1]
    return np.sqrt(ratio) if statistic == "rmse" else ratio


def _resample_sums(sums: Float64Array, rng: np.random.Generator, n_resamples: int) -> Float64Array:
    """Column sums of resamples of the users [n_resamples, C]: multinomial counts times columns."""
    if n_resamples < 1:
        raise ConfigError(
            f"n_resamples is {n_resamples}: draw at least 1, or 1000 for a stable interval"
        )
    n_users = len(sums)
    resampled = np.empty((n_resamples, sums.shape[1]))
    step = max(1, MAX_COUNT_CELLS // n_users)
    for start in range(0, n_resamples, step):
        n_rows = min(step, n_resamples - start)
        drawn = rng.integers(0, n_users, size=(n_rows, n_users))
        drawn += np.arange(n_rows)[:, None] * n_users
        counts = np.bincount(drawn.ravel(), minlength=n_rows * n_users).reshape(n_rows, n_users)
        resampled[start : start + n_rows] = counts.astype(np.float64) @ sums
    return resampled


def _percentile_interval(
    sums: Float64Array,
    compute: Callable[[Float64Array], Float64Array],
    rng: np.random.Generator,
    n_resamples: int,
    confidence_level: float,
) -> Interval:
    """Compute a statistic of column sums [..., C], with the central quantiles of its values for
    resampled users, widened to contain the value itself."""
    check_confidence_level(confidence_level)
    value, draws = float(compute(sums.sum(0))), compute(_resample_sums(sums, rng, n_resamples))
    low, high = np.quantile(draws, [0.5 - confidence_level / 2, 0.5 + confidence_level / 2])
    return Interval(value, min(value, float(low)), max(value, float(high)))


def _t_test_p_value(differences: Float64Array) -> float:
    """Two-sided p-value of the paired t-test."""
    mean, spread = float(differences.mean()), float(differences.std(ddof=1))
    if spread == 0:  # every user differs by the same amount
        return 1.0 if mean == 0 else 0.0
    return 2 * float(stdtr(len(differences) - 1, -abs(mean) / spread * len(differences) ** 0.5))


def _wilcoxon_p_value(differences: Float64Array) -> float:
    """Two-sided p-value of the signed-rank test; 1 if all differences are zero."""
    from scipy.stats import wilcoxon  # imported late: it would double the time of `import idcf`

    return float(wilcoxon(differences).pvalue) if differences.any() else 1.0
