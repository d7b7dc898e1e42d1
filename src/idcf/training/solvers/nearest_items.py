"""Ridge regression of each item on its nearest items, by shrunk cosine.

    w_i = (G_NN + λ + a n_N)⁻¹ G_Ni,   G = XᵀX,  N the nearest items of item i

It is for catalogues too large to invert: of G the largest entries of each row are kept, so that
time and memory grow with the number of rows and of items. The equations of many items are set up
and solved together. `nonnegative_elastic_net` solves those of SLIM (Ning and Karypis 2011).
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array
from torch import Tensor

from idcf.models.layers.item_matrix import cooccurrence_blocks
from idcf.training.solvers.threads import threads_over_blocks

MAX_PAIRED_ITEMS = 1000  # of a user, drawn at random: n items have n² pairs
_SUPPORT = 20.0  # pseudo-count that shrinks the cosines
_MAX_THREADS = 8  # each needs memory of its own
_MAX_EQUATION_CELLS = 1 << 21  # cells of the equations that a thread sets up at once
_MAX_POSITION_CELLS = 1 << 26  # cells of the table of positions of a thread, 2 bytes each
_MAX_SWEEPS = 200
_TOLERANCE = 1e-5  # largest change of a weight in the last sweep

Array = NDArray[np.float32]


class NearestItems(NamedTuple):
    """The nearest items of each item, nearest first. A row with fewer ends in items of count 0."""

    items: Tensor  # int32 [I, M]
    counts: Tensor  # [I, M]: users who have both items; 0: not a neighbor
    n_users: Tensor  # [I]: users who have the item; with weights, the sum of their squares

    @property
    def n_items(self) -> int:
        """Number of items of the catalogue."""
        return len(self.n_users)


def sample_long_rows(x: csr_array, max_length: int, rng: np.random.Generator) -> csr_array:
    """Return the rows [U, I], of which longer ones keep `max_length` entries drawn at random."""
    lengths = np.diff(x.indptr)
    if lengths.max(initial=0) <= max_length:
        return x
    row = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((rng.random(x.nnz), row))
    entries = np.sort(order[np.arange(x.nnz) - x.indptr[row] < max_length])
    return csr_array((x.data[entries], (row[entries], x.indices[entries])), shape=x.shape)


def find_nearest_items(x: csr_array, n_nearest: int) -> NearestItems:
    """Return the nearest items by G_ij / √((n_i + s)(n_j + s)) of the rows x [U, I], n = diag G.

    Of equally near items the first of the catalogue are taken.
    """
    n_items = x.shape[1]
    n_users = np.bincount(x.indices, x.data.astype(np.float64) ** 2, n_items).astype(np.float32)
    scale = (n_users + np.float32(_SUPPORT)) ** np.float32(-0.5)
    items = np.repeat(np.arange(n_items, dtype=np.int32)[:, None], n_nearest, 1)
    counts = np.zeros((n_items, n_nearest), np.float32)
    by_item = csr_array(x.T)

    def find_block(low: int, high: int) -> None:
        """Set the rows `low` to `high`."""
        block = csr_array(by_item[low:high] @ x)
        row = np.repeat(np.arange(high - low), np.diff(block.indptr))
        # the row's own factor does not change the order within the row
        nearness = np.where(row + low == block.indices, 0, block.data * scale[block.indices])
        # integers that ascend with the row, then with the distance
        key = (row << 32) | (0x7FFFFFFF - nearness.astype(np.float32).view(np.int32).astype(int))
        last = np.minimum(block.indptr[:-1] + n_nearest, block.indptr[1:]) - 1
        limit = np.append(np.sort(key), 0)[last]  # of an empty row any, since it has no entries
        near = np.flatnonzero((key <= limit[row]) & (nearness > 0))
        near = near[np.lexsort((block.indices[near], key[near]))]
        n_before = np.searchsorted(row[near], np.arange(high - low))
        rank = np.arange(len(near)) - n_before[row[near]]
        near, rank = near[rank < n_nearest], rank[rank < n_nearest]
        cells = (row[near] + low, rank)
        items[cells], counts[cells] = block.indices[near], block.data[near]

    n_threads = min(torch.get_num_threads(), _MAX_THREADS)
    with threads_over_blocks(n_threads) as map_blocks:
        map_blocks(find_block, *zip(*cooccurrence_blocks(x, n_threads), strict=True))
    return NearestItems(*(torch.from_numpy(a) for a in (items, counts, n_users)))


def ordered_by_nearness(
    items: NDArray[np.int32], counts: Array, item_counts: NDArray[np.integer]
) -> NearestItems:
    """Return items [I, M] and their counts in the order of `find_nearest_items`; a count of 0
    stands for no item."""
    scale = (item_counts.astype(np.float32) + np.float32(_SUPPORT)) ** np.float32(-0.5)
    order = np.lexsort((items, -(counts * scale[items])))
    items, counts = np.take_along_axis(items, order, 1), np.take_along_axis(counts, order, 1)
    items[counts == 0] = np.broadcast_to(np.arange(len(items))[:, None], items.shape)[counts == 0]
    n_users = torch.from_numpy(item_counts.astype(np.float32))
    return NearestItems(torch.from_numpy(items), torch.from_numpy(counts), n_users)


def local_ridge(nearest: NearestItems, reg: float, count_reg: float, width: int) -> csr_array:
    """Return B [I, I]: column i holds the weights w_i of the first `width` nearest items of i.

    Entries of G that `nearest` does not hold count as 0. Items are taken in the order of their
    numbers of neighbors, so that the equations solved together have the same size.
    """
    return _by_target(nearest, _neighbor_weights(nearest, reg, count_reg, width))


def nearest_cosines(nearest: NearestItems) -> csr_array:
    """Return B [I, I]: B_ji = G_ji / √((n_i + s)(n_j + s)) for the nearest items j of i."""
    scale = (nearest.n_users + _SUPPORT).rsqrt()
    return _by_target(nearest, nearest.counts * scale[nearest.items.long()] * scale[:, None])


def _neighbor_weights(nearest: NearestItems, reg: float, count_reg: float, width: int) -> Tensor:
    """Return the weights of the first nearest items of each item: [I, W]."""
    n_items, width = nearest.n_items, min(width, nearest.items.shape[1])
    n_neighbors = (nearest.counts[:, :width] > 0).sum(1)
    weights = torch.zeros(n_items, width)
    order = torch.argsort(n_neighbors, stable=True)[int((n_neighbors == 0).sum()) :]
    step = max(1, _MAX_EQUATION_CELLS // (width * nearest.items.shape[1]))
    step = min(step, max(1, _MAX_POSITION_CELLS // max(n_items, 1)))
    n_threads = min(torch.get_num_threads(), _MAX_THREADS)
    tables: SimpleQueue[Tensor] = SimpleQueue()  # one for each thread
    for _ in range(n_threads):
        tables.put(torch.full((step, n_items), width, dtype=torch.int16))

    def solve_block(rows: Tensor) -> None:
        """Set the weights of some items."""
        size, positions = int(n_neighbors[rows[-1]]), tables.get()
        weights[rows, :size] = _solve(nearest, rows, size, positions, reg, count_reg)
        tables.put(positions)

    with threads_over_blocks(n_threads) as map_blocks:
        map_blocks(solve_block, [order[x : x + step] for x in range(0, len(order), step)])
    return weights


def _solve(
    nearest: NearestItems, rows: Tensor, size: int, positions: Tensor, reg: float, count_reg: float
) -> Tensor:
    """Return the weights [B, size] of the nearest items of the items `rows` [B].

    `positions` [B or more, I] is filled with one number, that is no position in a row of neighbors,
    and is left so.
    """
    neighbors, counts = nearest.items[rows, :size].long(), nearest.counts[rows, :size]
    is_neighbor, nowhere = counts > 0, positions[0, 0].clone()
    table = positions[: len(rows)]
    index = torch.arange(size, dtype=torch.int16).expand(len(rows), -1)
    table.scatter_(1, neighbors, torch.where(is_neighbor, index, nowhere))
    columns = nearest.items[neighbors].long()  # [B, size, M]: the rows of G of the neighbors
    position = table.gather(1, columns.flatten(1)).view(columns.shape).long()
    table.scatter_(1, neighbors, nowhere.expand_as(neighbors))
    entries = nearest.counts[neighbors] * is_neighbor[..., None]
    gram = torch.zeros(len(rows), size, int(nowhere) + 1).scatter_(2, position, entries)
    gram = gram[..., :size]
    gram = torch.maximum(gram, gram.mT)  # an entry may be among the largest of one row only
    n = nearest.n_users[neighbors]
    diagonal = torch.where(is_neighbor, n * (1 + count_reg) + reg, 1.0)
    gram.diagonal(dim1=1, dim2=2).copy_(diagonal)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if (failed > 0).any():  # the entries left out made it indefinite: a larger diagonal mends that
        total = gram[failed > 0].sum(2)
        factor[failed > 0] = torch.diag_embed(total.sqrt())
    solution: Tensor = torch.cholesky_solve(counts[..., None], factor)[..., 0]
    return solution * is_neighbor


def _by_target(nearest: NearestItems, weights: Tensor) -> csr_array:
    """Return the matrix [I, I] whose column i holds the weights [I, W] of the first nearest items
    of i, without those that are 0."""
    n_items, width = weights.shape
    stored = weights != 0
    offsets = np.zeros(n_items + 1, np.int64)
    np.cumsum(stored.sum(1).numpy(), out=offsets[1:])
    neighbors, values = nearest.items[:, :width][stored].numpy(), weights[stored].numpy()
    del weights, stored
    return csc_array((values, neighbors, offsets), shape=(n_items, n_items)).tocsr()


def nonnegative_elastic_net(gram: Array, moments: Array, l1_reg: float, reg: float) -> Array:
    """Minimize ½ wᵀGw - mᵀw + l1_reg Σ w + ½ reg Σ w² over w ≥ 0, for n problems at once.

    `gram` is G [n, k, k], `moments` is m [n, k]; returns w [n, k]. Cyclic coordinate descent: a
    step updates one weight of every problem.
    """
    columns = np.ascontiguousarray(gram.transpose(1, 0, 2))  # [k, n, k]
    diagonal = np.ascontiguousarray(np.diagonal(gram, axis1=1, axis2=2).T)  # [k, n]
    scale = np.maximum(diagonal + np.float32(reg), np.float32(1e-9))
    weights, slope = np.zeros_like(diagonal), moments.copy()  # slope: m - Gw
    for _ in range(_MAX_SWEEPS):
        largest_change = 0.0
        for k, column in enumerate(columns):
            target = slope[:, k] + diagonal[k] * weights[k] - np.float32(l1_reg)
            change = np.maximum(target, 0) / scale[k] - weights[k]
            if not change.any():
                continue
            weights[k] += change
            slope -= change[:, None] * column
            largest_change = max(largest_change, float(np.abs(change).max()))
        if largest_change < _TOLERANCE:
            break
    return np.ascontiguousarray(weights.T)
