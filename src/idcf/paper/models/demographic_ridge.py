"""A floor for users who are known by their features: item means and a ridge regression.

    r̂ = m_i + xᵀ(w + W z_i)

m_i is the shrunk mean of the item's ratings, x and z_i are the features of user and item. With
`crosses` the features of the user interact with those of the item; without, W = 0.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from idcf.models.base import TwoTower
from idcf.models.layers.heads import DotHead, Head
from idcf.paper.layers.feature_fields import (
    bounded,
    item_features_of,
    select_features,
    user_features_of,
)
from idcf.paper.model_options import DemographicRidgeConfig
from idcf.types import Domain, Embeddings, Users


class DemographicRidge(TwoTower):
    """m_i + xᵀ(w + W z_i); `idcf.paper.solvers.demographic_ridge` fits the weights."""

    inductive: ClassVar[bool] = True
    reads_history: ClassVar[bool] = False
    reads_user_features: ClassVar[bool] = True
    source: ClassVar[str] = "features"
    item_mean: Tensor  # [I]: m - μ
    weights: Tensor  # [F, G + 1]: [W ‖ w]
    item_features: Tensor  # [I, G]

    def __init__(self, config: DemographicRidgeConfig, domain: Domain) -> None:
        super().__init__()
        domain = select_features(domain, config.user_features, config.item_features)
        self.mean, self.n_items = domain.mean, domain.n_items
        self.predicts_ratings = not domain.implicit
        self.head: Head = DotHead()
        features = bounded(item_features_of(domain))
        self.register_buffer("item_features", features if config.crosses else features[:, :0])
        self.register_buffer("item_mean", torch.zeros(domain.n_items))
        width = self.item_features.shape[1] + 1
        self.register_buffer("weights", torch.zeros(domain.n_user_features, width))

    def embed_users(self, users: Users) -> Embeddings:
        """Return [W ‖ w]ᵀx; without features zeros, as of the average user."""
        features = user_features_of(users, self.weights)
        return Embeddings(bounded(features) @ self.weights, features.new_zeros(len(users)))

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Return [z ‖ 1] and m - μ; `exclude_users` is ignored."""
        features = self.item_features[items]
        return Embeddings(
            torch.cat([features, torch.ones_like(features[..., :0].sum(-1))[..., None]], -1),
            self.item_mean[items],
        )
