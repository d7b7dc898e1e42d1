"""Graph convolutions: messages per rating level (GC-MC, as IDCF-GC uses it), and weighted by
importance (PinSAGE)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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


class ImportanceConv(nn.Module):
    """ẑ = z / ‖z‖, z = ReLU(W[h ‖ n] + w), n = Σ_v α_v ReLU(Q h_v + q) (PinSAGE)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.message = nn.Linear(size, size)
        self.combine = nn.Linear(2 * size, size)

    def say(self, vectors: Tensor) -> Tensor:
        """What each node tells whoever listens."""
        out: Tensor = self.message(vectors).relu()
        return out

    def forward(self, own: Tensor, heard: Tensor) -> Tensor:
        """`heard` is the weighted mean of what the neighbours say."""
        return F.normalize(self.combine(torch.cat([own, heard], -1)).relu(), dim=-1)
