"""Layers of models that embed a user from the history alone, never the id, and item biases."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.layers.embedding import EmbeddingTable
from idcf.models.layers.ragged import shrunk_mean, sum_pool
from idcf.paper.model_options import HistoryEncoderConfig
from idcf.types import Domain, Embeddings, History


class HistoryEncoder(nn.Module):
    """Embed a history as a vector of length `size` and a bias.

    With ratings, the residuals are e_j = r_j - μ - b_j - b_u, the vector is n^-α Σ (e_j x_j + y_j)
    and the bias is b_u = Σ (r_j - μ - b_j) / (n + shrinkage). Without ratings they are n^-α Σ y_j
    and 0. With α = ½ and y_j of unit length the vector of a binary history has unit length.
    """

    def __init__(
        self, config: HistoryEncoderConfig, domain: Domain, size: int, alpha: float = 0.5
    ) -> None:
        super().__init__()
        self.mean, self.alpha = domain.mean, alpha
        self.shrinkage, self.dropout = config.shrinkage, config.dropout
        self.rating_vectors: nn.Parameter | None = None  # x [I, D]
        self.identity_vectors: nn.Parameter | None = None  # y [I, D]
        if config.reads_ratings(domain):
            self.rating_vectors = nn.Parameter(torch.randn(domain.n_items, size) * config.init_std)
        if config.use_item_identity or self.rating_vectors is None:
            self.identity_vectors = nn.Parameter(
                torch.randn(domain.n_items, size) * config.init_std
            )

    def forward(self, history: History, item_bias: Tensor) -> Embeddings:
        """Embed B histories, given the biases b_j [I] of all items."""
        n, owner = history.lengths(), history.owner()
        bias = torch.zeros(len(n), device=n.device)
        vector = torch.zeros((), device=n.device)
        entry_weights = torch.ones_like(history.values)
        if self.training and self.dropout:
            entry_weights = F.dropout(entry_weights, self.dropout)
        if self.rating_vectors is not None:
            residuals = history.values - self.mean - item_bias[history.items]
            bias = shrunk_mean(residuals, history, self.shrinkage)
            weights = (residuals - bias[owner]) * entry_weights
            vector = vector + sum_pool(self.rating_vectors, history, weights)
        if self.identity_vectors is not None:
            vector = vector + sum_pool(self.identity_vectors, history, entry_weights)
        return Embeddings(vector * n.clamp(min=1)[:, None] ** -self.alpha, bias)


class OffsetEmbedding(nn.Module):
    """An embedding table of items whose learned biases are added to fixed ones, `bias_offset`."""

    bias_offset: Tensor  # [I]

    def __init__(self, bias_offset: Tensor, size: int, init_std: float = 0.1) -> None:
        super().__init__()
        self.embedding = EmbeddingTable(len(bias_offset), size, init_std)
        self.register_buffer("bias_offset", bias_offset)

    @property
    def bias(self) -> Tensor:
        """Bias of every item [I]: the fixed `bias_offset` plus the learned bias."""
        return self.bias_offset + self.embedding.bias

    @property
    def vector(self) -> Tensor:
        """Vector of every item: [I, D]."""
        return self.embedding.vector

    def forward(self, items: Tensor) -> Embeddings:
        """Look up items [...]: vectors [..., D], and biases [...], learned plus fixed."""
        learned: Embeddings = self.embedding(items)
        return Embeddings(learned.vector, learned.bias + self.bias_offset[items])


def item_log_popularity(domain: Domain, pseudo_count: float = 0.5) -> Tensor:
    """Return log((n_i + pseudo_count) / mean of these) of every item: [I], the log odds of an
    interaction against an item drawn uniformly; finite for items without interactions."""
    counts = domain.raters.lengths() + pseudo_count
    return (counts / counts.mean()).log()
