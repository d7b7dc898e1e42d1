"""Measure models on the held-out rows of a group of users.

Ratings: `rmse`, `mae`, and three orderings. `ndcg` is the paper's: gain 2^rating - 1 over the whole
test list of a user with at least 2 test ratings. `ndcg@10` has the same gain and `recall@20` counts
every held-out item; both rank the whole catalogue without the user's training items, and are left
out for models that declare `can_rank_catalog = False`. For models with a posterior, `cover90` is
the share of ratings inside 90 % intervals and `nll` the negative log-likelihood of the ratings.

Implicit feedback: each test positive is compared with `N_NEGATIVES` items drawn uniformly from the
whole catalogue, not filtered, as in the paper. `auc` pools all users, `auc-user` averages users,
`ndcg` orders each user's positives and negatives, and `ndcg@20` is reported beside `recall@20`.

Predictions are not clipped to the rating scale. This module trains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from idcf import metrics
from idcf.data.interactions import Floats, Interactions, Ints
from idcf.data.split import Split
from idcf.errors import DataError
from idcf.inference.scoring import interaction_std, score_interactions, top_unseen_items
from idcf.metrics import Interval, PerUserMetric, RelevantItems
from idcf.metrics.arrays import Float64Array
from idcf.metrics.stats import Statistic
from idcf.models.base import Model
from idcf.rng import random_stream

N_NEGATIVES = 5  # per test positive
NDCG_AT, RECALL_AT = 10, 20
_NDCG, _RECALL = f"ndcg@{NDCG_AT}", f"recall@{RECALL_AT}"
_IMPLICIT_NDCG = f"ndcg@{RECALL_AT}"


def metric_names(implicit: bool) -> tuple[str, ...]:
    """Return every metric that `compute_metrics` may report for this kind of feedback."""
    if implicit:
        return ("auc", "auc-user", "ndcg", _NDCG, _RECALL, _IMPLICIT_NDCG)
    return ("rmse", "mae", "cover90", "nll", "ndcg", _NDCG, _RECALL)


class ModelAssignment(NamedTuple):
    """A model and the users that it scores."""

    model: Model
    users: Ints  # rows of the users


class MetricResult(NamedTuple):
    """One metric of one system over a group of users."""

    interval: Interval  # the metric with its 95 % interval over users
    n_users: int  # users that are averaged
    n_ratings: int  # test rows that are averaged
    per_user: PerUserMetric | None = None  # the averaged values, for paired comparisons


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """The held-out rows of a group of users, and the histories that models may read."""

    history_table: Interactions  # the training rows
    test_rows: Interactions  # the held-out rows
    scored_rows: Interactions  # those and, for implicit feedback, sampled negatives of rating 0
    users: Ints  # [U]: the users with held-out rows
    relevant: RelevantItems  # the items of `test_rows`, in the order of `users`

    @classmethod
    def from_split(cls, split: Split, users: Ints) -> Self:
        """Select the test rows of these users; raise `DataError` if there are none."""
        test_rows = split.test.for_users(users)
        if not len(test_rows):
            raise DataError(
                f"none of the {len(users):,} users of the group has test rows "
                f"({len(split.key_users):,} key and {len(split.query_users):,} query users, "
                f"{len(split.test):,} test rows); choose another --key-threshold"
            )
        scored_rows = _with_negatives(test_rows) if test_rows.implicit else test_rows
        users = np.unique(test_rows.user)
        relevant = _relevant_items(test_rows, users)
        return cls(split.train, test_rows, scored_rows, users, relevant)

    def nonnegative_labels(self) -> Floats:
        """Return the ratings of the scored rows, shifted so that none is below 0."""
        return self.scored_rows.rating - min(0.0, float(self.scored_rows.rating.min()))


def compute_metrics(
    evaluation_set: EvaluationSet,
    assignments: Sequence[ModelAssignment],
    *,
    rank_catalog: bool = True,
) -> dict[str, MetricResult]:
    """Compute the metrics that a system has on an evaluation set, by name.

    The system is its models with the users that each of them scores. Without `rank_catalog` the
    metrics over the whole catalogue are left out.
    """
    models, rows = [part.model for part in assignments], evaluation_set.scored_rows
    scores = _map_rows(score_interactions, evaluation_set, assignments)
    columns = (rows.user, scores, rows.rating)
    results: dict[str, MetricResult] = {}
    per_user: dict[str, PerUserMetric] = {}
    if rows.implicit:
        results["auc"] = MetricResult(
            metrics.auc_interval(*columns),
            len(evaluation_set.users),
            len(evaluation_set.test_rows),
            metrics.auc_contributions(*columns),
        )
        per_user["auc-user"] = metrics.auc_per_user(*columns)
    elif all(model.predicts_ratings for model in models):
        per_user["rmse"] = metrics.squared_error(*columns)
        per_user["mae"] = metrics.absolute_error(*columns)
        if all(model.has_uncertainty for model in models):
            std = _map_rows(interaction_std, evaluation_set, assignments)
            per_user["cover90"] = metrics.interval_coverage(
                rows.user, scores, std, rows.rating, 0.9
            )
            per_user["nll"] = metrics.negative_log_likelihood(rows.user, scores, std, rows.rating)
    per_user["ndcg"] = metrics.ndcg(rows.user, scores, evaluation_set.nonnegative_labels())
    if rank_catalog and all(model.can_rank_catalog for model in models):
        per_user |= _catalog_metrics(evaluation_set, assignments)
    for name, values in per_user.items():
        statistic: Statistic = "rmse" if name == "rmse" else "mean-ratio"
        results[name] = _aggregate(evaluation_set, values, statistic)
    return results


def expected_random_metrics(evaluation_set: EvaluationSet) -> dict[str, MetricResult]:
    """Compute the exact expectation of every ordering metric under a random order, by name."""
    rows, relevant = evaluation_set.scored_rows, evaluation_set.relevant
    users = evaluation_set.users
    n_candidates = len(rows.items) - evaluation_set.history_table.user_counts()[users]
    recall = np.minimum(RECALL_AT / np.maximum(n_candidates, 1), 1.0)
    recall[relevant.lengths() == 0] = np.nan
    values = {_NDCG: metrics.random_ndcg_at(relevant, n_candidates, NDCG_AT)}
    results: dict[str, MetricResult] = {}
    if rows.implicit:
        half = MetricResult(Interval(0.5, 0.5, 0.5), len(users), len(evaluation_set.test_rows))
        results |= {"auc": half, "auc-user": half}
        values[_IMPLICIT_NDCG] = metrics.random_ndcg_at(relevant, n_candidates, RECALL_AT)
    values[_RECALL] = recall
    ndcg = metrics.random_ndcg(rows.user, evaluation_set.nonnegative_labels())
    for name, x in {"ndcg": ndcg, **_per_user(evaluation_set, values)}.items():
        results[name] = _aggregate(evaluation_set, x)
    return results


def inductive_rmse(
    evaluation_set: EvaluationSet, model: Model, history_table: Interactions
) -> Interval:
    """Return the RMSE of an inductive model on the test rows, with histories of a table."""
    rows = evaluation_set.test_rows
    scores = score_interactions(model, rows, history_table, anonymous=True)
    errors = metrics.squared_error(rows.user, scores, rows.rating)
    return _aggregate(evaluation_set, errors, "rmse").interval


def _catalog_metrics(
    evaluation_set: EvaluationSet, assignments: Sequence[ModelAssignment]
) -> dict[str, PerUserMetric]:
    """Return NDCG and recall at k of the best unseen items of the catalogue, by metric name."""
    histories, relevant = evaluation_set.history_table, evaluation_set.relevant
    users, n_items = evaluation_set.users, len(histories.items)
    k = max(NDCG_AT, RECALL_AT)
    top_items = np.full((len(users), min(k, n_items)), -1)
    for model, rows in _rows_by_model(users, assignments, len(histories.users)):
        top_items[rows] = top_unseen_items(
            model, users[rows], histories, k, anonymous=model.ignores_user_ids
        )
    values = {
        _NDCG: metrics.ndcg_at(top_items, relevant, min(NDCG_AT, n_items)),
        _RECALL: metrics.recall_at(top_items, relevant),
    }
    if evaluation_set.test_rows.implicit:
        values[_IMPLICIT_NDCG] = metrics.ndcg_at(top_items, relevant)
    return _per_user(evaluation_set, values)


def _map_rows(
    function: Callable[..., Floats],
    evaluation_set: EvaluationSet,
    assignments: Sequence[ModelAssignment],
) -> Floats:
    """Apply `score_interactions` or `interaction_std` to every row of `scored_rows`, each with the
    model of its user: [N]."""
    table = evaluation_set.scored_rows
    values = np.full(len(table), np.nan, np.float32)
    for model, rows in _rows_by_model(table.user, assignments, len(table.users)):
        values[rows] = function(
            model,
            table.where(rows),
            evaluation_set.history_table,
            anonymous=model.ignores_user_ids,
        )
    return values


def _rows_by_model(
    user: Ints, assignments: Sequence[ModelAssignment], n_users: int
) -> Iterator[tuple[Model, Ints]]:
    """Yield each model with the positions of its users in `user`, where there are any."""
    for model, users in assignments:
        is_assigned = np.zeros(n_users, bool)
        is_assigned[users] = True
        if len(rows := np.flatnonzero(is_assigned[user])):
            yield model, rows


def _aggregate(
    evaluation_set: EvaluationSet, per_user: PerUserMetric, statistic: Statistic = "mean-ratio"
) -> MetricResult:
    """Average over users or rows; every system gets the same resamples of the users."""
    if not len(per_user):
        return MetricResult(Interval(np.nan, np.nan, np.nan), 0, 0)
    interval = metrics.bootstrap_interval(
        per_user.total, per_user.weight, statistic=statistic, rng=random_stream(0, "bootstrap")
    )
    n_ratings = int(evaluation_set.test_rows.user_counts()[per_user.users].sum())
    return MetricResult(interval, len(per_user), n_ratings, per_user)


def _per_user(
    evaluation_set: EvaluationSet, values_by_name: Mapping[str, Float64Array]
) -> dict[str, PerUserMetric]:
    """Return averages over the users of the evaluation set, from values [U] of each metric."""
    return {
        name: PerUserMetric.from_values(values, evaluation_set.users)
        for name, values in values_by_name.items()
    }


def _relevant_items(rows: Interactions, users: Ints) -> RelevantItems:
    """Return the items of each user; with ratings, those of positive gain 2^rating - 1."""
    order, _ = rows.rows_by_user
    gains = None
    if not rows.implicit:
        rating = rows.rating.astype(np.float64)
        gains = np.exp2(rating - min(0.0, rating.min())) - 1
        order = order[gains[order] > 0]
        gains = gains[order]
    counts = np.bincount(rows.user[order], minlength=len(rows.users))[users]
    return RelevantItems(rows.item[order], np.concatenate([[0], np.cumsum(counts)]), gains)


def _with_negatives(rows: Interactions) -> Interactions:
    """Append the negatives with rating 0; they are equal for every system, seed and machine."""
    negatives = random_stream(0, "test negatives").integers(
        len(rows.items), size=len(rows) * N_NEGATIVES
    )
    return replace(
        rows,
        user=np.concatenate([rows.user, np.repeat(rows.user, N_NEGATIVES)]),
        item=np.concatenate([rows.item, negatives]),
        rating=np.concatenate([rows.rating, np.zeros(len(negatives), np.float32)]),
        time=None,
    )
