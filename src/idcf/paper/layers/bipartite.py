"""Who had what, as one undirected graph of users and items."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.layers.ragged import spread
from idcf.types import History


class Bipartite(nn.Module):
    """U + I nodes, users first. An edge stands in the row of its user and in that of its item."""

    neighbours: Tensor  # int64 [2E]
    offsets: Tensor  # int64 [U + I + 1]
    edges: Tensor  # int64 [E] user * I + item, ascending: where an edge stands on the user's side
    mirror: Tensor  # int64 [E] where it stands on the item's

    def __init__(self, raters: History, n_users: int) -> None:
        super().__init__()
        item, n_items = raters.owner(), len(raters.offsets) - 1
        edges, order = torch.sort(raters.items * n_items + item)
        counts = torch.bincount(raters.items, minlength=n_users)
        lengths = torch.cat([counts, raters.lengths()])
        self.n_users, self.n_items = n_users, n_items
        self.register_buffer("neighbours", torch.cat([item[order] + n_users, raters.items]))
        self.register_buffer("offsets", F.pad(lengths.cumsum(0), (1, 0)))
        self.register_buffer("edges", edges)
        self.register_buffer("mirror", order + len(order))

    def without(self, users: Tensor, items: Tensor) -> Tensor:
        """Weights of all entries: 0 for the edges among the pairs [M] and [M, K], 1 for others."""
        keep = torch.ones_like(self.neighbours, dtype=torch.float32)
        if not len(self.edges):
            return keep
        wanted = (users[:, None] * self.n_items + items).flatten()
        at = torch.searchsorted(self.edges, wanted).clamp(max=len(self.edges) - 1)
        stays = (self.edges[at] != wanted).float()
        for place in (at, self.mirror[at]):  # several pairs may look at one place: the least wins
            keep = keep.scatter_reduce(0, place, stays, "amin")
        return keep

    def spread(self, values: Tensor, keep: Tensor | None = None) -> Tensor:
        """Σ over the neighbours of each node: [U + I, D] -> [U + I, D]."""
        graph = History(self.neighbours, values, self.offsets)  # undirected: its own other side
        return spread(values, graph, graph, keep, keep)

    def degree(self, keep: Tensor | None = None) -> Tensor:
        """[U + I, 1]."""
        if keep is None:
            return self.offsets.diff()[:, None].to(torch.float32)
        return self.spread(keep.new_ones(self.n_users + self.n_items, 1), keep)
