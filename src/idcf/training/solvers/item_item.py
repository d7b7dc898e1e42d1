"""Solvers of item-kNN and EASE: a sparse item-item matrix each, computed in blocks of items.

`slim` has the solver of SLIM, which starts from the functions here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, vstack

from idcf.data.interactions import Interactions
from idcf.models.baselines import ItemItemModel
from idcf.models.layers.item_matrix import cooccurrence_blocks, largest_per_row
from idcf.models.options import ItemItemConfig
from idcf.training.solvers import SolverContext
from idcf.training.solvers.bias import fit_base_bias, item_counts_tensor

_MAX_BLOCK_CELLS = 1 << 22  # cells of a dense block
_SAMPLE_STRIDE = 16  # one row in so many is sampled to estimate the k-th largest of a column
_MAX_DOUBLE_SIZE = 4096  # a kernel of at most this many rows is inverted in double precision

Array = NDArray[np.floating]


def fit_item_knn(
    config: ItemItemConfig, table: Interactions, context: SolverContext
) -> ItemItemModel:
    """Fit item-kNN: cosines of the columns of residuals (or of ones, for implicit feedback), each
    times n / (n + reg) for n common users; the `neighbors` largest of each item; `context` is not
    used."""
    model, x = initialize_model(config, table)
    norm = np.sqrt(np.asarray(x.multiply(x).sum(0)).ravel()) + 1e-9
    unit = csr_array(x @ diags_array((1 / norm).astype(np.float32)))
    ones = csr_array((np.ones_like(x.data), x.indices, x.indptr), shape=x.shape)
    rows = vstack(list(_nearest_cosines(unit, ones, config.reg, config.neighbors)))
    model.item_weights.set_entries(csr_array(rows.T))
    return model


def shrunk_cosines(x: csr_array, support: float, n_neighbors: int) -> csr_array:
    """Return Σ_u x_ui x_uj / √((n_i + support)(n_j + support)) of 0/1 columns [I, I].

    The diagonal is zero; each column holds its `n_neighbors` largest entries.
    """
    scale = (x.sum(0) + max(support, 1e-9)) ** -0.5
    unit = csr_array(x @ diags_array(scale.astype(np.float32)))
    return csr_array(vstack(list(_nearest_cosines(unit, x, 0.0, n_neighbors))).T)


def first_per_row(matrix: csr_array, k: int) -> csr_array:
    """Return the k largest entries of each row; of equal ones those of the first columns."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, row))
    chosen = order[np.arange(len(row)) - matrix.indptr[row] < k]  # `order` keeps rows in place
    cells = (row[chosen], matrix.indices[chosen])
    return csr_array((matrix.data[chosen], cells), shape=matrix.shape)


def _nearest_cosines(
    unit: csr_array, ones: csr_array, reg: float, n_neighbors: int
) -> Iterator[csr_array]:
    """Yield, block by block, a row for each item with the cosines of its nearest items."""
    unit_rows, one_rows = csr_array(unit.T), csr_array(ones.T)
    for low, high in cooccurrence_blocks(ones):
        block = csr_array(unit_rows[low:high] @ unit)
        if reg:
            support = csr_array(one_rows[low:high] @ ones)
            support.data /= support.data + reg
            block = csr_array(block.multiply(support))
        cosines = block.tocoo()
        off_diagonal = cosines.row + low != cosines.col
        cells = (cosines.row[off_diagonal], cosines.col[off_diagonal])
        block = csr_array((cosines.data[off_diagonal], cells), shape=block.shape)
        yield largest_per_row(block, n_neighbors)


def fit_ease(config: ItemItemConfig, table: Interactions, context: SolverContext) -> ItemItemModel:
    """Fit EASE: B = I - P / diag(P) with P = (XᵀX + λI)⁻¹ and λ = `config.reg`.

    The `config.neighbors` largest weights of each item are stored. `context` is not used.
    """
    model, x = initialize_model(config, table)
    model.item_weights.set_entries(ease_weights(x, config.reg, config.neighbors))
    return model


def ease_weights(x: csr_array, reg: float, n_neighbors: int) -> csr_array:
    """Return the matrix B of EASE [I, I]; each column holds its `n_neighbors` largest entries.

    Items and users without entries are left out. The inverse is taken on the smaller side, items
    or users: P = (I - Xᵀ(XXᵀ + λI)⁻¹X) / λ.
    """
    n_items = x.shape[1]
    item_rows, user_rows = np.unique(x.indices), np.flatnonzero(np.diff(x.indptr))
    part = csr_array(x[user_rows][:, item_rows]).astype(np.float64)
    columns = _primal_columns if len(item_rows) <= len(user_rows) else _dual_columns
    blocks = [_largest_per_column(block, n_neighbors) for block in columns(part, reg)]
    weights = (csr_array(vstack(blocks)) if blocks else csr_array((0, n_items))).tocoo()
    cells = (item_rows[weights.col], item_rows[weights.row])
    if n_neighbors >= n_items:  # all cells stored: `ItemMatrix` then multiplies densely
        dense = np.zeros((n_items, n_items), np.float32)
        dense[cells] = weights.data
        offsets = np.arange(n_items * (n_items + 1), step=n_items)
        column_indices = np.tile(np.arange(n_items), n_items)
        return csr_array((dense.ravel(), column_indices, offsets), shape=dense.shape)
    return csr_array((weights.data, cells), shape=(n_items, n_items))


def _primal_columns(x: csr_array, reg: float) -> Iterator[Array]:
    """Yield the columns of B in one block, by inverting the item-item matrix."""
    yield ease_columns((x.T @ x).toarray(), reg)


def ease_columns(gram: Array, reg: float) -> Array:
    """Return B of EASE [I, I] from the matrix XᵀX, to whose diagonal λ is added in place."""
    gram[np.diag_indices_from(gram)] += reg
    inverse = np.linalg.inv(gram)
    weights: Array = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weights


def _dual_columns(x: csr_array, reg: float) -> Iterator[Array]:
    """Yield the columns of B in blocks, by inverting the user-user matrix."""
    kernel = torch.from_numpy((x @ x.T).toarray())
    if len(kernel) > _MAX_DOUBLE_SIZE:
        kernel = kernel.float()
    kernel.diagonal().add_(reg)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(kernel)).float().contiguous().numpy()
    del kernel  # frees memory before the blocks are made
    item_rows, step = csr_array(x.T).astype(np.float32), max(1, _MAX_BLOCK_CELLS // x.shape[1])
    for low in range(0, x.shape[1], step):
        block_rows = item_rows[low : low + step]
        columns = item_rows @ np.ascontiguousarray((block_rows @ inverse).T)  # [I, b]
        n_columns = block_rows.shape[0]
        diagonal = np.arange(low, low + n_columns), np.arange(n_columns)
        scale = 1 - columns[diagonal]
        columns[diagonal] = 0
        columns /= scale
        yield columns


def _largest_per_column(block: Array, k: int) -> csr_array:
    """Return the k largest entries, by absolute value, of each column of a dense block [n, width],
    as rows [width, n].

    A sample of each column estimates its k-th largest value, so that the columns are scanned and
    not sorted. Columns where the estimate was too high are scanned again without it.
    """
    size, (n, width) = np.abs(block), block.shape
    sample_rank = 2 * k // _SAMPLE_STRIDE + 8
    floor = np.full(width, np.float32(1e-9))
    if sample_rank * _SAMPLE_STRIDE < n:
        sample = np.ascontiguousarray(size[::_SAMPLE_STRIDE].T)
        floor = np.maximum(floor, np.partition(sample, -sample_rank, axis=1)[:, -sample_rank])
    cells = np.flatnonzero(size >= floor)
    too_few = np.bincount(cells % width, minlength=width) < k
    if too_few.any():
        cells = np.flatnonzero(size >= np.where(too_few, 1e-9, floor))
    row, column = np.divmod(cells, width)
    return largest_per_row(csr_array((block.ravel()[cells], (column, row)), shape=(width, n)), k)


def initialize_model(
    config: ItemItemConfig, table: Interactions
) -> tuple[ItemItemModel, csr_array]:
    """Return the model with its biases, and its matrix [U, I] of residuals, or of values between 0
    and 1 for a model that orders lists."""
    domain = table.domain()
    model = ItemItemModel(config, domain)
    model.popularity = item_counts_tensor(table)
    fit_base_bias(model.bias_model, config.shrinkage, table)
    user, item = table.user, table.item
    value = model.list_values(torch.from_numpy(table.rating)).numpy()
    value = value if table.weight is None else value * table.weight
    if model.predicts_ratings:
        order, _ = table.rows_by_user
        user, item = user[order], item[order]
        history = table.history(np.arange(len(table.users)))
        residuals = model.bias_model.user_bias_and_residuals(history)[1]
        value = (residuals / domain.rating_unit).numpy()
    shape = (len(table.users), len(table.items))
    return model, csr_array((value.astype(np.float32), (user, item)), shape=shape)
