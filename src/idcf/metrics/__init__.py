"""Metrics of predictions and rankings, one value per user, with intervals and paired tests.

Plain NumPy: the package does not know models, datasets or tensors. Each metric states its gain and
its denominator, and raises `DataError` for rows that it cannot measure (NaN, columns of different
lengths, nothing to average) and `ConfigError` for an option out of range. There are two inputs:

*Rows*: flat arrays `user, score, label` [N], in any order. A user is any integer that the user's
rows share. `label` is the true rating; a binary label is called `positive` and is True or 1 for
relevant rows. `std` is the standard deviation (> 0) of a score. The result is a `PerUserMetric`,
which averages Σ total / Σ weight over users.

*Lists* (functions named `…_at`): `top_items` [U, K] holds the ranked distinct items of each user
over the whole catalogue, best first and -1 for an empty position; `relevant` the `RelevantItems` of
these users; `k` is the cut-off, K by default. The result is one value per user [U], NaN for a user
without relevant items, which `PerUserMetric.from_values` averages.

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
from idcf.metrics.lists import (
    coverage_interval,
    gini_interval,
    mean_over_hits,
    weighted_recall_at,
)
from idcf.metrics.ranking import (
    RelevantItems,
    hit_at,
    hit_rows,
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
    SplitTest,
    bootstrap_interval,
    difference_over_splits,
    holm,
    mean_of_seeds,
    paired_difference,
    paired_test,
)

__all__ = [
    "Interval",
    "PairedTest",
    "PerUserMetric",
    "RelevantItems",
    "SplitTest",
    "absolute_error",
    "auc_contributions",
    "auc_interval",
    "auc_per_user",
    "auc_pooled",
    "bootstrap_interval",
    "coverage_interval",
    "difference_over_splits",
    "gini_interval",
    "hit_at",
    "hit_rows",
    "holm",
    "interval_coverage",
    "mae",
    "mean_of_seeds",
    "mean_over_hits",
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
    "weighted_recall_at",
]
