"""Mult-VAE: a history through a narrow, noisy place (Liang, Krishnan, Hoffman & Jebara 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.models.base import Variational
from idcf.models.layers.heads import Dot, Head
from idcf.paper.layers.history_encoder import Offered, Reader, log_odds, ridge_biases
from idcf.types import Domain, Embedded, Users

_SURE = -4.0  # log s² to begin with: at 0 what little is said is lost in noise, and stays unsaid


@dataclass(frozen=True, kw_only=True)
class MultVAEConfig:
    embedding_size: int = 32  # of z
    hidden: int = 64
    scale: float = 0.1  # of the first random vectors, which items that nobody had keep
    dropout: float = 0.5  # share of a history that a training step does not see
    beta: float = 0.2  # what a nat of knowledge about a user costs
    anneal: int = 1000  # steps until it costs that much
    strength: float = 5.0  # ratings of "nothing unusual" that a user's own must outweigh
    had: bool = True  # with ratings: does it count which items were rated, or only how?
    binary: bool = False  # ratings count as 1 whatever they say; see the class


class MultVAE(Variational):
    """history → tanh → N(m, s²) → z → tanh → every item.

    Without ratings the output is a multinomial: the score of an item is the logarithm of its
    share, so that scores of two people can be compared. With ratings it is a normal distribution
    round b_u + b_i + μ + what the decoder says, which reads residuals (U-AutoRec's form) and
    b_u is solved from the history.

    `binary` is what the paper's RMSE of 2.8 to 3.0 must come from: every rating is a 1, random
    items are 0, and a number between those two is compared with stars from 1 to 5.
    """

    inductive: ClassVar[bool] = True
    steps: Tensor  # [] of training, which the annealing goes by: kept with the weights

    def __init__(self, config: MultVAEConfig, domain: Domain) -> None:
        super().__init__()
        rated = not (domain.implicit or config.binary)
        self.n_items, self.rates = domain.n_items, not domain.implicit
        self.binary, self.mean = config.binary, domain.mean if rated else 0.0
        self.beta, self.anneal = config.beta, config.anneal
        self.head: Head = Dot()
        self.items = Offered(_start(domain, config), config.hidden, config.hidden**-0.5)
        self.reader = Reader(
            domain.n_items,
            config.hidden,
            mean=self.mean,
            rated=rated,
            strength=config.strength,
            dropout=config.dropout,
            had=config.had,
            scale=config.scale,
        )
        self.first = nn.Parameter(torch.zeros(config.hidden))
        self.belief = nn.Linear(config.hidden, 2 * config.embedding_size)
        nn.init.constant_(self.belief.bias[config.embedding_size :], _SURE)
        self.decoder = nn.Sequential(nn.Linear(config.embedding_size, config.hidden), nn.Tanh())
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def embed_users(self, users: Users) -> Embedded:
        read: Embedded = self.reader(users.history, self.items.bias)
        z, spread = self._believe(read)
        if self.training:
            z = z + torch.randn_like(z) * (spread / 2).exp()
        vector = self.decoder(z)
        if self.rates:
            return Embedded(vector, read.bias)
        logits = self.head.all(vector, self.items.vector) + self.items.bias
        return Embedded(vector, -logits.float().logsumexp(-1))

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        found: Embedded = self.items(items)
        return found

    def divergence(self, users: Users) -> Tensor:
        """β KL(N(m, s²) ‖ N(0, 1)). The history is read anew, with another dropout: the loss is
        the same in expectation, and scoring need not hand over what it believed."""
        mean, spread = self._believe(self.reader(users.history, self.items.bias))
        weight = self.beta * (self.steps / max(self.anneal, 1)).clamp(max=1)
        if self.training:
            self.steps += 1
        return weight * (mean.square() + spread.exp() - 1 - spread).sum(-1) / 2

    def _believe(self, read: Embedded) -> tuple[Tensor, Tensor]:
        """m and log s²: [B, D] each."""
        mean, spread = self.belief(torch.tanh(read.vector + self.first)).chunk(2, -1)
        return mean, spread


def _start(domain: Domain, config: MultVAEConfig) -> Tensor:
    if domain.implicit:
        return log_odds(domain)
    if config.binary:
        return torch.zeros(domain.n_items)
    return ridge_biases(domain, config.strength)
