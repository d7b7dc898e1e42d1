"""Errors of predicted ratings. Pooled over rows: a user with ten ratings counts ten times."""

from __future__ import annotations

import numpy as np

from idcf.errors import DataError
from idcf.metrics.stats import Array, Floats, PerUser, columns, sum_by


def squared_error(user: Array, score: Array, label: Array) -> PerUser:
    """Σ (score - label)² of each user's rows. RMSE² = Σ total / Σ weight."""
    return per_user(user, error_of(score, label) ** 2)


def absolute_error(user: Array, score: Array, label: Array) -> PerUser:
    """Σ |score - label| of each user's rows. MAE = Σ total / Σ weight."""
    return per_user(user, np.abs(error_of(score, label)))


def rmse(score: Array, label: Array) -> float:
    """sqrt(mean over rows of (score - label)²); not the mean of the users' RMSEs."""
    return float(np.sqrt(np.mean(error_of(score, label) ** 2)))


def mae(score: Array, label: Array) -> float:
    """Mean over rows of |score - label|."""
    return float(np.mean(np.abs(error_of(score, label))))


def error_of(score: Array, label: Array) -> Floats:
    """score - label, all of it finite."""
    score, label = columns(score=score, label=label)
    error = score.astype(np.float64) - label.astype(np.float64)
    if not len(error):
        raise DataError("no rows to measure an error on: give at least one")
    bad = np.flatnonzero(~np.isfinite(error))
    if len(bad):
        raise DataError(
            f"{len(bad)} rows have no finite error, the first is row {bad[0]} with score "
            f"{score[bad[0]]} and label {label[bad[0]]}: drop them or mend the model"
        )
    return error


def per_user(user: Array, error: Floats) -> PerUser:
    """Sums of one number per row; every row counts once."""
    user, error = columns(user=user, error=error)
    users, owner = np.unique(user, return_inverse=True)
    n = len(users)
    return PerUser(users, sum_by(owner, error, n), sum_by(owner, np.ones(len(error)), n))
