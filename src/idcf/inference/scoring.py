"""Scores of a model on held-out rows, and the metrics that training and tuning watch.

With `anonymous` the model sees histories only, as of new users; else it sees the users' ids too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Floats, Interactions, Ints
from idcf.inference.benefit import BenefitOrder
from idcf.inference.topk import (
    EXCLUDED_SCORE,
    CatalogRanker,
    mask_scores,
    slice_history,
    top_k,
)
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


@torch.inference_mode()
def top_unseen_items(
    model: Model,
    user_rows: Ints,
    history_table: Interactions,
    k: int,
    *,
    anonymous: bool,
    order: BenefitOrder | None = None,
) -> Ints:
    """Return the k best items of the catalogue for each user, without the history: [U, k].

    The ranking is the one that is served, so the model is frozen; ties are ordered by item row. The
    order is that of the scores, or of expected benefit with an `order`. A list that holds fewer
    than k items ends in -1.
    """
    users = history_table.build_users(user_rows)
    users = users.anonymous() if anonymous else users
    if order is None:
        ranked = CatalogRanker(model).top_k(users, k, users.history)
        return ranked.item_rows.masked_fill(ranked.scores == EXCLUDED_SCORE, -1).cpu().numpy()
    top = np.full((len(user_rows), min(k, model.n_items)), -1)
    for rows, scores in _benefit_blocks(model, order, users):
        block = top_k(mask_scores(scores, slice_history(users.history, rows)), k)
        top[rows] = block.item_rows.masked_fill(block.scores == EXCLUDED_SCORE, -1).numpy()
    return top


@torch.inference_mode()
def score_interactions_by_benefit(
    model: Model,
    target_table: Interactions,
    history_table: Interactions,
    order: BenefitOrder,
    *,
    anonymous: bool,
) -> Floats:
    """Return the logarithm of the expected benefit of every row of `target_table`."""
    row_order, start = target_table.rows_by_user
    user_rows = np.unique(target_table.user)
    users = history_table.build_users(user_rows)
    users = users.anonymous() if anonymous else users
    out = np.empty(len(target_table), np.float32)
    for rows, scores in _benefit_blocks(model, order, users):
        table_rows = row_order[start[user_rows[rows][0]] : start[user_rows[rows][-1] + 1]]
        owner = np.searchsorted(user_rows[rows], target_table.user[table_rows])
        out[table_rows] = scores.numpy()[owner, target_table.item[table_rows]]
    return out


def _benefit_blocks(
    model: Model, order: BenefitOrder, users: Users
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the log benefit of every item [B, I] for blocks of users, and their positions.

    As in `Predictor.recommend`, a user without history and features gets the model's ranking
    without data, if it has one.
    """
    ranker, popularity = order.ranker(model), model.ranking_without_data()
    for rows, block in ranker.ratings.blocks(users):
        scores, _, _ = ranker.score_catalog(block, torch.full((len(block),), order.quality))
        if popularity is not None:
            lacks_data = block.history.lengths() == 0
            if block.features is not None:
                lacks_data &= ~block.features.any(1)
            scores[lacks_data] = popularity.float().cpu()
        yield rows, scores


def _select_users(
    model: Model, user_rows: Ints, history_table: Interactions, anonymous: bool
) -> Users:
    """Return users of a table with their histories, on the model's device."""
    users = history_table.build_users(user_rows).to(model.device)
    return users.anonymous() if anonymous else users


def rmse_on(model: Model, target_table: Interactions, history_table: Interactions) -> float:
    """Return the RMSE on held-out ratings; NaN if there are none."""
    if not len(target_table):
        return float("nan")
    scores = score_interactions(
        model, target_table, history_table, anonymous=model.ignores_user_ids
    )
    with np.errstate(over="ignore"):  # an error beyond the range is infinite
        return float(np.sqrt(np.mean((scores - target_table.rating) ** 2, dtype=np.float64)))


def auc_loss_on(
    model: Model,
    target_table: Interactions,
    history_table: Interactions,
    *,
    n_negatives: int,
    rng: np.random.Generator,
) -> float:
    """Return 1 - AUC of held-out interactions, each against `n_negatives` random items; NaN if
    there are none."""
    if not len(target_table):
        return float("nan")
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
    """Return NDCG@k over the whole catalogue, for each user who has held-out rows.

    The gain of a row is its weight, 1 in a table without weights.
    """
    order, start = target_table.rows_by_user
    users = np.unique(target_table.user)
    gains = None if target_table.weight is None else target_table.weight[order].astype(np.float64)
    offsets = np.concatenate([[0], start[users + 1]])
    relevant = RelevantItems(target_table.item[order], offsets, gains)
    ranked = top_unseen_items(model, users, history_table, k, anonymous=model.ignores_user_ids)
    return ndcg_at(ranked, relevant, k=ranked.shape[1]).astype(np.float32)


def ndcg_loss_on(
    model: Model, target_table: Interactions, history_table: Interactions, k: int = 20
) -> float:
    """Return 1 - NDCG@k, averaged over users with held-out rows, for implicit feedback."""
    return float(1 - np.nanmean(ndcg_per_user(model, target_table, history_table, k)))
