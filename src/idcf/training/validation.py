"""What is set aside of a table, and the number a model is watched by on it. Lower is better."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from idcf.data.interactions import Interactions, Ints
from idcf.data.split import Task, hold_out_users, lightest_users, sample_users
from idcf.inference.scoring import lists_on, loss_on, rmse_on
from idcf.models.base import Model
from idcf.rng import stream
from idcf.training.presets import Setting

_SHORT = (4, 15)  # histories that leave the lightest key users something to be asked about


def held_out(
    table: Interactions, users: Ints, chosen: Setting, seed: int
) -> tuple[Interactions, Task]:
    """Validation users: gone from the table, with histories as short as a newcomer's."""
    away = sample_users(users, chosen.validation or 0.1, stream(seed, "validation users"))
    return hold_out_users(table, away, chosen.newcomers, stream(seed, "validation histories"))


def trial(table: Interactions, seed: int) -> tuple[Interactions, Callable[[Model], float]]:
    """What solvers are tried on. Without ratings, lists for the lightest users: pairs with random
    items are won by whoever knows what is rare, and lists are what people see."""
    if not table.implicit:
        rest, task = held_out(table, np.flatnonzero(table.counts()), Setting(), seed)
        return rest, watcher(task, seed)
    rng, n = stream(seed, "validation histories"), np.count_nonzero(table.counts())
    away = lightest_users(table, max(Setting().validation, 1 / n), rng)
    rest, task = hold_out_users(table, away, _SHORT, rng)
    return rest, lambda model: lists_on(model, task.rows, task.seen)


def watcher(task: Task, seed: int) -> Callable[[Model], float]:
    if not task.rows.implicit:
        return lambda model: rmse_on(model, task.rows, task.seen)
    draw = partial(stream, seed, "validation negatives")  # the same for every model
    return lambda model: loss_on(model, task.rows, task.seen, negatives=5, rng=draw())
