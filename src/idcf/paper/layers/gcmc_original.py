"""Parts of the original GC-MC: a message per node and rating level, and logits of the levels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.layers.ragged import pool, spread
from idcf.types import History


class Messages(nn.Module):
    """W_r x_j for one-hot x_j: a row for every node and level, and their sums over neighbours.

    `stack` puts the levels side by side, each with its share of `size`. Otherwise they are added,
    and the weights are ordinal: W_r = T_1 + ... + T_r, so that near levels say near things.
    """

    def __init__(self, levels: int, nodes: int, size: int, *, stack: bool) -> None:
        super().__init__()
        width = max(size // levels, 1) if stack else size
        self.stack, self.size = stack, width * levels if stack else width
        bound = (6 / (nodes + width)) ** 0.5
        self.weight = nn.Parameter((torch.rand(levels, nodes, width) * 2 - 1) * bound)

    def table(self, scale: Tensor | None = None) -> Tensor:
        """W [L, n, ·], each node times its `scale` [n]."""
        weight = self.weight if self.stack else self.weight.cumsum(0)
        return weight if scale is None else weight * scale[:, None]

    def rows(self, split: History) -> History:
        """What is added up, as rows of the flat table. `split`: one row per (receiver, level)."""
        levels, nodes = self.weight.shape[:2]
        level = split.owner() % levels
        bags = split.offsets if self.stack else split.offsets[::levels]
        return History(level * nodes + split.items, split.values, bags)

    def gather(self, table: Tensor, rows: History, back: History | None = None) -> Tensor:
        """Σ over the neighbours: [R, size]. `back`: the other side, of a graph that stays."""
        flat = table.flatten(0, 1)
        found = pool(flat, rows) if back is None else spread(flat, rows, back)
        return found.view(-1, self.size)

    def of_edge(self, table: Tensor, level: Tensor, node: Tensor) -> Tensor:
        """What one neighbour adds to such a sum: [..., size]."""
        own = table[level, node]
        if not self.stack:
            return own
        place = F.one_hot(level, len(table)).to(own.dtype)
        return (place[..., None] * own[..., None, :]).flatten(-2)


class Bilinear(nn.Module):
    """z_uᵀ Q_r z_i for each level r, with few bases for all of them: Q_r = Σ_b a_rb P_b."""

    def __init__(self, levels: int, size: int, bases: int) -> None:
        super().__init__()
        start = torch.stack([nn.init.orthogonal_(torch.empty(size, size)) for _ in range(bases)])
        self.bases = nn.Parameter(start)
        self.mix = nn.Parameter((torch.rand(levels, bases) * 2 - 1) * (6 / (levels + bases)) ** 0.5)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """user [M, D], item [M, K, D] -> [M, K, L]."""
        turned = torch.einsum("md,bde->mbe", user, self.bases)
        return torch.einsum("mbe,mke->mkb", turned, item) @ self.mix.T

    def all(self, user: Tensor, item: Tensor) -> Tensor:
        """user [B, D], item [I, D] -> [B, I, L]."""
        turned = torch.einsum("md,bde->mbe", user, self.bases)
        return torch.einsum("mbe,ie->mib", turned, item) @ self.mix.T
