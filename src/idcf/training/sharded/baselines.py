"""Solvers of the simple models over shards: popularity, biases, ALS, EASE and item-kNN.

They compute what the solvers of tables in memory compute, `idcf.training.solvers`, but for the
rounding of sums to fixed point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor

from idcf.data.interactions import Ints
from idcf.data.shards import UserBlocks
from idcf.errors import ConfigError
from idcf.models.baselines import BiasModel, FoldInModel, ItemItemModel, PopularityModel
from idcf.models.layers.item_matrix import largest_per_row
from idcf.models.options import BiasConfig, FoldInConfig, ItemItemConfig, PopularityConfig
from idcf.rng import derive_seed
from idcf.training.block_sums import Sums, fixed_point, from_fixed_point
from idcf.training.engine import State
from idcf.training.sharded.passes import Histories, HistorySum
from idcf.training.sharded.training import ShardedTraining
from idcf.training.solvers import SolverContext
from idcf.training.solvers.item_item import ease_columns
from idcf.types import Domain, Ragged

MAX_DENSE_ITEMS = 8_000  # of EASE and item-kNN, which hold matrices of all items
_BIAS_ROUNDS = 5  # as in `layers.ragged.item_ridge_biases`

Array = NDArray[np.float64]


def fit_popularity(
    config: PopularityConfig, training: ShardedTraining, domain: Domain, context: SolverContext
) -> PopularityModel:
    """Count the rows of each item; `context` is not used."""
    model = PopularityModel(config, domain)
    model.counts = torch.from_numpy(training.item_counts).float()
    return model


def fit_bias(
    config: BiasConfig, training: ShardedTraining, domain: Domain, context: SolverContext
) -> BiasModel:
    """Fit the item biases by alternating ridge regression; `context` is not used."""
    model = BiasModel(config, domain)
    model.item_bias = _item_biases(training, domain, config.shrinkage, config.item_shrinkage)
    return model


@dataclass
class _ResidualSums(HistorySum):
    """Sum, over the rows of each item, the ratings less μ and the users' ridge biases, in units."""

    mean: float
    unit: float  # `Domain.rating_unit`
    shrinkage: float
    has_item_biases: bool

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return zero sums."""
        return {"residuals": np.zeros(table.n_items, np.int64)}

    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Add the residuals of some users."""
        residuals = np.asarray(histories.ratings, np.float64) - self.mean
        if self.has_item_biases:
            residuals -= _user_biases(histories, residuals - state["item_bias"][histories.items],
                                      self.shrinkage)[histories.owner()]  # fmt: skip
        total = sums["residuals"]
        sum_by_item = np.bincount(histories.items, residuals / self.unit, len(total))
        total += fixed_point(sum_by_item.astype(float))


def _user_biases(histories: Histories, residuals: Array, shrinkage: float) -> Array:
    """Return Σ residuals / (n + shrinkage) of each user."""
    total = np.bincount(histories.owner(), residuals, len(histories.users))
    bias: Array = total / (histories.lengths + shrinkage)
    return bias


def _item_biases(
    training: ShardedTraining, domain: Domain, shrinkage: float, item_shrinkage: float
) -> Tensor:
    """Return b_i [I], see `layers.ragged.item_ridge_biases`."""
    bias, counts = np.zeros(domain.n_items), training.item_counts + item_shrinkage
    for n in range(_BIAS_ROUNDS):
        work = _ResidualSums(
            training.users, domain.mean, domain.rating_unit, shrinkage, has_item_biases=n > 0
        )
        name = f"biases {shrinkage:g}, round {n + 1} of {_BIAS_ROUNDS}"
        sums = training.sum(name, work, {"item_bias": bias})
        bias = from_fixed_point(sums["residuals"]) * domain.rating_unit / counts
    return torch.from_numpy(bias).float()


def _fit_base_bias(base: BiasModel, training: ShardedTraining, domain: Domain) -> None:
    """Fit the bias model inside another one, in place; do nothing for implicit feedback."""
    if not domain.implicit:
        default = BiasConfig().item_shrinkage
        base.item_bias = _item_biases(training, domain, base.shrinkage, default)


@dataclass
class _NormalEquations(HistorySum):
    """Solve for the factors of the users of a block, and sum the equations of the items.

    `equations` [I, D (D + 1) / 2 + D] holds Σ p pᵀ, packed, and Σ target · p over the users of each
    item; `gram` [D, D] holds Σ p pᵀ over all users.
    """

    model: FoldInModel  # without its buffers of the items' size, which are in the state
    unit: float  # `Domain.rating_unit`

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return zero sums."""
        size = state["factors"].shape[1]
        width = size * (size + 1) // 2 + size
        return {
            "equations": np.zeros((table.n_items, width), np.int64),
            "gram": np.zeros((size, size), np.int64),
        }

    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Add the equations of some users."""
        items, columns = np.unique(histories.items, return_inverse=True)
        target = self._targets(histories, state["item_bias"])
        ones, targets = (
            csr_array((x, columns, histories.offsets), shape=(len(histories.users), len(items)))
            for x in (np.ones(len(columns)), target)
        )
        factors = state["factors"][items].astype(np.float64)
        matrix = unpack_symmetric(np.asarray(ones @ pack_squares(factors)))
        matrix = np.asarray(state["shared"]) + self.model.alpha * matrix
        right = self.model.alpha * (targets @ factors)
        solved = torch.linalg.solve(torch.from_numpy(matrix), torch.from_numpy(right))
        user_factors: Array = solved.numpy()
        squares = np.asarray(ones.T.tocsr() @ pack_squares(user_factors))
        moments = np.asarray(targets.T.tocsr() @ user_factors)
        sums["equations"][items] += fixed_point(np.concatenate([squares, moments], 1))
        sums["gram"] += fixed_point(user_factors.T @ user_factors)

    def _targets(self, histories: Histories, item_bias: NDArray[np.float32]) -> Array:
        """Return what p · q of each row should be."""
        if not self.model.predicts_ratings:
            return np.full(len(histories.items), float(self.model.positive_target))
        return rating_residuals(self.model.bias_model, histories, item_bias) / self.unit


def rating_residuals(
    model: BiasModel, histories: Histories, item_bias: NDArray[np.float32]
) -> Array:
    """Return the ratings less the mean and the biases of items and users."""
    residuals = np.asarray(histories.ratings, np.float64) - model.mean - item_bias[histories.items]
    bias = _user_biases(histories, residuals, model.shrinkage)
    out: Array = residuals - bias[histories.owner()]
    return out


def pack_squares(vectors: Array) -> Array:
    """Return the lower triangles of x xᵀ of vectors [n, D], row by row: [n, D (D + 1) / 2]."""
    row, column = np.tril_indices(vectors.shape[1])
    packed: Array = vectors[:, row] * vectors[:, column]
    return packed


def unpack_symmetric(packed: Array) -> Array:
    """Return the symmetric matrices [n, D, D] of lower triangles."""
    size = int((2 * packed.shape[1] + 0.25) ** 0.5 - 0.5 + 1e-9)
    row, column = np.tril_indices(size)
    matrices = np.empty((len(packed), size, size))
    matrices[:, row, column] = packed
    matrices[:, column, row] = packed
    return matrices


def fit_als(
    config: FoldInConfig, training: ShardedTraining, domain: Domain, context: SolverContext
) -> FoldInModel:
    """Fit item factors by alternating least squares; each sweep is one pass over the users."""
    model = FoldInModel(config, domain)
    _fit_base_bias(model.bias_model, training, domain)
    model.popularity = torch.from_numpy(training.item_counts).float()
    model.popularity *= 0.0 if model.predicts_ratings else 1.0
    size = config.embedding_size
    generator = torch.Generator().manual_seed(derive_seed(context.seed, "als"))
    factors = torch.randn(domain.n_items, size, generator=generator) * 0.1
    ridge = config.reg * torch.eye(size, dtype=torch.float64)
    empty = FoldInModel(config, _without_items(domain))
    work = _NormalEquations(training.users, empty, domain.rating_unit)
    item_bias = model.bias_model.item_bias.numpy()
    sweeps = training.stored_steps("als")
    start, arrays = sweeps.load()
    if arrays:
        factors = torch.from_numpy(arrays["factors"])
    for sweep in range(start, config.epochs):
        shared = ridge if model.predicts_ratings else ridge + _gram(factors)
        state = {"factors": factors.numpy(), "shared": shared.numpy(), "item_bias": item_bias}
        sums = training.sum(f"sweep {sweep + 1} of {config.epochs}", work, state, stored=False)
        gram = ridge
        if not model.predicts_ratings:
            gram = ridge + torch.from_numpy(from_fixed_point(sums["gram"]))
        factors = _solve_items(sums["equations"], gram, model.alpha)
        sweeps.save(sweep + 1, {"factors": factors.numpy()})
    model.factors = factors
    model.gram = (ridge if model.predicts_ratings else ridge + _gram(factors)).float()
    return model


def _gram(factors: Tensor) -> Tensor:
    """Return QᵀQ in float64."""
    return factors.double().T @ factors.double()


def _without_items(domain: Domain) -> Domain:
    """Return the domain without items: a model of it is small to send, and has the same options."""
    return replace(domain, n_users=0, n_items=0, raters=Ragged.empty(0))


def _solve_items(equations: Ints, gram: Tensor, alpha: float) -> Tensor:
    """Return the factors [I, D] that solve the equations of the items; 0 for items without rows."""
    size, n_items = len(gram), len(equations)
    factors = torch.zeros(n_items, size)
    step = max(1, (1 << 24) // (size * size))
    for low in range(0, n_items, step):
        part = from_fixed_point(equations[low : low + step])
        matrix = gram + alpha * torch.from_numpy(unpack_symmetric(part[:, :-size]))
        right = torch.from_numpy(np.ascontiguousarray(alpha * part[:, -size:]))
        factors[low : low + step] = torch.linalg.solve(matrix, right).float()
    return factors


@dataclass
class _DenseGram(HistorySum):
    """Sum products of the values of two items over users: `products`, `support` [I, I].

    Values are residuals, ratings from 0 to 1, or 1; `support` counts the users who have both.
    """

    model: ItemItemModel  # without its buffers of the items' size
    unit: float  # `Domain.rating_unit`
    has_support: bool

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return zero sums."""
        names = ("products", "support") if self.has_support else ("products",)
        return {name: np.zeros((table.n_items, table.n_items), np.int64) for name in names}

    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Add the products of some users."""
        n_items = len(sums["products"])
        x = histories.matrix(n_items, self._values(histories, state["item_bias"]))
        products = csr_array(x.T @ x).tocoo()
        sums["products"][products.row, products.col] += fixed_point(products.data)
        if self.has_support:
            ones = histories.matrix(n_items)
            support = csr_array(ones.T @ ones).tocoo()
            sums["support"][support.row, support.col] += support.data.astype(np.int64)

    def _values(self, histories: Histories, item_bias: NDArray[np.float32]) -> Array:
        """Return the value of each row."""
        model = self.model
        if histories.ratings is None:
            return np.ones(len(histories.items))
        if not model.predicts_ratings:
            ratings = torch.from_numpy(np.asarray(histories.ratings, np.float64))
            return model.list_values(ratings).numpy()
        return rating_residuals(model.bias_model, histories, item_bias) / self.unit


def _item_item_sums(
    config: ItemItemConfig, training: ShardedTraining, domain: Domain, has_support: bool
) -> tuple[ItemItemModel, Sums]:
    """Return the model with its biases, and the sums of `_DenseGram`."""
    if domain.n_items > MAX_DENSE_ITEMS:
        raise ConfigError(
            f"{domain.n_items:,} items are too many for a matrix of all pairs, at most "
            f"{MAX_DENSE_ITEMS:,} over shards; take model 'idcf-takeup' or 'als'"
        )
    model = ItemItemModel(config, domain)
    _fit_base_bias(model.bias_model, training, domain)
    model.popularity = torch.from_numpy(training.item_counts).float()
    empty = ItemItemModel(config, _without_items(domain))
    work = _DenseGram(training.users, empty, domain.rating_unit, has_support)
    state = {"item_bias": model.bias_model.item_bias.numpy()}
    return model, training.sum("pairs of items", work, state)


def fit_ease(
    config: ItemItemConfig, training: ShardedTraining, domain: Domain, context: SolverContext
) -> ItemItemModel:
    """Fit EASE from the sums of products of two items; `context` is not used."""
    model, sums = _item_item_sums(config, training, domain, has_support=False)
    gram = from_fixed_point(sums["products"])
    weights = np.zeros_like(gram)
    items = np.flatnonzero(training.item_counts)
    weights[np.ix_(items, items)] = ease_columns(gram[np.ix_(items, items)], config.reg)
    by_target = csr_array(weights.T.astype(np.float32))
    model.item_weights.set_entries(csr_array(largest_per_row(by_target, config.neighbors).T))
    return model


def fit_item_knn(
    config: ItemItemConfig, training: ShardedTraining, domain: Domain, context: SolverContext
) -> ItemItemModel:
    """Fit item-kNN from the sums of products of two items; `context` is not used."""
    model, sums = _item_item_sums(config, training, domain, has_support=True)
    norm = np.sqrt(from_fixed_point(sums["products"].diagonal())) + 1e-9
    rows, step = [], max(1, (1 << 22) // domain.n_items)
    for low in range(0, domain.n_items, step):
        part = slice(low, low + step)
        cosines = from_fixed_point(sums["products"][part]) / norm[part, None] / norm
        support = sums["support"][part].astype(np.float64)
        cosines *= np.divide(support, support + config.reg, np.zeros_like(support),
                             where=support > 0)  # fmt: skip
        position = np.arange(len(cosines))
        cosines[position, low + position] = 0
        rows.append(largest_per_row(csr_array(cosines.astype(np.float32)), config.neighbors))
    model.item_weights.set_entries(csr_array(vstack(rows).T))
    return model
