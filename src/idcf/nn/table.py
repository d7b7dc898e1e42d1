"""A vector and a bias for every known row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from idcf.types import Embedded


class Table(nn.Module):
    """Rows are looked up by number; -1, the row never seen, is zero."""

    def __init__(self, rows: int, size: int, scale: float = 0.1) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(rows, size) * scale)
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, rows: Tensor) -> Embedded:
        if bool((rows < 0).any()):
            known = rows >= 0
            rows = rows.clamp(min=0)
            return Embedded(self.vector[rows] * known[..., None], self.bias[rows] * known)
        return Embedded(nn.functional.embedding(rows, self.vector), self.bias[rows])
