"""The training interactions as one undirected graph whose nodes are users and items."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.layers.ragged import sum_neighbors
from idcf.types import Ragged, RaggedRows


class BipartiteGraph(nn.Module):
    """Adjacency lists of U + I nodes, users first; every edge has an entry on each of its sides.

    It is built from `raters`: for each item, the users who interacted with it.
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
