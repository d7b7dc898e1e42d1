"""Is the model as sure as it should be? Predictions as normal distributions against what came.

Pooled over rows, as in `rating`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from idcf.errors import ConfigError, DataError
from idcf.metrics.rating import error_of, per_user
from idcf.metrics.stats import Array, Floats, PerUser

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


def covered(user: Array, score: Array, std: Array, label: Array, level: float = 0.9) -> PerUser:
    """Rows whose label lies inside the central interval of this level; a calibrated model covers
    that share of them."""
    inside = np.abs(_standard(score, std, label)) <= half_width(level)
    return per_user(user, inside.astype(np.float64))


def negative_log_likelihood(user: Array, score: Array, std: Array, label: Array) -> PerUser:
    """Σ -log N(label; score, std²): small where predictions are good and as sure as they may be."""
    z, std = _standard(score, std, label), np.asarray(std, np.float64)
    return per_user(user, 0.5 * (z**2 + np.log(2 * np.pi)) + np.log(std))


def reliability(score: Array, std: Array, label: Array, levels: Sequence[float] = LEVELS) -> Floats:
    """The share of rows inside the central interval of each level: calibrated, it is the level."""
    z = np.abs(_standard(score, std, label))
    return np.array([np.mean(z <= half_width(level)) for level in levels])


def half_width(level: float) -> float:
    """Standard deviations on either side of the mean."""
    if not 0 < level < 1:
        raise ConfigError(f"the level of an interval lies between 0 and 1, got {level}")
    return float(ndtri((1 + level) / 2))


def _standard(score: Array, std: Array, label: Array) -> Floats:
    error, std = error_of(score, label), np.asarray(std, np.float64)
    if std.shape != error.shape:
        raise DataError(f"{len(error)} scores, but {std.shape} standard deviations")
    bad = np.flatnonzero(~((std > 0) & np.isfinite(std)))
    if len(bad):
        raise DataError(f"a standard deviation is {std[bad[0]]} (row {bad[0]}): it must be above 0")
    return error / std
