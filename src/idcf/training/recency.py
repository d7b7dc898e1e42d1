"""Choose how much the later items of a history count more: see `inference.recency`.

The least active key users are held out, and treated as new users: their first few items in time are
the history, the items after them what they go on to choose. The recency is the one whose mean gain
of NDCG@20 over recency 0, less two standard errors, is largest; 0 if no gain exceeds them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from idcf.data.history_reader import count_later
from idcf.data.interactions import Floats, Interactions, Ints
from idcf.data.split import least_active_users, rank_in_user, rows_of_sampled_users
from idcf.inference.recency import stacked_recency_weights
from idcf.inference.topk import CatalogRanker
from idcf.metrics import RelevantItems, ndcg_at
from idcf.models.base import Model

VALUES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)  # that are tried
_MIN_USERS = 20  # fewer held-out users are too few
_MAX_USERS, _MAX_CELLS = 1000, 1 << 24  # users, and scores of each cut; but 300 users suffice
_N_CUTS = 3  # histories of each user
_MAX_ROWS = 300_000  # of the table; of a larger one, some users are drawn
_HISTORY_LENGTHS = (2, 25)  # items: new users have few, and one item has no order
_MAX_TARGETS = 10  # items, and at most half of a user's
_N_STANDARD_ERRORS = 2.0


def fit_recency(
    table: Interactions, train: Callable[[Interactions], Model], rng: np.random.Generator
) -> float:
    """Return the recency that serves held-out users of a table with times best.

    `train` fits the model to the rows of the other users.
    """
    table = rows_of_sampled_users(table, _MAX_ROWS, rng)
    users = least_active_users(table, 0.25, rng)
    max_users = min(_MAX_USERS, max(300, _MAX_CELLS // len(table.items)))
    has_rows = table.user_counts()[users] > _HISTORY_LENGTHS[0]
    users = np.sort(rng.permutation(users[has_rows])[:max_users])
    if len(users) < _MIN_USERS:
        return 0.0
    is_held_out = table.user_mask(users)[table.user]
    ranker = CatalogRanker(train(table.where(~is_held_out)).eval())
    gains = np.zeros((len(VALUES), len(users)))
    for _ in range(_N_CUTS):
        history, targets = _cut_in_time(table.where(is_held_out), rng)
        ndcg = np.stack([_ndcg(ranker, users, history, targets, x) for x in VALUES])
        gains += (ndcg - ndcg[0]) / _N_CUTS
    bounds = [x.mean() - _N_STANDARD_ERRORS * x.std() / len(users) ** 0.5 for x in gains]
    return VALUES[int(np.argmax(bounds))]  # the bound of recency 0 is 0


def _cut_in_time(
    table: Interactions, rng: np.random.Generator
) -> tuple[Interactions, Interactions]:
    """Return the history of each user, of random length, and the items after it."""
    assert table.time is not None
    n_rows, (low, high) = table.user_counts(), _HISTORY_LENGTHS
    n_targets = np.minimum(_MAX_TARGETS, np.maximum(n_rows // 2, 1))
    longest = np.clip(n_rows - n_targets, low, high)
    lengths = low + np.floor(rng.random(len(n_rows)) * (longest - low + 1)).astype(np.int64)
    rank = rank_in_user(table, table.time)
    in_history = rank < lengths[table.user]
    is_target = ~in_history & (rank < (lengths + n_targets)[table.user])
    return table.where(in_history), table.where(is_target)


def _ndcg(
    ranker: CatalogRanker, users: Ints, history: Interactions, targets: Interactions, recency: float
) -> Floats:
    """Return NDCG@20 of each user with one recency."""
    readers = history.build_users(users).anonymous()
    times = history.times_of(users)
    assert times is not None
    n_later = np.concatenate([count_later(x) for x in times])
    lengths = [len(x) for x in times]
    weights = stacked_recency_weights(n_later, lengths, [recency] * len(users))
    top = ranker.top_k(readers.weighted(torch.from_numpy(weights)), 20, readers.history)
    relevant = targets.history(users)
    return ndcg_at(
        top.item_rows.cpu().numpy(),
        RelevantItems(relevant.items.numpy(), relevant.offsets.numpy()),
        k=top.item_rows.shape[1],
    ).astype(np.float32)
