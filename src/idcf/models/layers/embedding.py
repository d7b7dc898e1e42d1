"""A vector and a bias for every known row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from idcf.types import Embedded, History


class Table(nn.Module):
    """Rows are looked up by number. -1, the row never seen, must not come this far."""

    def __init__(self, rows: int, size: int, scale: float = 0.1) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(rows, size) * scale)
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, rows: Tensor) -> Embedded:
        if rows.ndim > 1:
            found: Embedded = self(rows.flatten())
            return found.view(rows.shape)
        # of all ways to look up, this one has by far the quickest gradient
        return Embedded(self.vector.index_select(0, rows), self.bias.index_select(0, rows))


def popularity(raters: History) -> Tensor:
    """log((n + 1) / mean): without taste, what separates an item's positives from random items
    best. Where an item bias begins there is a model no worse than a list of what is popular."""
    n = raters.lengths().to(torch.float32)
    return ((n + 1) / (n.mean() + 1)).log()
