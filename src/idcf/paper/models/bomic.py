"""BOMIC: orthogonal inductive matrix completion with bias blocks (Ledent, Alves & Kloft 2021).

    Z = c 11ᵀ + 1 bᵀ + a 1ᵀ + A Bᵀ,  each block with a nuclear norm of its own

b, a and both sides of ABᵀ are orthogonal to 1, so that every effect has one place. A nuclear norm
is also min ½(‖A‖² + ‖B‖²) over ABᵀ, and the norm of a is a ridge whose strength is λ√n / ‖a‖. With
the item side frozen the row of a user is therefore a ridge regression of their own history, and for
users of the table it *is* the row they were solved with: newcomers and known users are answered the
same way. What the orthogonality adds to that regression is the same for everybody: `pull`.

As published it reads no features, and neither does this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from idcf.models.base import TwoTower
from idcf.models.layers.heads import Dot, Head
from idcf.models.layers.ragged import normal_equations
from idcf.types import Domain, Embedded, Users


@dataclass(frozen=True, kw_only=True)
class BomicConfig:
    # each in what noise as wide as the ratings would put into the block: see the solver
    reg: float = 0.8  # λ of the residual block
    item_reg: float = 0.2  # of the item biases
    user_reg: float = 0.15  # of the user biases
    rank: int = 60  # singular values of the residual that may survive, at most
    epochs: int = 400  # iterations, at most
    tolerance: float = 2e-4  # change of the predictions, in spreads of the ratings, when done


class Bomic(TwoTower):
    """Item blocks from the solver; a user is a ridge regression over their history."""

    inductive: ClassVar[bool] = True
    item_bias: Tensor  # [I]: b, and what c exceeds the mean by
    factors: Tensor  # [I, D]: B
    ridge: Tensor  # [D + 1]: of a user's row, the bias last
    pull: Tensor  # [D + 1]: the multiplier of "orthogonal to 1"

    def __init__(self, config: BomicConfig, domain: Domain) -> None:
        super().__init__()
        self.mean, self.n_items, self.rates = domain.mean, domain.n_items, not domain.implicit
        self.head: Head = Dot()
        size = config.rank
        self.register_buffer("item_bias", torch.zeros(domain.n_items))
        self.register_buffer("factors", torch.zeros(domain.n_items, size))
        self.register_buffer("ridge", torch.ones(size + 1))
        self.register_buffer("pull", torch.zeros(size + 1))

    def embed_users(self, users: Users) -> Embedded:
        history = users.history
        own = history.values - self.mean - self.item_bias[history.items]
        table = torch.cat([self.factors, torch.ones_like(self.item_bias)[:, None]], 1)
        outer, right = normal_equations(table, history, own)
        solved = torch.linalg.solve(outer + self.ridge.diag(), right - self.pull)
        return Embedded(solved[:, :-1], solved[:, -1])

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        return Embedded(self.factors[items], self.item_bias[items])
