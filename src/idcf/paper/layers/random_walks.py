"""Which items a short random walk from an item meets, and how often: expected, not sampled."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, diags_array, vstack

from idcf.models.layers.item_matrix import co_occurring, nearest
from idcf.types import History


def incidence(raters: History, n_users: int) -> csr_array:
    """Who had what: [U, I], 1 or nothing."""
    items = csr_array(
        (np.ones(len(raters.items), np.float32), raters.items.numpy(), raters.offsets.numpy()),
        shape=(len(raters.offsets) - 1, n_users),
    )
    return csr_array(items.T)


def visits(had: csr_array, top: int, hops: int, restart: float) -> csr_array:
    """For each item the `top` items that walks from it visit most, with shares that sum to 1.

    A hop goes from an item to one of its users and on to one of theirs, each as likely as the
    others; before every further hop the walk goes home with probability `restart`. Expected
    visits are Σ_h (1 - restart)^(h - 1) Pʰ; after the first hop only the `top` likeliest items
    are walked on from, for P itself does not fit.
    """
    step = _hop(had, top)
    total, reached = step, step
    for hop in range(1, hops):
        blocks = [reached[low : low + _ROWS] @ step for low in range(0, step.shape[0], _ROWS)]
        kept = [nearest(_others(x, i * _ROWS), top) for i, x in enumerate(blocks)]
        reached = csr_array(vstack(kept))
        total = csr_array(total + (1 - restart) ** hop * reached)
    return _shares(nearest(total, top))


_ROWS = 1 << 14


def _hop(had: csr_array, top: int) -> csr_array:
    """The likeliest places after one hop, other than home."""
    turned, per_user = _shares(csr_array(had.T)), _shares(had)
    rows = [
        nearest(_others(csr_array(turned[low:high] @ per_user), low), top)
        for low, high in co_occurring(had)
    ]
    return csr_array(vstack(rows))


def _others(block: csr_array, start: int) -> csr_array:
    """What leads home, the diagonal that begins at column `start`, is 0."""
    row = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    return csr_array(
        (np.where(row + start == block.indices, 0, block.data), block.indices, block.indptr),
        shape=block.shape,
    )


def _shares(matrix: csr_array) -> csr_array:
    """Rows that sum to 1, or to 0 where there is nothing."""
    total = np.asarray(matrix.sum(1)).ravel()
    return csr_array(diags_array((1 / np.maximum(total, 1e-9)).astype(np.float32)) @ matrix)
