"""Explanations of a score: `explain` gives results in item ids, `leave_one_out` the effects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from idcf.data.history_reader import NewUser, as_users
from idcf.data.interactions import Floats, Ints
from idcf.errors import ConfigError
from idcf.inference.predictor import Predictor
from idcf.inference.recency import require_order, stacked_recency_weights
from idcf.models.base import Model
from idcf.results import Cohort, Explanation, Reason
from idcf.types import History, Users

_MAX_COHORTS = 3  # named in an explanation


def explain(
    predictor: Predictor,
    new_user: NewUser,
    item_row: int,
    quality: float | None = None,
    damping: float = 0.0,
    recency: float = 0.0,
) -> Explanation:
    """Explain the score of one item by the user's history and by cohorts of key users.

    The score is the one that orders the lists of this quality, damping and recency. ConfigError:
    the model cannot score new users.
    """
    model = predictor.ranker.model
    if not model.inductive:
        raise ConfigError(
            f"{type(model).__name__} cannot score new users, so there is nothing to explain; use "
            "an idcf-* model or 'als'"
        )
    rows, values = new_user.item_rows, new_user.values
    weights = None
    if recency:
        weights = _weights_without_each(require_order(new_user.n_later), recency)
    score_users = _score_function(predictor, item_row, quality, damping, weights)
    score, effects = leave_one_out(score_users, rows, values, new_user.features)
    if len(rows) == 1 and model.counts_without_history and predictor.log_popularity is not None:
        effects = [score]  # without the item, the score would be a number of users
    reasons = [
        Reason(predictor.item_ids[row], predictor.titles[row], value, effect)
        for row, value, effect in zip(rows.tolist(), values.tolist(), effects, strict=True)
    ]
    reasons.sort(key=lambda x: -abs(x.effect))
    users, std = as_users([new_user]), None
    if model.has_uncertainty:
        std = float(predictor.ranker.rating_std(users, torch.tensor([[item_row]])))
    return Explanation(
        predictor.item_ids[item_row],
        predictor.titles[item_row],
        score,
        std,
        tuple(reasons),
        _top_cohorts(predictor, users),
        new_user.unknown_items,
    )


@torch.inference_mode()
def _top_cohorts(predictor: Predictor, users: Users) -> tuple[Cohort, ...]:
    """Return the cohorts that most resemble one user, largest weight first, if there are any."""
    model = predictor.ranker.model
    cohorts = model.cohort_weights(users.to(model.device))
    if cohorts is None:
        return ()
    weights, sizes, item_rows = cohorts.weights[0], cohorts.sizes, cohorts.item_rows.tolist()
    best = weights.argsort(descending=True)[:_MAX_COHORTS].tolist()
    titles, ids = predictor.titles, predictor.item_ids
    return tuple(
        Cohort(
            int(sizes[c]),
            float(weights[c]),
            tuple(titles[row] or str(ids[row]) for row in item_rows[c] if row >= 0),
        )
        for c in best
        if sizes[c] > 0
    )


def _score_function(
    predictor: Predictor,
    item_row: int,
    quality: float | None,
    damping: float,
    weights: Tensor | None,
) -> Callable[[Users], list[float]]:
    """Return a function that gives the score of one item for each of several users, whose history
    entries have weights [N]."""
    benefit_ranker, log_s = predictor.benefit_ranker, predictor.log_popularity
    if benefit_ranker is not None and quality is not None:
        return lambda users: benefit_ranker.score_item(
            users, item_row, quality, damping, weights
        ).tolist()
    divisor = 1.0 if log_s is None else float(np.exp(damping * log_s[item_row]))
    score = partial(_score_by_model, predictor.ranker.model, item_row, divisor)
    return lambda users: score(users.weighted(weights))


def _weights_without_each(n_later: Ints, recency: float) -> Tensor:
    """Return the weights of a whole history, then of the histories that lack one entry each, as
    `leave_one_out` lays them out: without an entry, those before it have one later item fewer."""
    parts = [n_later]
    parts += [np.delete(n_later - (n_later > x), k) for k, x in enumerate(n_later.tolist())]
    lengths = [len(x) for x in parts]
    weights = stacked_recency_weights(np.concatenate(parts), lengths, [recency] * len(parts))
    return torch.from_numpy(weights)


def _score_by_model(model: Model, item_row: int, divisor: float, users: Users) -> list[float]:
    """Return the model's score of one item for each user, divided by the damped popularity."""
    items = torch.full((len(users), 1), item_row, device=model.device)
    owner = torch.arange(len(users), device=model.device)
    scores: list[float] = (model(users.to(model.device), items, owner)[:, 0] / divisor).tolist()
    return scores


@torch.inference_mode()
def leave_one_out(
    score_users: Callable[[Users], list[float]],
    item_rows: Ints,
    values: Floats,
    features: Floats | None = None,
) -> tuple[float, list[float]]:
    """Return the score of an item, and the effect of each entry of the history on it.

    The effect is the score with the entry minus the score without it. It is exact: all histories
    that lack one entry are scored, in one batch.
    """
    n = len(item_rows)
    entries = np.concatenate([np.arange(n), *(np.delete(np.arange(n), k) for k in range(n))])
    offsets = np.concatenate([[0, n], n + (n - 1) * np.arange(1, n + 1)])
    arrays = item_rows[entries], values[entries], offsets
    history = History(*(torch.from_numpy(x) for x in arrays))
    feature_rows = None if features is None else torch.from_numpy(features).expand(n + 1, -1)
    scores = score_users(Users(torch.full((n + 1,), -1), history, feature_rows))
    return scores[0], [scores[0] - x for x in scores[1:]]
