"""Layers of models that embed a user from the history alone, and item biases from counts.

They know nothing of user ids.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.layers.embedding import EmbeddingTable
from idcf.models.layers.ragged import (
    DEFAULT_ITEM_SHRINKAGE,
    DEFAULT_USER_SHRINKAGE,
    segment_sum,
    shrunk_mean,
    sum_pool,
)
from idcf.types import Domain, Embeddings, History


class HistoryEncoder(nn.Module):
    """Embed a history as a vector and a bias.

    With ratings, the residuals are e_j = r_j - μ - b_j - b_u, the vector is n^-α Σ (e_j x_j + y_j)
    and the bias is b_u = Σ (r_j - μ - b_j) / (n + shrinkage). Without ratings they are n^-α Σ y_j
    and 0. With α = ½ and y_j of unit length the vector of a binary history has unit length.

    Parameters
    ----------
    n_items : int
        Number of items I.
    size : int
        Length of the vector.
    mean : float
        Mean rating μ.
    has_ratings : bool
        Whether the values of a history are ratings.
    alpha : float
        α.
    shrinkage : float
        Pseudo-count of zero residuals in b_u.
    dropout : float
        Share of a history that a training step does not see.
    use_item_identity : bool
        Add y_j. If False, the vector depends on how items were rated, but not on which. Ignored
        without ratings.
    init_std : float
        Standard deviation of the initial x_j and y_j.
    """

    def __init__(
        self,
        n_items: int,
        size: int,
        *,
        mean: float,
        has_ratings: bool,
        alpha: float = 0.5,
        shrinkage: float = DEFAULT_USER_SHRINKAGE,
        dropout: float = 0.0,
        use_item_identity: bool = True,
        init_std: float = 0.1,
    ) -> None:
        super().__init__()
        self.mean, self.alpha, self.shrinkage, self.dropout = mean, alpha, shrinkage, dropout
        self.rating_vectors: nn.Parameter | None = None  # x [I, D]
        self.identity_vectors: nn.Parameter | None = None  # y [I, D]
        if has_ratings:
            self.rating_vectors = nn.Parameter(torch.randn(n_items, size) * init_std)
        if use_item_identity or not has_ratings:
            self.identity_vectors = nn.Parameter(torch.randn(n_items, size) * init_std)

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
    """An embedding table of items whose learned biases are added to fixed ones.

    Parameters
    ----------
    bias_offset : Tensor
        The fixed biases [I], for example `item_ridge_biases(domain, …)`.
    size : int
        Embedding size D.
    init_std : float
        Standard deviation of the initial vectors.
    """

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


def item_ridge_biases(domain: Domain, user_shrinkage: float, n_rounds: int = 5) -> Tensor:
    """Compute item biases b_i [I] by alternating ridge estimates of b_i and b_u.

    Parameters
    ----------
    domain : Domain
        The training ratings.
    user_shrinkage : float
        Pseudo-count of zero residuals in b_u; that of b_i is `DEFAULT_ITEM_SHRINKAGE`.
    n_rounds : int
        How often both sides are updated.
    """
    raters, n_item_ratings = domain.raters, domain.raters.lengths()
    item, user = raters.owner(), raters.indices
    centered = raters.values - domain.mean
    n_user_ratings = segment_sum(torch.ones_like(centered), user, domain.n_users)
    residuals, item_bias = centered, centered.new_zeros(domain.n_items)
    for _ in range(n_rounds):
        item_sums = segment_sum(residuals, item, domain.n_items)
        item_bias = item_sums / (n_item_ratings + DEFAULT_ITEM_SHRINKAGE)
        user_sums = segment_sum(centered - item_bias[item], user, domain.n_users)
        user_bias = user_sums / (n_user_ratings + user_shrinkage)
        residuals = centered - user_bias[user]
    return item_bias


def item_log_popularity(domain: Domain, pseudo_count: float = 0.5) -> Tensor:
    """Return log((n_i + pseudo_count) / mean of these) of every item: [I].

    This is the log odds of an interaction against an item drawn uniformly; `pseudo_count` keeps
    it finite for items without interactions.
    """
    counts = domain.raters.lengths() + pseudo_count
    return (counts / counts.mean()).log()
