"""BOMIC: orthogonal inductive matrix completion with bias blocks (Ledent, Alves & Kloft 2021).

    Z = c 11ᵀ + 1 bᵀ + a 1ᵀ + A Bᵀ,  each block with a nuclear norm of its own

b, a and both sides of ABᵀ are orthogonal to 1, so every effect belongs to one block. A nuclear norm
is min ½(‖A‖² + ‖B‖²) over ABᵀ, and the norm of a is a ridge penalty λ√n / ‖a‖: with the item side
frozen, a user's row is a ridge regression on the history, equal to the solution for training users.
As in the published method, no features are used. The solver is `idcf.paper.solvers.bomic`.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from idcf.models.base import TwoTower
from idcf.models.layers.heads import DotHead, Head
from idcf.models.layers.ragged import normal_equations
from idcf.paper.model_options import BomicConfig
from idcf.types import Domain, Embeddings, Users


class Bomic(TwoTower):
    """Item blocks that the solver fills; a user is a ridge regression on the history."""

    inductive: ClassVar[bool] = True
    item_bias: Tensor  # [I]: b + c - mean
    factors: Tensor  # [I, D]: B
    ridge: Tensor  # [D + 1]: ridge penalties of a user's row, the bias last
    orthogonality_multiplier: Tensor  # [D + 1]: Lagrange multiplier of "orthogonal to 1"

    def __init__(self, config: BomicConfig, domain: Domain) -> None:
        super().__init__()
        self.mean, self.n_items = domain.mean, domain.n_items
        self.predicts_ratings = not domain.implicit
        self.head: Head = DotHead()
        size = config.rank
        self.register_buffer("item_bias", torch.zeros(domain.n_items))
        self.register_buffer("factors", torch.zeros(domain.n_items, size))
        self.register_buffer("ridge", torch.ones(size + 1))
        self.register_buffer("orthogonality_multiplier", torch.zeros(size + 1))

    def embed_users(self, users: Users) -> Embeddings:
        """Solve the ridge regression of each user's row on the history."""
        history = users.history
        residuals = history.values - self.mean - self.item_bias[history.items]
        table = torch.cat([self.factors, torch.ones_like(self.item_bias)[:, None]], 1)
        outer, right = normal_equations(table, history, residuals)
        solution = torch.linalg.solve(
            outer + self.ridge.diag(), right - self.orthogonality_multiplier
        )
        return Embeddings(solution[:, :-1], solution[:, -1])

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Look up the item blocks; `exclude_users` is ignored."""
        return Embeddings(self.factors[items], self.item_bias[items])
