"""FISM: a user is the sum of the items of the history (Kabbur, Ning & Karypis 2013)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.models.base import TwoTower
from idcf.models.layers.heads import DotHead, Head
from idcf.models.layers.ragged import item_ridge_biases
from idcf.paper.layers.history_encoder import HistoryEncoder, OffsetEmbedding, item_log_popularity
from idcf.paper.model_options import FISMConfig
from idcf.types import Domain, Embeddings, Users


class FISM(TwoTower):
    """b_u + b_i + n^-α Σ_j∈history (e_j x_j + y_j)ᵀ q_i; the target is never in the history.

    Without ratings e_j is 0 and the score is a logit. The original ignores ratings; the form with
    ratings is asymmetric SVD (Koren 2008). `binary` is the likely setting behind the paper's RMSE
    of 1.9 to 2.3: a logit that separates rated from random items is compared with ratings.
    """

    inductive: ClassVar[bool] = True

    def __init__(self, config: FISMConfig, domain: Domain) -> None:
        super().__init__()
        reads_ratings = config.reads_ratings(domain)
        self.n_items, self.predicts_ratings = domain.n_items, not domain.implicit
        self.trains_on_binary, self.mean = config.binary, domain.mean if reads_ratings else 0.0
        self.head: Head = DotHead()
        if reads_ratings:
            bias_offset = item_ridge_biases(domain, config.shrinkage)
        else:
            bias_offset = item_log_popularity(domain)
        size = config.embedding_size
        self.items = OffsetEmbedding(bias_offset, size, config.init_std)
        self.history_encoder = HistoryEncoder(config, domain, size, config.alpha)
        self.global_bias = None if reads_ratings else nn.Parameter(torch.zeros(()))

    def embed_users(self, users: Users) -> Embeddings:
        """Embed users from their histories. With implicit feedback or `binary`, all users have one
        learned bias; else it is computed from the ratings."""
        encoded: Embeddings = self.history_encoder(users.history, self.items.bias)
        if self.global_bias is None:
            return encoded
        return Embeddings(encoded.vector, encoded.bias + self.global_bias)

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Look up the vectors q_i and the biases b_i; `exclude_users` is ignored."""
        embeddings: Embeddings = self.items(items)
        return embeddings
