"""One value per user, and what may be said of the average: intervals and paired tests.

The user is the unit of chance everywhere: ratings of one person are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from idcf.errors import ConfigError, DataError, unknown

Array = NDArray[Any]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Statistic = Literal["mean-ratio", "rmse"]

CELLS = 1 << 20  # of a matrix of resampling counts held at once: 8 MB


@dataclass(frozen=True, eq=False, slots=True)
class PerUser:
    """What each user adds to an average: Σ total / Σ weight.

    Weight is the user's rows where rows are averaged, 1 where users are.
    """

    users: Ints  # unique, sorted [U]
    total: Floats  # [U]
    weight: Floats  # [U], > 0

    @classmethod
    def of(cls, value: Array, users: Array | None = None) -> Self:
        """One value per user, each user counting once; users whose value is NaN are left out."""
        value = np.asarray(value, np.float64)
        ids = np.arange(len(value)) if users is None else np.asarray(users)
        ids, value = columns(users=ids, value=value)
        kept = np.flatnonzero(~np.isnan(value))
        kept = kept[np.argsort(ids[kept], kind="stable")]
        if np.any(np.diff(ids[kept]) == 0):
            raise DataError("a user occurs twice among the values: give each user one value")
        return cls(ids[kept], value[kept], np.ones(len(kept)))

    def __len__(self) -> int:
        return len(self.users)

    @property
    def value(self) -> Floats:
        """Each user's own average, total / weight [U]."""
        return self.total / self.weight

    def mean(self) -> float:
        """Σ total / Σ weight."""
        return float(np.divide(*_user_sums(total=self.total, weight=self.weight).sum(0)))


class Interval(NamedTuple):
    value: float
    low: float
    high: float


class Paired(NamedTuple):
    """System a against system b on the same users; a p is two-sided."""

    difference: Interval  # statistic of a - statistic of b
    p_t: float  # paired t-test of the users' own averages
    p_wilcoxon: float  # signed-rank test of the same, zero differences dropped
    n_users: int


def bootstrap(
    total: Array,
    weight: Array,
    *,
    statistic: Statistic = "mean-ratio",
    rng: np.random.Generator,
    n: int = 1000,
    level: float = 0.95,
) -> Interval:
    """Percentile interval of Σ total / Σ weight (`rmse`: its square root), users resampled.

    The interval is widened, where it must be, to hold the value itself.
    """
    sums = _user_sums(total=total, weight=weight)
    _check(statistic, n, level)
    draws = _statistic(_resampled(sums, rng, n), statistic)
    return _interval(float(_statistic(sums.sum(0), statistic)), draws, level)


def paired(
    a: PerUser,
    b: PerUser,
    *,
    statistic: Statistic = "mean-ratio",
    rng: np.random.Generator,
    n: int = 1000,
    level: float = 0.95,
) -> Paired:
    """Is a different from b? `difference`, and two tests of the users' own averages (for `rmse`: of
    their mean squared errors)."""
    found = difference(a, b, statistic=statistic, rng=rng, n=n, level=level)
    each = a.value - b.value
    return Paired(found, _t_test(each), _wilcoxon(each), len(a))


def difference(
    a: PerUser,
    b: PerUser,
    *,
    statistic: Statistic = "mean-ratio",
    rng: np.random.Generator,
    n: int = 1000,
    level: float = 0.95,
) -> Interval:
    """Statistic of a - statistic of b; bootstrap, the same users drawn for both."""
    if not (np.array_equal(a.users, b.users) and np.array_equal(a.weight, b.weight)):
        raise DataError(
            f"the two systems were measured on different rows ({len(a)} and {len(b)} users): "
            "score the same rows with both"
        )
    if len(a) < 2:
        raise DataError(f"a paired test needs at least 2 users, not {len(a)}")
    sums = _user_sums(total=a.total, total_b=b.total, weight=a.weight)
    _check(statistic, n, level)

    def gap(x: Floats) -> Floats:
        return _statistic(x[..., [0, 2]], statistic) - _statistic(x[..., [1, 2]], statistic)

    return _interval(float(gap(sums.sum(0))), gap(_resampled(sums, rng, n)), level)


def mean_of_seeds(intervals: Sequence[Interval], *, level: float = 0.95) -> Interval:
    """The mean over S seeds. Half-widths join in squares: that of the users (mean over seeds; the
    users are the same, so more seeds do not shrink it) and t · sd / √S of the seeds."""
    from scipy.special import stdtrit

    if not intervals:
        raise DataError("no seeds to average over: give at least one interval")
    _check("mean-ratio", 1, level)
    value, low, high = np.array(intervals, np.float64).T
    seeds = 0.0
    if len(value) > 1:
        t = float(stdtrit(len(value) - 1, 0.5 + level / 2))
        seeds = t * float(np.std(value, ddof=1)) / len(value) ** 0.5
    mean = float(value.mean())
    below, above = (float(np.mean(x)) for x in (value - low, high - value))
    return Interval(
        mean, mean - float(np.hypot(below, seeds)), mean + float(np.hypot(above, seeds))
    )


def columns(**named: Array) -> list[Array]:
    """Flat arrays of one length, or an error that names the one that is not."""
    out = {name: np.asarray(x) for name, x in named.items()}
    first, length = next((name, x.size) for name, x in out.items())
    for name, x in out.items():
        if x.ndim != 1:
            raise DataError(f"{name} has shape {x.shape}: give a flat array, one entry per row")
        if len(x) != length:
            raise DataError(f"{name} has {len(x)} rows and {first} has {length}: give one per row")
    return list(out.values())


def sum_by(owner: Array, x: Floats, n: int) -> Floats:
    """Sum of x over the rows of each of n owners."""
    return np.bincount(owner, x, n).astype(np.float64, copy=False)


def _user_sums(**named: Array) -> Floats:
    """The columns side by side [U, C], the last of them weights."""
    sums = np.stack([x.astype(np.float64) for x in columns(**named)], axis=1)
    if not len(sums):
        raise DataError("no users to average over: every one was left out, or none was given")
    if not np.isfinite(sums).all():
        raise DataError("a user's total or weight is not finite: leave that user out (PerUser.of)")
    if sums[:, -1].min() <= 0:
        raise DataError(f"a user has weight {sums[:, -1].min():g}: leave out users without rows")
    return sums


def _check(statistic: str, n: int, level: float) -> None:
    if statistic not in get_args(Statistic):
        raise ConfigError(unknown("statistic", statistic, get_args(Statistic)))
    if n < 1:
        raise ConfigError(f"n is {n}: draw at least 1 resample, or 1000 for a stable interval")
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}: give a share between 0 and 1, such as 0.95")


def _statistic(sums: Floats, statistic: Statistic) -> Floats:
    ratio: Floats = sums[..., 0] / sums[..., 1]
    return np.sqrt(ratio) if statistic == "rmse" else ratio


def _resampled(sums: Floats, rng: np.random.Generator, n: int) -> Floats:
    """Column sums of n resamples of the users [n, C]: multinomial counts times the columns."""
    users = len(sums)
    out = np.empty((n, sums.shape[1]))
    step = max(1, CELLS // users)
    for start in range(0, n, step):
        rows = min(step, n - start)
        drawn = rng.integers(0, users, size=(rows, users))
        drawn += np.arange(rows)[:, None] * users
        counts = np.bincount(drawn.ravel(), minlength=rows * users).reshape(rows, users)
        out[start : start + rows] = counts.astype(np.float64) @ sums
    return out


def _interval(value: float, draws: Floats, level: float) -> Interval:
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(value, min(value, float(low)), max(value, float(high)))


def _t_test(each: Floats) -> float:
    from scipy.special import stdtr

    mean, spread = float(each.mean()), float(each.std(ddof=1))
    if spread == 0:  # every user differs by the same amount
        return 1.0 if mean == 0 else 0.0
    return 2 * float(stdtr(len(each) - 1, -abs(mean) / spread * len(each) ** 0.5))


def _wilcoxon(each: Floats) -> float:
    from scipy.stats import wilcoxon  # here: scipy.stats alone takes half of `import idcf`

    return float(wilcoxon(each).pvalue) if each.any() else 1.0
