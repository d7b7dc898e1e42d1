"""NGCF: user and item embeddings propagated along the interaction graph (Wang et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import EmbeddingTableModel
from idcf.models.layers.cache import TensorCache
from idcf.models.layers.embedding import EmbeddingTable, log_relative_popularity
from idcf.paper.layers.bipartite import BipartiteGraph
from idcf.types import Domain, Users

_SLOPE = 0.2  # of the leaky ReLU


@dataclass(frozen=True, kw_only=True)
class NGCFConfig:
    """Options of NGCF."""

    embedding_size: int = 64  # D
    layers: int = 3  # propagation layers
    dropout: float = 0.1  # of messages
    init_std: float = 0.1  # of the initial embeddings
    item_bias: bool = True  # learn an item bias, which starts at the item's log popularity
    hide_target: bool = True  # in training, score a pair on the graph without its edge


class NGCF(EmbeddingTableModel):
    """E⁽ᵏ⁺¹⁾ = LReLU(L E W₁ + b₁) + LReLU((L E ⊙ E) W₂ + b₂) with L = D⁻¹(A + I), as in the
    authors' code; the score is the dot product of [E⁰ ‖ E¹/‖·‖ ‖ …].

    In training the pairs of a batch are removed from the graph of that step and from its degrees.
    """

    reads_history: ClassVar[bool] = False

    def __init__(self, config: NGCFConfig, domain: Domain) -> None:
        super().__init__()
        size = config.embedding_size
        self.n_items, self.predicts_ratings = domain.n_items, False
        self.dropout, self.hides_target = config.dropout, config.hide_target
        self.user_table = EmbeddingTable(domain.n_users, size, config.init_std)
        self.item_table = EmbeddingTable(domain.n_items, size, config.init_std)
        self.user_table.bias.requires_grad_(False)  # does not change the order of items
        self.item_table.bias.requires_grad_(config.item_bias)
        if config.item_bias:
            self.item_table.bias.data = log_relative_popularity(domain.raters)
        self.sums = nn.ModuleList(nn.Linear(size, size) for _ in range(config.layers))
        self.products = nn.ModuleList(nn.Linear(size, size) for _ in range(config.layers))
        self.graph = BipartiteGraph(domain.raters, domain.n_users)
        self._node_cache: TensorCache[Tensor] = TensorCache()

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Score items [M, K] for users owner [M] of B: [M, K]."""
        self.require_known_users(users)
        user_ids = users.ids[owner]
        edge_weights = None
        if self.training and self.hides_target:
            edge_weights = self.graph.edge_weights_without(user_ids, items)
        nodes = self._nodes(edge_weights)
        item_vectors = nodes.index_select(0, items.flatten() + self.graph.n_users)
        user_vectors = nodes.index_select(0, user_ids)
        score = torch.einsum("md,mkd->mk", user_vectors, item_vectors.view(*items.shape, -1))
        return score + self.item_table.bias[items]

    def score_catalog(self, users: Users) -> Tensor:
        """Score the whole catalogue: [B, I]."""
        self.require_known_users(users)
        nodes = self._nodes()
        return nodes[users.ids] @ nodes[self.graph.n_users :].T + self.item_table.bias

    def _nodes(self, edge_weights: Tensor | None = None) -> Tensor:
        """Return the vectors of all nodes, cached outside training: [U + I, (layers + 1) · D]."""
        if self.training:
            self._node_cache.clear()
            return self._propagate(edge_weights)
        return self._node_cache.get(self.user_table.vector, lambda: self._propagate(None))

    def _propagate(self, edge_weights: Tensor | None) -> Tensor:
        """Compute the vectors of all nodes, layer by layer."""
        x = torch.cat([self.user_table.vector, self.item_table.vector])
        degrees = self.graph.degrees(edge_weights)
        parts = [x]
        for sum_layer, product_layer in zip(self.sums, self.products, strict=True):
            mean = (self.graph.sum_neighbors(x, edge_weights) + x) / (degrees + 1)
            x = F.leaky_relu(sum_layer(mean), _SLOPE) + F.leaky_relu(
                product_layer(mean * x), _SLOPE
            )
            x = F.dropout(x, self.dropout, self.training)
            parts.append(F.normalize(x, dim=-1))
        return torch.cat(parts, -1)
