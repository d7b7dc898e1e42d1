"""Relational graph convolution (Schlichtkrull et al. 2018) over many small bipartite graphs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Edges(NamedTuple):
    """P bipartite graphs of R users and H items, with or without an edge between any two."""

    kinds: tuple[Tensor, ...]  # F times [P, R, H]: how much an edge is of this kind
    users: Tensor  # [P, R, 1]: how many edges each has
    items: Tensor  # [P, H, 1]

    @classmethod
    def of(cls, level: Tensor, *kinds: Tensor) -> Edges:
        """From level [P, R, H], where 0 is no edge."""
        some, dtype = level > 0, kinds[0].dtype
        n = (some.sum(side).to(dtype)[..., None] for side in (2, 1))
        return cls(kinds, *n)

    def to_users(self, items: Tensor, first: bool = False) -> Tensor:
        """The mean over each user's edges of the items [P, H, D], by kind: [P, R, F * D]."""
        n, kinds = self.users, self.kinds
        if first:
            n, kinds = n[:, :1], tuple(x[:, :1] for x in kinds)
        return torch.cat([torch.bmm(x, items) for x in kinds], -1) / n.clamp(min=1)

    def to_items(self, users: Tensor, first: bool = False) -> Tensor:
        n, kinds = self.items, self.kinds
        if first:
            n, kinds = n[:, :1], tuple(x[:, :, :1] for x in kinds)
        return torch.cat([torch.bmm(x.mT, users) for x in kinds], -1) / n.clamp(min=1)


class RGCN(nn.Module):
    """W_0 x + b + the mean over *all* neighbours of Σ_kind W_kind x_neighbour.

    Over all, not over those of each kind: then, where kinds are rating levels, the first layer says
    how often each of them occurs, which is most of what there is to know. (Dividing by those of
    each level keeps only whether it occurs.) With `bases`, W_kind = Σ_b a_kind,b V_b.
    """

    def __init__(self, kinds: int, size: int, out: int, bases: int = 0) -> None:
        super().__init__()
        bound = (3 / size) ** 0.5
        self.basis = nn.Parameter(_uniform(bases or kinds, size, out, bound=bound))
        share = _uniform(kinds, bases, bound=(3 / bases) ** 0.5) if bases else None
        self.register_parameter("share", None if share is None else nn.Parameter(share))
        self.root = nn.Linear(size, out)

    def weight(self) -> Tensor:
        """Of each kind: [F, D, D']."""
        if self.share is None:
            return self.basis
        return torch.einsum("kb,bio->kio", self.share, self.basis)

    def forward(
        self, edges: Edges, users: Tensor, items: Tensor, first: bool = False
    ) -> tuple[Tensor, Tensor]:
        """users [P, R, D] and items [P, H, D] once they have heard each other. With `first`, the
        first of both alone listen: [P, 1, D']."""
        weight = self.weight().flatten(0, 1)
        own = (users[:, :1], items[:, :1]) if first else (users, items)
        heard = edges.to_users(items, first), edges.to_items(users, first)
        one, two = (self.root(x) + y @ weight for x, y in zip(own, heard, strict=True))
        return one, two

    def roughness(self) -> Tensor:
        """Σ ‖W_l+1 - W_l‖²: neighbouring levels should speak alike (IGMC's ARR)."""
        return self.weight().diff(dim=0).square().sum()


def _uniform(*shape: int, bound: float) -> Tensor:
    return (torch.rand(shape) * 2 - 1) * bound
