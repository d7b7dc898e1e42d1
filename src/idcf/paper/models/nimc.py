"""NIMC: non-linear inductive matrix completion (Zhong, Song, Jain & Dhillon 2019).

    r̂ = μ + φ(Uᵀ[x_u, 1])ᵀ φ(Vᵀ[y_i, e_i, 1]),  φ = tanh

x_u, y_i are features, e_i is the item's one-hot id. A user without features is the average user,
for whom training drops the features of a share of the users. U starts at 0, so a feature that no
training user has (on Douban, the friendship column of a new user) has no effect.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.models.base import TwoTower
from idcf.models.layers.heads import DotHead, Head
from idcf.paper.model_options import NimcConfig
from idcf.types import Domain, Embeddings, Users


class Nimc(TwoTower):
    """One hidden layer on each side, and the dot product of the two."""

    inductive: ClassVar[bool] = True
    reads_history: ClassVar[bool] = False
    reads_user_features: ClassVar[bool] = True
    source: ClassVar[str] = "features"
    item_features: Tensor  # [I, G]
    user_feature_weights: nn.Parameter | None  # U [F, D]
    item_feature_weights: nn.Parameter | None  # V [G, D]

    def __init__(self, config: NimcConfig, domain: Domain) -> None:
        super().__init__()
        self.mean, self.n_items = domain.mean, domain.n_items
        self.predicts_ratings = not domain.implicit
        self.head: Head = DotHead()
        self.user_scale, self.feature_dropout = config.user_scale, config.feature_dropout
        size = config.embedding_size
        self.user_constant = nn.Parameter(torch.randn(size))
        self.item_constant = nn.Parameter(torch.randn(size) * config.init_std)
        self.items = nn.Parameter(torch.randn(domain.n_items, size) * config.init_std)
        # weights exist wherever features are read, even for 0 of them: when a saved model is
        # loaded, their number comes from the file
        self.user_feature_weights = self.item_feature_weights = None
        if config.user_features:
            self.user_feature_weights = nn.Parameter(torch.zeros(domain.n_user_features, size))
        item_features = domain.item_features
        if item_features is None or not config.item_features:
            item_features = torch.zeros(domain.n_items, 0)
        self.register_buffer("item_features", item_features.clone())
        if config.item_features:
            self.item_feature_weights = nn.Parameter(
                torch.randn(item_features.shape[1], size) * config.init_std
            )

    def embed_users(self, users: Users) -> Embeddings:
        """Embed users from their features; without features all vectors are equal."""
        hidden = self.user_constant.expand(len(users), -1)
        weights = self.user_feature_weights
        if weights is not None and users.features is not None and len(weights):
            from_features = users.features @ (self.user_scale * weights)
            if self.training and self.feature_dropout:
                is_kept = torch.rand_like(from_features[:, :1]) >= self.feature_dropout
                from_features = from_features * is_kept
            hidden = hidden + from_features
        vector = torch.tanh(hidden)
        return Embeddings(vector, vector.new_zeros(len(users)))

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Embed items from their ids and features; `exclude_users` is ignored."""
        flat = items.flatten()
        hidden = self.items.index_select(0, flat) + self.item_constant
        if self.item_feature_weights is not None and len(self.item_feature_weights):
            hidden = hidden + self.item_features.index_select(0, flat) @ self.item_feature_weights
        vector = torch.tanh(hidden).view(*items.shape, -1)
        return Embeddings(vector, vector.new_zeros(items.shape))
