"""The relation between items of `TakeUpModel`: a matrix B [I, I], from rows x of zeros and ones.

    B_ji = sign(M_ji) |M_ji|^p,   M = R/|R| + c S/|S| + g C/|C|

R  regression of every item on the other items, see below
S  relation of low rank: n^-½ V Vᵀ n^½, where V are the first right singular vectors of the rows
   divided by the square roots of the lengths of users and items
C  shrunk cosines
|·| is the mean over items i of the largest weight in column i. With p > 1 a few items of a history
that are closely related to i count for more than many that are loosely related.

Up to `max_dense_items` items R minimizes, over matrices with a zero diagonal,

    Σ_u (d_u / q_u) E ‖x_u - z_u R‖² + λ ‖R‖²,   q_u = min(0.9, l / |x_u|),   d_u ∝ |x_u|^-½

where z_u holds each item of x_u with probability q_u: key users show a part of expected length l,
as new users do. The expectation is exact; it is EASE (Steck 2019) with a dropout that differs
between users. Above that size R is the regression on the nearest items (`nearest_items`), S is left
out, and C holds the same items; below it C is left out.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import svds
from torch import Tensor

from idcf.models.layers.item_matrix import largest_per_row
from idcf.models.take_up import TakeUpConfig
from idcf.rng import random_stream
from idcf.training.solvers.nearest_items import (
    MAX_PAIRED_ITEMS,
    NearestItems,
    find_nearest_items,
    local_ridge,
    nearest_cosines,
    sample_long_rows,
)

MAX_SHOWN_SHARE = 0.9  # of a user's items: with all of them, an item would predict itself
_USER_WEIGHT_POWER = 0.5  # of d_u
_RANK = 128  # of S
_COSINE_SUPPORT = 5.0  # pseudo-count of C

Array = NDArray[np.float64]


class Settings(NamedTuple):
    """Settings of the relation, see `TakeUpConfig`."""

    reg: float  # λ
    shown_items: float = 20.0  # l
    count_reg: float = 1.0  # a of the regression on the nearest items
    spectral_weight: float = 0.0  # c
    cosine_weight: float = 0.0  # g
    power: float = 1.0  # p


class ItemRelation:
    """The relation of some rows x [U, I] in any settings.

    What does not depend on the settings is computed once. `share` is the share of all rows that x
    holds: with fewer rows the same λ would weigh more.
    """

    def __init__(self, config: TakeUpConfig, x: csr_array, share: float = 1.0) -> None:
        self.config, self.x, self.share = config, x, share
        self.is_dense = x.shape[1] <= config.max_dense_items
        self._regression = cache(self._dense_regression)
        self._local_regression = cache(self._regression_on_nearest)

    def weights(self, settings: Settings) -> csr_array:
        """Return B, with the `config.neighbors` largest weights of each item as a target."""
        matrix = self.matrix(settings)
        if isinstance(matrix, csr_array):
            return matrix
        by_target = csr_array(matrix.T.numpy())
        return csr_array(largest_per_row(by_target, self.config.neighbors).T)

    def matrix(self, settings: Settings) -> Tensor | csr_array:
        """Return B with all weights: a tensor, or above `max_dense_items` a sparse matrix."""
        reg = settings.reg * self.share
        if self.is_dense:
            matrix = self._regression(reg, settings.shown_items)
            if settings.spectral_weight:
                matrix = matrix + settings.spectral_weight * self._spectral_relation
            if settings.power != 1:
                matrix = matrix.abs().pow_(settings.power).copysign_(matrix)
            return matrix
        local = self._local_regression(reg, settings.count_reg)
        if settings.cosine_weight:
            local = csr_array(local + np.float32(settings.cosine_weight) * self._cosines)
        if settings.power != 1:
            data = np.copysign(np.abs(local.data) ** np.float32(settings.power), local.data)
            local = csr_array((data, local.indices, local.indptr), shape=local.shape)
        return local

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
        counts, lengths = (np.asarray(self.x.sum(axis), np.float64).ravel() for axis in (0, 1))
        scale = np.where(counts > 0, (counts + 1) ** -0.5, 0)
        rank = min(_RANK, min(self.x.shape) - 1)
        if rank < 1:
            return torch.zeros(2 * (len(counts),))
        start = np.ones(min(self.x.shape))  # makes the result a function of the table
        rows = diags_array((lengths + 1) ** -0.5) @ self.x.astype(np.float64) @ diags_array(scale)
        vectors = svds(rows, rank, v0=start)[2].T
        inverse_scale = np.divide(1, scale, np.zeros_like(scale), where=scale > 0)
        relation = (vectors * scale[:, None]) @ (vectors * inverse_scale[:, None]).T
        np.fill_diagonal(relation, 0)
        return _scaled(torch.from_numpy(relation))

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

    @cached_property
    def _cosines(self) -> csr_array:
        """C / |C|."""
        support, width = _COSINE_SUPPORT * self.share, self.config.local_neighbors
        return _scaled_rows(nearest_cosines(self._nearest_items, support, width))


def _scaled(matrix: Tensor) -> Tensor:
    """Return the matrix divided by the mean of the positive column maxima."""
    return (matrix / _mean_positive(matrix.amax(0).numpy())).float()


def _scaled_rows(matrix: csr_array) -> csr_array:
    """Return the sparse matrix divided by the mean of the positive column maxima."""
    return csr_array(matrix / np.float32(_mean_positive(matrix.max(0).toarray().ravel())))


def _mean_positive(values: NDArray[np.floating]) -> float:
    """Return the mean of the positive numbers, 1 if there are none."""
    positive = values[values > 0]
    return float(positive.mean()) if len(positive) else 1.0
