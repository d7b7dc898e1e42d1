"""AUC with all users' rows in one pot, and what each user adds to it."""

from __future__ import annotations

import numpy as np

from idcf.errors import ConfigError, DataError
from idcf.metrics.stats import Array, Floats, Interval, Ints, PerUser, columns, sum_by


def auc_pooled(score: Array, positive: Array) -> float:
    """P(a positive row scores above a negative row), all users' rows in one pot, ties half.

    Denominator: all positive-negative pairs, also those of two different users.
    """
    return _parts(np.arange(len(score)), score, positive)[0]


def auc_parts(user: Array, score: Array, positive: Array) -> PerUser:
    """The pooled AUC A as an average over U users: each adds A and U times

    Σ_{u's positives}(V - A) / n₁ + Σ_{u's negatives}(V - A) / n₀,

    V the share of rows of the other class that a row stands on the right side of (Obuchowski
    1997). Their spread is that of A, so systems can be paired on it as on any average.
    """
    auc, users, part = _parts(user, score, positive)
    return PerUser(users, auc + len(users) * part, np.ones(len(users)))


def auc_interval(user: Array, score: Array, positive: Array, *, level: float = 0.95) -> Interval:
    """`auc_pooled` and its normal interval, users being the unit of chance: Var = Σ_u part_u²."""
    from scipy.special import ndtri

    if not 0 < level < 1:
        raise ConfigError(f"level is {level}: give a share between 0 and 1, such as 0.95")
    auc, _, part = _parts(user, score, positive)
    half = float(ndtri(0.5 + level / 2)) * float(np.linalg.norm(part))
    return Interval(auc, max(auc - half, 0.0), min(auc + half, 1.0))


def binary(user: Array, score: Array, positive: Array) -> list[Array]:
    """The three columns, checked."""
    user, score, positive = columns(user=user, score=score, positive=positive)
    no_nan(score, "score")
    if positive.dtype != np.bool_ and not np.isin(positive, (0, 1)).all():
        raise DataError("positive holds values other than 0 and 1: say which labels are positive")
    return [user, score.astype(np.float64), positive.astype(np.bool_)]


def no_nan(x: Array, name: str) -> None:
    bad = np.flatnonzero(np.isnan(x))
    if len(bad):
        raise DataError(f"{name} is NaN in {len(bad)} rows, first in row {bad[0]}: mend the model")


def _parts(user: Array, score: Array, positive: Array) -> tuple[float, Ints, Floats]:
    """The AUC, the users, and what each of them moves it by."""
    user, score, positive = binary(user, score, positive)
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        raise DataError(f"auc needs both classes, got {ones} positive and {zeros} negative rows")
    high, low = np.sort(score[positive]), np.sort(score[~positive])
    right = np.empty(len(score))
    right[positive] = _below(low, score[positive]) / zeros
    right[~positive] = 1 - _below(high, score[~positive]) / ones
    auc = float(right[positive].mean())
    part = (right - auc) / np.where(positive, ones, zeros)
    users, owner = np.unique(user, return_inverse=True)
    return auc, users, sum_by(owner, part, len(users))


def _below(sorted_scores: Array, score: Array) -> Floats:
    """How many of the sorted scores lie below each score, equal ones counted half."""
    left = np.searchsorted(sorted_scores, score, "left")
    return np.add(left, np.searchsorted(sorted_scores, score, "right"), dtype=np.float64) / 2
