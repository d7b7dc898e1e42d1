"""Relational graph convolution (Schlichtkrull et al. 2018) over many small bipartite graphs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Edges(NamedTuple):
    """P bipartite graphs of R users and H items, with an edge level or none for each pair."""

    there: Tensor  # [P, R * L, H]: 1 where the user gave the item this level
    of_user: Tensor  # [P, R, 1]: 1 / edges, or 0
    of_item: Tensor  # [P, H, 1]

    @classmethod
    def of(cls, level: Tensor, levels: int, dtype: torch.dtype) -> Edges:
        """From level [P, R, H], where 0 is no edge."""
        each = torch.arange(1, levels + 1, dtype=torch.uint8, device=level.device)
        there = level[:, :, None, :] == each[:, None]
        some = level > 0
        shares = [some.sum(side).to(dtype)[..., None] for side in (2, 1)]
        shares = [n.clamp(min=1).reciprocal() * (n > 0) for n in shares]
        return cls(there.to(dtype).flatten(1, 2), *shares)

    def targets(self, levels: int) -> tuple[Edges, Edges]:
        """What reaches row 0, and what reaches column 0."""
        one = Edges(self.there[:, :levels], self.of_user[:, :1], self.of_item)
        return one, Edges(self.there[:, :, :1], self.of_user, self.of_item[:, :1])


class RGCN(nn.Module):
    """W_0 x + b + the mean over *all* neighbours of W_level x_neighbour, W_level = Σ_b a_level,b V_b.

    Over all, not over those of each level: then the first layer says how often each level occurs,
    which is most of what there is to know. (Dividing by level keeps only whether it occurs.)
    """

    def __init__(self, levels: int, size: int, out: int, bases: int) -> None:
        super().__init__()
        self.basis = nn.Parameter(_uniform(bases, size, out, bound=(3 / size) ** 0.5))
        self.coefficient = nn.Parameter(_uniform(levels, bases, bound=(3 / bases) ** 0.5))
        self.root = nn.Linear(size, out)

    def weight(self) -> Tensor:
        """[L, D, D']"""
        return torch.einsum("lb,bio->lio", self.coefficient, self.basis)

    def to_users(self, edges: Edges, users: Tensor, items: Tensor) -> Tensor:
        """users [P, R, D] after hearing items [P, H, D]: summed first, then transformed."""
        weight = self.weight()
        heard = torch.bmm(edges.there, items).view(*users.shape[:2], -1)
        out: Tensor = self.root(users) + (heard @ weight.flatten(0, 1)) * edges.of_user
        return out

    def to_items(self, edges: Edges, users: Tensor, items: Tensor) -> Tensor:
        """items after hearing users: transformed first, so that both ways read one matrix."""
        weight = self.weight()
        said = users @ weight.permute(1, 0, 2).flatten(1)
        heard = torch.bmm(edges.there.mT, said.view(len(said), -1, weight.shape[2]))
        out: Tensor = self.root(items) + heard * edges.of_item
        return out

    def roughness(self) -> Tensor:
        """Σ ‖W_l+1 - W_l‖²: neighbouring levels should speak alike (IGMC's ARR)."""
        return self.weight().diff(dim=0).square().sum()


def _uniform(*shape: int, bound: float) -> Tensor:
    return (torch.rand(shape) * 2 - 1) * bound
