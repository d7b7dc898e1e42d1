"""Alternating least squares: on the residuals of ratings, or on implicit feedback by confidence."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Interactions
from idcf.data.progress import progress_bar
from idcf.models.baselines import FoldInModel
from idcf.models.layers.ragged import (
    MAX_CHUNK_LENGTH,
    normal_equations,
    split_into_chunks,
    transpose,
)
from idcf.models.options import FoldInConfig
from idcf.rng import derive_seed
from idcf.training.array_store import StoredSteps
from idcf.training.solvers import SolverContext
from idcf.training.solvers.bias import fit_base_bias, item_counts_tensor
from idcf.types import Ragged, RaggedRows, select_rows


def fit_als(config: FoldInConfig, table: Interactions, context: SolverContext) -> FoldInModel:
    """Fit item factors by alternating least squares, from which the model solves for any user.

    Ratings are fitted less their ridge biases, implicit feedback with confidence 1 + α w on
    interactions of weight w and 1 elsewhere.
    """
    domain = table.domain()
    model = FoldInModel(config, domain)
    fit_base_bias(model.bias_model, config.shrinkage, table)
    model.popularity = item_counts_tensor(table) * (0.0 if model.predicts_ratings else 1.0)
    users = table.history(np.arange(len(table.users)))
    items, entry_order = transpose(users.as_ragged(), len(table.items))
    weight = torch.from_numpy(table.row_weights()[table.rows_by_user[0]])
    if model.predicts_ratings:
        # the factors fit ratings of any unit, since a user's vector is linear in the residuals
        target = model.bias_model.user_bias_and_residuals(users)[1] / domain.rating_unit
    else:
        target = (1 + model.alpha * weight) / (model.alpha * weight)
    size = config.embedding_size
    user_side = _LeastSquaresSide(users, target, size, weight)
    item_side = _LeastSquaresSide(items, target[entry_order], size, weight[entry_order])
    generator = torch.Generator().manual_seed(derive_seed(context.seed, "als"))
    factors = torch.randn(len(table.items), size, generator=generator) * 0.1
    ridge = config.reg * torch.eye(size)
    steps = StoredSteps(context.store, "epochs")
    n_stored, state = steps.load()
    factors = torch.from_numpy(state["factors"]) if n_stored else factors
    epochs = range(n_stored, config.epochs)
    with progress_bar(context.progress_label, steps=epochs, unit="sweep") as sweeps:
        for epoch in sweeps:
            for side in (user_side, item_side):
                shared = ridge if model.predicts_ratings else ridge + factors.T @ factors
                factors = side.solve(factors, shared, model.alpha)
            if steps.is_due():
                steps.save(epoch + 1, {"factors": factors.numpy()})
    model.factors = factors
    model.gram = ridge if model.predicts_ratings else ridge + factors.T @ factors
    return model


class _LeastSquaresSide:
    """Users or items: the side whose factors are solved for while the other side's are fixed.

    Rows with at most `embedding_size` entries (and at most one chunk of them) are solved apart from
    those with more.
    """

    def __init__(
        self, rows: RaggedRows, targets: Tensor, embedding_size: int, weights: Tensor
    ) -> None:
        lengths, ragged = rows.lengths(), Ragged(rows.indices, targets, rows.offsets)
        weighted = Ragged(rows.indices, weights, rows.offsets)
        self.n_rows = len(lengths)
        longest = min(embedding_size, MAX_CHUNK_LENGTH)
        self.short_rows = ((lengths > 0) & (lengths <= longest)).nonzero()[:, 0]
        self.long_rows = (lengths > longest).nonzero()[:, 0]
        self.short_entries = select_rows(ragged, self.short_rows)
        self.long_entries = select_rows(ragged, self.long_rows)
        self.short_weights = select_rows(weighted, self.short_rows).values
        self.long_weights = select_rows(weighted, self.long_rows).values
        self.short_chunks = split_into_chunks(self.short_entries)
        self.long_chunks = split_into_chunks(self.long_entries)

    def solve(self, fixed_factors: Tensor, shared_gram: Tensor, alpha: float) -> Tensor:
        """Solve p = (S + α QᵀWQ)⁻¹ α QᵀWt for each row; p = 0 for a row without entries."""
        factors = fixed_factors.new_zeros(self.n_rows, fixed_factors.shape[1])
        factors[self.short_rows] = self._solve_short_rows(fixed_factors, shared_gram, alpha)
        outer, right = normal_equations(
            fixed_factors,
            self.long_entries,
            self.long_entries.values,
            self.long_chunks,
            self.long_weights,
        )
        root = torch.linalg.cholesky(shared_gram + alpha * outer)
        factors[self.long_rows] = torch.cholesky_solve(alpha * right[..., None], root)[..., 0]
        return factors

    def _solve_short_rows(self, fixed_factors: Tensor, shared_gram: Tensor, alpha: float) -> Tensor:
        """Solve the rows whose systems are smaller in the number of entries n than in D:
        with LLᵀ = S and Z = QL⁻ᵀ, p = L⁻ᵀZᵀ(ZZᵀ + W⁻¹/α)⁻¹t."""
        root = torch.linalg.cholesky(shared_gram.double())
        white = torch.linalg.solve_triangular(root, fixed_factors.double().T, upper=False).T.float()
        groups, of_rows = self.short_chunks
        parts = [fixed_factors[:0]]
        for entries in groups:
            z, t = white[self.short_entries.indices[entries]], self.short_entries.values[entries]
            equations = z @ z.mT
            equations.diagonal(dim1=1, dim2=2).add_(1 / (alpha * self.short_weights[entries]))
            y = torch.cholesky_solve(t[..., None], torch.linalg.cholesky(equations))
            parts.append((y.mT @ z)[:, 0])
        inverse_root: Tensor = torch.linalg.inv(root).float()
        # a short row is always one chunk, so no sums over chunks are needed
        return torch.cat(parts)[of_rows.indices] @ inverse_root
