"""What a model will be worth to newcomers, before it meets any.

A tenth of the key users is hidden and the same training is done without them; then they come with
0, 1, 2 … 20 of their interactions and are asked about others. What is deployed is trained with
everybody and should do no worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from idcf.data.interactions import Interactions
from idcf.data.split import Task, first, hold_out_users, sample_users
from idcf.inference.manifest import Measured, Point
from idcf.inference.scoring import deviations, per_list, predict
from idcf.metrics import Interval, PerUser, bootstrap, covered, squared_error
from idcf.models.base import Model, Posterior
from idcf.rng import stream
from idcf.training.train import Job, train

LENGTHS = (0, 1, 2, 3, 5, 10, 20)
SHARE = 0.1
FEWEST = 30  # people, below which a curve is noise


def rehearse(name: str, job: Job, options: Mapping[str, Any]) -> Measured | None:
    """None where there are too few key users to spare some."""
    split, rng = job.split, stream(job.seed, "rehearsal")
    away = sample_users(split.key_users, SHARE, rng)
    if len(away) < FEWEST:
        return None
    rest, task = hold_out_users(split.train, away, (LENGTHS[-1], LENGTHS[-1]), rng)
    stay = np.setdiff1d(split.key_users, away)
    part = replace(job, split=replace(split, train=rest, key_users=stay), watcher=None)
    model, plain = train(name, part, options=options).model, _plain(rest)
    floor = train(plain, part).model
    curve = []
    for n in LENGTHS:
        shown = replace(task, seen=first(task.seen, n, stream(job.seed, "shown")))
        value, low, high = _quality(model, shown)
        point = Point(shown=n, value=value, low=low, high=high, plain=_quality(floor, shown).value)
        curve.append(point)
    return Measured(
        metric="ndcg@20" if rest.implicit else "rmse",
        plain=plain,
        people=len(np.unique(task.rows.user)),
        rows=len(task.rows),
        curve=tuple(curve),
        cover90=_coverage(model, task),
    )


def _plain(table: Interactions) -> str:
    return "popularity" if table.implicit else "bias"


def _quality(model: Model, task: Task) -> Interval:
    rng = stream(0, "bootstrap")
    if task.rows.implicit:
        each = PerUser.of(per_list(model, task.rows, task.seen))
        return bootstrap(each.total, each.weight, rng=rng)
    scores = predict(model, task.rows, task.seen, anonymous=model.inductive)
    each = squared_error(task.rows.user, scores, task.rows.rating)
    return bootstrap(each.total, each.weight, statistic="rmse", rng=rng)


def _coverage(model: Model, task: Task) -> float | None:
    if task.rows.implicit or not isinstance(model, Posterior):
        return None
    rows, seen = task.rows, task.seen
    scores = predict(model, rows, seen, anonymous=model.inductive)
    std = deviations(model, rows, seen, anonymous=model.inductive)
    return covered(rows.user, scores, std, rows.rating, 0.9).mean()
