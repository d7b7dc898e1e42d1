"""Draws of hyperparameters of the Gibbs samplers: a normal distribution of rows, and the noise.

Rows x_j, their features φ_j and the feature weights B [F, D] have the joint distribution

    Λ ~ Wishart(D, I),  m ~ N(0, (β₀Λ)⁻¹),  B ~ MN(0, I / λ, Λ⁻¹),  x_j ~ N(m + Bᵀφ_j, Λ⁻¹)

so that B says something of Λ: F rows of precision λΛ. The noise of a user's n_u ratings has

    α ~ Gamma(1, 1),  w_u ~ Gamma(ν/2, ν/2),  e_ui ~ N(0, 1 / (α w_u)).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from idcf.data.interactions import Ints

PRIOR_PSEUDO_COUNT = 2.0  # β₀, and twice shape and rate of the prior of α

Matrix = NDArray[np.float64]


class FeatureWeights(NamedTuple):
    """The feature weights of one side and the scale of their prior precision."""

    values: Matrix  # [F, D]: B
    shrinkage: float  # λ

    def scatter(self) -> Matrix:
        """Return λBᵀB [D, D]."""
        product: Matrix = self.shrinkage * self.values.T @ self.values
        return product


def sample_normal_wishart(
    residuals: Matrix, weights: FeatureWeights, rng: np.random.Generator
) -> tuple[Matrix, Matrix]:
    """Draw m [D] and Λ [D, D] given B and the `residuals` x_j - Bᵀφ_j of n rows [n, D]."""
    mean = residuals.mean(0)
    centered = residuals - mean
    return sample_normal_wishart_from_sums(
        len(residuals), mean, centered.T @ centered, weights, rng
    )


def sample_normal_wishart_from_sums(
    n: int, mean: Matrix, scatter: Matrix, weights: FeatureWeights, rng: np.random.Generator
) -> tuple[Matrix, Matrix]:
    """Draw m and Λ given B and n residuals with this mean, and Σ (x - mean)(x - mean)ᵀ = `scatter`.

    Λ ~ Wishart(D + n + F, (I + scatter + n β₀ / (n + β₀) mean meanᵀ + λBᵀB)⁻¹), and m given Λ.
    """
    size = len(mean)
    shrunk = n * PRIOR_PSEUDO_COUNT / (n + PRIOR_PSEUDO_COUNT)
    scatter = scatter + shrunk * np.outer(mean, mean) + np.eye(size) + weights.scatter()
    dof = size + n + len(weights.values)
    # Bartlett decomposition: the Cholesky factor of a standard Wishart matrix
    factor = np.tril(rng.normal(size=(size, size)), -1)
    factor[np.diag_indices(size)] = np.sqrt(rng.chisquare(dof - np.arange(size)))
    root = np.linalg.cholesky(np.linalg.inv(scatter)) @ factor
    precision = root @ root.T
    spread = np.linalg.cholesky((n + PRIOR_PSEUDO_COUNT) * precision)
    deviation = np.linalg.solve(spread.T, rng.normal(size=size))
    return n * mean / (n + PRIOR_PSEUDO_COUNT) + deviation, precision


def sample_noise(
    squares: Matrix,
    lengths: Ints,
    noise_precision: float,
    noise_dof: float,
    rng: np.random.Generator,
) -> tuple[float, Matrix]:
    """Draw the users' weights w_u given the previous α, `noise_precision`, then α given them.

    `squares` are the sums of squared errors of the users, `noise_dof` is ν; infinite: all w_u are 1
    """
    weight = np.ones(len(squares))
    if noise_dof < np.inf:
        rate = noise_dof + noise_precision * squares
        weight = rng.gamma((noise_dof + lengths) / 2, 2 / rate)
    total = weight @ squares
    shape = (lengths.sum() + PRIOR_PSEUDO_COUNT) / 2
    return float(rng.gamma(shape, 2 / (total + PRIOR_PSEUDO_COUNT))), weight


def mean_noise_precision(noise_precision: float, weights: Tensor, lengths: Tensor) -> float:
    """Return the noise precision of the mean rating, α Σ w_u n_u / Σ n_u."""
    lengths = lengths.double()
    return noise_precision * float((weights.double() @ lengths) / lengths.sum())
