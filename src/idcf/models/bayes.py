"""IDCF as a posterior: the relation model is the prior of a newcomer, their ratings are evidence.

    r_ui = μ + b_u + b_i + p_uᵀq_i + ε,  ε ~ N(0, 1/α),  (p_u, b_u) ~ N(W[1, φ_u], Λ⁻¹)

φ_u says what kind of history it is (which items, how many), not how they were rated. The chain
that sampled the items (`train.solvers.gibbs`) is kept as T blocks of consecutive sweeps, each as
means and second moments of the items; with a block per sweep this is the average over samples.
In each block a newcomer costs one solve, and the mean over blocks is one dot product of
concatenated vectors, so that ranking needs to know nothing of it.

Shapes: T blocks, D = embedding_size + 1 with the bias last, P = D(D + 1)/2, F features.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from idcf.models.base import Posterior
from idcf.nn.heads import Dot, Head
from idcf.nn.pooling import pool, segment_sum
from idcf.types import Domain, Embedded, History, Users


@dataclass(frozen=True, kw_only=True)
class BayesConfig:
    embedding_size: int = 20
    blocks: int = 4  # kept of the chain: more are slower to answer and larger, hardly better
    sweeps: int = 96  # of the chain that are kept, divided among the blocks
    burn_in: int = 24  # sweeps before these
    rank: int = 30  # directions in which histories are told apart
    strength: float = 50.0  # users of "no relation" that the relation must outweigh
    lengths: tuple[int, int] = (1, 29)  # of the histories the prior is learnt for
    validation: float = 0.05  # share of the users, the lightest, who are only watched


class Belief(NamedTuple):
    mean: Tensor  # [B, T, D]
    factor: Tensor  # [B, T, D, D]: Cholesky factor of the precision


class Bayes(Posterior):
    """The relation model as a prior, the ratings as evidence."""

    inductive: ClassVar[bool] = True
    means: Tensor  # [I, T, D]: of (q_i, b_i)
    seconds: Tensor  # [I, T, P]: of the products of any two of these
    noise: Tensor  # [T]: α
    precision: Tensor  # [T, D, D]: Λ
    link: Tensor  # [T, 1 + F, D]: ΛW
    average: Tensor  # [T, D]: of the key users, for somebody without history
    basis: Tensor  # [I, R]
    shift: Tensor  # [F]
    scale: Tensor  # [F]
    stretch: Tensor  # []: of deviations, by what people who were held out showed
    triangle: Tensor  # [D, D]: where the second moment of two coordinates is kept

    def __init__(self, config: BayesConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items, self.mean, self.rates = domain.n_items, domain.mean, not domain.implicit
        self.head: Head = Dot()
        blocks, size = config.blocks, config.embedding_size + 1
        shapes = {
            "means": (self.n_items, blocks, size),
            "seconds": (self.n_items, blocks, size * (size + 1) // 2),
            "noise": (blocks,),
            "precision": (blocks, size, size),
            "link": (blocks, config.rank + 2, size),
            "average": (blocks, size),
            "basis": (self.n_items, config.rank),
            "shift": (config.rank + 1,),
            "scale": (config.rank + 1,),
            "stretch": (),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))
        self.noise += 1  # until it is sampled, a proper prior
        self.precision += torch.eye(size)
        self.scale += 1
        self.stretch += 1
        self.register_buffer("triangle", triangle(size), persistent=False)

    def features(self, history: History) -> Tensor:
        """φ [B, F]: the direction of the history and the log of its length, standardised."""
        return (raw_features(self.basis, history) - self.shift) / self.scale

    def posterior(self, history: History) -> Belief:
        """Of (p_u, b_u), in each block."""
        blocks, size = self.average.shape
        own, n = history.values - self.mean, history.lengths()
        means, seconds = self.means.flatten(1), self.seconds.flatten(1)
        first = pool(means, history).view(-1, blocks, size)
        second = pool(seconds, history).view(-1, blocks, seconds.shape[1] // blocks)
        left = second[..., self.triangle]
        # Σ E(r - μ - b_i) q_i; the last coordinate of the evidence is 1, not b_i
        right = pool(means, history, own).view(-1, blocks, size) - left[..., -1]
        right[..., -1] = segment_sum(own, history)[:, None] - first[..., -1]
        left[..., -1], left[..., -1, :] = first, first
        left[..., -1, -1] = n[:, None]
        prior = self.link[:, 0] + torch.einsum(
            "bf,tfd->btd", self.features(history), self.link[:, 1:]
        )
        factor = torch.linalg.cholesky(self.noise[:, None, None] * left + self.precision)
        mean = torch.cholesky_solve((self.noise[:, None] * right + prior)[..., None], factor)[
            ..., 0
        ]
        return Belief(torch.where((n == 0)[:, None, None], self.average, mean), factor)

    def embed_users(self, users: Users) -> Embedded:
        mean = self.posterior(users.history).mean
        return Embedded(mean[..., :-1].flatten(1), mean[..., -1].mean(1))

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        means = self.means[items]
        return Embedded(means[..., :-1].flatten(-2) / means.shape[-2], means[..., -1].mean(-1))

    def part(self, blocks: int) -> Bayes:
        """The model that the first blocks alone would make."""
        out = copy(self)
        out._buffers = dict(self._buffers)
        out.means, out.seconds = self.means[:, :blocks], self.seconds[:, :blocks]
        for name in ("noise", "precision", "link", "average"):
            setattr(out, name, getattr(self, name)[:blocks])
        return out

    def deviation(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """In a block: noise, what is not known of the user, what is not known of the item, and
        both at once; the blocks' disagreement on top."""
        mean, factor = self.posterior(users.history)
        covariance = torch.cholesky_inverse(factor)[owner]  # [M, T, D, D]
        item, p = self.means[items], mean[owner]
        f = torch.cat([item[..., :-1], torch.ones_like(item[..., -1:])], -1)
        w = torch.cat([p[..., :-1], torch.ones_like(p[..., -1:])], -1)
        moved = self.seconds[items][..., self.triangle] - item[..., :, None] * item[..., None, :]
        of_user = torch.einsum("mktd,mtde,mkte->mkt", f, covariance, f)
        of_item = torch.einsum("mtd,mktde,mte->mkt", w, moved, w)
        shared = covariance[..., :-1, :-1]
        of_both = torch.einsum("mtde,mktde->mkt", shared, moved[..., :-1, :-1])
        inside = 1 / self.noise + of_user + of_item.clamp(min=0) + of_both.clamp(min=0)
        expected = torch.einsum("mtd,mktd->mkt", p, f) + item[..., -1]
        return self.stretch * (inside.mean(-1) + expected.var(-1, correction=0)).sqrt()


def raw_features(basis: Tensor, history: History) -> Tensor:
    """Σ basis / √n over the history, and log(1 + n)."""
    n = history.lengths()[:, None].to(basis.dtype)
    return torch.cat([pool(basis, history) / n.clamp(min=1).sqrt(), n.log1p()], 1)


def triangle(size: int) -> Tensor:
    """Where [d, e] stands in a packed lower triangle: [D, D]."""
    low = torch.tril_indices(size, size)
    out = torch.empty(size, size, dtype=torch.int64)
    out[low[0], low[1]] = out[low[1], low[0]] = torch.arange(low.shape[1])
    return out
