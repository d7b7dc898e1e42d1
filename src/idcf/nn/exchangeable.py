"""Layers that do not care how rows and columns are numbered (Hartford et al. 2018), for a matrix
of which few entries are there. Entries lie end to end; nothing is padded, nothing is dense."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from idcf.nn.pooling import pool
from idcf.types import History


class Axis(NamedTuple):
    """The rows, or the columns: which one each entry lies in, and where the entries of each lie."""

    of: Tensor  # int64 [N]
    places: Tensor  # int64 [N]
    offsets: Tensor  # int64 [R + 1]
    keep: Tensor  # float [N]: 0 for an entry that must not be read
    read: Tensor  # float [R]: how many are

    @classmethod
    def build(cls, of: Tensor, places: Tensor, offsets: Tensor, keep: Tensor) -> Axis:
        count = pool(keep[:, None], History(places, keep, offsets))[:, 0]
        return cls(of, places, offsets, keep, count)

    def mean(self, x: Tensor) -> Tensor:
        """Of the entries [N, C] that are read: [R, C]; zero where there are none."""
        total: Tensor = _Sum.apply(x, self)  # type: ignore[no-untyped-call]
        return total / self.read.clamp(min=1)[:, None]

    def mean_of(self, table: Tensor, index: Tensor) -> Tensor:
        """The same of table[index], which is never made."""
        bags = History(index[self.places], self.keep, self.offsets)
        return pool(table, bags, self.keep[self.places]) / self.read.clamp(min=1)[:, None]


class _Sum(torch.autograd.Function):
    """`pool` of entries of which each lies in one row only: so its gradient is a gather, where
    that of `pool` has to sort."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return pool(x, History(axis.places, axis.keep, axis.offsets), axis.keep[axis.places])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.index_select(0, ctx.axis.of) * ctx.axis.keep[:, None], None


class Exchangeable(nn.Module):
    """Y_ij = X_ij θ₀ + mean_i' X_i'j θ₁ + mean_j' X_ij' θ₂ + mean X θ₃ + b.

    Columns and the whole are heard through one vector per column, `hear`: all that a row needs
    to know of the other rows.
    """

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.own = nn.Linear(size, out, bias=False)
        self.column = nn.Linear(size, out, bias=False)
        self.row = nn.Linear(size, out, bias=False)
        self.every = nn.Linear(size, out)

    def hear(self, columns: Tensor, every: Tensor) -> Tensor:
        """Means over each column [I, C] and over everything [C] -> [I, C']."""
        out: Tensor = self.column(columns) + self.every(every)
        return out

    def forward(self, x: Tensor, rows: Axis, column: Tensor, heard: Tensor) -> Tensor:
        """Entries [N, C] -> [N, C']."""
        said = self.row(rows.mean(x)).index_select(0, rows.of)
        out: Tensor = self.own(x) + said + heard.index_select(0, column)
        return out

    def of_rows(self, x: Tensor, rows: Axis, column: Tensor, heard: Tensor) -> Tensor:
        """The mean of `forward` over each row, which needs no entry: a mean of linear things."""
        mean = rows.mean(x)
        out: Tensor = self.own(mean) + self.row(mean) + rows.mean_of(heard, column)
        return out

    def of_columns(self, x: Tensor, rows: Axis, columns: Axis, heard: Tensor) -> Tensor:
        """The mean of `forward` over each column; what it hears, where it has no entry."""
        said = columns.mean_of(self.row(rows.mean(x)), rows.of)
        out: Tensor = self.own(columns.mean(x)) + said + heard
        return out
