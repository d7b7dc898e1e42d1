"""The graph convolution of GC-MC: one message per rating level."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LevelConv(nn.Module):
    """FC({ReLU(W_m · mean of the neighbors at level m)}) over the L rating levels m.

    `shared`: one W for all levels. Without `average` the sum takes the place of the mean.
    """

    def __init__(
        self, n_levels: int, size: int, *, shared: bool = False, average: bool = True
    ) -> None:
        super().__init__()
        self.average = average
        bound = (6 / (2 * size)) ** 0.5
        weight = (torch.rand(1 if shared else n_levels, size, size) * 2 - 1) * bound
        self.weight = nn.Parameter(weight)
        self.combine = nn.Linear(n_levels * size, size)

    def forward(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Combine sums of the neighbors' vectors [..., L, D] and their numbers [..., L] into one
        message [..., D]."""
        inputs = sums / counts.clamp(min=1)[..., None] if self.average else sums
        weight = self.weight.expand(sums.shape[-2], -1, -1)
        messages = torch.einsum("...ld,lde->...le", inputs, weight)
        out: Tensor = self.combine(messages.relu().flatten(-2))
        return out
