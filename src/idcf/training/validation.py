"""Validation data held out of a training table, and the validation error. Lower is better."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np

from idcf.data.interactions import Interactions, Ints
from idcf.data.split import PredictionTask, hold_out_users, least_active_users, sample_users
from idcf.inference.scoring import auc_loss_on, ndcg_loss_on, rmse_on
from idcf.models.base import Model
from idcf.rng import random_stream
from idcf.training.presets import StageConfig

# histories this short leave targets even to the users with the fewest interactions
_SHORT_HISTORY_LENGTHS = (4, 15)
_USERS_FOR_WEIGHTS, _MAX_SHARE_FOR_WEIGHTS = 100, 0.3  # users wanted for validation, at most


def hold_out_validation_users(
    table: Interactions, users: Ints, stage_config: StageConfig, seed: int
) -> tuple[Interactions, PredictionTask]:
    """Hold out a random sample of `users`, with histories as short as those of new users.

    Returns the table without the sampled users; and their short histories, with their other rows as
    targets. The share is `stage_config.validation`, 0.1 if that is 0.
    """
    held_out = sample_users(
        users, stage_config.validation or 0.1, random_stream(seed, "validation users")
    )
    rng = random_stream(seed, "validation histories")
    return hold_out_users(table, held_out, stage_config.validation_history_lengths, rng)


def grid_search_validation(
    table: Interactions, seed: int, implicit_metric: Literal["ndcg", "auc"] = "ndcg"
) -> tuple[Interactions, Callable[[Model], float]]:
    """Return the table without held-out users, and the error on them, for the grid search of a
    solver.

    The error is the RMSE of ratings; for implicit feedback 1 - NDCG of the lists of the users with
    the fewest rows, because the AUC against random items mostly rewards popularity, or 1 - AUC if
    `implicit_metric` says so. Where clicks have weights, these are the gains of NDCG, and small
    tables hold out more users, because the power of the weights is chosen too. The error is 1 -
    NDCG too for a model that is fitted on ratings but predicts none.
    """
    if not table.implicit:
        users = np.flatnonzero(table.user_counts())
        train_rows, task = hold_out_validation_users(table, users, StageConfig(), seed)
        rating_error = validation_metric(task, seed)
        return (
            train_rows,
            lambda model: (
                rating_error(model)
                if model.predicts_ratings
                else ndcg_loss_on(model, task.target_table, task.history_table)
            ),
        )
    rng, n_users = (
        random_stream(seed, "validation histories"),
        np.count_nonzero(table.user_counts()),
    )
    share = max(StageConfig().validation, 1 / n_users)
    if table.weight is not None:
        share = max(share, min(_MAX_SHARE_FOR_WEIGHTS, _USERS_FOR_WEIGHTS / n_users))
    held_out = least_active_users(table, share, rng)
    train_rows, task = hold_out_users(table, held_out, _SHORT_HISTORY_LENGTHS, rng)
    if implicit_metric == "auc":
        return train_rows, validation_metric(task, seed)
    return train_rows, lambda model: ndcg_loss_on(model, task.target_table, task.history_table)


def validation_metric(task: PredictionTask, seed: int) -> Callable[[Model], float]:
    """Return a function that measures a model's error on a task; lower is better.

    The error is the RMSE for ratings and 1 - AUC for implicit feedback. `seed` draws the negatives
    of the AUC, which are equal for every model.
    """
    if not task.target_table.implicit:
        return lambda model: rmse_on(model, task.target_table, task.history_table)
    make_rng = partial(random_stream, seed, "validation negatives")  # equal for every model
    return lambda model: auc_loss_on(
        model, task.target_table, task.history_table, n_negatives=5, rng=make_rng()
    )
