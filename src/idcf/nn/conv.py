"""Graph convolution with messages per rating level (GC-MC, as IDCF-GC uses it)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LevelConv(nn.Module):
    """FC({ReLU(W_m · mean of the neighbours at level m)}): [..., L, D] sums -> [..., D].

    `shared` uses one W for all levels; `mean=False` keeps the sum.
    """

    def __init__(self, levels: int, size: int, *, shared: bool = False, mean: bool = True) -> None:
        super().__init__()
        self.mean = mean
        bound = (6 / (2 * size)) ** 0.5
        weight = (torch.rand(1 if shared else levels, size, size) * 2 - 1) * bound
        self.weight = nn.Parameter(weight)
        self.combine = nn.Linear(levels * size, size)

    def forward(self, sums: Tensor, counts: Tensor) -> Tensor:
        read = sums / counts.clamp(min=1)[..., None] if self.mean else sums
        said = torch.einsum("...ld,lde->...le", read, self.weight.expand(sums.shape[-2], -1, -1))
        out: Tensor = self.combine(said.relu().flatten(-2))
        return out
