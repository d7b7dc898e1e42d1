"""Relational graph convolution (Schlichtkrull et al. 2018) over many small bipartite graphs."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Edges(NamedTuple):
    """P bipartite graphs of R users and H items, with an edge of one of L levels or none."""

    kinds: tuple[Tensor, ...]  # each [P, R, H]: how much an edge is of this kind, 0 where none is
    users: Tensor  # [P, R, 1]: how many edges each has
    items: Tensor  # [P, H, 1]

    @classmethod
    def of(cls, level: Tensor, kinds: Tensor) -> Edges:
        """From level [P, R, H], where 0 is no edge, and what a level is of each kind: [F, L]."""
        some, flat = level > 0, level.flatten().int()
        table = F.pad(kinds, (1, 0))
        each = tuple(x.index_select(0, flat).view(level.shape) for x in table)
        n = (some.sum(side).to(kinds.dtype)[..., None] for side in (2, 1))
        return cls(each, *n)

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
    """W_0 x + b + the mean over *all* neighbours of W_level x_neighbour, W_level = Σ_b a_level,b V_b.

    Over all, not over those of each level: then the first layer says how often each level occurs,
    which is most of what there is to know. (Dividing by level keeps only whether it occurs.)
    The a are learnt, and an edge is of the kind of its level; or they are given [L, b], and it is
    of b kinds, by as much.
    """

    given: Tensor | None

    def __init__(self, levels: int, size: int, out: int, bases: int | Tensor) -> None:
        super().__init__()
        given = bases if isinstance(bases, Tensor) else None
        n = bases if isinstance(bases, int) else bases.shape[1]
        self.basis = nn.Parameter(_uniform(n, size, out, bound=(3 / size) ** 0.5))
        self.root = nn.Linear(size, out)
        self.register_buffer("given", given)
        if given is None:
            self.coefficient = nn.Parameter(_uniform(levels, n, bound=(3 / n) ** 0.5))

    def weight(self) -> Tensor:
        """Of each level: [L, D, D']"""
        a = self.coefficient if self.given is None else self.given
        return torch.einsum("lb,bio->lio", a, self.basis)

    def forward(
        self, edges: Edges, users: Tensor, items: Tensor, first: bool = False
    ) -> tuple[Tensor, Tensor]:
        """users [P, R, D] and items [P, H, D] once they have heard each other. With `first`, the
        first of both alone listen: [P, 1, D']."""
        weight = (self.weight() if self.given is None else self.basis).flatten(0, 1)
        own = (users[:, :1], items[:, :1]) if first else (users, items)
        heard = edges.to_users(items, first), edges.to_items(users, first)
        one, two = (self.root(x) + y @ weight for x, y in zip(own, heard, strict=True))
        return one, two

    def roughness(self) -> Tensor:
        """Σ ‖W_l+1 - W_l‖²: neighbouring levels should speak alike (IGMC's ARR)."""
        return self.weight().diff(dim=0).square().sum()


def powers(values: Tensor, degree: int) -> Tensor:
    """1, z, z², ... of the standardised levels: [L, degree + 1]."""
    z = (values - values.mean()) / values.std(correction=0).clamp(min=1e-6)
    return torch.stack([z**n for n in range(degree + 1)], -1)


def _uniform(*shape: int, bound: float) -> Tensor:
    return (torch.rand(shape) * 2 - 1) * bound
