"""Gibbs sampling of Bayesian matrix factorisation whose priors read the histories.

    (p_u, b_u) ~ N(m_U + Bᵀφ_u, Λ_U⁻¹),  (q_i, b_i) ~ N(m_V + Aᵀψ_i, Λ_V⁻¹)
    r_ui ~ N(μ + b_u + b_i + p_uᵀq_i, 1 / (α w_u)),  α ~ Gamma,  w_u ~ Gamma(ν/2, ν/2)

with Normal-Wishart priors on (m, Λ) and precision λΛ on A and B. Every step is exact conjugate
algebra over all users or items at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idcf.models.layers.ragged import Pieces, normal_equations, pieces, segment_sum
from idcf.rng import derive, stream
from idcf.types import History

FREEDOM = 2.0  # β₀ of the Normal-Wishart priors, and shape of the Gamma prior
_LINKED_AFTER = 6  # sweeps: first there must be something to relate

Matrix = NDArray[np.float64]


@dataclass
class Side:
    """Users or items, and the state of their half of the chain."""

    history: History  # what each of them has of the other side, values centred
    cut: Pieces
    features: Tensor  # [n, F] in float64
    inverse: Tensor  # (φᵀφ + λI)⁻¹
    latent: Tensor  # [n, D], the bias last
    mean: Tensor  # [D]
    precision: Tensor  # [D, D]
    link: Tensor  # [F, D]

    @classmethod
    def of(
        cls, history: History, raw: Tensor, strength: float, size: int, draw: torch.Generator
    ) -> Side:
        features = (raw - raw.mean(0)) / (raw.std(0, correction=0) + 1e-9)
        width, device = features.shape[1], history.values.device
        eye = torch.eye(width, dtype=torch.float64, device=device)
        latent = torch.randn(len(raw), size, generator=draw, device=device) * 0.1
        zero = torch.zeros(width, size, dtype=torch.float64, device=device)
        return cls(
            history,
            pieces(history),
            features,
            torch.linalg.inv(features.T @ features + strength * eye),
            latent,
            zero[0],
            torch.eye(size, dtype=torch.float64, device=device),
            zero,
        )

    def prior(self) -> Tensor:
        """Λ times the prior means: [n, D]."""
        return (self.mean + self.features @ self.link) @ self.precision


class Chain:
    """The sampler. `sweep` moves it by one draw of everything."""

    def __init__(self, users: Side, items: Side, freedom: float, seed: int) -> None:
        self.users, self.items, self.freedom = users, items, freedom
        self.alpha, self.done = 1.5, 0
        self.weight = torch.ones_like(users.latent[:, 0])  # of each user's ratings
        self.rng = stream(seed, "gibbs")
        self.draw = torch.Generator(users.latent.device).manual_seed(derive(seed, "gibbs"))

    def sweep(self) -> tuple[Tensor, Tensor]:
        """Hyper-parameters, users, items, noise. Returns the mean [I, D] of what the items were
        drawn from, and the Cholesky factor [I, D, D] of its precision: better than one draw."""
        for side in (self.users, self.items):
            self._hyper(side)
        alpha = self.alpha * self.weight[:, None]
        self.users.latent = self._latent(self.users, self.items, alpha)[0]
        self.items.latent, mean, factor = self._latent(self.items, self.users, None)
        self._noise()
        self.done += 1
        return mean, factor

    def _hyper(self, side: Side) -> None:
        latent = side.latent.double()
        left = (latent - side.features @ side.link).cpu().numpy()
        mean, precision = normal_wishart(left, self.rng)
        to = side.mean
        side.mean, side.precision = (torch.from_numpy(x).to(to) for x in (mean, precision))
        if self.done >= _LINKED_AFTER:
            center = side.inverse @ (side.features.T @ (latent - side.mean))
            noise = torch.from_numpy(self.rng.normal(size=center.shape)).to(to)
            rows = torch.linalg.cholesky(side.inverse)
            columns = torch.linalg.inv(torch.linalg.cholesky(side.precision))
            side.link = center + rows @ noise @ columns

    def _latent(
        self, side: Side, other: Side, alpha: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A draw of every row of one side, and the normal distributions it came from. The noise
        is that of the rows, α [n, 1], or where there is none that of the other side's rows."""
        history, latent = side.history, other.latent
        vectors = torch.cat([latent[:, :-1], torch.ones_like(latent[:, :1])], 1)
        target = history.values - latent[history.items, -1]
        if alpha is None:
            root = (self.alpha * self.weight).sqrt()
            vectors, target = vectors * root[:, None], target * root[history.items]
        outer, right = normal_equations(vectors, history, target, side.cut)
        if alpha is not None:
            outer, right = alpha[..., None] * outer, alpha * right
        factor = torch.linalg.cholesky(outer + side.precision.float())
        right = right + side.prior().float()
        mean = torch.cholesky_solve(right[..., None], factor)
        noise = torch.randn(mean.shape, generator=self.draw, device=mean.device)
        moved = torch.linalg.solve_triangular(factor.mT, noise, upper=True)
        return (mean + moved)[..., 0], mean[..., 0], factor

    def _noise(self) -> None:
        """α, and how much more or less than that a user's ratings are worth: w ~ Gamma(ν/2, ν/2),
        scaled so that the mean rating has weight 1."""
        history, users, items = self.users.history, self.users.latent, self.items.latent
        owner = history.owner()
        p, q = users[owner], items[history.items]
        fitted = (p[:, :-1] * q[:, :-1]).sum(1) + p[:, -1] + q[:, -1]
        left = segment_sum((history.values - fitted).square(), owner, len(users))
        squares = left.double().cpu().numpy()
        n, weight = history.lengths().cpu().numpy(), np.ones(len(squares))
        if self.freedom < np.inf:
            rate = self.freedom + self.alpha * squares
            weight = self.rng.gamma((self.freedom + n) / 2, 2 / rate)
            weight /= (weight @ n) / n.sum()
        total = weight @ squares
        self.alpha = self.rng.gamma((n.sum() + FREEDOM) / 2, 2 / (total + FREEDOM))
        self.weight = torch.from_numpy(weight).to(self.weight)


def normal_wishart(x: Matrix, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """A draw of the mean and the precision of rows that are normal: ν₀ = D, W₀ = I."""
    n, size = x.shape
    mean = x.mean(0)
    off = x - mean
    scatter = off.T @ off + n * FREEDOM / (n + FREEDOM) * np.outer(mean, mean) + np.eye(size)
    # Bartlett: the Cholesky factor of a standard Wishart matrix
    factor = np.tril(rng.normal(size=(size, size)), -1)
    factor[np.diag_indices(size)] = np.sqrt(rng.chisquare(size + n - np.arange(size)))
    half = np.linalg.cholesky(np.linalg.inv(scatter)) @ factor
    precision = half @ half.T
    spread = np.linalg.cholesky((n + FREEDOM) * precision)
    return n * mean / (n + FREEDOM) + np.linalg.solve(spread.T, rng.normal(size=size)), precision
