"""Gibbs sampler of Bayesian matrix factorization whose priors depend on the histories.

    (p_u, b_u) ~ N(m_U + Bᵀφ_u, Λ_U⁻¹),  (q_i, b_i) ~ N(m_V + Aᵀψ_i, Λ_V⁻¹)
    r_ui ~ N(μ + b_u + b_i + p_uᵀq_i, 1 / (α w_u)),  α ~ Gamma,  w_u ~ Gamma(ν/2, ν/2)

with Normal-Wishart priors on (m, Λ) and precision λΛ on A and B. Every step draws from an exact
conditional distribution, for all users or items at once. `idcf.training.solvers.bayes` runs the
sampler and turns its sweeps into a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idcf.models.layers.ragged import (
    RowChunks,
    normal_equations,
    segment_sum,
    split_into_chunks,
)
from idcf.rng import derive_seed, random_stream
from idcf.types import Ragged

PRIOR_PSEUDO_COUNT = 2.0  # β₀ of the Normal-Wishart priors, and shape of the Gamma prior
_FEATURE_WARMUP_SWEEPS = 6  # sweeps before A and B are drawn: latents start as noise

Matrix = NDArray[np.float64]


@dataclass
class GibbsSide:
    """Users or items: their ratings, their features and the state of their half of the chain."""

    ratings: Ragged[Tensor]  # of each row: rows of the other side, and the ratings less μ
    chunks: RowChunks  # of `ratings`
    features: Tensor  # [n, F] in float64: φ or ψ
    gram_inverse: Tensor  # (φᵀφ + λI)⁻¹
    latents: Tensor  # [n, D], the bias last
    mean: Tensor  # [D]
    precision: Tensor  # [D, D]
    feature_weights: Tensor  # [F, D]: B or A

    @classmethod
    def initialize(
        cls,
        ratings: Ragged[Tensor],
        raw_features: Tensor,
        shrinkage: float,
        size: int,
        generator: torch.Generator,
    ) -> GibbsSide:
        """Return the side with standardized features and small random latents.

        `shrinkage` is λ; `size` is D, with the bias.
        """
        std = raw_features.std(0, correction=0) + 1e-9
        features = (raw_features - raw_features.mean(0)) / std
        width, device = features.shape[1], ratings.values.device
        eye = torch.eye(width, dtype=torch.float64, device=device)
        latent = torch.randn(len(raw_features), size, generator=generator, device=device) * 0.1
        zero = torch.zeros(width, size, dtype=torch.float64, device=device)
        return cls(
            ratings,
            split_into_chunks(ratings),
            features,
            torch.linalg.inv(features.T @ features + shrinkage * eye),
            latent,
            zero[0],
            torch.eye(size, dtype=torch.float64, device=device),
            zero,
        )

    def precision_times_prior_mean(self) -> Tensor:
        """Return Λ times the prior mean of each row: [n, D]."""
        return (self.mean + self.features @ self.feature_weights) @ self.precision


class GibbsSampler:
    """The Markov chain; `sweep` draws every variable once.

    Parameters
    ----------
    users, items
        Both sides, in their initial state.
    noise_dof
        ν: the degrees of freedom of the users' noise; infinite for equal weights w_u.
    seed
        The seed of all draws.
    """

    def __init__(self, users: GibbsSide, items: GibbsSide, noise_dof: float, seed: int) -> None:
        self.users = users
        self.items = items
        self.noise_dof = noise_dof
        self.noise_precision = 1.5  # α
        self.n_sweeps = 0
        self.user_weights = torch.ones_like(users.latents[:, 0])  # w_u
        self.rng = random_stream(seed, "gibbs")
        device = users.latents.device
        self.generator = torch.Generator(device).manual_seed(derive_seed(seed, "gibbs"))

    def sweep(self) -> tuple[Tensor, Tensor]:
        """Draw hyperparameters, users, items and noise, in this order.

        Returns
        -------
        tuple[Tensor, Tensor]
            The mean [I, D] of the normal distributions that the items were drawn from, and the
            Cholesky factor [I, D, D] of their precision: less noisy than the draw itself.
        """
        for side in (self.users, self.items):
            self._sample_hyperparameters(side)
        alpha = self.noise_precision * self.user_weights[:, None]
        self.users.latents = self._sample_latents(self.users, self.items, alpha)[0]
        self.items.latents, mean, factor = self._sample_latents(self.items, self.users, None)
        self._sample_noise()
        self.n_sweeps += 1
        return mean, factor

    def _sample_hyperparameters(self, side: GibbsSide) -> None:
        """Draw (m, Λ) of one side and, after the warm-up, its feature weights."""
        latent = side.latents.double()
        residual = (latent - side.features @ side.feature_weights).cpu().numpy()
        mean, precision = sample_normal_wishart(residual, self.rng)
        like = side.mean
        side.mean = torch.from_numpy(mean).to(like)
        side.precision = torch.from_numpy(precision).to(like)
        if self.n_sweeps >= _FEATURE_WARMUP_SWEEPS:
            center = side.gram_inverse @ (side.features.T @ (latent - side.mean))
            noise = torch.from_numpy(self.rng.normal(size=center.shape)).to(like)
            rows = torch.linalg.cholesky(side.gram_inverse)
            columns = torch.linalg.inv(torch.linalg.cholesky(side.precision))
            side.feature_weights = center + rows @ noise @ columns

    def _sample_latents(
        self, side: GibbsSide, other_side: GibbsSide, row_noise_precision: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the latents of one side; return them with the means and the Cholesky factors of
        the precisions they were drawn with.

        `row_noise_precision` [n, 1] is α w of each row. None: `side` is the items, and each rating
        has the α w of its user.
        """
        ratings, latent = side.ratings, other_side.latents
        vectors = torch.cat([latent[:, :-1], torch.ones_like(latent[:, :1])], 1)
        target = ratings.values - latent[ratings.indices, -1]
        if row_noise_precision is None:
            root = (self.noise_precision * self.user_weights).sqrt()
            vectors, target = vectors * root[:, None], target * root[ratings.indices]
        outer, right = normal_equations(vectors, ratings, target, side.chunks)
        if row_noise_precision is not None:
            outer, right = row_noise_precision[..., None] * outer, row_noise_precision * right
        factor = torch.linalg.cholesky(outer + side.precision.float())
        right = right + side.precision_times_prior_mean().float()
        mean = torch.cholesky_solve(right[..., None], factor)
        noise = torch.randn(mean.shape, generator=self.generator, device=mean.device)
        deviation = torch.linalg.solve_triangular(factor.mT, noise, upper=True)
        return (mean + deviation)[..., 0], mean[..., 0], factor

    def _sample_noise(self) -> None:
        """Draw the users' weights w_u, scaled so that the mean rating has weight 1, and α."""
        ratings, users, items = self.users.ratings, self.users.latents, self.items.latents
        owner = ratings.owner()
        p, q = users[owner], items[ratings.indices]
        fitted = (p[:, :-1] * q[:, :-1]).sum(1) + p[:, -1] + q[:, -1]
        squared_error = segment_sum((ratings.values - fitted).square(), owner, len(users))
        squares = squared_error.double().cpu().numpy()
        n, weight = ratings.lengths().cpu().numpy(), np.ones(len(squares))
        if self.noise_dof < np.inf:
            rate = self.noise_dof + self.noise_precision * squares
            weight = self.rng.gamma((self.noise_dof + n) / 2, 2 / rate)
            weight /= (weight @ n) / n.sum()
        total = weight @ squares
        self.noise_precision = self.rng.gamma(
            (n.sum() + PRIOR_PSEUDO_COUNT) / 2, 2 / (total + PRIOR_PSEUDO_COUNT)
        )
        self.user_weights = torch.from_numpy(weight).to(self.user_weights)


def sample_normal_wishart(x: Matrix, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Draw the mean [D] and the precision [D, D] of normally distributed rows x [n, D].

    The prior is Normal-Wishart with ν₀ = D and W₀ = I.
    """
    n, size = x.shape
    mean = x.mean(0)
    centered = x - mean
    shrunk = n * PRIOR_PSEUDO_COUNT / (n + PRIOR_PSEUDO_COUNT)
    scatter = centered.T @ centered + shrunk * np.outer(mean, mean) + np.eye(size)
    # Bartlett decomposition: the Cholesky factor of a standard Wishart matrix
    factor = np.tril(rng.normal(size=(size, size)), -1)
    factor[np.diag_indices(size)] = np.sqrt(rng.chisquare(size + n - np.arange(size)))
    root = np.linalg.cholesky(np.linalg.inv(scatter)) @ factor
    precision = root @ root.T
    spread = np.linalg.cholesky((n + PRIOR_PSEUDO_COUNT) * precision)
    deviation = np.linalg.solve(spread.T, rng.normal(size=size))
    return n * mean / (n + PRIOR_PSEUDO_COUNT) + deviation, precision
