"""Solver of SLIM (Ning & Karypis 2011): a non-negative elastic net for every item.

    minimize over w ≥ 0:  ½ ‖x_i - X_N w‖² + l1_reg Σ w + ½ reg Σ w²

X_N are the columns of the `neighbors` items nearest to item i by shrunk cosine, as in the authors'
fsSLIM. The items of a block are solved together (`nonnegative_elastic_net`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from idcf.data.interactions import Interactions
from idcf.data.progress import progress_bar
from idcf.models.baselines import ItemItemModel
from idcf.models.options import SlimConfig
from idcf.training.array_store import StoredSteps
from idcf.training.solvers import SolverContext
from idcf.training.solvers.item_item import first_per_row, initialize_model, shrunk_cosines
from idcf.training.solvers.nearest_items import nonnegative_elastic_net

_SUPPORT = 20.0  # pseudo-count that shrinks the cosines by which the nearest items are chosen
_MAX_DENSE_ITEMS = 6000  # up to here XᵀX is held with its zeros
_MAX_BLOCK_CELLS = 1 << 23  # cells of the matrices of a block

_CSR = ("data", "indices", "indptr")

Array = NDArray[np.float32]
Table = NDArray[np.int64]


def fit_slim(config: SlimConfig, table: Interactions, context: SolverContext) -> ItemItemModel:
    """Fit the weights of every item."""
    model, x = initialize_model(config, table)
    model.item_weights.set_entries(slim_weights(x, config, context))
    return model


def slim_weights(
    x: csr_array, config: SlimConfig, context: SolverContext | None = None
) -> csr_array:
    """Return W [I, I]; column i holds the weights of the nearest items of item i. What is in the
    store of an interrupted fit is not solved again."""
    context = context or SolverContext()
    n_items = x.shape[1]
    cosines = csr_array(shrunk_cosines(x, _SUPPORT, config.neighbors).T)
    nearest = first_per_row(cosines, config.neighbors)
    width = int(np.diff(nearest.indptr).max(initial=1))
    step = max(1, _MAX_BLOCK_CELLS // (width + 1) ** 2)
    is_dense = n_items <= _MAX_DENSE_ITEMS
    products = (x.T @ x).toarray().astype(np.float32) if is_dense else None
    by_item, steps = csr_array(x.T), StoredSteps(context.store, "items")
    n_stored, state = steps.load()
    blocks = [_solved_rows(state, n_items)] if n_stored else []
    label, n_solved = context.progress_label, n_stored * step
    with progress_bar(
        label, total=n_items, initial=n_solved, unit=" items", unit_scale=True
    ) as bar:
        for low in range(n_solved, n_items, step):
            items = _item_table(nearest[low : low + step], low, width)
            if products is None:
                gram = _sparse_gram(by_item, items)
            else:
                gram = _dense_gram(products, items)
            weights = nonnegative_elastic_net(
                gram[:, :-1, :-1], gram[:, -1, :-1], config.l1_reg, config.reg
            )
            row, column = np.nonzero(weights)
            cells = (row, items[row, column])
            blocks.append(csr_array((weights[row, column], cells), shape=(len(items), n_items)))
            bar.update(len(items))
            if steps.is_due():
                solved = vstack(blocks, format="csr")
                steps.save(low // step + 1, {name: getattr(solved, name) for name in _CSR})
    return csr_array(vstack(blocks).T)


def _solved_rows(state: Mapping[str, NDArray[Any]], n_items: int) -> csr_array:
    """Return the stored rows of Wᵀ."""
    arrays = tuple(state[name] for name in _CSR)
    return csr_array(arrays, shape=(len(state["indptr"]) - 1, n_items))


def _item_table(nearest: csr_array, low: int, width: int) -> Table:
    """Return the nearest items of consecutive items, -1 where there are fewer, and last the item
    itself: [n, width + 1]. The first of the items is item `low`."""
    n = nearest.shape[0]
    items = np.full((n, width + 1), -1)
    row = np.repeat(np.arange(n), np.diff(nearest.indptr))
    items[row, np.arange(nearest.nnz) - nearest.indptr[row]] = nearest.indices
    items[:, -1] = low + np.arange(n)
    return items


def _dense_gram(products: Array, items: Table) -> Array:
    """Return XᵀX of the items of each row of a table [n, w], 0 for an item -1: [n, w, w]."""
    is_item = items >= 0
    gram: Array = products[items[:, :, None], items[:, None, :]]
    gram *= is_item[:, :, None] & is_item[:, None, :]
    return gram


def _sparse_gram(by_item: csr_array, items: Table) -> Array:
    """Return what `_dense_gram` returns, from the sparse matrix Xᵀ [I, U].

    The users of each row of the table get numbers of their own, so that a single sparse product
    counts the common users of the items of all rows.
    """
    row, column = np.nonzero(items >= 0)
    users = csr_array(by_item[items[row, column]])
    owner = np.repeat(row, np.diff(users.indptr))
    _, number = np.unique(owner * by_item.shape[1] + users.indices, return_inverse=True)
    shape = (len(row), int(number.max(initial=-1)) + 1)
    users = csr_array((users.data, number, users.indptr), shape=shape)
    common = (users @ users.T).tocoo()
    gram = np.zeros((*items.shape, items.shape[1]), np.float32)
    gram[row[common.row], column[common.row], column[common.col]] = common.data
    return gram
