"""Exchangeable matrix layers (Hartford et al. 2018) over the observed entries of a matrix.

They are equivariant to any renumbering of rows and columns. Entries are stored end to end; no dense
matrix is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from idcf.models.layers.ragged import sum_pool
from idcf.types import Ragged


@dataclass(frozen=True, eq=False)
class MatrixAxis:
    """One axis of a sparse matrix (its R rows or its R columns) and the entries of each group."""

    group: Tensor  # int64 [N]: the row, or the column, of each entry
    entry_order: Tensor  # int64 [N]: the entries, group by group
    offsets: Tensor  # int64 [R + 1]: where each group begins in `entry_order`
    visible: Tensor  # float [N]: 0 for a hidden entry, else 1
    shrinkage: float = 0.0  # pseudo-count of average entries that is added to every group

    @cached_property
    def n_visible(self) -> Tensor:
        """Number of visible entries of each group: float [R]."""
        groups = Ragged(self.entry_order, None, self.offsets)
        return sum_pool(self.visible[:, None], groups)[:, 0]

    def mean(self, x: Tensor, overall_mean: Tensor) -> Tensor:
        """Return the mean of the visible entries x [N, C] of each group, shrunk to `overall_mean`
        [C]: [R, C]."""
        total: Tensor = _SegmentSum.apply(x, self)  # type: ignore[no-untyped-call]
        return self._shrunken_mean(total, overall_mean)

    def mean_gathered(self, table: Tensor, index: Tensor, overall_mean: Tensor) -> Tensor:
        """Return `mean(table[index], overall_mean)` without materializing table[index] [N, C]."""
        bags = Ragged(index[self.entry_order], None, self.offsets)
        return self._shrunken_mean(
            sum_pool(table, bags, self.visible[self.entry_order]), overall_mean
        )

    def overall_mean(self, x: Tensor) -> Tensor:
        """Return the mean of all visible entries of x [N, C]: [C]."""
        return self.visible @ x / self.visible.sum().clamp(min=1)

    def shares(self) -> Tensor:
        """Return the share of each group in the visible entries: [R]."""
        return self.n_visible / self.n_visible.sum().clamp(min=1)

    def std_of_means(self, means: Tensor, overall_mean: Tensor) -> Tensor:
        """Return the standard deviation of group means [R, C], weighted by group size: [C]."""
        return (self.shares() @ (means - overall_mean).square() + 1e-6).sqrt()

    def _shrunken_mean(self, total: Tensor, overall_mean: Tensor) -> Tensor:
        """Return the means [R, C] of groups with sums `total` [R, C], shrunk to `overall_mean`."""
        pseudo_count = max(self.shrinkage, 1e-6)
        return (total + pseudo_count * overall_mean) / (self.n_visible + pseudo_count)[:, None]


class _SegmentSum(torch.autograd.Function):
    """`sum_pool` for entries that each lie in one group, so that the gradient is a gather; the
    gradient of `sum_pool` has to sort."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: MatrixAxis) -> Tensor:
        """Return the sum of the visible entries x [N, C] of each group: [R, C]."""
        ctx.axis = axis
        groups = Ragged(axis.entry_order, None, axis.offsets)
        return sum_pool(x, groups, axis.visible[axis.entry_order])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the entries [N, C] from that of the sums [R, C]."""
        return grad.index_select(0, ctx.axis.group) * ctx.axis.visible[:, None], None


class ColumnStatistics(NamedTuple):
    """The statistics of a whole matrix that one layer needs to encode further rows."""

    column_terms: Tensor  # [I, C']: mean_i' X_i'j θ₁ + mean X θ₃ + b of each column j
    overall_mean: Tensor  # [C]: mean of all entries
    row_mean_std: Tensor  # [C]: standard deviation of the row means; 1 without standardization
    mean_column_term: Tensor  # [C']: mean of `column_terms` over all entries


class ExchangeableLayer(nn.Module):
    """Y_ij = X_ij θ₀ + mean_i' X_i'j θ₁ + mean_j' X_ij' θ₂ + mean X θ₃ + b, from C to C' channels.

    `standardize` standardizes the means of rows and columns before the linear maps; they differ by
    little, and by less in every further layer.
    """

    def __init__(self, size: int, out: int, *, standardize: bool = False) -> None:
        super().__init__()
        self.standardize = standardize
        self.entry_linear = nn.Linear(size, out, bias=False)
        self.column_linear = nn.Linear(size, out, bias=False)
        self.row_linear = nn.Linear(size, out, bias=False)
        self.overall_linear = nn.Linear(size, out)

    def column_statistics(
        self, x: Tensor, rows: MatrixAxis, columns: MatrixAxis
    ) -> ColumnStatistics:
        """Compute the statistics of a whole matrix from its entries x [N, C]."""
        overall_mean = rows.overall_mean(x)
        column_means = columns.mean(x, overall_mean)
        row_mean_std = torch.ones_like(overall_mean)
        if self.standardize:
            row_mean_std = rows.std_of_means(rows.mean(x, overall_mean), overall_mean)
            column_mean_std = columns.std_of_means(column_means, overall_mean)
            column_means = (column_means - overall_mean) / column_mean_std
        terms = self.column_linear(column_means) + self.overall_linear(overall_mean)
        return ColumnStatistics(terms, overall_mean, row_mean_std, columns.shares() @ terms)

    def row_terms(self, means: Tensor, statistics: ColumnStatistics) -> Tensor:
        """Return mean_j' X_ij' θ₂ for rows with these means [B, C]: [B, C']."""
        if self.standardize:
            means = (means - statistics.overall_mean) / statistics.row_mean_std
        out: Tensor = self.row_linear(means)
        return out

    def forward(
        self, x: Tensor, rows: MatrixAxis, column_index: Tensor, statistics: ColumnStatistics
    ) -> Tensor:
        """Return Y [N, C'] of the entries x [N, C] of some rows, in the columns `column_index`
        [N]."""
        row_means = rows.mean(x, statistics.overall_mean)
        row_terms = self.row_terms(row_means, statistics).index_select(0, rows.group)
        column_terms = statistics.column_terms.index_select(0, column_index)
        out: Tensor = self.entry_linear(x) + row_terms + column_terms
        return out

    def row_means(
        self, x: Tensor, rows: MatrixAxis, column_index: Tensor, statistics: ColumnStatistics
    ) -> Tensor:
        """Return the mean of `forward` over the visible entries of each row: [B, C']. The layer has
        no activation: the mean is that of the mean input, and no entry is transformed."""
        mean = rows.mean(x, statistics.overall_mean)
        mean_column_terms = rows.mean_gathered(
            statistics.column_terms, column_index, statistics.mean_column_term
        )
        out: Tensor = self.entry_linear(mean) + self.row_terms(mean, statistics) + mean_column_terms
        return out

    def column_means(
        self, x: Tensor, rows: MatrixAxis, columns: MatrixAxis, statistics: ColumnStatistics
    ) -> Tensor:
        """Return the mean of `forward` over the visible entries of each column: [I, C']."""
        row_terms = self.row_terms(rows.mean(x, statistics.overall_mean), statistics)
        mean_row_terms = columns.mean_gathered(row_terms, rows.group, rows.shares() @ row_terms)
        mean = columns.mean(x, statistics.overall_mean)
        out: Tensor = self.entry_linear(mean) + statistics.column_terms + mean_row_terms
        return out
