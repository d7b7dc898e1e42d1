"""Alternating least squares on what the biases leave unexplained, or on confidences."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Interactions
from idcf.models.baselines import BiasConfig, FoldIn, FoldInConfig
from idcf.models.layers.ragged import normal_equations, pieces, turn
from idcf.rng import derive
from idcf.training.solvers.bias import counts, fill
from idcf.training.solvers.context import Work
from idcf.types import History, pick


def als(config: FoldInConfig, table: Interactions, work: Work) -> FoldIn:
    model = FoldIn(config, table.domain())
    fill(model.base, BiasConfig(strength=config.strength), table)
    model.popularity = counts(table) * (0.0 if model.rates else 1.0)
    users = table.history(np.arange(len(table.users)))
    items, back = turn(users, len(table.items))
    if model.rates:
        target = model.base.residual(users)[1]
    else:
        target = torch.full_like(users.values, (1 + model.alpha) / model.alpha)
    size = config.embedding_size
    sides = _Side(users, target, size), _Side(items, target[back], size)
    draw = torch.Generator().manual_seed(derive(work.seed, "als"))
    factors = torch.randn(len(table.items), size, generator=draw) * 0.1
    ridge = config.reg * torch.eye(size)
    for _ in range(config.epochs):
        for side in sides:
            shared = ridge if model.rates else ridge + factors.T @ factors
            factors = side.solve(factors, shared, model.alpha)
    model.factors = factors
    model.gram = ridge if model.rates else ridge + factors.T @ factors
    return model


class _Side:
    """Users, or items: whose vectors are solved for while the others' stand still."""

    def __init__(self, history: History, target: Tensor, size: int) -> None:
        n = history.lengths()
        rows = [x.nonzero()[:, 0] for x in ((n > 0) & (n <= size), n > size)]
        parts = [pick(history._replace(values=target), x) for x in rows]
        (self.short, self.long), (self.few, self.many) = parts, rows
        self.cuts, self.number = [pieces(x) for x in parts], len(n)

    def solve(self, fixed: Tensor, shared: Tensor, alpha: float) -> Tensor:
        """p = (S + α QᵀQ)⁻¹ α Qᵀt over each history; 0 of who has none."""
        found = fixed.new_zeros(self.number, fixed.shape[1])
        found[self.few] = self._by_length(fixed, shared, alpha)
        outer, right = normal_equations(fixed, self.long, self.long.values, self.cuts[1])
        root = torch.linalg.cholesky(shared + alpha * outer)
        found[self.many] = torch.cholesky_solve(alpha * right[..., None], root)[..., 0]
        return found

    def _by_length(self, fixed: Tensor, shared: Tensor, alpha: float) -> Tensor:
        """As many equations as a history has entries, which are fewer than coordinates: with
        LLᵀ = S and Z = QL⁻ᵀ, p = L⁻ᵀZᵀ(ZZᵀ + 1/α)⁻¹t."""
        root = torch.linalg.cholesky(shared.double())
        white = torch.linalg.solve_triangular(root, fixed.double().T, upper=False).T.float()
        groups, of_rows = self.cuts[0]
        parts = [fixed[:0]]
        for entries in groups:
            z, t = white[self.short.items[entries]], self.short.values[entries]
            equations = z @ z.mT
            equations.diagonal(dim1=1, dim2=2).add_(1 / alpha)
            y = torch.cholesky_solve(t[..., None], torch.linalg.cholesky(equations))
            parts.append((y.mT @ z)[:, 0])
        back: Tensor = torch.linalg.inv(root).float()
        return torch.cat(parts)[of_rows.items] @ back  # nobody here has more than one piece
