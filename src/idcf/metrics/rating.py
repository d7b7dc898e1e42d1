"""Errors of predicted ratings, pooled over rows: a user with ten ratings counts ten times."""

from __future__ import annotations

import numpy as np

from idcf.errors import DataError
from idcf.metrics.arrays import Array, Float64Array, check_columns, sum_by_owner
from idcf.metrics.stats import PerUserMetric


def squared_error(user: Array, score: Array, label: Array) -> PerUserMetric:
    """Return each user's sum of squared errors, for RMSE = sqrt(Σ total / Σ weight).

    Denominator (`weight`): the number of the user's rows.

    Examples
    --------
    >>> errors = squared_error(np.array([1, 1, 2]), np.array([3., 4., 5.]), np.array([5., 4., 4.]))
    >>> errors.total.tolist(), errors.weight.tolist()
    ([4.0, 1.0], [2.0, 1.0])
    """
    return sum_per_user(user, prediction_errors(score, label) ** 2)


def absolute_error(user: Array, score: Array, label: Array) -> PerUserMetric:
    """Return each user's sum of absolute errors, for MAE = Σ total / Σ weight.

    Denominator (`weight`): the number of the user's rows.

    Examples
    --------
    >>> errors = absolute_error(np.array([1, 1, 2]), np.array([3., 4., 5.]), np.array([5., 4., 4.]))
    >>> errors.total.tolist(), errors.mean()
    ([2.0, 1.0], 1.0)
    """
    return sum_per_user(user, np.abs(prediction_errors(score, label)))


def rmse(score: Array, label: Array) -> float:
    """Return the root of the mean squared error over all rows, not the mean of the users' RMSEs.

    Examples
    --------
    >>> rmse(np.array([1.0, 5.0]), np.array([4.0, 1.0]))
    3.5355339059327378
    """
    return float(np.sqrt(np.mean(prediction_errors(score, label) ** 2)))


def mae(score: Array, label: Array) -> float:
    """Return the mean absolute error over all rows, not the mean of the users' MAEs.

    Examples
    --------
    >>> mae(np.array([3.0, 5.0]), np.array([4.0, 5.0]))
    0.5
    """
    return float(np.mean(np.abs(prediction_errors(score, label))))


def prediction_errors(score: Array, label: Array) -> Float64Array:
    """Return score - label [N], or raise `DataError` if there is no row or one is not finite."""
    score, label = check_columns(score=score, label=label)
    error = score.astype(np.float64) - label.astype(np.float64)
    if not len(error):
        raise DataError("no rows to measure an error on: give at least one")
    bad_rows = np.flatnonzero(~np.isfinite(error))
    if len(bad_rows):
        row = bad_rows[0]
        raise DataError(
            f"{len(bad_rows)} rows have no finite error, the first is row {row} with score "
            f"{score[row]} and label {label[row]}: drop them or fix the model"
        )
    return error


def sum_per_user(user: Array, error: Float64Array) -> PerUserMetric:
    """Sum one number per row over each user; the weight of a user is the number of rows."""
    user, error = check_columns(user=user, error=error)
    users, owner = np.unique(user, return_inverse=True)
    totals = sum_by_owner(owner, error, len(users))
    n_rows = sum_by_owner(owner, np.ones(len(error)), len(users))
    return PerUserMetric(users, totals, n_rows)
