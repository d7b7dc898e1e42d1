"""Measure models on the held-out rows of a group of users.

Ratings: `rmse`, `mae`, and `ndcg`, over the whole test list of a user with at least 2 test ratings:
its gain is 2^rating - 1, as in the paper's public code, and that of `ndcg-linear` is the rating, as
the paper prints it; the latter is measured on request. For models with a posterior, `cover90` is
the share of ratings inside 90 % intervals and `nll` the negative log-likelihood of the ratings.

Implicit feedback: each test positive is compared with `N_NEGATIVES` items drawn uniformly from the
whole catalogue, not filtered, as in the paper. `auc` pools all users, `auc-user` averages users,
`ndcg` orders each user's positives and negatives. With ratings, `auc-user` takes every rated test
item as a positive, and the score is the one that lists are ordered by.

Metrics of lists are those of `list_metrics`; they are left out for models that declare
`can_rank_catalog = False`. Predictions are not clipped to the rating scale. This module trains
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from idcf import metrics
from idcf.data.interactions import Floats, Interactions, Ints
from idcf.data.split import SplitProtocol
from idcf.evaluation.evaluation_set import EvaluationSet, with_negatives
from idcf.evaluation.list_metrics import (
    CUTOFFS,
    NEED_RATINGS,
    expected_list_metrics,
    list_length,
    measure_lists,
    measure_spread,
)
from idcf.inference.benefit import BenefitOrder
from idcf.inference.scoring import (
    interaction_std,
    score_interactions,
    score_interactions_by_benefit,
    top_unseen_items,
)
from idcf.metrics import Interval, PerUserMetric
from idcf.metrics.ranking import Gain
from idcf.metrics.stats import Statistic
from idcf.models.base import Model
from idcf.rng import random_stream

_ROW_METRICS = {  # metrics of scored rows, by whether the feedback is implicit
    False: ("rmse", "mae", "cover90", "nll", "ndcg", "ndcg-linear"),
    True: ("auc", "auc-user", "ndcg"),
}
_ON_REQUEST = ("ndcg-linear",)  # row metrics that are no default
_NDCG_GAINS: Mapping[str, Gain] = {"ndcg": "exp", "ndcg-linear": "linear"}
_DEFAULT_LIST_METRICS = {False: ("ndcg@10", "recall@20"), True: ("ndcg@10", "recall@20", "ndcg@20")}
_STRONG_LIST_METRICS = ("recall@20", "recall@50", "ndcg@100")  # those of Liang et al. 2018


def metric_names(implicit: bool) -> tuple[str, ...]:
    """Return every metric of this kind of feedback, in the order in which they are reported."""
    if implicit:
        return (*_ROW_METRICS[True], *(x for x in CUTOFFS if x not in NEED_RATINGS))
    return (*_ROW_METRICS[False], *(x for x in CUTOFFS if x != "ndcg@20"), "auc-user")


def default_metric_names(implicit: bool, protocol: SplitProtocol = "standard") -> tuple[str, ...]:
    """Return the metrics that are reported unless others are chosen."""
    row_metrics = [name for name in _ROW_METRICS[implicit] if name not in _ON_REQUEST]
    if protocol == "strong":
        return (*row_metrics, *_STRONG_LIST_METRICS)
    return (*row_metrics, *_DEFAULT_LIST_METRICS[implicit])


def reads_lists(names: Collection[str]) -> bool:
    """Return whether one of these metrics depends on the order of lists."""
    return list_length(names) > 0 or "auc-user" in names


class ModelAssignment(NamedTuple):
    """A model, the users that it scores, and the order of their lists."""

    model: Model
    users: Ints  # rows of the users
    order: BenefitOrder | None = None  # None: by the scores of the model


class MetricResult(NamedTuple):
    """One metric of one system over a group of users."""

    interval: Interval  # the metric with its 95 % interval over users
    n_users: int  # users that are averaged
    n_ratings: int  # test rows that are averaged
    per_user: PerUserMetric | None = None  # the averaged values, for paired comparisons
    quality: float | None = None  # of the lists; None: they are ordered by the model's scores


def compute_metrics(
    evaluation_set: EvaluationSet,
    assignments: Sequence[ModelAssignment],
    *,
    names: Collection[str] | None = None,
    rank_catalog: bool = True,
) -> dict[str, MetricResult]:
    """Compute the metrics that a system has on an evaluation set, by name.

    The system is its models with the users that each of them scores. `names` are some of
    `metric_names`, those of `default_metric_names` by default. Without `rank_catalog` the metrics
    of lists are left out.
    """
    implicit = evaluation_set.test_rows.implicit
    names = default_metric_names(implicit) if names is None else names
    results = _row_results(evaluation_set, assignments, names)
    per_user: dict[str, PerUserMetric] = {}
    if not implicit and "auc-user" in names:
        per_user["auc-user"] = _auc_of_rated_items(evaluation_set, assignments)
    if rank_catalog and list_length(names) and all(x.model.can_rank_catalog for x in assignments):
        top_items = _best_unseen_items(evaluation_set, assignments, list_length(names))
        per_user |= measure_lists(evaluation_set, top_items, names)
        n_items, n_rows = len(evaluation_set.test_rows.items), len(evaluation_set.test_rows)
        for name, interval in measure_spread(top_items, n_items, names).items():
            results[name] = MetricResult(interval, len(top_items), n_rows)
    results |= {name: _aggregate(evaluation_set, x) for name, x in per_user.items()}
    quality = next((x.order.quality for x in assignments if x.order), None)
    row_names = _ROW_METRICS[implicit]
    return {
        name: results[name] if name in row_names else results[name]._replace(quality=quality)
        for name in metric_names(implicit)
        if name in results
    }


def expected_random_metrics(
    evaluation_set: EvaluationSet, names: Collection[str] | None = None
) -> dict[str, MetricResult]:
    """Compute the expectation of ordering metrics under a random order, by name.

    `names` are those of `compute_metrics`.
    """
    rows = evaluation_set.scored_rows
    names = default_metric_names(rows.implicit) if names is None else names
    n_users, n_rows = len(evaluation_set.users), len(evaluation_set.test_rows)
    half = MetricResult(Interval(0.5, 0.5, 0.5), n_users, n_rows)
    results = {name: half for name in ("auc", "auc-user") if name in names}
    per_user = expected_list_metrics(evaluation_set, names)
    for name in [x for x in _NDCG_GAINS if x in names and x in _ROW_METRICS[rows.implicit]]:
        per_user[name] = metrics.random_ndcg(
            rows.user, evaluation_set.nonnegative_labels(), gain=_NDCG_GAINS[name]
        )
    results |= {name: _aggregate(evaluation_set, x) for name, x in per_user.items()}
    return {name: results[name] for name in metric_names(rows.implicit) if name in results}


def inductive_rmse(
    evaluation_set: EvaluationSet, model: Model, history_table: Interactions
) -> Interval:
    """Return the RMSE of an inductive model on the test rows, with histories of a table."""
    rows = evaluation_set.test_rows
    scores = score_interactions(model, rows, history_table, anonymous=True)
    errors = metrics.squared_error(rows.user, scores, rows.rating)
    return _aggregate(evaluation_set, errors, "rmse").interval


def _row_results(
    evaluation_set: EvaluationSet, assignments: Sequence[ModelAssignment], names: Collection[str]
) -> dict[str, MetricResult]:
    """Return the metrics of the scored rows that are in `names`, by name."""
    rows = evaluation_set.scored_rows
    if not {*names} & {*_ROW_METRICS[rows.implicit]}:
        return {}
    scores = _score_rows(evaluation_set, rows, assignments)
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
    elif all(x.model.predicts_ratings for x in assignments):
        per_user["rmse"] = metrics.squared_error(*columns)
        per_user["mae"] = metrics.absolute_error(*columns)
        has_std = all(x.model.has_uncertainty for x in assignments)
        if has_std and {"cover90", "nll"} & {*names}:
            std = _score_rows(evaluation_set, rows, assignments, std=True)
            ratio = _interval_ratios(rows, assignments, 0.9)
            per_user["cover90"] = metrics.interval_coverage(
                rows.user, scores, ratio * std, rows.rating, 0.9
            )
            per_user["nll"] = metrics.negative_log_likelihood(rows.user, scores, std, rows.rating)
    labels = evaluation_set.nonnegative_labels()
    for name in [x for x in _NDCG_GAINS if x in names]:
        per_user[name] = metrics.ndcg(rows.user, scores, labels, gain=_NDCG_GAINS[name])
    for name, values in per_user.items():
        statistic: Statistic = "rmse" if name == "rmse" else "mean-ratio"
        results[name] = _aggregate(evaluation_set, values, statistic)
    return {name: x for name, x in results.items() if name in names}


def _auc_of_rated_items(
    evaluation_set: EvaluationSet, assignments: Sequence[ModelAssignment]
) -> PerUserMetric:
    """Return the AUC of each user's rated test items against sampled items, by list scores."""
    rows = with_negatives(evaluation_set.test_rows)
    scores = _score_rows(evaluation_set, rows, assignments, by_order=True)
    is_positive = np.arange(len(rows)) < len(evaluation_set.test_rows)
    return metrics.auc_per_user(rows.user, scores, is_positive)


def _best_unseen_items(
    evaluation_set: EvaluationSet, assignments: Sequence[ModelAssignment], k: int
) -> Ints:
    """Return the list of every user of the evaluation set, each by the model of the user: [U, k]"""
    histories, users = evaluation_set.history_table, evaluation_set.users
    top_items = np.full((len(users), min(k, len(histories.items))), -1)
    for part, rows in _rows_by_assignment(users, assignments, len(histories.users)):
        top_items[rows] = top_unseen_items(
            part.model,
            users[rows],
            histories,
            k,
            anonymous=part.model.ignores_user_ids,
            order=part.order,
        )
    return top_items


def _score_rows(
    evaluation_set: EvaluationSet,
    table: Interactions,
    assignments: Sequence[ModelAssignment],
    *,
    std: bool = False,
    by_order: bool = False,
) -> Floats:
    """Return the score of every row of a table, each by the model of its user: [N].

    `std` asks for the standard deviation instead, `by_order` for what orders the lists.
    """
    values = np.full(len(table), np.nan, np.float32)
    for part, rows in _rows_by_assignment(table.user, assignments, len(table.users)):
        target, histories = table.where(rows), evaluation_set.history_table
        model, anonymous = part.model, part.model.ignores_user_ids
        if by_order and part.order is not None:
            values[rows] = score_interactions_by_benefit(
                model, target, histories, part.order, anonymous=anonymous
            )
        else:
            function = interaction_std if std else score_interactions
            values[rows] = function(model, target, histories, anonymous=anonymous)
    return values


def _interval_ratios(
    table: Interactions, assignments: Sequence[ModelAssignment], level: float
) -> Floats:
    """Return the `interval_ratio` of the model of each row's user: [N]."""
    ratios = np.ones(len(table), np.float32)
    for part, rows in _rows_by_assignment(table.user, assignments, len(table.users)):
        ratios[rows] = part.model.interval_ratio(level)
    return ratios


def _rows_by_assignment(
    user: Ints, assignments: Sequence[ModelAssignment], n_users: int
) -> Iterator[tuple[ModelAssignment, Ints]]:
    """Yield each model with the positions of its users in `user`, where there are any."""
    for assignment in assignments:
        is_assigned = np.zeros(n_users, bool)
        is_assigned[assignment.users] = True
        if len(rows := np.flatnonzero(is_assigned[user])):
            yield assignment, rows


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
