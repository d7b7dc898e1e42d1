"""Kernel of fold-in models: a linear system as large as the history where that is smaller."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg.lapack import sposv
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.inference.kernels.linalg import MatrixVectorProduct, to_float32_array
from idcf.models.baselines import FoldInModel
from idcf.types import Embeddings, History, Users, select_histories

_MAX_DATA_TO_PRIOR_RATIO = 1e5  # above this single precision is not enough for the kernel


def fold_in_kernel(model: FoldInModel) -> FoldInKernel | None:
    """Return the kernel of a fold-in model, or None where only the model's solver is exact enough.

    That is so for models with a term per history entry and for nearly singular shared equations.
    """
    if model.negative_terms.any():
        return None
    cholesky, error = torch.linalg.cholesky_ex(model.gram.double())
    if error:
        return None
    kernel = FoldInKernel(model, cholesky)
    return kernel if kernel.data_to_prior_ratio < _MAX_DATA_TO_PRIOR_RATIO else None


class FoldInKernel:
    """`FoldInModel.embed_users` and scores with one equation per item of the history.

    In coordinates z = L⁻¹q, with LLᵀ the part of the left side that all users share, Z the rows of
    the history, m the prior mean and y the residuals: p = m + Zᵀ(ZZᵀ + 1/α)⁻¹(y - Zm).
    """

    def __init__(self, model: FoldInModel, cholesky: Tensor) -> None:
        self.model, self.embedding_size, self.alpha = model, model.factors.shape[1], model.alpha
        white = torch.linalg.solve_triangular(cholesky, model.factors.double().T, upper=False)
        self.whitened_items = white.T.float().contiguous()
        self.inverse_cholesky = torch.linalg.inv(cholesky).float()
        prior_rhs = model.prior_rhs.double()[:, None]
        prior_mean = torch.linalg.solve_triangular(cholesky, prior_rhs, upper=False)
        self.prior_mean = prior_mean[:, 0].float()
        self.prior_scores = self.whitened_items @ self.prior_mean
        largest_norm = float(self.whitened_items.square().sum(1).max())
        self.data_to_prior_ratio = self.alpha * self.embedding_size * largest_norm
        self.item_offsets = model.bias_model.item_bias + model.mean
        self.positive_target = None if model.predicts_ratings else float(model.positive_target)
        self._whitened_items_np = to_float32_array(self.whitened_items)
        self._prior_scores_np = to_float32_array(self.prior_scores)
        self._item_offsets_np = to_float32_array(self.item_offsets)
        scores_at_prior = self._item_offsets_np + self._prior_scores_np
        self._catalog_product = MatrixVectorProduct(
            np.column_stack([self._whitened_items_np, scores_at_prior])
        )

    def __call__(self, item_rows: Ints, values: Floats) -> Floats:
        """Return the score of every item [I] for a history of item rows and values."""
        z, n = self._whitened_items_np.take(item_rows, 0), len(item_rows)
        targets = values if self.positive_target is None else self.positive_target
        residuals = targets - self._item_offsets_np[item_rows]
        if self.positive_target is None:
            bias = residuals.sum() / np.float32(max(n + self.model.bias_model.shrinkage, 1e-9))
            residuals -= bias
        vector = np.ones(self.embedding_size + 1, np.float32)
        if n <= self.embedding_size:
            matrix = z @ z.T
            matrix.ravel()[:: n + 1] += np.float32(1 / self.alpha)
            vector[:-1] = sposv(matrix, residuals - self._prior_scores_np[item_rows])[1] @ z
        else:
            matrix = np.float32(self.alpha) * (z.T @ z)
            matrix.ravel()[:: self.embedding_size + 1] += 1
            rhs = np.float32(self.alpha) * (residuals - self._prior_scores_np[item_rows]) @ z
            vector[:-1] = sposv(matrix, rhs)[1]
        scores = self._catalog_product(vector)
        if self.positive_target is None:
            scores += bias
        return scores

    def embed_users(self, users: Users) -> Embeddings:
        """Return the embeddings of the users; long histories are solved by the model."""
        is_short = users.history.lengths() <= self.embedding_size // 2
        if bool(is_short.all()):
            return self._embed_short_histories(users.history)
        if not bool(is_short.any()):
            return self.model.embed_users(users)
        short_rows, long_rows = (x.nonzero()[:, 0] for x in (is_short, ~is_short))
        short = self._embed_short_histories(select_histories(users.history, short_rows))
        long_history = select_histories(users.history, long_rows)
        long = self.model.embed_users(Users(users.ids[long_rows], long_history))
        order = torch.cat([short_rows, long_rows]).argsort()
        return Embeddings(
            torch.cat([short.vector, long.vector])[order], torch.cat([short.bias, long.bias])[order]
        )

    def _embed_short_histories(self, history: History) -> Embeddings:
        """Solve all users at once, padded with rows of zeros, which change nothing."""
        n, model = history.lengths(), self.model
        if model.predicts_ratings:
            bias, residuals = model.bias_model.user_bias_and_residuals(history)
        else:
            bias = torch.zeros(len(n), device=n.device)
            residuals = model.positive_target - self.item_offsets[history.items]
        columns = torch.arange(int(n.max()) if len(n) else 0, device=n.device)
        is_entry = columns < n[:, None]
        z = self.whitened_items.new_zeros(*is_entry.shape, self.embedding_size)
        z[is_entry] = self.whitened_items[history.items]
        rhs = self.whitened_items.new_zeros(is_entry.shape)
        rhs[is_entry] = residuals - self.prior_scores[history.items]
        matrix = z @ z.mT
        matrix.diagonal(dim1=1, dim2=2).add_(1 / self.alpha)
        solution = torch.cholesky_solve(rhs[..., None], torch.linalg.cholesky(matrix))
        vector = (self.prior_mean + (solution.mT @ z)[:, 0]) @ self.inverse_cholesky
        # an empty history of implicit feedback is ranked by popularity, the last coordinate
        is_popular = (n == 0)[:, None] & (not model.predicts_ratings)
        vector = torch.cat([vector.masked_fill(is_popular, 0), is_popular.to(vector)], 1)
        return Embeddings(vector, bias)
