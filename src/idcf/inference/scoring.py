"""Scores of a model on held-out rows, and the metrics that training and tuning watch.

With `anonymous` the model sees histories only, as of new users; else it sees the users' ids too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Floats, Interactions, Ints
from idcf.inference.topk import CatalogRanker
from idcf.metrics import RelevantItems, ndcg_at
from idcf.models.base import Model
from idcf.types import Users

ScoreFunction = Callable[[Users, Tensor, Tensor], Tensor]  # users, items [M, K], owner [M]: [M, K]


def score_interactions(
    model: Model,
    target_table: Interactions,
    history_table: Interactions,
    *,
    anonymous: bool,
    batch_size: int = 8192,
) -> Floats:
    """Return one score per row of `target_table`, from the histories in `history_table`."""
    return _score_rows(model, model, target_table, history_table, anonymous, batch_size)


def interaction_std(
    model: Model,
    target_table: Interactions,
    history_table: Interactions,
    *,
    anonymous: bool,
    batch_size: int = 512,
) -> Floats:
    """Return the standard deviation of the rating of every row of `target_table`.

    Raises `ConfigError` if the model has no `has_uncertainty`.
    """
    return _score_rows(
        model.predictive_std, model, target_table, history_table, anonymous, batch_size
    )


def _score_rows(
    score: ScoreFunction,
    model: Model,
    target_table: Interactions,
    history_table: Interactions,
    anonymous: bool,
    batch_size: int,
) -> Floats:
    """Return one value of `score`, the model or a method of it, per row of `target_table`."""
    order, _ = target_table.rows_by_user  # each user is embedded once, as rows are adjacent
    user_rows, items = target_table.user[order], target_table.item[order, None]
    out = np.empty(len(target_table), np.float32)
    out[order] = _score_candidates(
        score, model, user_rows, items, history_table, anonymous, batch_size
    )[:, 0]
    return out


@torch.no_grad()
def _score_candidates(
    score: ScoreFunction,
    model: Model,
    user_rows: Ints,
    items: Ints,
    history_table: Interactions,
    anonymous: bool,
    batch_size: int,
) -> Floats:
    """Return the values of `score` for items [M, K] of users [M], in batches of rows: [M, K]."""
    model.eval()
    out = np.empty(items.shape, np.float32)
    for start in range(0, len(user_rows), batch_size):
        part = slice(start, start + batch_size)
        rows, owner = np.unique(user_rows[part], return_inverse=True)
        users = _select_users(model, rows, history_table, anonymous)
        columns = (torch.from_numpy(x).to(model.device) for x in (items[part], owner))
        out[part] = score(users, *columns).float().cpu().numpy()
    return out


def top_unseen_items(
    model: Model, user_rows: Ints, history_table: Interactions, k: int, *, anonymous: bool
) -> Ints:
    """Return the k best items of the catalogue for each user, without the history: [U, k].

    The ranking is the one that is served, so the model is frozen; ties are ordered by item row.
    """
    users = _select_users(model, user_rows, history_table, anonymous)
    ranked = CatalogRanker(model).top_k(users, k, users.history)
    return ranked.item_rows.cpu().numpy()


def _select_users(
    model: Model, user_rows: Ints, history_table: Interactions, anonymous: bool
) -> Users:
    """Return users of a table with their histories, on the model's device."""
    users = history_table.build_users(user_rows).to(model.device)
    return users.anonymous() if anonymous else users


def rmse_on(model: Model, target_table: Interactions, history_table: Interactions) -> float:
    """Return the RMSE on held-out ratings."""
    scores = score_interactions(
        model, target_table, history_table, anonymous=model.ignores_user_ids
    )
    return float(np.sqrt(np.mean((scores - target_table.rating) ** 2, dtype=np.float64)))


def auc_loss_on(
    model: Model,
    target_table: Interactions,
    history_table: Interactions,
    *,
    n_negatives: int,
    rng: np.random.Generator,
) -> float:
    """Return 1 - AUC of held-out interactions, each against `n_negatives` random items."""
    negatives = rng.integers(len(target_table.items), size=(len(target_table), n_negatives))
    items = np.hstack([target_table.item[:, None], negatives])
    anonymous = model.ignores_user_ids
    scores = _score_candidates(
        model, model, target_table.user, items, history_table, anonymous, batch_size=512
    )
    positive, negative = scores[:, :1], scores[:, 1:]
    return float(1 - np.mean((positive > negative) + 0.5 * (positive == negative)))


def ndcg_per_user(
    model: Model, target_table: Interactions, history_table: Interactions, k: int = 20
) -> Floats:
    """Return NDCG@k over the whole catalogue, for each user who has held-out rows."""
    order, start = target_table.rows_by_user
    users = np.unique(target_table.user)
    relevant = RelevantItems(target_table.item[order], np.concatenate([[0], start[users + 1]]))
    ranked = top_unseen_items(model, users, history_table, k, anonymous=model.ignores_user_ids)
    return ndcg_at(ranked, relevant, k=ranked.shape[1]).astype(np.float32)


def ndcg_loss_on(
    model: Model, target_table: Interactions, history_table: Interactions, k: int = 20
) -> float:
    """Return 1 - NDCG@k, averaged over users with held-out rows, for implicit feedback."""
    return float(1 - np.nanmean(ndcg_per_user(model, target_table, history_table, k)))
