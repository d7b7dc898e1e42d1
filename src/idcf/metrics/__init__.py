"""How good a list of scores is, one number per user, and how sure we may be of the average.

Plain NumPy. Knows nothing of models, data sets or tensors: rows come as flat arrays `user, score,
label` in any order, and a user is whatever integer their rows share.
"""

from __future__ import annotations

from idcf.metrics.auc import auc_interval, auc_parts, auc_pooled
from idcf.metrics.calibration import covered, negative_log_likelihood, reliability
from idcf.metrics.ranking import (
    Relevant,
    auc_per_user,
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
    Paired,
    PerUser,
    bootstrap,
    difference,
    mean_of_seeds,
    paired,
)

__all__ = [
    "Interval",
    "Paired",
    "PerUser",
    "Relevant",
    "absolute_error",
    "auc_interval",
    "auc_parts",
    "auc_per_user",
    "auc_pooled",
    "bootstrap",
    "covered",
    "difference",
    "hit_at",
    "mae",
    "mean_of_seeds",
    "mrr_at",
    "ndcg",
    "ndcg_at",
    "negative_log_likelihood",
    "paired",
    "random_ndcg",
    "random_ndcg_at",
    "recall_at",
    "reliability",
    "rmse",
    "squared_error",
]
