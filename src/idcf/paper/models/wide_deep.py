"""Wide & Deep (Cheng et al. 2016) for users who are known by their features alone.

    r̂ = μ + b_i + xᵀ(w + C z_i) + nn([y_u ‖ z̃_i ‖ q_i])

Wide: the features x of the user and their crosses with the features z of the item, such as gender ×
genre. Deep: the embeddings y and z̃ of the fields of both, and of the item's id. There is no bias of
a user.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.models.base import TwoTower
from idcf.models.layers.heads import Head
from idcf.paper.layers.feature_fields import (
    DotConcatHead,
    FieldEmbeddings,
    bounded,
    item_features_of,
    item_table_from_means,
    select_features,
    user_features_of,
)
from idcf.paper.model_options import WideDeepConfig
from idcf.types import Domain, Embeddings, Users


class WideDeep(TwoTower):
    """Linear effects and crosses of features, plus a network over their embeddings."""

    inductive: ClassVar[bool] = True
    reads_history: ClassVar[bool] = False
    reads_user_features: ClassVar[bool] = True
    has_item_similarities: ClassVar[bool] = True
    source: ClassVar[str] = "features"
    item_features: Tensor  # [I, G]

    def __init__(self, config: WideDeepConfig, domain: Domain) -> None:
        super().__init__()
        domain = select_features(domain, config.user_features, config.item_features)
        self.mean, self.n_items = domain.mean, domain.n_items
        self.predicts_ratings = not domain.implicit
        size, std, n_features = config.embedding_size, config.init_std, domain.n_user_features
        self.register_buffer("item_features", item_features_of(domain))
        n_item_features = self.item_features.shape[1]
        widths = domain.user_feature_widths, domain.item_feature_widths
        self.user_fields = FieldEmbeddings(n_features, widths[0], size, std)
        self.item_fields = FieldEmbeddings(n_item_features, widths[1], size, std)
        self.item_table = item_table_from_means(domain, size, std)
        self.crosses = nn.Parameter(torch.zeros(n_item_features, n_features))  # Cᵀ
        self.wide = nn.Parameter(torch.zeros(n_features))  # w
        deep_size = self.user_fields.output_size + self.item_fields.output_size + size
        self.head: Head = DotConcatHead(deep_size, config.hidden)

    def embed_users(self, users: Users) -> Embeddings:
        """Return [x ‖ y] and no bias; without features both are 0, as of the average user."""
        features = user_features_of(users, self.wide)
        vector = torch.cat([bounded(features), self.user_fields(features)], 1)
        return Embeddings(vector, vector.new_zeros(len(users)))

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Return [w + C z ‖ z̃ ‖ q] and the bias; `exclude_users` is ignored."""
        flat = items.flatten()
        features = self.item_features.index_select(0, flat)
        wide = self.wide + bounded(features) @ self.crosses
        item = self.item_table(flat)
        vector = torch.cat([wide, self.item_fields(features), item.vector], 1)
        return Embeddings(vector, item.bias).view(items.shape)
