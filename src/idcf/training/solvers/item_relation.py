"""The relation between items of `TakeUpModel`: a matrix B [I, I], from rows x of zeros and ones.

    B_ji = sign(R_ji) |R_ji / |R||^p + c S_ji / |S|

R  regression of every item on others, see below, or shrunk cosines
S  relation of low rank: n^-½ V Vᵀ n^½ without its diagonal, where V are the first right singular
   vectors of the rows divided by the square roots of the lengths of users and items
|·| is the mean over items i of the largest weight in column i. With p > 1 a few items of a history
that are closely related to i count for more than many that are loosely related.

On all other items, R minimizes over matrices with a zero diagonal

    Σ_u (d_u / q_u) E ‖x_u - z_u R‖² + λ ‖R‖²,   q_u = min(0.9, l / |x_u|),   d_u ∝ |x_u|^-½

where z_u holds each item of x_u with probability q_u: key users show a part of expected length l,
as new users do. The expectation is exact; it is EASE (Steck 2019) with a dropout that differs
between users. It inverts a matrix of all items, and is left out above `max_dense_items`. The
others are the regression on the nearest items (`nearest_items`), which many sparse catalogues
prefer, and the cosines of these items themselves: where few rows tell of groups whose items are all
equally related, a regression has more to estimate than they say. In large catalogues S is held by
its factors, and left out where these would be too large.
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
from idcf.models.options import TakeUpConfig
from idcf.training.size_limits import spectral_rank
from idcf.training.solvers.cooccurrences import CooccurrenceSource, LengthWeight
from idcf.training.solvers.nearest_items import NearestItems, local_ridge, nearest_cosines
from idcf.training.solvers.singular_directions import right_singular_vectors

MAX_SHOWN_SHARE = 0.9  # of a user's items: with all of them, an item would predict itself
_USER_WEIGHT_POWER = 0.5  # of d_u
_MAX_SPECTRAL_ROWS = 4_000_000  # entries of x that determine S
_N_SCALE_ITEMS = 1000  # whose largest weights scale S

Array = NDArray[np.float64]


class Settings(NamedTuple):
    """Settings of the relation, see `TakeUpConfig`."""

    reg: float  # λ
    regression: Literal["all", "nearest", "cosines"] = "all"
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


class ItemRelation:
    """The relation of some rows x [U, I] in any settings.

    What does not depend on the settings is computed once. `share` is the share of all entries that
    x holds: with fewer of them the same λ would weigh more.
    """

    def __init__(self, config: TakeUpConfig, x: CooccurrenceSource, share: float = 1.0) -> None:
        self.config, self.x, self.share = config, x, share
        self.is_small = x.n_items <= config.max_dense_items
        self.rank = spectral_rank(config, x.n_users, x.n_items)
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
        if settings.regression == "cosines":
            weights = self._cosines
        else:
            weights = self._local_regression(reg, settings.count_reg)
        return torch.from_numpy(weights.toarray()) if self.is_small else weights

    def _dense_regression(self, reg: float, shown_items: float) -> Tensor:
        """Return R / |R| by all items."""
        weight = self._user_weight

        def hidden_weight(lengths: Array) -> Array:
            """Return d q of each length."""
            shown: Array = np.minimum(MAX_SHOWN_SHARE, shown_items / lengths)
            return weight(lengths) * shown

        penalized = self.x.weighted_gram(hidden_weight)  # Σ (d / q) E zᵀz, but for its diagonal
        penalized.diagonal().copy_(self._gram.diagonal() + reg)
        moments = self._gram.clone().fill_diagonal_(0)  # Σ (d / q) E zᵀx
        factor = torch.linalg.cholesky(penalized)
        weights, inverse = torch.cholesky_solve(moments, factor), torch.cholesky_inverse(factor)
        # the multipliers of the constraint make the diagonal 0
        weights -= inverse * (weights.diagonal() / inverse.diagonal())
        return _scaled(weights.fill_diagonal_(0))

    @cached_property
    def _user_weight(self) -> LengthWeight:
        """d of a number of items, scaled so that the mean weight of an entry of x is 1."""
        lengths, counts = (x.astype(np.float64) for x in self.x.length_counts())
        lengths = np.maximum(lengths, 1)
        scale = (lengths @ counts) / (lengths ** (1 - _USER_WEIGHT_POWER) @ counts)
        return lambda x: x**-_USER_WEIGHT_POWER * scale

    @cached_property
    def _gram(self) -> Tensor:
        """Σ d_u x_uᵀ x_u [I, I]."""
        return self.x.weighted_gram(self._user_weight)

    @cached_property
    def _spectral_relation(self) -> Tensor:
        """S / |S| [I, I]."""
        sources, targets = map(torch.from_numpy, self._factors)
        return (sources @ targets.T).fill_diagonal_(0)

    @cached_property
    def _factors(self) -> LowRankFactors:
        """The factors of S / |S|."""
        x = self.x.sampled_rows(_MAX_SPECTRAL_ROWS)
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
        return self.x.nearest_items(self.config.local_pairs)

    @cached_property
    def _cosines(self) -> csr_array:
        """Return R / |R| by the cosines of the nearest items."""
        return _scaled_rows(nearest_cosines(self._nearest_items))

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


def _mean_positive(values: NDArray[np.floating]) -> float:
    """Return the mean of the positive numbers, 1 if there are none."""
    positive = values[values > 0]
    return float(positive.mean()) if len(positive) else 1.0
