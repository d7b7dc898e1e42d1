"""Scores of a model on held-out rows, and the metrics that training and tuning watch.

Knows no training and no printing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from idcf.data.batches import row_batches
from idcf.data.interactions import Floats, Interactions, Ints
from idcf.inference.topk import CatalogRanker
from idcf.metrics import RelevantItems, ndcg_at
from idcf.models.base import Model
from idcf.types import Users


def score_interactions(
    model: Model,
    target_table: Interactions,
    history_table: Interactions,
    *,
    anonymous: bool,
    batch_size: int = 8192,
) -> Floats:
    """Score every row of a table.

    Parameters
    ----------
    model
        The model.
    target_table
        The rows (user, item) to score.
    history_table
        The histories of the users.
    anonymous
        Whether to hide the users' ids, so that the model sees histories only.
    batch_size
        Rows per batch.

    Returns
    -------
    ndarray
        One score per row of `target_table`.
    """
    return _map_batches(model, model, target_table, history_table, anonymous, batch_size)


def interaction_std(
    model: Model,
    target_table: Interactions,
    history_table: Interactions,
    *,
    anonymous: bool,
    batch_size: int = 512,
) -> Floats:
    """Return the standard deviation of the rating of every row; see `score_interactions`.

    Raises
    ------
    ConfigError
        If the model has no `has_uncertainty`.
    """
    return _map_batches(
        model, model.predictive_std, target_table, history_table, anonymous, batch_size
    )


@torch.no_grad()
def _map_batches(
    model: Model,
    score_batch: Callable[[Users, Tensor, Tensor], Tensor],
    target_table: Interactions,
    history_table: Interactions,
    anonymous: bool,
    batch_size: int,
) -> Floats:
    """Apply a function of users, items [M, 1] and owner [M] in batches; one number per row."""
    model.eval()
    order, _ = target_table.rows_by_user  # each user is embedded once, as rows are adjacent
    out = np.empty(len(target_table), np.float32)
    start = 0
    for batch in row_batches(target_table.where(order), history_table, batch_size=batch_size):
        batch = batch.to(model.device)
        users = batch.users.anonymous() if anonymous else batch.users
        values = score_batch(users, batch.items, batch.owner)[:, 0].float().cpu().numpy()
        out[order[start : start + len(values)]] = values
        start += len(values)
    return out


@torch.no_grad()
def score_candidates(
    model: Model,
    user_rows: Ints,
    items: Ints,
    history_table: Interactions,
    *,
    anonymous: bool,
    batch_size: int = 512,
) -> Floats:
    """Score items [U, K] for users [U]; return [U, K].

    A user who occurs several times in a batch is embedded once. The parameters are those of
    `score_interactions`.
    """
    model.eval()
    parts = []
    for start in range(0, len(user_rows), batch_size):
        rows, owner = np.unique(user_rows[start : start + batch_size], return_inverse=True)
        users = _select_users(model, rows, history_table, anonymous)
        batch_items = torch.from_numpy(items[start : start + batch_size]).to(model.device)
        owner_tensor = torch.from_numpy(owner).to(model.device)
        parts.append(model(users, batch_items, owner_tensor).float().cpu().numpy())
    return np.concatenate(parts) if parts else np.empty((0, items.shape[1]), np.float32)


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
    """Return 1 - AUC of held-out interactions against random items, for implicit feedback.

    Parameters
    ----------
    model
        The model.
    target_table
        The held-out interactions.
    history_table
        The histories of the users.
    n_negatives
        Random items per held-out interaction.
    rng
        Generator of the random items.
    """
    negatives = rng.integers(len(target_table.items), size=(len(target_table), n_negatives))
    items = np.hstack([target_table.item[:, None], negatives])
    scores = score_candidates(
        model, target_table.user, items, history_table, anonymous=model.ignores_user_ids
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
