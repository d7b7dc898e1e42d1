"""AGNN: an attribute graph neural network for users who are known by their features (Qian et al.).

    r̂ = nn([u ‖ i]) + u·i + b_u + b_i + μ

A node is W[BiInteraction(features) ‖ id embedding], with what gates let through of its neighbors:
nodes with similar features and, in training, similar ratings. The id embedding of a new user is
P(z), generated from the features by a variational autoencoder that learns to restore those of the
training users; b_u is 0. Scoring takes all candidates as neighbors, where training samples some.

A saved model holds the features of the training users, because new users are compared with them.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.models.base import TwoTower, UserData
from idcf.models.layers.embedding import EmbeddingTable
from idcf.models.layers.heads import Head
from idcf.paper.layers.attribute_graph import (
    AttributeVAE,
    BiInteraction,
    GatedNeighbors,
    NeighborCandidates,
    cosine_similarity,
    most_similar,
)
from idcf.paper.layers.feature_fields import (
    DotConcatHead,
    bounded,
    item_features_of,
    item_table_from_means,
    select_features,
    user_features_of,
)
from idcf.paper.model_options import AGNNConfig
from idcf.types import Batch, Domain, Embeddings, LossTerms, Users


class AGNN(TwoTower):
    """Nodes of users and items with their neighbors; ids of users are read in training only."""

    inductive: ClassVar[bool] = True
    user_data: ClassVar[UserData] = "rows"  # features of the key users
    reads_history: ClassVar[bool] = False
    reads_user_features: ClassVar[bool] = True
    source: ClassVar[str] = "features"
    item_features: Tensor  # [I, G]
    key_features: Tensor  # [K, F]: of the users with training rows
    key_rows: Tensor  # int64 [K]: their rows
    user_candidates: Tensor  # int64 [K, C]: positions among them, of each of them
    user_weights: Tensor  # [K, C]
    key_position: Tensor  # int64 [U]: position of a user among them
    item_candidates: Tensor  # int64 [I, C]
    item_weights: Tensor  # [I, C]

    def __init__(self, config: AGNNConfig, domain: Domain) -> None:
        super().__init__()
        domain = select_features(domain, config.user_features, config.item_features)
        self.config, self.mean, self.n_items = config, domain.mean, domain.n_items
        self.predicts_ratings = not domain.implicit
        size, std = config.embedding_size, config.init_std
        self._register_graph(domain)
        self.user_attributes = BiInteraction(self.key_features.shape[1], size, std)
        self.item_attributes = BiInteraction(self.item_features.shape[1], size, std)
        self.user_table = EmbeddingTable(len(self.key_rows), size, std)
        self.item_table = item_table_from_means(domain, size, std)
        self.user_node, self.item_node = (nn.Linear(2 * size, size) for _ in range(2))
        self.user_gates, self.item_gates = GatedNeighbors(size), GatedNeighbors(size)
        self.generator = AttributeVAE(size)
        self.head: Head = DotConcatHead(2 * size, config.hidden)

    def _register_graph(self, domain: Domain) -> None:
        """Store features and candidates: cosine of the features plus cosine of the ratings."""
        key_rows: Tensor = torch.unique(domain.raters.indices)
        features = domain.user_features
        features = torch.zeros(domain.n_users, 0) if features is None else features
        position = torch.zeros(domain.n_users, dtype=torch.int64)
        position[key_rows] = torch.arange(len(key_rows))
        ratings = torch.zeros(len(key_rows), domain.n_items)
        raters = domain.raters
        ratings[position[raters.indices], raters.owner()] = raters.values - domain.mean + 1e-3
        item_features, key_features = bounded(item_features_of(domain)), bounded(features[key_rows])
        n = self.config.n_candidates
        users, items = (
            most_similar((cosine_similarity(x, x) + cosine_similarity(r, r)).fill_diagonal_(-1), n)
            for x, r in ((key_features, ratings), (item_features, ratings.T))
        )
        for name, value in (
            ("item_features", item_features),
            ("key_features", key_features),
            ("key_rows", key_rows),
            ("key_position", position),
            ("user_candidates", users.rows),
            ("user_weights", users.weights),
            ("item_candidates", items.rows),
            ("item_weights", items.weights),
        ):
            self.register_buffer(name, value)

    def embed_users(self, users: Users) -> Embeddings:
        """Return the nodes of users; as new ones except, in training, for a random share."""
        features = user_features_of(users, self.user_attributes.vectors)
        key_nodes = self._key_nodes()
        attributes = self.user_attributes(bounded(features))
        ids = self.generator(attributes)
        bias = ids.new_zeros(len(users))
        if self.training:
            position = self.key_position[users.ids]
            is_trained = torch.rand_like(bias) >= self.config.generated_share
            trained = self.user_table(position)
            ids = torch.where(is_trained[:, None], trained.vector, ids)
            bias = torch.where(is_trained, trained.bias, bias)
            candidates = self.user_candidates[position], self.user_weights[position]
            neighbors = self._sample(NeighborCandidates(*candidates))
        else:
            similarity = cosine_similarity(bounded(features), self.key_features)
            neighbors = most_similar(similarity, self.config.n_candidates).rows
        node = self.user_node(torch.cat([attributes, ids], 1))
        return Embeddings(self._as_dot_and_deep(self.user_gates(node, key_nodes[neighbors])), bias)

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Return the nodes and biases of items; `exclude_users` is ignored."""
        flat = items.flatten()
        attributes = self.item_attributes(self.item_features)
        nodes = self.item_node(torch.cat([attributes, self.item_table.vector], 1))
        neighbors = self.item_candidates[flat]
        if self.training:
            neighbors = self._sample(NeighborCandidates(neighbors, self.item_weights[flat]))
        vector = self.item_gates(nodes[flat], nodes[neighbors])
        return Embeddings(self._as_dot_and_deep(vector), self.item_table.bias[flat]).view(
            items.shape
        )

    def extra_loss_terms(self, batch: Batch) -> LossTerms:
        """Return reconstruction and KL divergence of the autoencoder, per user of the batch."""
        position = self.key_position[batch.users.ids]
        attributes = self.user_attributes(self.key_features[position])
        recon, kl = self.generator.losses(attributes, self.user_table.vector[position])
        scale = self.config.vae_weight / batch.n_users
        return {"recon": recon.sum() * scale, "kl": kl.sum() * scale}

    def _key_nodes(self) -> Tensor:
        """Return the nodes of the training users, without neighbors: [K, D]."""
        attributes = self.user_attributes(self.key_features)
        nodes: Tensor = self.user_node(torch.cat([attributes, self.user_table.vector], 1))
        return nodes

    def _sample(self, candidates: NeighborCandidates) -> Tensor:
        """Return sampled neighbors [R, n], drawn with a probability that grows with similarity."""
        n = min(self.config.n_neighbors, candidates.rows.shape[1])
        return candidates.rows.gather(1, torch.multinomial(candidates.weights, n))

    def _as_dot_and_deep(self, node: Tensor) -> Tensor:
        """Return the node twice: for the dot product and for the network of the head."""
        return torch.cat([node, node], 1)
