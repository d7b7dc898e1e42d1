"""NGCF: user and item embeddings propagated along the interaction graph (Wang et al. 2019)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import EmbeddingTableModel, UserData
from idcf.models.layers.cache import TensorCache
from idcf.models.layers.embedding import EmbeddingTable, log_relative_popularity
from idcf.models.layers.ragged import sum_neighbors
from idcf.paper.model_options import NGCFConfig
from idcf.types import Domain, Ragged, RaggedRows, Users

_SLOPE = 0.2  # of the leaky ReLU


class BipartiteGraph(nn.Module):
    """The training interactions as an undirected graph of users and items.

    Adjacency lists of U + I nodes, users first; every edge has an entry on each of its sides.
    """

    neighbors: Tensor  # int64 [2E]: the adjacency lists of all nodes, one after the other
    offsets: Tensor  # int64 [U + I + 1]: where the list of each node begins
    edges: Tensor  # int64 [E]: user * I + item, ascending; its index is the user-side entry
    item_side_positions: Tensor  # int64 [E]: the item-side entry of each of `edges`

    def __init__(self, raters: RaggedRows, n_users: int) -> None:
        super().__init__()
        item, n_items = raters.owner(), len(raters.offsets) - 1
        edges, order = torch.sort(raters.indices * n_items + item)
        user_degrees = torch.bincount(raters.indices, minlength=n_users)
        degrees = torch.cat([user_degrees, raters.lengths()])
        self.n_users, self.n_items = n_users, n_items
        self.register_buffer("neighbors", torch.cat([item[order] + n_users, raters.indices]))
        self.register_buffer("offsets", F.pad(degrees.cumsum(0), (1, 0)))
        self.register_buffer("edges", edges)
        self.register_buffer("item_side_positions", order + len(order))

    def edge_weights_without(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the weights of all entries [2E]: 0 for the edges of pairs of users [M] and items
        [M, K], else 1. Pairs that are no edge, or occur twice, are allowed."""
        weights = torch.ones_like(self.neighbors, dtype=torch.float32)
        if not len(self.edges):
            return weights
        pairs = (users[:, None] * self.n_items + items).flatten()
        user_side = torch.searchsorted(self.edges, pairs).clamp(max=len(self.edges) - 1)
        is_other_edge = (self.edges[user_side] != pairs).float()
        # a pair that is no edge points at some other edge, so the minimum over pairs decides
        for positions in (user_side, self.item_side_positions[user_side]):
            weights = weights.scatter_reduce(0, positions, is_other_edge, "amin")
        return weights

    def sum_neighbors(self, values: Tensor, edge_weights: Tensor | None = None) -> Tensor:
        """Return Σ over the neighbours of each node, weighted: [U + I, D] -> [U + I, D]."""
        graph = Ragged(self.neighbors, None, self.offsets)  # undirected: its own transpose
        return sum_neighbors(values, graph, graph, edge_weights, edge_weights)

    def degrees(self, edge_weights: Tensor | None = None) -> Tensor:
        """Return the (weighted) number of neighbours of each node: [U + I, 1]."""
        if edge_weights is None:
            return self.offsets.diff()[:, None].to(torch.float32)
        return self.sum_neighbors(
            edge_weights.new_ones(self.n_users + self.n_items, 1), edge_weights
        )


class NGCF(EmbeddingTableModel):
    """E⁽ᵏ⁺¹⁾ = LReLU(L E W₁ + b₁) + LReLU((L E ⊙ E) W₂ + b₂) with L = D⁻¹(A + I), as in the
    authors' code; the score is the dot product of [E⁰ ‖ E¹/‖·‖ ‖ …].

    In training the pairs of a batch are removed from the graph of that step and from its degrees.
    """

    reads_history: ClassVar[bool] = False
    user_data: ClassVar[UserData] = "rows"  # the training graph

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
