"""Metrics of lists: the best items of the whole catalogue without each user's history.

Hits are held-out items in a list. For every metric the table in `docs/concepts/evaluation.md` has
gain and denominator; the names here are those of its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from idcf import metrics
from idcf.data.interactions import Ints
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.metrics import Interval, PerUserMetric, RelevantItems
from idcf.metrics.arrays import Float64Array, sum_by_owner
from idcf.rng import random_stream

CUTOFFS: Mapping[str, int] = {  # metric -> items at the top of a list that it looks at
    "ndcg@10": 10,
    "recall@20": 20,
    "ndcg@20": 20,
    "recall@50": 50,
    "ndcg@100": 100,
    "liked-recall@20": 20,
    "ipw-liked-recall@20": 20,
    "utility-ndcg@20": 20,
    "stars-of-hits": 20,
    "low-hits": 20,
    "coverage@20": 20,
    "gini@20": 20,
}
NEED_RATINGS = frozenset(
    {"liked-recall@20", "ipw-liked-recall@20", "utility-ndcg@20", "stars-of-hits", "low-hits"}
)
_SPREAD = {"coverage@20": metrics.coverage_interval, "gini@20": metrics.gini_interval}


def list_length(names: Collection[str]) -> int:
    """Return the length of the lists that some metrics need, 0 if none of them reads lists."""
    return max((CUTOFFS[name] for name in names if name in CUTOFFS), default=0)


def measure_lists(
    evaluation_set: EvaluationSet, top_items: Ints, names: Collection[str]
) -> dict[str, PerUserMetric]:
    """Return the metrics in `names` that are averages over users or hits, by name.

    `top_items` [U, K] are the lists of `evaluation_set.users`; a cut-off beyond K is cut there.
    """
    values: dict[str, PerUserMetric] = {}
    users, denominator = evaluation_set.users, evaluation_set.recall_denominator
    for name in (x for x in CUTOFFS if x in names and x not in _SPREAD):
        k = min(CUTOFFS[name], top_items.shape[1])
        if name in ("stars-of-hits", "low-hits"):
            relevant, hit_values = _items_and_hit_values(evaluation_set, name)
            values[name] = metrics.mean_over_hits(top_items, relevant, hit_values, k, users=users)
            continue
        relevant = _relevant_items(evaluation_set, name)
        if name == "ipw-liked-recall@20":
            user_values = metrics.weighted_recall_at(top_items, relevant, k)
        elif "recall" in name:
            user_values = metrics.recall_at(top_items, relevant, k, denominator=denominator)
        else:
            user_values = metrics.ndcg_at(top_items, relevant, k)
        values[name] = PerUserMetric.from_values(user_values, users)
    return values


def measure_spread(top_items: Ints, n_items: int, names: Collection[str]) -> dict[str, Interval]:
    """Return coverage and Gini coefficient, where `names` has them, by name."""
    return {
        name: function(
            top_items,
            n_items,
            min(CUTOFFS[name], top_items.shape[1]),
            rng=random_stream(0, "bootstrap"),
        )
        for name, function in _SPREAD.items()
        if name in names
    }


def expected_list_metrics(
    evaluation_set: EvaluationSet, names: Collection[str]
) -> dict[str, PerUserMetric]:
    """Return the expectation of list metrics for a random order of each user's candidates, by name.

    Means over hits are ratios of expectations. Coverage and Gini coefficient are left out.
    """
    users, n_candidates = evaluation_set.users, evaluation_set.n_candidates()
    values: dict[str, PerUserMetric] = {}
    for name in (x for x in CUTOFFS if x in names and x not in _SPREAD):
        k = CUTOFFS[name]
        listed_share: Float64Array = np.minimum(k / np.maximum(n_candidates, 1), 1.0)
        if name in ("stars-of-hits", "low-hits"):
            relevant, hit_values = _items_and_hit_values(evaluation_set, name)
            owner = np.repeat(np.arange(len(users)), relevant.lengths())
            total = sum_by_owner(owner, hit_values, len(users))
            n_items = relevant.lengths().astype(np.float64)
            values[name] = PerUserMetric(users, total * listed_share, n_items * listed_share)
            continue
        relevant = _relevant_items(evaluation_set, name)
        lengths = relevant.lengths()
        if "recall" in name:
            user_values = np.where(lengths > 0, listed_share, np.nan)
            if evaluation_set.recall_denominator == "min" and not name.startswith("ipw"):
                user_values *= np.maximum(lengths / np.minimum(np.maximum(lengths, 1), k), 1.0)
        else:
            user_values = metrics.random_ndcg_at(relevant, n_candidates, k)
        values[name] = PerUserMetric.from_values(user_values, users)
    return values


def _relevant_items(evaluation_set: EvaluationSet, name: str) -> RelevantItems:
    """Return the relevant items of a recall or an NDCG, with their gains."""
    rows, scale = evaluation_set.test_rows, evaluation_set.scale
    if name == "liked-recall@20":
        return evaluation_set.select_items(scale.is_liked(rows.rating))
    if name == "ipw-liked-recall@20":
        weight = 1 / evaluation_set.propensity[rows.item]
        return evaluation_set.select_items(scale.is_liked(rows.rating), weight)
    if name == "utility-ndcg@20":
        utility = scale.utility(rows.rating)
        return evaluation_set.select_items(utility > 0, utility)
    if name == "ndcg@100":  # as in Liang et al. 2018: a rating is an interaction
        return evaluation_set.relevant._replace(gains=None)
    return evaluation_set.relevant


def _items_and_hit_values(
    evaluation_set: EvaluationSet, name: str
) -> tuple[RelevantItems, Float64Array]:
    """Return all held-out items, and the value of each that is averaged over hits."""
    rows = evaluation_set.test_rows
    order, _ = rows.rows_by_user
    rating = rows.rating[order]
    is_low = evaluation_set.scale.is_low(rating)
    values = rating if name == "stars-of-hits" else is_low
    return evaluation_set.select_items(np.ones(len(rows), bool)), values.astype(np.float64)
