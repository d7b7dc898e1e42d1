"""Solver of `TakeUpModel`: ridge weights between items, and their calibration.

The least active quarter of the key users is held out, and treated as new users: a few of their
items are the history, the others are what they go on to choose. Both ridge penalties are chosen by
NDCG@20 on these users, and the probabilities are fitted to them; then the weights are fitted to all
key users.

Up to `max_dense_items` items the matrix XᵀX is inverted. Above, every item is regressed on its
nearest items alone, which takes time and memory in proportion to the number of items.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from idcf.data.interactions import Interactions
from idcf.metrics import RelevantItems, ndcg_at
from idcf.models.layers.item_matrix import largest_per_row
from idcf.models.take_up import TakeUpConfig, TakeUpModel, take_up_features
from idcf.rng import random_stream
from idcf.training.solvers import SolverContext
from idcf.training.solvers.item_item import shrunk_cosines
from idcf.training.solvers.odds import HeldOutUsers, cut_histories, fit_logistic, interaction_matrix
from idcf.types import History, select_histories

REG_GRID = (50.0, 200.0)  # λ
# a: dropout of a share p of the history is a = p / (1 - p), here a half and three quarters
COUNT_REG_GRID = (1.0, 3.0)
LOCAL_REG, LOCAL_COUNT_REG = 50.0, 1.0  # λ and a where each item has its own equations
_SUPPORT = 20.0  # pseudo-count that shrinks the cosines by which the nearest items are chosen
_MAX_BATCH_CELLS = 1 << 22  # cells of a score matrix held at once
_MAX_LOCAL_CELLS = 1 << 23  # cells of the normal equations held at once
_N_NEAR_ITEMS = 300  # best items of a user, all of which calibrate
_N_FAR_ITEMS = 100  # other items of a user, sampled
_RIDGE = 1e-3  # of the calibration

Array = NDArray[np.float64]


class Ridge(NamedTuple):
    """The penalty λ + a n_j of an item with n_j users."""

    reg: float  # λ
    count_reg: float  # a


def fit_take_up(config: TakeUpConfig, table: Interactions, context: SolverContext) -> TakeUpModel:
    """Choose the penalties, fit the probabilities, and fit the weights to all rows.

    Ratings are not read. `context.query_users_in_table` makes no difference.
    """
    x, rng = interaction_matrix(table), random_stream(context.seed, "take-up")
    train_matrix, held_out = _hold_out_users(config, x, rng)
    share = train_matrix.nnz / max(x.nnz, 1)  # with fewer rows, the same λ would weigh more
    trials = []
    for reg, count_reg in _penalties(config, x.shape[1]):
        weights = ridge_weights(train_matrix, Ridge(reg * share, count_reg), config)
        model = _build_model(config, table, train_matrix, weights)
        trials.append((_mean_ndcg(model, held_out), Ridge(reg, count_reg), model))
    _, best, held_out_model = max(trials, key=lambda x: x[0])
    coefficients = _fit_probabilities(held_out_model, held_out, rng)
    model = _build_model(config, table, x, ridge_weights(x, best, config))
    model.coefficients = torch.from_numpy(coefficients).float()
    return model


def _penalties(config: TakeUpConfig, n_items: int) -> Iterator[tuple[float, float]]:
    """Return the pairs λ, a to try: one above `max_dense_items`, where a fit takes longer."""
    is_dense = n_items <= config.max_dense_items
    regs = REG_GRID if is_dense else (LOCAL_REG,)
    count_regs = COUNT_REG_GRID if is_dense else (LOCAL_COUNT_REG,)
    return product(
        regs if config.reg is None else (config.reg,),
        count_regs if config.count_reg is None else (config.count_reg,),
    )


def _build_model(
    config: TakeUpConfig, table: Interactions, x: csr_array, weights: csr_array
) -> TakeUpModel:
    """Return a model with these weights, and the counts of the items."""
    model = TakeUpModel(config, table.domain())
    counts = np.asarray(x.sum(0), np.float64).ravel()
    prior = weights.T @ (counts / max(counts.sum(), 1))
    model.item_counts, model.prior_regression = (
        torch.from_numpy(array.astype(np.float32)) for array in (counts, prior)
    )
    model.item_weights.set_entries(weights)
    return model


def _hold_out_users(
    config: TakeUpConfig, x: csr_array, rng: np.random.Generator
) -> tuple[csr_array, HeldOutUsers]:
    """Hold out users of the least active quarter; return the other rows, and the users' rows in two
    parts."""
    lengths = np.diff(x.indptr)
    light = np.flatnonzero((lengths <= np.quantile(lengths, 0.25)) & (lengths > 1))
    if len(light) == 0:
        light = np.arange(len(lengths))
    users = np.sort(rng.permutation(light)[: config.max_held_out_users])
    stays = np.ones(x.shape[0], bool)
    stays[users] = False
    rows = csr_array(x[users])
    n_next = max(1, min(config.n_next_items, int(np.median(np.diff(rows.indptr))) // 2))
    held_out = cut_histories(rows, config.history_lengths, n_next, rng)
    return csr_array(x[stays]) if stays.any() else x, held_out


def ridge_weights(x: csr_array, ridge: Ridge, config: TakeUpConfig) -> csr_array:
    """Return B [I, I], with the `config.neighbors` largest weights of each item as a target."""
    if x.shape[1] <= config.max_dense_items:
        columns = _dense_ridge(x, ridge)
    else:
        columns = local_ridge(x, ridge, config.local_neighbors)
    return csr_array(largest_per_row(columns, config.neighbors).T)


def _dense_ridge(x: csr_array, ridge: Ridge) -> csr_array:
    """Return Bᵀ from the inverse P of XᵀX + λ + a n: B_ji = -P_ji / P_ii."""
    gram = torch.from_numpy((x.T @ x).toarray()).double()
    diagonal = gram.diagonal()
    diagonal.add_(ridge.reg + ridge.count_reg * diagonal.clone())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    weights = -inverse / inverse.diagonal()[:, None]
    weights.fill_diagonal_(0)
    return csr_array(weights.float().numpy())


def local_ridge(x: csr_array, ridge: Ridge, n_neighbors: int) -> csr_array:
    """Return Bᵀ where each item is regressed on its nearest items by shrunk cosine.

    For item i with the nearest items N: (G_NN + λ + a n_N) b = G_Ni with G = XᵀX.
    """
    n_items = x.shape[1]
    nearest = _first_per_row(csr_array(shrunk_cosines(x, _SUPPORT, n_neighbors).T), n_neighbors)
    counts = np.asarray(x.sum(0), np.float64).ravel()
    width = int(np.diff(nearest.indptr).max(initial=1))
    step = max(1, _MAX_LOCAL_CELLS // width**2)
    data = np.zeros(nearest.nnz, np.float32)
    by_item = csr_array(x.T)
    for low in range(0, n_items, step):
        high = min(low + step, n_items)
        entries = slice(nearest.indptr[low], nearest.indptr[high])
        data[entries] = _solve_items(by_item, nearest[low:high], low, counts, ridge)
    return csr_array((data, nearest.indices, nearest.indptr), shape=(n_items, n_items))


def _first_per_row(matrix: csr_array, k: int) -> csr_array:
    """Return the k largest entries of each row; of equal ones those of the first columns."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, row))
    chosen = order[np.arange(len(row)) - matrix.indptr[row] < k]  # `order` keeps rows in place
    cells = (row[chosen], matrix.indices[chosen])
    return csr_array((matrix.data[chosen], cells), shape=matrix.shape)


def _solve_items(
    by_item: csr_array, nearest: csr_array, low: int, counts: NDArray[np.floating], ridge: Ridge
) -> NDArray[np.float32]:
    """Return the weights of the nearest items of consecutive items, from item `low` on."""
    lengths, n = np.diff(nearest.indptr), nearest.shape[0]
    width = int(lengths.max(initial=0))
    if width == 0:
        return np.zeros(0, np.float32)
    row = np.repeat(np.arange(n), lengths)
    column = np.arange(nearest.nnz) - nearest.indptr[row]
    gram, moments = np.zeros((n, width, width), np.float32), np.zeros((n, width), np.float32)
    for i in range(n):
        items = nearest.indices[nearest.indptr[i] : nearest.indptr[i + 1]]
        if len(items):
            part = by_item[items]
            gram[i, : len(items), : len(items)] = (part @ part.T).toarray()
            moments[i, : len(items)] = (part @ by_item[[low + i]].T).toarray()[:, 0]
    penalty = np.ones((n, width), np.float32)
    penalty[row, column] = ridge.reg + ridge.count_reg * counts[nearest.indices]
    gram[:, np.arange(width), np.arange(width)] += penalty
    solved = torch.linalg.solve(torch.from_numpy(gram), torch.from_numpy(moments)[..., None])
    weights: NDArray[np.float32] = solved[..., 0].numpy()[row, column]
    return weights


def _batches(
    model: TakeUpModel, held_out: HeldOutUsers
) -> Iterator[tuple[History, History, Tensor]]:
    """Yield histories, next items and s [B, I] of some held-out users at a time; s of the items of
    the history is -inf."""
    n_users, size = len(held_out.history.offsets) - 1, max(1, _MAX_BATCH_CELLS // model.n_items)
    for low in range(0, n_users, size):
        users = torch.arange(low, min(low + size, n_users))
        history = select_histories(held_out.history, users)
        score = model.regression(history)
        score[history.owner(), history.items] = -torch.inf
        yield history, select_histories(held_out.targets, users), score


def _mean_ndcg(model: TakeUpModel, held_out: HeldOutUsers) -> float:
    """Return NDCG@20 of the held-out users' next items."""
    values = []
    for _, targets, score in _batches(model, held_out):
        top = score.topk(min(20, model.n_items)).indices.numpy()
        relevant = RelevantItems(targets.items.numpy(), targets.offsets.numpy())
        values.append(ndcg_at(top, relevant, k=top.shape[1]))
    return float(np.nanmean(np.concatenate(values)))


def _fit_probabilities(
    model: TakeUpModel, held_out: HeldOutUsers, rng: np.random.Generator
) -> Array:
    """Return the coefficients of logit P, fitted to the held-out users' next items."""
    parts = [_sample_cells(*batch, rng) for batch in _batches(model, held_out)]
    features, labels, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    coefficients = fit_logistic(features, labels, weights, _RIDGE)
    longest = np.log1p(int(held_out.history.lengths().max()))
    if min(coefficients[1], coefficients[1] + coefficients[3] * longest) <= 0:
        # P must grow with s whatever the length of the history
        coefficients = np.append(fit_logistic(features[:, :3], labels, weights, _RIDGE), 0.0)
    coefficients[1] = max(coefficients[1], 1e-6)
    return coefficients


def _sample_cells(
    history: History, targets: History, score: Tensor, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Return features [M, 4], labels [M] and weights [M] of items that were not in the history.

    The items near the top of a user's list and the next items are all taken. Of the others some are
    drawn, and weighted by the number of items that they stand for.
    """
    n_items = score.shape[1]
    n_near = min(_N_NEAR_ITEMS, n_items)
    is_target = torch.zeros_like(score, dtype=torch.bool)
    is_target[targets.owner(), targets.items] = True
    is_certain = is_target.scatter(1, score.topk(n_near).indices, True)
    share = min(1.0, _N_FAR_ITEMS / max(1, n_items - n_near))
    is_drawn = torch.from_numpy(rng.random(score.shape, np.float32) < share)
    user, item = ((is_certain | is_drawn) & (score > -torch.inf)).nonzero(as_tuple=True)
    length = history.lengths().double()[user, None]
    features = take_up_features(score[user, item, None].double(), length)
    columns = torch.cat([torch.ones_like(length), *features], 1)
    weights = torch.where(is_certain[user, item], 1.0, 1 / share).double()
    return columns.numpy(), is_target[user, item].double().numpy(), weights.numpy()
