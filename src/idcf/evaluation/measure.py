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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from idcf import metrics
from idcf.data.interactions import Floats, Interactions, Ints
from idcf.data.split import Split
from idcf.errors import DataError
from idcf.inference.scoring import interaction_std, score_interactions, top_unseen_items
from idcf.metrics import Interval, PerUserMetric, RelevantItems
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
    """The held-out rows of a group of users, and the histories that models may read.

    Parameters
    ----------
    history_table : Interactions
        The training rows: the users' histories.
    test_rows : Interactions
        The held-out rows.
    scored_rows : Interactions
        The rows that models score: the held-out rows and, for implicit feedback, sampled negatives
        with rating 0.
    users : ndarray [U]
        The users with held-out rows.
    relevant : RelevantItems
        The items of `test_rows`, in the order of `users`.
    """

    history_table: Interactions
    test_rows: Interactions
    scored_rows: Interactions
    users: Ints
    relevant: RelevantItems

    @classmethod
    def from_split(cls, split: Split, users: Ints) -> Self:
        """Select the test rows of these users.

        Raises
        ------
        DataError
            If none of the users has a test row.
        """
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
    """Compute every metric that a system has on an evaluation set.

    Parameters
    ----------
    evaluation_set : EvaluationSet
    assignments : sequence of ModelAssignment
        The models of the system and the users that each of them scores.
    rank_catalog : bool
        Whether to compute the metrics that rank the whole catalogue.

    Returns
    -------
    dict of str to MetricResult
        By metric name, in the order of `metric_names`.
    """
    rows = evaluation_set.scored_rows
    scores = _score_rows(evaluation_set, assignments)
    results: dict[str, MetricResult] = {}
    if rows.implicit:
        results |= _auc_metrics(evaluation_set, scores)
    elif all(part.model.predicts_ratings for part in assignments):
        results |= _rating_metrics(evaluation_set, scores)
        results |= _calibration_metrics(evaluation_set, assignments, scores)
    ndcg = metrics.ndcg(rows.user, scores, evaluation_set.nonnegative_labels())
    results["ndcg"] = _aggregate(evaluation_set, ndcg)
    if rank_catalog and all(part.model.can_rank_catalog for part in assignments):
        results |= _catalog_metrics(evaluation_set, assignments)
    return results


def expected_random_metrics(evaluation_set: EvaluationSet) -> dict[str, MetricResult]:
    """Compute the exact expectation of every ordering metric under a random order.

    Parameters
    ----------
    evaluation_set : EvaluationSet

    Returns
    -------
    dict of str to MetricResult
        By metric name. Metrics of predicted ratings are not included.
    """
    rows, relevant = evaluation_set.scored_rows, evaluation_set.relevant
    results: dict[str, MetricResult] = {}
    if rows.implicit:
        half = MetricResult(
            Interval(0.5, 0.5, 0.5), len(evaluation_set.users), len(evaluation_set.test_rows)
        )
        results |= {"auc": half, "auc-user": half}
    ndcg = metrics.random_ndcg(rows.user, evaluation_set.nonnegative_labels())
    results["ndcg"] = _aggregate(evaluation_set, ndcg)
    n_candidates = (
        len(rows.items) - evaluation_set.history_table.user_counts()[evaluation_set.users]
    )
    results[_NDCG] = _aggregate_values(
        evaluation_set, metrics.random_ndcg_at(relevant, n_candidates, NDCG_AT)
    )
    if rows.implicit:
        results[_IMPLICIT_NDCG] = _aggregate_values(
            evaluation_set, metrics.random_ndcg_at(relevant, n_candidates, RECALL_AT)
        )
    recall = np.minimum(RECALL_AT / np.maximum(n_candidates, 1), 1.0)
    recall[relevant.lengths() == 0] = np.nan
    results[_RECALL] = _aggregate_values(evaluation_set, recall)
    return results


def predict_stds(
    evaluation_set: EvaluationSet, assignments: Sequence[ModelAssignment]
) -> Floats | None:
    """Return the standard deviation of every scored row, or None if a model has no
    uncertainty."""
    rows = evaluation_set.scored_rows
    stds = np.full(len(rows), np.nan, np.float32)
    for part, positions in _positions_by_assignment(rows.user, assignments, len(rows.users)):
        if not part.model.has_uncertainty:
            return None
        stds[positions] = interaction_std(
            part.model,
            rows.where(positions),
            evaluation_set.history_table,
            anonymous=part.model.ignores_user_ids,
        )
    return stds


def inductive_rmse(
    evaluation_set: EvaluationSet, model: Model, history_table: Interactions
) -> Interval:
    """Return the RMSE of an inductive model on the test rows, with histories of a table."""
    rows = evaluation_set.test_rows
    scores = score_interactions(model, rows, history_table, anonymous=True)
    errors = metrics.squared_error(rows.user, scores, rows.rating)
    return _aggregate(evaluation_set, errors, "rmse").interval


def _rating_metrics(evaluation_set: EvaluationSet, scores: Floats) -> dict[str, MetricResult]:
    """Return the metrics rmse and mae of the scores of `scored_rows`."""
    rows = evaluation_set.scored_rows
    squared = metrics.squared_error(rows.user, scores, rows.rating)
    absolute = metrics.absolute_error(rows.user, scores, rows.rating)
    return {
        "rmse": _aggregate(evaluation_set, squared, "rmse"),
        "mae": _aggregate(evaluation_set, absolute),
    }


def _calibration_metrics(
    evaluation_set: EvaluationSet, assignments: Sequence[ModelAssignment], scores: Floats
) -> dict[str, MetricResult]:
    """Compute `cover90` and `nll`; empty if a model of the system has no posterior."""
    rows, std = evaluation_set.scored_rows, predict_stds(evaluation_set, assignments)
    if std is None:
        return {}
    coverage = metrics.interval_coverage(rows.user, scores, std, rows.rating, 0.9)
    nll = metrics.negative_log_likelihood(rows.user, scores, std, rows.rating)
    return {
        "cover90": _aggregate(evaluation_set, coverage),
        "nll": _aggregate(evaluation_set, nll),
    }


def _auc_metrics(evaluation_set: EvaluationSet, scores: Floats) -> dict[str, MetricResult]:
    """Return auc, pooled over all users, and auc-user of the scores of `scored_rows`."""
    rows = evaluation_set.scored_rows
    pooled = MetricResult(
        metrics.auc_interval(rows.user, scores, rows.rating),
        len(evaluation_set.users),
        len(evaluation_set.test_rows),
        metrics.auc_contributions(rows.user, scores, rows.rating),
    )
    per_user = metrics.auc_per_user(rows.user, scores, rows.rating)
    return {"auc": pooled, "auc-user": _aggregate(evaluation_set, per_user)}


def _catalog_metrics(
    evaluation_set: EvaluationSet, assignments: Sequence[ModelAssignment]
) -> dict[str, MetricResult]:
    """Return the metrics of the best items of the whole catalogue: NDCG and recall at k."""
    relevant = evaluation_set.relevant
    top_items = _rank_catalog(evaluation_set, assignments, max(NDCG_AT, RECALL_AT))
    k = min(NDCG_AT, top_items.shape[1])
    values = {
        _NDCG: metrics.ndcg_at(top_items, relevant, k),
        _RECALL: metrics.recall_at(top_items, relevant),
    }
    if evaluation_set.test_rows.implicit:
        values[_IMPLICIT_NDCG] = metrics.ndcg_at(top_items, relevant)
    return {name: _aggregate_values(evaluation_set, x) for name, x in values.items()}


def _score_rows(evaluation_set: EvaluationSet, assignments: Sequence[ModelAssignment]) -> Floats:
    """Score every row of `scored_rows`, each by the model of its user."""
    rows = evaluation_set.scored_rows
    scores = np.full(len(rows), np.nan, np.float32)
    for part, positions in _positions_by_assignment(rows.user, assignments, len(rows.users)):
        scores[positions] = score_interactions(
            part.model,
            rows.where(positions),
            evaluation_set.history_table,
            anonymous=part.model.ignores_user_ids,
        )
    return scores


def _rank_catalog(
    evaluation_set: EvaluationSet, assignments: Sequence[ModelAssignment], k: int
) -> Ints:
    """Rank the unseen items of the catalogue for every user: rows of the best, [U, min(k, I)].

    Each user is ranked by the model that is assigned to the user; without a model the row is -1.
    """
    users, n_items = evaluation_set.users, len(evaluation_set.scored_rows.items)
    top_items = np.full((len(users), min(k, n_items)), -1)
    n_users = len(evaluation_set.scored_rows.users)
    for part, positions in _positions_by_assignment(users, assignments, n_users):
        top_items[positions] = top_unseen_items(
            part.model,
            users[positions],
            evaluation_set.history_table,
            k,
            anonymous=part.model.ignores_user_ids,
        )
    return top_items


def _positions_by_assignment(
    user: Ints, assignments: Sequence[ModelAssignment], n_users: int
) -> list[tuple[ModelAssignment, Ints]]:
    """Return each assignment with the positions of its users in `user`, where there are any."""
    pairs = []
    for part in assignments:
        is_assigned = np.zeros(n_users, bool)
        is_assigned[part.users] = True
        if len(positions := np.flatnonzero(is_assigned[user])):
            pairs.append((part, positions))
    return pairs


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


def _aggregate_values(
    evaluation_set: EvaluationSet, values: np.typing.NDArray[np.float64]
) -> MetricResult:
    """Average one value per user of the evaluation set; NaN users are left out."""
    return _aggregate(evaluation_set, PerUserMetric.from_values(values, evaluation_set.users))


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
