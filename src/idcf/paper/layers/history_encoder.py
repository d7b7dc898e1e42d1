"""Parts of models that know people by what they had, and items by how often they were had."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.layers.embedding import Table
from idcf.models.layers.ragged import pool, segment_sum, shrunk_mean
from idcf.types import Domain, Embedded, History

_ITEM_STRENGTH = 3.0  # ratings of "nothing unusual" that an item's own must outweigh


class Reader(nn.Module):
    """A history as a vector and a bias.

    With ratings e_j = r_j - μ - b_j - b_u is what is unusual about a rating, the vector is
    n^-α Σ (e_j x_j + y_j), and b_u = Σ (r_j - μ - b_j) / (n + strength). Without, it is
    n^-α Σ y_j and 0. With α = ½ a binary history is read at unit length.
    """

    def __init__(
        self,
        n_items: int,
        size: int,
        *,
        mean: float,
        rated: bool,
        alpha: float = 0.5,
        strength: float = 5.0,
        dropout: float = 0.0,  # share of a history that a training step does not see
        had: bool = True,  # False: only how items were rated counts, not which
        scale: float = 0.1,
    ) -> None:
        super().__init__()
        self.mean, self.alpha, self.strength, self.dropout = mean, alpha, strength, dropout
        self.rated = nn.Parameter(torch.randn(n_items, size) * scale) if rated else None
        reads_had = had or not rated
        self.had = nn.Parameter(torch.randn(n_items, size) * scale) if reads_had else None

    def forward(self, history: History, item_bias: Tensor) -> Embedded:
        n, owner = history.lengths(), history.owner()
        bias = torch.zeros(len(n), device=n.device)
        vector = torch.zeros((), device=n.device)
        kept = torch.ones_like(history.values)
        if self.training and self.dropout:
            kept = F.dropout(kept, self.dropout)
        if self.rated is not None:
            own = history.values - self.mean - item_bias[history.items]
            bias = shrunk_mean(own, history, self.strength)
            vector = vector + pool(self.rated, history, (own - bias[owner]) * kept)
        if self.had is not None:
            vector = vector + pool(self.had, history, kept)
        return Embedded(vector * n.clamp(min=1)[:, None] ** -self.alpha, bias)


class Offered(nn.Module):
    """A table of items whose biases are learnt round what counting says of them."""

    start: Tensor  # [I]

    def __init__(self, start: Tensor, size: int, scale: float = 0.1) -> None:
        super().__init__()
        self.table = Table(len(start), size, scale)
        self.register_buffer("start", start)

    @property
    def bias(self) -> Tensor:
        """Of every item: [I]."""
        return self.start + self.table.bias

    @property
    def vector(self) -> Tensor:
        return self.table.vector

    def forward(self, items: Tensor) -> Embedded:
        own: Embedded = self.table(items)
        return Embedded(own.vector, own.bias + self.start[items])


def ridge_biases(domain: Domain, strength: float, rounds: int = 5) -> Tensor:
    """b_i [I] by ridge on both sides in turn, from the ratings alone."""
    raters, n = domain.raters, domain.raters.lengths()
    item, user, own = raters.owner(), raters.items, raters.values - domain.mean
    rated = segment_sum(torch.ones_like(own), user, domain.n_users)
    left, bias = own, own.new_zeros(domain.n_items)
    for _ in range(rounds):
        bias = segment_sum(left, item, domain.n_items) / (n + _ITEM_STRENGTH)
        of_user = segment_sum(own - bias[item], user, domain.n_users) / (rated + strength)
        left = own - of_user[user]
    return bias


def log_odds(domain: Domain, more: float = 0.5) -> Tensor:
    """How often an item is had, against one drawn evenly: [I]. `more` stands for what was not
    seen, so that nothing is impossible."""
    counts = domain.raters.lengths() + more
    return (counts / counts.mean()).log()
