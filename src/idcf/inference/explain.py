"""Explanations of a score, and questions to ask a new user.

`explain` and `next_questions` give results in item ids; the functions below them compute the
numbers from a model and item rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idcf.data.history_reader import NewUser, as_users
from idcf.data.interactions import Floats, Ints
from idcf.errors import ConfigError
from idcf.inference.predictor import Predictor, no_posterior_message
from idcf.inference.topk import mask_scores_1d, top_k_1d
from idcf.models.base import Model
from idcf.models.bayes import BayesModel
from idcf.results import Cohort, Explanation, Question, Reason
from idcf.types import History, Users

_MAX_COHORTS = 3  # named in an explanation


def explain(predictor: Predictor, new_user: NewUser, item_row: int) -> Explanation:
    """Explain the score of one item by the user's history and by cohorts of key users.

    Parameters
    ----------
    predictor
        The model and its catalogue.
    new_user
        The user, from `Predictor.read_new_user`.
    item_row
        Row of the item.

    Raises
    ------
    ConfigError
        If the model cannot score new users.
    """
    model = predictor.ranker.model
    if not model.inductive:
        raise ConfigError(
            f"{type(model).__name__} cannot score new users, so there is nothing to explain; use "
            "an idcf-* model or 'als'"
        )
    score, effects = leave_one_out(
        model, new_user.item_rows, new_user.values, item_row, new_user.features
    )
    history = zip(new_user.item_rows.tolist(), new_user.values.tolist(), effects, strict=True)
    reasons = [
        Reason(predictor.item_ids[row], predictor.titles[row], value, effect)
        for row, value, effect in history
    ]
    reasons.sort(key=lambda x: -abs(x.effect))
    users, std = as_users([new_user]), None
    cohorts: tuple[Cohort, ...] = ()
    if predictor.posterior_std is not None:
        std = float(predictor.rating_std(users, np.array([[item_row]]))[0, 0])
    if isinstance(model, BayesModel):
        cohorts = _top_cohorts(predictor, model, users)
    return Explanation(
        predictor.item_ids[item_row],
        predictor.titles[item_row],
        score,
        std,
        tuple(reasons),
        cohorts,
        new_user.unknown_items,
    )


def next_questions(
    predictor: Predictor, new_user: NewUser, n: int, candidates: Iterable[Any] | None = None
) -> list[Question]:
    """Return the n items whose rating would say most about a new user, best first.

    Parameters
    ----------
    predictor
        The model and its catalogue.
    new_user
        The user, from `Predictor.read_new_user`. Items of the history are not asked about.
    n
        Number of questions.
    candidates
        Ids of items that the user knows, the only ones to ask about. None: all items, weighted by
        how likely a user knows them.

    Raises
    ------
    ConfigError
        If the model has no posterior.
    """
    model = predictor.ranker.model
    if not isinstance(model, BayesModel):
        raise ConfigError(no_posterior_message("next_question", predictor.source))
    candidate_rows = predictor.make_filters(candidates, None).candidates
    users = as_users([new_user]).to(model.device)
    gains = question_gains(model, users, items_are_known=candidates is not None)[0].cpu().numpy()
    mask_scores_1d(gains, new_user.item_rows, candidate_rows)
    rows = top_k_1d(gains, n).tolist()
    return [Question(predictor.item_ids[r], predictor.titles[r], float(gains[r])) for r in rows]


def _top_cohorts(predictor: Predictor, model: BayesModel, users: Users) -> tuple[Cohort, ...]:
    """Return the cohorts that most resemble one user, largest weight first."""
    weights = cohort_weights(model, users.to(model.device))[0]
    best = weights.argsort(descending=True)[:_MAX_COHORTS].tolist()

    def liked_titles(cohort: int) -> tuple[str, ...]:
        return tuple(
            predictor.titles[row] or str(predictor.item_ids[row])
            for row in model.cohort_items[cohort].tolist()
        )

    return tuple(
        Cohort(int(model.cohort_sizes[c]), float(weights[c]), liked_titles(c))
        for c in best
        if model.cohort_sizes[c] > 0
    )


@torch.inference_mode()
def leave_one_out(
    model: Model, item_rows: Ints, values: Floats, item: int, features: Floats | None = None
) -> tuple[float, list[float]]:
    """Return the score of an item, and the effect of each entry of the history on it.

    The effect is the score with the entry minus the score without it. It is exact: all histories
    that lack one entry are scored, in one batch.

    Parameters
    ----------
    model
        An inductive model.
    item_rows, values
        The history: rows of items and their ratings.
    item
        Row of the item to score.
    features
        Encoded user features [F]; None: no features.
    """
    n = len(item_rows)
    entries = np.concatenate([np.arange(n), *(np.delete(np.arange(n), k) for k in range(n))])
    offsets = np.concatenate([[0, n], n + (n - 1) * np.arange(1, n + 1)])
    arrays = item_rows[entries], values[entries], offsets
    history = History(*(torch.from_numpy(x) for x in arrays))
    feature_rows = None if features is None else torch.from_numpy(features).expand(n + 1, -1)
    users = Users(torch.full((n + 1,), -1), history, feature_rows).to(model.device)
    items = torch.full((n + 1, 1), item, device=model.device)
    scores = model(users, items, torch.arange(n + 1, device=model.device))[:, 0].tolist()
    return scores[0], [scores[0] - x for x in scores[1:]]


@torch.inference_mode()
def cohort_weights(model: BayesModel, users: Users) -> Tensor:
    """Return how much each cohort of key users resembles each user: [B, C], rows sum to 1."""
    vector = model.embed_users(users).vector
    squared_distance = torch.cdist(vector, model.cohort_centers).square()
    scaled_distance = squared_distance / (2 * model.cohort_spread.square() + 1e-12)
    return torch.softmax(model.cohort_sizes.log() - scaled_distance, 1)


@torch.inference_mode()
def question_gains(model: BayesModel, users: Users, *, items_are_known: bool = False) -> Tensor:
    """Return how much a rating of each item is expected to reduce the variance: [B, I].

    With S the covariance of the user and M the mean of ff' over the items that users rate, a rating
    of an item with moments f reduces the expected variance tr SM by f'SMSf / (1/α + f'Sf).

    Parameters
    ----------
    model
        The Bayesian model.
    users
        The users to ask.
    items_are_known
        Whether the users can rate every item. Otherwise the gain is multiplied by the square root
        of the item's share of raters; the root, because a rating of an item that nearly all users
        know says less than the model expects.
    """
    cholesky = model.posterior(users).precision_cholesky
    covariance = torch.cholesky_inverse(cholesky)  # [B, T, D, D]
    means = model.means.transpose(0, 1)  # [T, I, D]
    f = torch.cat([means[..., :-1], torch.ones_like(means[..., :1])], -1)
    share = model.n_raters / model.n_raters.sum().clamp(min=1)
    mean_outer = f.mT @ (share[:, None] * f)
    reduction = ((f @ (covariance @ mean_outer @ covariance)) * f).sum(-1)
    variance = 1 / model.noise_precision[:, None] + ((f @ covariance) * f).sum(-1)
    gain = (reduction / variance).mean(1)
    if items_are_known:
        return gain
    return gain * (model.n_raters / model.n_raters.max().clamp(min=1)).sqrt()
