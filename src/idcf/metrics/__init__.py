"""Metrics of predictions and rankings, one value per user, with intervals and paired tests.

Plain NumPy: the package does not know models, datasets or tensors. Rows come as flat arrays `user,
score, label` in any order; a user is any integer that the user's rows share.

Functions return a `PerUserMetric`, the average Σ total / Σ weight over users; those named `…_at`
return one value per user, which `PerUserMetric.from_values` averages. Each states its gain and its
denominator.

Examples
--------
>>> import numpy as np
>>> from idcf import metrics
>>> user, score, label = np.array([1, 1, 2]), np.array([3.0, 4.0, 5.0]), np.array([5.0, 4.0, 4.0])
>>> errors = metrics.squared_error(user, score, label)
>>> interval = metrics.bootstrap_interval(
...     errors.total, errors.weight, statistic="rmse", rng=np.random.default_rng(0)
... )
>>> round(interval.value, 3) == round(metrics.rmse(score, label), 3)
True
"""

from __future__ import annotations

from idcf.metrics.auc import auc_contributions, auc_interval, auc_per_user, auc_pooled
from idcf.metrics.calibration import interval_coverage, negative_log_likelihood, reliability_curve
from idcf.metrics.ranking import (
    RelevantItems,
    hit_at,
    mrr_at,
    ndcg,
    ndcg_at,
    random_ndcg,
    random_ndcg_at,
    recall_at,
)
from idcf.metrics.rating import absolute_error, mae, rmse, squared_error
from idcf.metrics.stats import (
    Interval,
    PairedTest,
    PerUserMetric,
    bootstrap_interval,
    mean_of_seeds,
    paired_difference,
    paired_test,
)

__all__ = [
    "Interval",
    "PairedTest",
    "PerUserMetric",
    "RelevantItems",
    "absolute_error",
    "auc_contributions",
    "auc_interval",
    "auc_per_user",
    "auc_pooled",
    "bootstrap_interval",
    "hit_at",
    "interval_coverage",
    "mae",
    "mean_of_seeds",
    "mrr_at",
    "ndcg",
    "ndcg_at",
    "negative_log_likelihood",
    "paired_difference",
    "paired_test",
    "random_ndcg",
    "random_ndcg_at",
    "recall_at",
    "reliability_curve",
    "rmse",
    "squared_error",
]
