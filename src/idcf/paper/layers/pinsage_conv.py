"""The graph convolution of PinSAGE: neighbor messages weighted by importance (Ying et al. 2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ImportanceConv(nn.Module):
    """ẑ = z / ‖z‖, z = ReLU(W[h ‖ n] + w), n = Σ_v α_v ReLU(Q h_v + q).

    Parameters
    ----------
    size
        Size of the node vectors h and ẑ.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.message = nn.Linear(size, size)
        self.combine = nn.Linear(2 * size, size)

    def compute_messages(self, vectors: Tensor) -> Tensor:
        """Return the message ReLU(Q h + q) of each node: [..., D]."""
        out: Tensor = self.message(vectors).relu()
        return out

    def forward(self, vectors: Tensor, neighbor_messages: Tensor) -> Tensor:
        """Return ẑ from node vectors h and the weighted sums n of their neighbors' messages."""
        return F.normalize(self.combine(torch.cat([vectors, neighbor_messages], -1)).relu(), dim=-1)
