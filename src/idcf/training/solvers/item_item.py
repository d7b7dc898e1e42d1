"""Item-kNN and EASE: one item-by-item matrix each, made in blocks of items and kept sparse."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, vstack

from idcf.data.interactions import Interactions
from idcf.models.baselines import BiasConfig, ItemItem, ItemItemConfig
from idcf.models.layers.item_matrix import co_occurring, nearest
from idcf.training.solvers.bias import counts, fill
from idcf.training.solvers.context import Work

_CELLS = 1 << 22  # of a dense block
_STRIDE = 16  # one in so many is looked at to guess how the others lie
_DOUBLE = 4096  # a matrix of this side is inverted in double precision

Array = NDArray[np.floating]


def item_knn(config: ItemItemConfig, table: Interactions, work: Work) -> ItemItem:
    """Cosine of the residual (or 0/1) columns, shrunk by support n / (n + reg), best k kept."""
    model, x = _start(config, table)
    norm = np.sqrt(np.asarray(x.multiply(x).sum(0)).ravel()) + 1e-9
    unit = csr_array(x @ diags_array((1 / norm).astype(np.float32)))
    ones = csr_array((np.ones_like(x.data), x.indices, x.indptr), shape=x.shape)
    model.weight.fill(
        csr_array(vstack(list(_cosines(unit, ones, config.reg, config.neighbours))).T)
    )
    return model


def shrunk_cosines(x: csr_array, support: float, neighbours: int) -> csr_array:
    """Σ x_ui x_uj / √(n_i + support)(n_j + support) of 0/1 columns [I, I], no item with itself.
    Of each column the largest are kept."""
    scale = (x.sum(0) + max(support, 1e-9)) ** -0.5
    unit = csr_array(x @ diags_array(scale.astype(np.float32)))
    return csr_array(vstack(list(_cosines(unit, x, 0.0, neighbours))).T)


def _cosines(unit: csr_array, ones: csr_array, reg: float, neighbours: int) -> Iterator[csr_array]:
    """A row for each item: its nearest."""
    turned, had = csr_array(unit.T), csr_array(ones.T)
    for low, high in co_occurring(ones):
        block = csr_array(turned[low:high] @ unit)
        if reg:
            support = csr_array(had[low:high] @ ones)
            support.data /= support.data + reg
            block = csr_array(block.multiply(support))
        each = block.tocoo()
        others = each.row + low != each.col
        at = (each.row[others], each.col[others])
        yield nearest(csr_array((each.data[others], at), shape=block.shape), neighbours)


def ease(config: ItemItemConfig, table: Interactions, work: Work) -> ItemItem:
    """B = I - P / diag(P), P = (XᵀX + λI)⁻¹, diagonal zero."""
    model, x = _start(config, table)
    model.weight.fill(linear(x, config.reg, config.neighbours))
    return model


def linear(x: csr_array, reg: float, neighbours: int) -> csr_array:
    """The matrix of EASE [I, I]. Of each column the largest `neighbours` are kept.

    What nobody had says nothing. The rest is solved on the side that is smaller, items or users:
    P = (I - Xᵀ(XXᵀ + λI)⁻¹X) / λ.
    """
    n_items = x.shape[1]
    had, active = np.unique(x.indices), np.flatnonzero(np.diff(x.indptr))
    part = csr_array(x[active][:, had]).astype(np.float64)
    blocks = _primal(part, reg) if len(had) <= len(active) else _dual(part, reg)
    found = [_largest(block, neighbours) for block in blocks]
    kept = csr_array(vstack(found)).tocoo() if found else csr_array((0, n_items)).tocoo()
    if neighbours >= n_items:  # whole, so that it lies there as a matrix
        whole = np.zeros((n_items, n_items), np.float32)
        whole[had[kept.col], had[kept.row]] = kept.data
        full = np.arange(n_items * (n_items + 1), step=n_items)
        columns = np.tile(np.arange(n_items), n_items)
        return csr_array((whole.ravel(), columns, full), shape=whole.shape)
    return csr_array((kept.data, (had[kept.col], had[kept.row])), shape=(n_items, n_items))


def _primal(x: csr_array, reg: float) -> Iterator[Array]:
    """Columns of B."""
    gram = (x.T @ x).toarray()
    gram[np.diag_indices_from(gram)] += reg
    inverse = np.linalg.inv(gram)
    weight = -inverse / np.diag(inverse)
    np.fill_diagonal(weight, 0)
    yield weight


def _dual(x: csr_array, reg: float) -> Iterator[Array]:
    kernel = torch.from_numpy((x @ x.T).toarray())
    if len(kernel) > _DOUBLE:
        kernel = kernel.float()
    kernel.diagonal().add_(reg)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(kernel)).float().contiguous().numpy()
    del kernel
    turned, step = csr_array(x.T).astype(np.float32), max(1, _CELLS // x.shape[1])
    for low in range(0, x.shape[1], step):
        mine = turned[low : low + step]
        said = turned @ np.ascontiguousarray((mine @ inverse).T)  # [I, b]
        own = np.arange(low, low + mine.shape[0]), np.arange(mine.shape[0])
        rest = 1 - said[own]
        said[own] = 0
        said /= rest
        yield said


def _largest(block: Array, k: int) -> csr_array:
    """As `nearest`, of the columns of a dense block, which become rows. A sample of each guesses
    where its k-th largest lies, and too high a guess is seen: a hundred thousand numbers are
    scanned, not sorted."""
    size, (n, width) = np.abs(block), block.shape
    guess = 2 * k // _STRIDE + 8
    floor = np.full(width, np.float32(1e-9))
    if guess * _STRIDE < n:
        sample = np.ascontiguousarray(size[::_STRIDE].T)
        floor = np.maximum(floor, np.partition(sample, -guess, axis=1)[:, -guess])
    at = np.flatnonzero(size >= floor)
    short = np.bincount(at % width, minlength=width) < k
    if short.any():
        at = np.flatnonzero(size >= np.where(short, 1e-9, floor))
    row, column = np.divmod(at, width)
    return nearest(csr_array((block.ravel()[at], (column, row)), shape=(width, n)), k)


def _start(config: ItemItemConfig, table: Interactions) -> tuple[ItemItem, csr_array]:
    """The model with its biases, and the matrix of residuals (or ones)."""
    model = ItemItem(config, table.domain())
    model.popularity = counts(table)
    fill(model.base, BiasConfig(strength=config.strength), table)
    value = table.rating
    user, item = table.user, table.item
    if model.rates:
        order, _ = table.by_user
        user, item = user[order], item[order]
        value = model.base.residual(table.history(np.arange(len(table.users))))[1].numpy()
    shape = (len(table.users), len(table.items))
    return model, csr_array((value.astype(np.float32), (user, item)), shape=shape)
