"""The relation between items of `TakeUpModel`: a matrix B [I, I], from rows x of zeros and ones.

    B_ji = sign(R_ji) |R_ji / |R||^p + c S_ji / |S|

R  regression of every item on others, see below
S  relation of low rank: n^-½ V Vᵀ n^½ without its diagonal, where V are the first right singular
   vectors of the rows divided by the square roots of the lengths of users and items
|·| is the mean over items i of the largest weight in column i. With p > 1 a few items of a history
that are closely related to i count for more than many that are loosely related.

On all other items, R minimizes over matrices with a zero diagonal

    Σ_u (d_u / q_u) E ‖x_u - z_u R‖² + λ ‖R‖²,   q_u = min(0.9, l / |x_u|),   d_u ∝ |x_u|^-½

where z_u holds each item of x_u with probability q_u: key users show a part of expected length l,
as new users do. The expectation is exact; it is EASE (Steck 2019) with a dropout that differs
between users. It inverts a matrix of all items, and is left out above `max_dense_items`. The
other choice is the regression on the nearest items (`nearest_items`), which many sparse catalogues
prefer. In large catalogues S is held by its factors, and left out where these would be too large.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from idcf.data.interactions import Ints
from idcf.models.layers.item_matrix import largest_per_row
from idcf.models.take_up import TakeUpConfig
from idcf.rng import random_stream
from idcf.training.solvers.nearest_items import (
    MAX_PAIRED_ITEMS,
    NearestItems,
    find_nearest_items,
    local_ridge,
    sample_long_rows,
)
from idcf.training.solvers.singular_directions import right_singular_vectors

MAX_SHOWN_SHARE = 0.9  # of a user's items: with all of them, an item would predict itself
_USER_WEIGHT_POWER = 0.5  # of d_u
_RANK, _MIN_RANK = 128, 64  # of S: with fewer it is left out
_MAX_FACTOR_CELLS = 6_000_000  # of the factors: a list adds their products to all items
_MAX_SPECTRAL_ROWS = 4_000_000  # entries of x that determine S
_N_SCALE_ITEMS = 1000  # whose largest weights scale S

Array = NDArray[np.float64]


class Settings(NamedTuple):
    """Settings of the relation, see `TakeUpConfig`."""

    reg: float  # λ
    regression: Literal["all", "nearest"] = "all"
    shown_items: float = 20.0  # l; of the regression on all items
    count_reg: float = 1.0  # a; of the regression on the nearest items
    power: float = 1.0  # p
    spectral_weight: float = 0.0  # c


class LowRankFactors(NamedTuple):
    """A matrix of low rank: entry (j, i) is sources_j · targets_i, or 0 on the diagonal."""

    sources: Array  # [I, D]
    targets: Array  # [I, D]


class RelationParts(NamedTuple):
    """B, or the part of it that is not held by factors, and these."""

    weights: Tensor | csr_array  # [I, I]
    factors: LowRankFactors | None = None


def spectral_rank(config: TakeUpConfig, n_users: int, n_items: int) -> int:
    """Return the rank of S, 0 if it is left out because its factors would be too large."""
    rank = max(0, min(_RANK, n_users - 1, n_items - 1))
    if n_items <= config.max_dense_items:
        return rank
    max_rank = _MAX_FACTOR_CELLS // n_items
    return min(rank, max_rank) if max_rank >= _MIN_RANK else 0


class ItemRelation:
    """The relation of some rows x [U, I] in any settings.

    What does not depend on the settings is computed once. `share` is the share of all rows that x
    holds: with fewer rows the same λ would weigh more.
    """

    def __init__(self, config: TakeUpConfig, x: csr_array, share: float = 1.0) -> None:
        self.config, self.x, self.share = config, x, share
        self.is_small = x.shape[1] <= config.max_dense_items
        self.rank = spectral_rank(config, *x.shape)
        self._regression = cache(self._dense_regression)
        self._local_regression = cache(self._regression_on_nearest)

    def stored(self, settings: Settings) -> tuple[csr_array, LowRankFactors | None]:
        """Return B with the `config.neighbors` largest weights of each item as a target."""
        weights, factors = self.in_settings(settings)
        if isinstance(weights, Tensor):
            by_target = csr_array(weights.T.numpy())
            weights = csr_array(largest_per_row(by_target, self.config.neighbors).T)
        return weights, factors

    def in_settings(self, settings: Settings) -> RelationParts:
        """Return B with all weights: a tensor, or in a large catalogue a sparse matrix."""
        weights = self._regression_weights(settings)
        if isinstance(weights, Tensor):
            if settings.power != 1:
                weights = weights.abs().pow_(settings.power).copysign_(weights)
            if settings.spectral_weight and self.rank:
                weights = weights + settings.spectral_weight * self._spectral_relation
            return RelationParts(weights)
        if settings.power != 1:
            data = np.copysign(np.abs(weights.data) ** np.float32(settings.power), weights.data)
            weights = csr_array((data, weights.indices, weights.indptr), shape=weights.shape)
        if not (settings.spectral_weight and self.rank):
            return RelationParts(weights)
        sources, targets = self._factors
        return RelationParts(
            weights, LowRankFactors(sources, np.float32(settings.spectral_weight) * targets)
        )

    def _regression_weights(self, settings: Settings) -> Tensor | csr_array:
        """Return R / |R|."""
        reg = settings.reg * self.share
        if self.is_small and settings.regression == "all":
            return self._regression(reg, settings.shown_items)
        weights = self._local_regression(reg, settings.count_reg)
        return torch.from_numpy(weights.toarray()) if self.is_small else weights

    def _dense_regression(self, reg: float, shown_items: float) -> Tensor:
        """Return R / |R| by all items."""
        lengths = np.maximum(np.diff(self.x.indptr), 1).astype(np.float64)
        shown_share = np.minimum(MAX_SHOWN_SHARE, shown_items / lengths)
        penalized = self._weighted_gram(shown_share)  # Σ (d / q) E zᵀz, but for its diagonal
        penalized.diagonal().copy_(self._gram.diagonal() + reg)
        moments = self._gram.clone().fill_diagonal_(0)  # Σ (d / q) E zᵀx
        factor = torch.linalg.cholesky(penalized)
        weights, inverse = torch.cholesky_solve(moments, factor), torch.cholesky_inverse(factor)
        # the multipliers of the constraint make the diagonal 0
        weights -= inverse * (weights.diagonal() / inverse.diagonal())
        return _scaled(weights.fill_diagonal_(0))

    @cached_property
    def _user_weights(self) -> Array:
        """d [U], scaled so that the mean weight of an entry of x is 1."""
        lengths = np.maximum(np.diff(self.x.indptr), 1).astype(np.float64)
        weights: Array = lengths**-_USER_WEIGHT_POWER
        weights *= lengths.sum() / (weights @ lengths)
        return weights

    @cached_property
    def _gram(self) -> Tensor:
        """Σ d_u x_uᵀ x_u [I, I]."""
        return self._weighted_gram(np.ones(self.x.shape[0]))

    def _weighted_gram(self, user_scale: Array) -> Tensor:
        """Return Σ d_u s_u x_uᵀ x_u [I, I] for a factor s [U] of each user."""
        rows = diags_array(self._user_weights * user_scale) @ self.x.astype(np.float64)
        return torch.from_numpy((self.x.T @ rows).toarray())

    @cached_property
    def _spectral_relation(self) -> Tensor:
        """S / |S| [I, I]."""
        sources, targets = map(torch.from_numpy, self._factors)
        return (sources @ targets.T).fill_diagonal_(0)

    @cached_property
    def _factors(self) -> LowRankFactors:
        """The factors of S / |S|."""
        x = _sample_rows(self.x, _MAX_SPECTRAL_ROWS, random_stream(0, "spectral rows"))
        counts, lengths = (np.asarray(x.sum(axis), np.float64).ravel() for axis in (0, 1))
        scale = np.where(counts > 0, (counts + 1) ** -0.5, 0)
        start = np.ones(min(x.shape))  # makes the result a function of the table
        rows = diags_array((lengths + 1) ** -0.5) @ x.astype(np.float64) @ diags_array(scale)
        vectors = right_singular_vectors(rows, min(self.rank, len(lengths) - 1), start)
        inverse_scale = np.divide(1, scale, np.zeros_like(scale), where=scale > 0)
        sources, targets = vectors * scale[:, None], vectors * inverse_scale[:, None]
        targets /= _mean_largest(sources, targets, np.flatnonzero(counts))
        return LowRankFactors(sources.astype(np.float32), targets.astype(np.float32))

    @cached_property
    def _nearest_items(self) -> NearestItems:
        """The nearest items, with rows of very long histories sampled."""
        rng = random_stream(0, "long histories")
        rows = sample_long_rows(self.x, MAX_PAIRED_ITEMS, rng)
        return find_nearest_items(rows, self.config.local_pairs)

    def _regression_on_nearest(self, reg: float, count_reg: float) -> csr_array:
        """Return R / |R| by the nearest items."""
        width = self.config.local_neighbors
        return _scaled_rows(local_ridge(self._nearest_items, reg, count_reg, width))


def _scaled(matrix: Tensor) -> Tensor:
    """Return the matrix divided by the mean of the positive column maxima."""
    return (matrix / _mean_positive(matrix.amax(0).numpy())).float()


def _scaled_rows(matrix: csr_array) -> csr_array:
    """Return the sparse matrix divided by the mean of the positive column maxima."""
    scale = 1 / _mean_positive(matrix.max(0).toarray().ravel())
    return csr_array(matrix * np.float32(scale))


def _mean_largest(sources: Array, targets: Array, items: Ints) -> float:
    """Return the mean, over some of the `items`, of the largest weight for an item, if positive."""
    chosen = items[np.linspace(0, len(items) - 1, min(len(items), _N_SCALE_ITEMS)).astype(int)]
    largest = np.empty(len(chosen))
    for n, item in enumerate(chosen):
        weights = sources @ targets[item]
        weights[item] = 0
        largest[n] = weights.max()
    return _mean_positive(largest)


def _sample_rows(x: csr_array, max_entries: int, rng: np.random.Generator) -> csr_array:
    """Return random rows of x with about `max_entries` entries, all if there are no more."""
    if x.nnz <= max_entries:
        return x
    n_rows = round(x.shape[0] * max_entries / x.nnz)
    return csr_array(x[np.sort(rng.permutation(x.shape[0])[:n_rows])])


def _mean_positive(values: NDArray[np.floating]) -> float:
    """Return the mean of the positive numbers, 1 if there are none."""
    positive = values[values > 0]
    return float(positive.mean()) if len(positive) else 1.0
