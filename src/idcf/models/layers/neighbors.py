"""A correction of the scores of a model by its errors on the nearest items of the history.

    e_i = w Σ_j K_ji (r_j - s_j) / (1 + Σ_j K_ji)

j are the items of the history, s_j is the score of j, and K_ji is the weight of item i among the
neighbors of j: 0 unless more users have both than chance explains. One score stays one dot product
and a sum over the pairs of a history item and a neighbor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from idcf.types import History


class Neighbors(NamedTuple):
    """The N nearest items of each item. An item with fewer has some of weight 0."""

    items: Tensor  # int64 [I, N]
    weights: Tensor  # float32 [I, N]: K, 0 or more

    @classmethod
    def none(cls, n_items: int) -> Neighbors:
        """No neighbors, with which nothing is corrected: N = 0."""
        return cls(torch.zeros(n_items, 0, dtype=torch.int64), torch.zeros(n_items, 0))

    def correction(self, history: History, residuals: Tensor, n_items: int) -> SparseCorrection:
        """Return e / w of all items that are a neighbor of an item of the history.

        `residuals` [N] are r - s of the entries.
        """
        cells = history.owner()[:, None] * n_items + self.items[history.items]
        weights = self.weights[history.items]
        sums = (weights * residuals[:, None]).flatten()
        cells, position = torch.unique(cells.flatten(), return_inverse=True)
        numerator, total = (
            sums.new_zeros(len(cells)).index_add(0, position, x) for x in (sums, weights.flatten())
        )
        return SparseCorrection(cells, numerator / (1 + total), n_items)


class SparseCorrection(NamedTuple):
    """Values for some pairs of B users and I items; those of the others are 0."""

    cells: Tensor  # int64 [S], ascending: user · I + item
    values: Tensor  # [S]
    n_items: int

    def add_to_catalog(self, scores: Tensor) -> Tensor:
        """Return the scores [B, I] of all items plus the values."""
        return scores.flatten().index_add(0, self.cells, self.values).view_as(scores)

    def of_pairs(self, items: Tensor, owner: Tensor) -> Tensor:
        """Return the values of items [M, K] or [M] for the users `owner` [M]."""
        if not len(self.cells):
            return torch.zeros(items.shape, device=items.device)
        cells = owner.view(-1, *[1] * (items.ndim - 1)) * self.n_items + items
        position = torch.searchsorted(self.cells, cells).clamp(max=len(self.cells) - 1)
        return self.values[position] * (self.cells[position] == cells)
