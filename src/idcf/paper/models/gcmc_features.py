"""GC-MC with features (van den Berg et al. 2017): an isolated user is known by features alone.

    z_u = W h_u + W₂ ReLU(W₁ x_u + b),  r̂ = Σ_r r softmax_r(z_uᵀ Q_r z_i)

h sums messages over the ratings of a node, as in `gcmc_softmax`; the features x pass through layers
of their own after the convolution. The user's messages come from the history, so that a new user
needs no place in the graph.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import Model, UserData
from idcf.models.layers.cache import TensorCache
from idcf.models.layers.edge_index import build_edge_index, edge_index_problem, find_edges
from idcf.models.layers.ragged import split_by_level, transpose
from idcf.paper.layers.feature_fields import (
    bounded,
    item_features_of,
    select_features,
    user_features_of,
)
from idcf.paper.layers.level_messages import BilinearDecoder, LevelMessages
from idcf.paper.layers.rating_levels import expected_rating, level_cross_entropy
from idcf.paper.model_options import GCMCFeaturesConfig
from idcf.types import Batch, Domain, LossTerms, Ragged, Users


class FeatureLayer(nn.Module):
    """W₂ ReLU(W₁ x + b) of features x [R, F]."""

    def __init__(self, n_features: int, hidden: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_features, hidden) * 0.1)
        self.bias = nn.Parameter(torch.randn(hidden) * 0.1)
        self.out = nn.Linear(hidden, size, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return the part of z [R, size] that comes from the features."""
        out: Tensor = self.out((bounded(features) @ self.weight + self.bias).relu())
        return out


class GCMCFeatures(Model):
    """Messages over ratings and layers of features, with one bilinear decoder."""

    inductive: ClassVar[bool] = True
    user_data: ClassVar[UserData] = "rows"  # the training graph
    reads_user_features: ClassVar[bool] = True
    source: ClassVar[str] = "features"
    levels: Tensor  # [L]
    item_features: Tensor  # [I, G]
    raters: Tensor  # this and the next three are the fields of `EdgeIndex`
    starts: Tensor
    edges: Tensor
    edge_level: Tensor
    user_count: Tensor  # [U]: number of ratings of each user
    item_count: Tensor  # [I]: number of ratings of each item

    def __init__(self, config: GCMCFeaturesConfig, domain: Domain) -> None:
        super().__init__()
        domain = select_features(domain, config.user_features, config.item_features)
        self.config, self.n_items, self.n_users = config, domain.n_items, domain.n_users
        n_levels, size = len(domain.levels), config.embedding_size
        self.from_items = LevelMessages(n_levels, domain.n_items, config.hidden, stack=False)
        self.from_users = LevelMessages(n_levels, domain.n_users, config.hidden, stack=False)
        self.dense = nn.Linear(config.hidden, size, bias=False)
        self.register_buffer("item_features", item_features_of(domain))
        self.user_layer = FeatureLayer(domain.n_user_features, config.feature_size, size)
        self.item_layer = FeatureLayer(self.item_features.shape[1], config.feature_size, size)
        self.head = BilinearDecoder(n_levels, size, config.bases)
        levels = torch.tensor(domain.levels)
        self.register_buffer("levels", levels)
        for name, value in build_edge_index(domain, levels)._asdict().items():
            self.register_buffer(name, value)
        user_count = torch.bincount(domain.raters.indices, minlength=domain.n_users)
        self.register_buffer("user_count", user_count.float())
        self.register_buffer("item_count", domain.raters.lengths().float())
        self._graph_cache: TensorCache[tuple[Ragged[None], Ragged[None]]] = TensorCache()

    def index_problem(self) -> str:
        """Return what is wrong with the training graph; "" if they can be used."""
        return edge_index_problem(self, self.n_items, self.n_users, len(self.levels))

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the expected rating of items [M, K] for users owner [M]: [M, K]."""
        return expected_rating(self.level_logits(users, items, owner), self.levels)

    def score_catalog(self, users: Users) -> Tensor:
        """Return the expected rating of every item under the softmax over levels: [B, I]."""
        logits = self.head.score_all_pairs(self._embed_users(users), self._embed_items())
        return expected_rating(logits, self.levels)

    def loss_terms(self, batch: Batch) -> LossTerms:
        """Return the cross-entropy of the rating levels."""
        return level_cross_entropy(self.level_logits, self.levels, batch)

    def level_logits(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the logits of the levels for items [M, K] of users owner [M]: [M, K, L]."""
        user = self._embed_users(users).index_select(0, owner)
        if self.training:
            item = self._embed_items(items, users.ids.index_select(0, owner))
        else:
            item = self._embed_items()[items]
        out: Tensor = self.head(user, item)
        return out

    def _embed_users(self, users: Users) -> Tensor:
        """Return z of B users from their histories and features: [B, D]."""
        table = self.from_items.message_table(self._message_scale(self.item_count))
        rows = self.from_items.message_rows(split_by_level(users.history.as_ragged(), self.levels))
        z = self._embed_messages(self.from_items.gather(table, rows), users.history.lengths())
        if self.training and self.config.history_dropout:
            z = z * (torch.rand_like(z[:, :1]) >= self.config.history_dropout)
        features = user_features_of(users, self.user_layer.weight)
        out: Tensor = z + self.user_layer(features)
        return out

    def _embed_items(
        self, items: Tensor | None = None, exclude_users: Tensor | None = None
    ) -> Tensor:
        """Return z of every item [I, D]; or of items [M, K] as if user exclude_users[m] had not
        rated them [M, K, D]: the user's message, as it was sent, is subtracted from the sum."""
        table = self.from_users.message_table(self._message_scale(self.user_count))
        rows, reverse = self._graph_cache.get(self.raters, self._both_directions)
        messages, counts = self.from_users.gather(table, rows, reverse), self.item_count
        from_features = self.item_layer(self.item_features)
        if items is not None and exclude_users is not None:
            edge = find_edges(self.edges, self.n_users, exclude_users, items)
            level = self.edge_level[edge.position]
            target_message = self.from_users.edge_message(table, level, edge.user)
            messages = messages[items] - target_message * edge.exists[..., None]
            counts = counts[items] - edge.exists.float()
            from_features = from_features[items]
        out: Tensor = self._embed_messages(messages, counts) + from_features
        return out

    def _both_directions(self) -> tuple[Ragged[None], Ragged[None]]:
        """Return the training graph as rows of each item, and its transpose."""
        rows = self.from_users.message_rows(Ragged(self.raters, None, self.starts))
        return rows, transpose(rows, self.n_users * len(self.levels)).rows

    def _embed_messages(self, messages: Tensor, counts: Tensor) -> Tensor:
        """Return W h of nodes with these sums of messages and numbers of neighbors."""
        hidden = (messages / counts.clamp(min=1).sqrt()[..., None]).relu()
        out: Tensor = self.dense(F.dropout(hidden, self.config.dropout, self.training))
        return out

    def _message_scale(self, counts: Tensor) -> Tensor:
        """Return the factor of each node's messages, 1/√n; node dropout drops some nodes' whole."""
        scale = counts.clamp(min=1).rsqrt()
        return F.dropout(scale, self.config.node_dropout, self.training)
