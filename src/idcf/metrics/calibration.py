"""Calibration: predictions as normal distributions N(score, std²), compared with the true ratings.

Pooled over rows, as in `rating`: a user with ten ratings counts ten times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from idcf.errors import DataError
from idcf.metrics.arrays import Array, Float64Array, check_confidence_level
from idcf.metrics.rating import prediction_errors, sum_per_user
from idcf.metrics.stats import PerUserMetric

CONFIDENCE_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


def interval_coverage(
    user: Array, score: Array, std: Array, label: Array, confidence_level: float = 0.9
) -> PerUserMetric:
    """Count each user's rows whose label lies inside the central interval of this level.

    Denominator (`weight`): the number of the user's rows. The mean of a calibrated model is the
    level.

    Examples
    --------
    >>> user, score, std = np.array([1, 1, 2]), np.full(3, 3.0), np.ones(3)
    >>> interval_coverage(user, score, std, np.array([3.0, 5.0, 4.0])).total.tolist()
    [1.0, 1.0]
    """
    z = np.abs(_standardized_errors(score, std, label))
    inside = z <= interval_half_width(confidence_level)
    return sum_per_user(user, inside.astype(np.float64))


def negative_log_likelihood(user: Array, score: Array, std: Array, label: Array) -> PerUserMetric:
    """Return each user's Σ -log N(label; score, std²); lower is better.

    Denominator (`weight`): the number of the user's rows. Natural logarithm, constant included.

    Examples
    --------
    >>> nll = negative_log_likelihood(np.zeros(1, int), np.zeros(1), np.ones(1), np.zeros(1))
    >>> round(nll.mean(), 3)  # log(2π) / 2
    0.919
    """
    z = _standardized_errors(score, std, label)
    std = np.asarray(std, np.float64)
    return sum_per_user(user, 0.5 * (z**2 + np.log(2 * np.pi)) + np.log(std))


def reliability_curve(
    score: Array, std: Array, label: Array, confidence_levels: Sequence[float] = CONFIDENCE_LEVELS
) -> Float64Array:
    """Return the share of rows inside the central interval of each of L levels [L].

    Denominator: all rows. The curve of a calibrated model is the levels themselves.

    Examples
    --------
    >>> label = np.array([3.0, 3.5, 4.0, 9.0])
    >>> reliability_curve(np.full(4, 3.0), np.ones(4), label, [0.1, 0.5, 0.9]).tolist()
    [0.25, 0.5, 0.75]
    """
    z = np.abs(_standardized_errors(score, std, label))
    return np.array([np.mean(z <= interval_half_width(level)) for level in confidence_levels])


def interval_half_width(confidence_level: float) -> float:
    """Return half the width of the central interval of N(0, 1), such as 1.645 for 0.9."""
    check_confidence_level(confidence_level)
    return float(ndtri((1 + confidence_level) / 2))


def _standardized_errors(score: Array, std: Array, label: Array) -> Float64Array:
    """Return (score - label) / std [N]."""
    error, std = prediction_errors(score, label), np.asarray(std, np.float64)
    if std.shape != error.shape:
        raise DataError(f"{len(error)} scores, but standard deviations of shape {std.shape}")
    bad_rows = np.flatnonzero(~((std > 0) & np.isfinite(std)))
    if len(bad_rows):
        row = bad_rows[0]
        raise DataError(f"the standard deviation of row {row} is {std[row]}: it must be above 0")
    return error / std
