"""Draws of hyperparameters of the Gibbs samplers: a normal distribution of rows, and the noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from idcf.data.interactions import Ints

PRIOR_PSEUDO_COUNT = 2.0  # β₀ of the Normal-Wishart priors, and shape of the Gamma prior

Matrix = NDArray[np.float64]


def sample_normal_wishart(x: Matrix, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Draw the mean [D] and the precision [D, D] of normally distributed rows x [n, D].

    The prior is Normal-Wishart with ν₀ = D and W₀ = I.
    """
    mean = x.mean(0)
    centered = x - mean
    return sample_normal_wishart_from_sums(len(x), mean, centered.T @ centered, rng)


def sample_normal_wishart_from_sums(
    n: int, mean: Matrix, scatter: Matrix, rng: np.random.Generator
) -> tuple[Matrix, Matrix]:
    """Draw mean and precision of n rows with this mean, and Σ (x - mean)(x - mean)ᵀ = `scatter`."""
    size = len(mean)
    shrunk = n * PRIOR_PSEUDO_COUNT / (n + PRIOR_PSEUDO_COUNT)
    scatter = scatter + shrunk * np.outer(mean, mean) + np.eye(size)
    # Bartlett decomposition: the Cholesky factor of a standard Wishart matrix
    factor = np.tril(rng.normal(size=(size, size)), -1)
    factor[np.diag_indices(size)] = np.sqrt(rng.chisquare(size + n - np.arange(size)))
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
    """Draw α and the users' weights w_u, scaled so that the mean rating has weight 1.

    `squares` are the sums of squared errors of the users, `noise_precision` is the previous α.
    """
    weight = np.ones(len(squares))
    if noise_dof < np.inf:
        rate = noise_dof + noise_precision * squares
        weight = rng.gamma((noise_dof + lengths) / 2, 2 / rate)
        weight /= (weight @ lengths) / lengths.sum()
    total = weight @ squares
    shape = (lengths.sum() + PRIOR_PSEUDO_COUNT) / 2
    return float(rng.gamma(shape, 2 / (total + PRIOR_PSEUDO_COUNT))), weight
