"""Solver of `TakeUpModel`: ridge weights between items, and their calibration.

The least active quarter of the key users is held out, and treated as new users: a few of their
items are the history, the others are what they go on to choose. The settings of the regression are
chosen by NDCG@20 on these users, one after the other, and the probabilities are fitted to them;
then the weights are fitted to all key users.

Up to `max_dense_items` items the matrix XᵀX is inverted. Above, every item is regressed on its
nearest items alone (`idcf.training.solvers.nearest_items`), which takes time and memory in
proportion to the numbers of rows and of items.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import svds
from torch import Tensor

from idcf.data.interactions import Interactions
from idcf.metrics import RelevantItems, ndcg_at
from idcf.models.layers.item_matrix import largest_per_row
from idcf.models.take_up import TakeUpConfig, TakeUpModel, take_up_features
from idcf.rng import random_stream
from idcf.training.solvers import SolverContext
from idcf.training.solvers.nearest_items import (
    MAX_PAIRED_ITEMS,
    NearestItems,
    find_nearest_items,
    local_ridge,
    nonnegative_ridge,
    sample_long_rows,
)
from idcf.training.solvers.odds import HeldOutUsers, cut_histories, fit_logistic, interaction_matrix
from idcf.types import History, select_histories

_MAX_BATCH_CELLS = 1 << 22  # cells of a score matrix held at once
_N_NEAR_ITEMS = 300  # best items of a user, all of which calibrate
_N_FAR_ITEMS = 100  # other items of a user, sampled
_RIDGE = 1e-3  # of the calibration
_MAX_SHARE_LEFT_OUT = 0.02  # of the rows: more are worth a second solution of a large catalogue
_RANK = 128  # singular directions of the spectral part
_NONNEGATIVE_ITEMS, _L1_REG = 128, 2.0  # nearest items, and penalty, of nonnegative weights

Array = NDArray[np.float64]


class Settings(NamedTuple):
    """Settings of the regression, see `TakeUpConfig`."""

    reg: float  # λ
    count_reg: float  # a
    length_power: float = 0.0  # β
    spectral_weight: float = 0.0  # c
    nonnegative: bool = False  # each item has weights of its nearest items only, none below 0


# the settings tried first, and what is then tried instead, one setting after the other
_FIRST_DENSE, _FIRST_LOCAL = Settings(50.0, 3.0), Settings(50.0, 1.0)
_DENSE_SEARCH = (
    ("length_power", 0.5),
    ("reg", 200.0),
    ("count_reg", 1.0),
    ("spectral_weight", 0.5),
    ("nonnegative", True),
)
_LOCAL_SEARCH = ()  # other settings differ little there


def fit_take_up(config: TakeUpConfig, table: Interactions, context: SolverContext) -> TakeUpModel:
    """Choose the settings, fit the probabilities, and fit the weights to all rows.

    Ratings are not read. `context.query_users_in_table` makes no difference.
    """
    x, rng = interaction_matrix(table), random_stream(context.seed, "take-up")
    train_matrix, held_out = _hold_out_users(config, x, rng)
    share = train_matrix.nnz / max(x.nnz, 1)
    regression = ItemRegression(config, train_matrix, share)

    def build(regression: ItemRegression, settings: Settings) -> TakeUpModel:
        """Return the model without its coefficients."""
        return _build_model(config, table, regression.x, regression.weights(settings))

    best = _first_settings(config, regression.is_dense)
    model = build(regression, best)
    best_ndcg = _mean_ndcg(model, held_out)
    for name, value in _DENSE_SEARCH if regression.is_dense else _LOCAL_SEARCH:
        if getattr(config, name) is None:
            settings = Settings(**{**best._asdict(), name: value})
            trial = build(regression, settings)
            if (ndcg := _mean_ndcg(trial, held_out)) > best_ndcg:
                best, best_ndcg, model = settings, ndcg, trial
    context.details.update(
        relation="all items" if regression.is_dense else "nearest items", **best._asdict()
    )
    coefficients = _fit_probabilities(model, held_out, rng)
    if regression.is_dense or share < 1 - _MAX_SHARE_LEFT_OUT:
        model = build(ItemRegression(config, x), best)
    model.coefficients = torch.from_numpy(coefficients).float()
    return model


def _first_settings(config: TakeUpConfig, is_dense: bool) -> Settings:
    """Return the settings of the config, with defaults in place of None."""
    first = _FIRST_DENSE if is_dense else _FIRST_LOCAL
    given = {name: getattr(config, name) for name in Settings._fields}
    return first._replace(**{name: x for name, x in given.items() if x is not None})


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


class ItemRegression:
    """The regression of every item on the others, for rows x [U, I] of zeros and ones.

    What does not depend on the settings is computed once. `share` is the share of all rows that x
    holds: with fewer rows the same λ would weigh more.
    """

    def __init__(self, config: TakeUpConfig, x: csr_array, share: float = 1.0) -> None:
        self.config, self.x, self.share = config, x, share
        self.is_dense = x.shape[1] <= config.max_dense_items

    def weights(self, settings: Settings) -> csr_array:
        """Return B [I, I], with the `config.neighbors` largest weights of each item as a target."""
        reg = settings.reg * self.share
        if not self.is_dense:
            return local_ridge(
                self._nearest_items, reg, settings.count_reg, self.config.local_neighbors
            )
        gram = self._weighted_gram(settings.length_power)
        if settings.nonnegative:
            l1_reg = _L1_REG * self.share
            return nonnegative_ridge(gram, reg, settings.count_reg, l1_reg, _NONNEGATIVE_ITEMS)
        weights = _invert(gram, reg, settings.count_reg)
        if settings.spectral_weight:
            scale = float(weights.norm() / self._spectral_weights.norm().clamp(min=1e-9))
            weights += settings.spectral_weight * scale * self._spectral_weights
        by_target = csr_array(weights.T.float().numpy())
        return csr_array(largest_per_row(by_target, self.config.neighbors).T)

    def _weighted_gram(self, length_power: float) -> Tensor:
        """Return XᵀDX [I, I], where D weighs a user by (length of the history)^-β, so that the mean
        weight of a row is 1."""
        lengths = np.maximum(np.diff(self.x.indptr), 1).astype(np.float64)
        weight = lengths**-length_power
        weight *= lengths.sum() / (weight @ lengths)
        return torch.from_numpy((self.x.T @ (diags_array(weight) @ self.x)).toarray()).double()

    @cached_property
    def _nearest_items(self) -> NearestItems:
        """The nearest items, with rows of very long histories sampled."""
        rng = random_stream(0, "long histories")
        rows = sample_long_rows(self.x, MAX_PAIRED_ITEMS, rng)
        return find_nearest_items(rows, self.config.local_pairs)

    @cached_property
    def _spectral_weights(self) -> Tensor:
        """S^½ V Vᵀ S^-½ [I, I] without its diagonal: V are the first right singular vectors of the
        rows divided by the square roots of the lengths of users and items; S is 1 / n."""
        counts, lengths = (np.asarray(self.x.sum(axis), np.float64).ravel() for axis in (0, 1))
        item_scale = np.where(counts > 0, (counts + 1) ** -0.5, 0)
        rows = diags_array((lengths + 1) ** -0.5) @ self.x.astype(np.float64)
        rank = min(_RANK, min(self.x.shape) - 1)
        if rank < 1:
            return torch.zeros(2 * (self.x.shape[1],), dtype=torch.float64)
        start = np.ones(min(self.x.shape))  # makes the result a function of the table
        vectors = svds(rows @ diags_array(item_scale), rank, v0=start)[2].T
        inverse_scale = np.divide(1, item_scale, np.zeros_like(item_scale), where=item_scale > 0)
        weights = (vectors * item_scale[:, None]) @ (vectors * inverse_scale[:, None]).T
        np.fill_diagonal(weights, 0)
        return torch.from_numpy(weights)


def _invert(gram: Tensor, reg: float, count_reg: float) -> Tensor:
    """Return B [I, I] from the inverse P of G + λ + a n: B_ji = -P_ji / P_ii."""
    penalized = gram.clone()
    penalized.diagonal().add_(reg + count_reg * gram.diagonal())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(penalized))
    weights = -inverse / inverse.diagonal()
    weights.fill_diagonal_(0)
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
