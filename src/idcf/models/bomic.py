"""BOMIC: orthogonal inductive matrix completion with bias blocks (Ledent, Alves & Kloft 2021).

    Z = c 11ᵀ + 1 bᵀ + a 1ᵀ + F Gᵀ + A Bᵀ,  each block with a nuclear norm of its own

b, a and ABᵀ are orthogonal to 1 (and, where features F of users are read, to F), so that every
effect has one place. A nuclear norm is also min ½(‖A‖² + ‖B‖²) over ABᵀ, and the norm of a is a
ridge whose strength is λ√n / ‖a‖. With the item side frozen the row of a user is therefore a ridge
regression of their own history, and for users of the table it *is* the row they were solved with:
newcomers and known users are answered the same way. What the orthogonality adds to that regression
is linear in the user's place in [1, F]: `pull`.

Plain BOMIC reads no features, and neither does this unless it is asked to. Who then tells none is
taken for the average in F, and what they rated speaks through the other blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from idcf.models.base import TwoTower
from idcf.nn.heads import Dot, Head
from idcf.nn.pooling import normal_equations
from idcf.types import Domain, Embedded, Users


@dataclass(frozen=True, kw_only=True)
class BomicConfig:
    # each in what noise as wide as the ratings would put into the block: see the solver
    reg: float = 0.8  # λ of the residual block
    item_reg: float = 0.2  # of the item biases
    user_reg: float = 0.15  # of the user biases
    feature_reg: float = 1.0  # of what features of users say of items
    rank: int = 60  # singular values of the residual that may survive, at most
    epochs: int = 400  # iterations, at most
    tolerance: float = 2e-4  # change of the predictions, in spreads of the ratings, when done
    user_features: bool = False


class Bomic(TwoTower):
    """Item blocks from the solver; a user is a ridge regression over their history."""

    inductive: ClassVar[bool] = True
    item_bias: Tensor  # [I]: b, and what c exceeds the mean by
    factors: Tensor  # [I, D]: B
    by_features: Tensor  # [I, F']: G
    center: Tensor  # [F]: of the features as they are told
    whiten: Tensor  # [F, F']: from these to orthonormal ones
    one: Tensor  # []: the column of ones, orthonormal: m^-½
    ridge: Tensor  # [D + 1]: of a user's row, the bias last
    pull: Tensor  # [1 + F', D + 1]

    def __init__(self, config: BomicConfig, domain: Domain) -> None:
        super().__init__()
        self.mean, self.n_items, self.rates = domain.mean, domain.n_items, not domain.implicit
        self.head: Head = Dot()
        size, told = config.rank, domain.n_user_features * config.user_features
        self.register_buffer("item_bias", torch.zeros(domain.n_items))
        self.register_buffer("factors", torch.zeros(domain.n_items, size))
        self.register_buffer("by_features", torch.zeros(domain.n_items, told))
        self.register_buffer("center", torch.zeros(told))
        self.register_buffer("whiten", torch.zeros(told, told))
        self.register_buffer("one", torch.ones(()))
        self.register_buffer("ridge", torch.ones(size + 1))
        self.register_buffer("pull", torch.zeros(1 + told, size + 1))

    def place(self, users: Users) -> Tensor:
        """Rows of F [B, F']: 0, the average, where nothing is told."""
        if users.features is None or not len(self.center):
            return self.factors.new_zeros(len(users), self.whiten.shape[1])
        return (users.features - self.center) @ self.whiten

    def embed_users(self, users: Users) -> Embedded:
        history, told = users.history, self.place(users)
        own = history.values - self.mean - self.item_bias[history.items]
        own = own - (told[history.owner()] * self.by_features[history.items]).sum(-1)
        table = torch.cat([self.factors, torch.ones_like(self.item_bias)[:, None]], 1)
        outer, right = normal_equations(table, history, own)
        ones = self.one.expand(len(users), 1)
        right = right - torch.cat([ones, told], 1) @ self.pull
        solved = torch.linalg.solve(outer + self.ridge.diag(), right)
        return Embedded(torch.cat([solved[:, :-1], told], 1), solved[:, -1])

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        vector = torch.cat([self.factors[items], self.by_features[items]], -1)
        return Embedded(vector, self.item_bias[items])
