"""Expected visits of short random walks on the item graph, computed exactly instead of sampled."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, diags_array, vstack

from idcf.models.layers.item_matrix import cooccurrence_blocks, largest_per_row
from idcf.types import RaggedRows

_BLOCK_ROWS = 1 << 14  # rows multiplied at a time, to bound memory


def incidence_matrix(raters: RaggedRows, n_users: int) -> csr_array:
    """Return the matrix of interactions [U, I]: 1 where a user interacted with an item."""
    by_item = csr_array(
        (np.ones(len(raters.indices), np.float32), raters.indices.numpy(), raters.offsets.numpy()),
        shape=(len(raters.offsets) - 1, n_users),
    )
    return csr_array(by_item.T)


def visit_shares(incidence: csr_array, n_neighbors: int, n_hops: int, restart: float) -> csr_array:
    """Return for each item the items that walks from it visit most, with shares that sum to 1: [I,
    I].

    A hop goes to a random user of the item and on to a random item of the user; before every
    further hop the walk returns to its start with probability `restart`. Expected visits are Σ_h (1
    - restart)^(h - 1) Pʰ; after every hop only the `n_neighbors` most likely items of each row are
    followed, because P itself does not fit into memory. Items without neighbours have rows of 0.
    """
    step = _one_hop(incidence, n_neighbors)
    total, reached = step, step
    for hop in range(1, n_hops):
        blocks = [
            reached[low : low + _BLOCK_ROWS] @ step for low in range(0, step.shape[0], _BLOCK_ROWS)
        ]
        largest = [
            largest_per_row(_zero_diagonal(block, i * _BLOCK_ROWS), n_neighbors)
            for i, block in enumerate(blocks)
        ]
        reached = csr_array(vstack(largest))
        total = csr_array(total + (1 - restart) ** hop * reached)
    return _normalize_rows(largest_per_row(total, n_neighbors))


def _one_hop(incidence: csr_array, n_neighbors: int) -> csr_array:
    """Return the most likely items after one hop, without the item itself: [I, I]."""
    item_to_user = _normalize_rows(csr_array(incidence.T))
    user_to_item = _normalize_rows(incidence)
    blocks = [
        largest_per_row(
            _zero_diagonal(csr_array(item_to_user[low:high] @ user_to_item), low), n_neighbors
        )
        for low, high in cooccurrence_blocks(incidence)
    ]
    return csr_array(vstack(blocks))


def _zero_diagonal(block: csr_array, first_row: int) -> csr_array:
    """Set the diagonal of a square matrix to 0 in a block that begins at row `first_row`."""
    row = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
    return csr_array(
        (np.where(row + first_row == block.indices, 0, block.data), block.indices, block.indptr),
        shape=block.shape,
    )


def _normalize_rows(matrix: csr_array) -> csr_array:
    """Divide each row by its sum; empty rows stay 0."""
    total = np.asarray(matrix.sum(1)).ravel()
    return csr_array(diags_array((1 / np.maximum(total, 1e-9)).astype(np.float32)) @ matrix)
