"""The expected quality for new users, by the length of their history, for the model card.

A tenth of the key users is held out and a model is trained in the same way without them. They are
then treated as new users with histories of 0 to 20 of their interactions, and their other
interactions are predicted. The deployed model is trained on all key users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from idcf.data.interactions import Interactions
from idcf.data.split import PredictionTask, hold_out_users, sample_rows_per_user, sample_users
from idcf.inference.manifest import NewUserCurve, NewUserCurvePoint
from idcf.inference.scoring import interaction_std, ndcg_per_user, score_interactions
from idcf.metrics import (
    Interval,
    PerUserMetric,
    bootstrap_interval,
    interval_coverage,
    squared_error,
)
from idcf.models.base import Model
from idcf.rng import random_stream
from idcf.training.train import TrainingJob, train

HISTORY_LENGTHS = (0, 1, 2, 3, 5, 10, 20)
HELD_OUT_SHARE = 0.1
MIN_HELD_OUT_USERS = 30  # with fewer the curve would be noise


def measure_new_user_curve(
    name: str, job: TrainingJob, options: Mapping[str, Any]
) -> NewUserCurve | None:
    """Measure the quality for new users by the length of their history, from a second training.

    Returns None if fewer than `MIN_HELD_OUT_USERS` key users would be held out.
    """
    split, rng = job.split, random_stream(job.seed, "rehearsal")
    held_out = sample_users(split.key_users, HELD_OUT_SHARE, rng)
    if len(held_out) < MIN_HELD_OUT_USERS:
        return None
    longest = HISTORY_LENGTHS[-1]
    train_rows, task = hold_out_users(split.train, held_out, (longest, longest), rng)
    key_users = np.setdiff1d(split.key_users, held_out)
    twin_split = replace(split, train=train_rows, key_users=key_users)
    twin_job = replace(job, split=twin_split, callback=None)
    model = train(name, twin_job, options=options).model
    baseline_name = _baseline_name(train_rows)
    baseline = train(baseline_name, replace(twin_job, folder=None)).model
    points = [
        _measure_point(model, baseline, _shorten_histories(task, n, job.seed), n)
        for n in HISTORY_LENGTHS
    ]
    return NewUserCurve(
        metric="ndcg@20" if train_rows.implicit else "rmse",
        baseline=baseline_name,
        n_users=len(np.unique(task.target_table.user)),
        n_rows=len(task.target_table),
        points=tuple(points),
        cover90=_interval_coverage(model, task),
    )


def _shorten_histories(task: PredictionTask, n: int, seed: int) -> PredictionTask:
    """Return the task with n rows of each history; a longer history contains the shorter ones."""
    rows = sample_rows_per_user(task.history_table, n, random_stream(seed, "shown"))
    return replace(task, history_table=rows)


def _measure_point(
    model: Model, baseline: Model, task: PredictionTask, history_length: int
) -> NewUserCurvePoint:
    """Return the quality of the model and of the baseline on the task."""
    value, low, high = _measure_quality(model, task)
    return NewUserCurvePoint(
        history_length=history_length,
        value=value,
        low=low,
        high=high,
        baseline=_measure_quality(baseline, task).value,
    )


def _baseline_name(table: Interactions) -> str:
    """Return the name of the simplest model for this kind of feedback."""
    return "popularity" if table.implicit else "bias"


def _measure_quality(model: Model, task: PredictionTask) -> Interval:
    """Return NDCG@20 (implicit feedback) or RMSE, with its 95 % interval over users."""
    rng = random_stream(0, "bootstrap")
    targets, history = task.target_table, task.history_table
    if targets.implicit:
        ndcg = PerUserMetric.from_values(ndcg_per_user(model, targets, history))
        return bootstrap_interval(ndcg.total, ndcg.weight, rng=rng)
    scores = score_interactions(model, targets, history, anonymous=model.inductive)
    errors = squared_error(targets.user, scores, targets.rating)
    return bootstrap_interval(errors.total, errors.weight, statistic="rmse", rng=rng)


def _interval_coverage(model: Model, task: PredictionTask) -> float | None:
    """Return the share of ratings inside the 90 % intervals; None if the model has none."""
    targets, history = task.target_table, task.history_table
    if targets.implicit or not model.has_uncertainty:
        return None
    scores = score_interactions(model, targets, history, anonymous=model.inductive)
    std = interaction_std(model, targets, history, anonymous=model.inductive)
    std *= model.interval_ratio(0.9)
    return interval_coverage(targets.user, scores, std, targets.rating, 0.9).mean()
