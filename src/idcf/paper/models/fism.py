"""FISM: a user is the sum of what they had (Kabbur, Ning & Karypis 2013)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.models.base import TwoTower
from idcf.models.layers.heads import Dot, Head
from idcf.paper.layers.history_encoder import Offered, Reader, log_odds, ridge_biases
from idcf.types import Domain, Embedded, Users


@dataclass(frozen=True, kw_only=True)
class FISMConfig:
    embedding_size: int = 16
    scale: float = 0.1  # of the first random vectors, which items that nobody had keep
    alpha: float = 0.5  # a history of n counts n^(1-α)
    strength: float = 5.0  # ratings of "nothing unusual" that a user's own must outweigh
    had: bool = True  # with ratings: does it count which items were rated, or only how?
    dropout: float = 0.0  # share of a history that a training step does not see
    binary: bool = False  # ratings count as 1 whatever they say; see the class


class FISM(TwoTower):
    """b_u + b_i + n^-α Σ_j∈history (e_j x_j + y_j)ᵀ q_i; the target is never in the history.

    Without ratings e_j is 0 and the score is a logit. The original reads no ratings at all; the
    form that does is what Koren 2008 calls asymmetric SVD, and b_u is solved from the history.

    `binary` is what the paper's RMSE of 1.9 to 2.3 must come from: every rating is an example of
    an item that was had, random items are examples of others, and the logit that tells the two
    apart is then compared with stars from 1 to 5, which it never saw and does not mean.
    """

    inductive: ClassVar[bool] = True

    def __init__(self, config: FISMConfig, domain: Domain) -> None:
        super().__init__()
        size, rated = config.embedding_size, not (domain.implicit or config.binary)
        self.n_items, self.rates = domain.n_items, not domain.implicit
        self.binary, self.mean = config.binary, domain.mean if rated else 0.0
        self.head: Head = Dot()
        start = ridge_biases(domain, config.strength) if rated else log_odds(domain)
        self.items = Offered(start, size, config.scale)
        self.reader = Reader(
            domain.n_items,
            size,
            mean=self.mean,
            rated=rated,
            alpha=config.alpha,
            strength=config.strength,
            dropout=config.dropout,
            had=config.had,
            scale=config.scale,
        )
        self.level = None if rated else nn.Parameter(torch.zeros(()))

    def embed_users(self, users: Users) -> Embedded:
        read: Embedded = self.reader(users.history, self.items.bias)
        return read if self.level is None else Embedded(read.vector, read.bias + self.level)

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        found: Embedded = self.items(items)
        return found
