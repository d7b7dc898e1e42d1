"""Run a model over held-out rows and measure it. Knows no training and no printing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from idcf.data.batches import rows as in_batches
from idcf.data.interactions import Floats, Interactions, Ints
from idcf.metrics import Relevant, ndcg_at
from idcf.models.base import Model, Posterior
from idcf.types import Users


def predict(
    model: Model, rows: Interactions, seen: Interactions, *, anonymous: bool, size: int = 8192
) -> Floats:
    """Score every row. With `anonymous`, users are known by what `seen` says they did, alone."""
    return _each(model, model, rows, seen, anonymous, size)


def deviations(
    model: Posterior, rows: Interactions, seen: Interactions, *, anonymous: bool, size: int = 512
) -> Floats:
    """How sure the model is of every row: the standard deviation of the rating."""
    return _each(model, model.deviation, rows, seen, anonymous, size)


@torch.no_grad()
def _each(
    model: Model,
    ask: Callable[[Users, Tensor, Tensor], Tensor],
    rows: Interactions,
    seen: Interactions,
    anonymous: bool,
    size: int,
) -> Floats:
    """One number per row."""
    model.eval()
    order, _ = rows.by_user  # neighbours share a user, who is then embedded once
    out = np.empty(len(rows), np.float32)
    at = 0
    for batch in in_batches(rows.where(order), seen, size=size):
        batch = batch.to(model.device)
        users = batch.users.anonymous() if anonymous else batch.users
        found = ask(users, batch.items, batch.owner)[:, 0].float().cpu().numpy()
        out[order[at : at + len(found)]] = found
        at += len(found)
    return out


@torch.no_grad()
def score_pairs(
    model: Model, user: Ints, items: Ints, seen: Interactions, *, anonymous: bool, size: int = 512
) -> Floats:
    """Score items [U, K] for users [U]; who stands there again and again is embedded once."""
    model.eval()
    parts = []
    for start in range(0, len(user), size):
        who, place = np.unique(user[start : start + size], return_inverse=True)
        users = _users(model, who, seen, anonymous)
        asked = torch.from_numpy(items[start : start + size]).to(model.device)
        owner = torch.from_numpy(place).to(model.device)
        parts.append(model(users, asked, owner).float().cpu().numpy())
    return np.concatenate(parts) if parts else np.empty((0, items.shape[1]), np.float32)


@torch.no_grad()
def top(
    model: Model, user: Ints, seen: Interactions, k: int, *, anonymous: bool, size: int = 128
) -> Ints:
    """The k best unseen items of each user over the whole catalogue: [U, k]."""
    model.eval()
    parts = []
    for start in range(0, len(user), size):
        users = _users(model, user[start : start + size], seen, anonymous)
        scores = model.rank(users).clone()
        scores[users.history.owner(), users.history.items] = -torch.inf
        parts.append(scores.topk(min(k, scores.shape[1])).indices.cpu().numpy())
    return np.concatenate(parts) if parts else np.empty((0, k), np.int64)


def _users(model: Model, who: Ints, seen: Interactions, anonymous: bool) -> Users:
    users = seen.people(who).to(model.device)
    return users.anonymous() if anonymous else users


def rmse_on(model: Model, rows: Interactions, seen: Interactions) -> float:
    """The number that early stopping watches for ratings."""
    scores = predict(model, rows, seen, anonymous=model.anonymous)
    return float(np.sqrt(np.mean((scores - rows.rating) ** 2, dtype=np.float64)))


def loss_on(
    model: Model,
    rows: Interactions,
    seen: Interactions,
    *,
    negatives: int,
    rng: np.random.Generator,
) -> float:
    """1 - AUC over the held-out positives and as many fixed random items: for implicit feedback."""
    drawn = rng.integers(len(rows.items), size=(len(rows), negatives))
    items = np.hstack([rows.item[:, None], drawn])
    scores = score_pairs(model, rows.user, items, seen, anonymous=model.anonymous)
    above, below = scores[:, :1], scores[:, 1:]
    return float(1 - np.mean((above > below) + 0.5 * (above == below)))


def per_list(model: Model, rows: Interactions, seen: Interactions, k: int = 20) -> Floats:
    """NDCG@k over the whole catalogue, of each user who has rows."""
    order, start = rows.by_user
    who = np.unique(rows.user)
    wanted = Relevant(rows.item[order], np.concatenate([[0], start[who + 1]]))
    found = top(model, who, seen, k, anonymous=model.anonymous)
    return ndcg_at(found, wanted, k=found.shape[1]).astype(np.float32)


def lists_on(model: Model, rows: Interactions, seen: Interactions, k: int = 20) -> float:
    """1 - NDCG@k: what solvers are tried by, for implicit feedback."""
    return float(1 - np.nanmean(per_list(model, rows, seen, k)))
