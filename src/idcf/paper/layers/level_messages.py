"""The parts of GC-MC that know rating levels: messages per level and the bilinear decoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.layers.ragged import sum_neighbors, sum_pool
from idcf.types import Ragged


class LevelMessages(nn.Module):
    """W_r x_j for one-hot x_j: a message for every node and level, summed over neighbours.

    `stack`: levels are concatenated, each with its part of `size`. Otherwise they are added, and
    the weights are ordinal, W_r = T_1 + ... + T_r, so that adjacent levels share weights.
    """

    def __init__(self, n_levels: int, n_nodes: int, size: int, *, stack: bool) -> None:
        super().__init__()
        width = max(size // n_levels, 1) if stack else size
        self.stack, self.size = stack, width * n_levels if stack else width
        bound = (6 / (n_nodes + width)) ** 0.5
        self.weight = nn.Parameter((torch.rand(n_levels, n_nodes, width) * 2 - 1) * bound)

    def message_table(self, scale: Tensor | None = None) -> Tensor:
        """Return W [L, n_nodes, ·], each node multiplied by its `scale` [n_nodes]."""
        weight = self.weight if self.stack else self.weight.cumsum(0)
        return weight if scale is None else weight * scale[:, None]

    def message_rows(self, by_level: Ragged[None]) -> Ragged[None]:
        """Return the rows of the flattened message table that each sum adds up. `by_level` has one
        row per (receiver, level), as `split_by_level` makes it."""
        n_levels, n_nodes = self.weight.shape[:2]
        level = by_level.owner() % n_levels
        offsets = by_level.offsets if self.stack else by_level.offsets[::n_levels]
        return Ragged(level * n_nodes + by_level.indices, None, offsets)

    def gather(
        self, table: Tensor, rows: Ragged[None], reverse: Ragged[None] | None = None
    ) -> Tensor:
        """Return Σ over the neighbours of each of R receivers: [R, size], from `message_table()`
        and `message_rows(...)`. The transpose of the rows, where given, makes the gradient
        faster."""
        flat = table.flatten(0, 1)
        sums = sum_pool(flat, rows) if reverse is None else sum_neighbors(flat, rows, reverse)
        return sums.view(-1, self.size)

    def edge_message(self, table: Tensor, level: Tensor, node: Tensor) -> Tensor:
        """Return the term that an edge from `node` at `level` adds to a sum: [..., size]."""
        message = table[level, node]
        if not self.stack:
            return message
        level_mask = F.one_hot(level, len(table)).to(message.dtype)
        return (level_mask[..., None] * message[..., None, :]).flatten(-2)


class BilinearDecoder(nn.Module):
    """Logits z_uᵀ Q_r z_i of the levels r, with bases shared by all levels: Q_r = Σ_b a_rb P_b."""

    def __init__(self, n_levels: int, size: int, n_bases: int) -> None:
        super().__init__()
        bases = torch.stack([nn.init.orthogonal_(torch.empty(size, size)) for _ in range(n_bases)])
        self.bases = nn.Parameter(bases)
        self.mix = nn.Parameter(
            (torch.rand(n_levels, n_bases) * 2 - 1) * (6 / (n_levels + n_bases)) ** 0.5
        )

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Score K items per row: user [M, D], item [M, K, D] -> logits [M, K, L]."""
        projected = torch.einsum("md,bde->mbe", user, self.bases)
        return torch.einsum("mbe,mke->mkb", projected, item) @ self.mix.T

    def score_all_pairs(self, user: Tensor, item: Tensor) -> Tensor:
        """Score every item for every user: user [B, D], item [I, D] -> logits [B, I, L]."""
        projected = torch.einsum("md,bde->mbe", user, self.bases)
        return torch.einsum("mbe,ie->mib", projected, item) @ self.mix.T
