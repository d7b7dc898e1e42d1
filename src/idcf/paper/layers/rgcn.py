"""Relational graph convolution (Schlichtkrull et al. 2018) over many small bipartite graphs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class SubgraphEdges(NamedTuple):
    """The edges of P bipartite graphs of R users and H items, in F kinds (relations)."""

    user_weights: Tensor  # [P, F, R, H]: weight of an edge in each kind
    item_weights: Tensor  # [P, F, H, R]: the transposed weights, in memory of their own
    user_degrees: Tensor  # [P, R, 1]: number of edges of each user
    item_degrees: Tensor  # [P, H, 1]: number of edges of each item

    @classmethod
    def from_levels(cls, level: Tensor, kind_weights: Tensor) -> SubgraphEdges:
        """Build from the rating levels [P, R, H], where 0 is no edge, and weights [P, F, R, H]."""
        is_edge = level > 0
        user_degrees, item_degrees = (
            is_edge.sum(dim).to(kind_weights.dtype)[..., None] for dim in (2, 1)
        )
        return cls(kind_weights, kind_weights.mT.contiguous(), user_degrees, item_degrees)

    def to_users(self, item_vectors: Tensor, target_only: bool = False) -> Tensor:
        """Return Σ over each user's edges of weight times item vector [P, H, D], divided by the
        user's degree, one kind after the other: [P, R, F * D], or [P, 1, F * D] of the first users.
        """
        return _edge_means(self.user_weights, self.user_degrees, item_vectors, target_only)

    def to_items(self, user_vectors: Tensor, target_only: bool = False) -> Tensor:
        """Return such means over each item's edges, of user vectors [P, R, D]: [P, H, F * D]."""
        return _edge_means(self.item_weights, self.item_degrees, user_vectors, target_only)


def _edge_means(weights: Tensor, degrees: Tensor, vectors: Tensor, target_only: bool) -> Tensor:
    """Return the sums of weights [P, F, R, H] times vectors [P, H, D], divided by the degrees:
    [P, R, F * D], or [P, 1, F * D] with `target_only`. One product serves all kinds."""
    if target_only:
        weights, degrees = weights[:, :, :1], degrees[:, :1]
    n_graphs, n_kinds, n_nodes, _ = weights.shape
    sums = torch.bmm(weights.flatten(1, 2), vectors)
    by_node = sums.view(n_graphs, n_kinds, n_nodes, -1).transpose(1, 2)
    return by_node.flatten(2) / degrees.clamp(min=1)


class RGCN(nn.Module):
    """W_0 x + b + mean over *all* neighbours of Σ_kind W_kind x_neighbour, from size D to D'.

    A mean over the neighbours of each kind would show whether a rating level occurs, but not how
    often. With `n_bases`, W_kind = Σ_b a_kind,b V_b.
    """

    def __init__(self, n_kinds: int, size: int, out: int, n_bases: int = 0) -> None:
        super().__init__()
        bound = (3 / size) ** 0.5
        self.basis = nn.Parameter(_uniform(n_bases or n_kinds, size, out, bound=bound))
        share = _uniform(n_kinds, n_bases, bound=(3 / n_bases) ** 0.5) if n_bases else None
        self.register_parameter("share", None if share is None else nn.Parameter(share))
        self.root = nn.Linear(size, out)

    def weight(self) -> Tensor:
        """Return the weights W_kind of all kinds: [F, D, D']."""
        if self.share is None:
            return self.basis
        return torch.einsum("kb,bio->kio", self.share, self.basis)

    def forward(
        self, edges: SubgraphEdges, users: Tensor, items: Tensor, target_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Convolve users [P, R, D] and items [P, H, D] of P graphs: [P, R, D'] and [P, H, D'], or
        with `target_only` only the first user and the first item of each graph."""
        weight = self.weight().flatten(0, 1)
        user_means = edges.to_users(items, target_only)
        item_means = edges.to_items(users, target_only)
        if target_only:
            users, items = users[:, :1], items[:, :1]
        return self.root(users) + user_means @ weight, self.root(items) + item_means @ weight

    def adjacent_rating_penalty(self) -> Tensor:
        """Return Σ_k ‖W_k+1 - W_k‖² over adjacent kinds (rating levels) k of this layer: the
        adjacent rating regularization of IGMC."""
        return self.weight().diff(dim=0).square().sum()


def _uniform(*shape: int, bound: float) -> Tensor:
    """Draw from the uniform distribution on [-bound, bound]."""
    return (torch.rand(shape) * 2 - 1) * bound
