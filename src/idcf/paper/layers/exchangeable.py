"""Layers that do not care how rows and columns are numbered (Hartford et al. 2018), for a matrix
of which few entries are there. Entries lie end to end; nothing is padded, nothing is dense."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from idcf.models.layers.ragged import pool
from idcf.types import History


class Axis(NamedTuple):
    """The rows, or the columns: which one each entry lies in, and where the entries of each lie."""

    of: Tensor  # int64 [N]
    places: Tensor  # int64 [N]
    offsets: Tensor  # int64 [R + 1]
    keep: Tensor  # float [N]: 0 for an entry that must not be read
    read: Tensor  # float [R]: how many are
    strength: float  # entries of average kind that every row is thought to have besides

    @classmethod
    def build(
        cls, of: Tensor, places: Tensor, offsets: Tensor, keep: Tensor, strength: float = 0.0
    ) -> Axis:
        read = pool(keep[:, None], History(places, keep, offsets))[:, 0]
        return cls(of, places, offsets, keep, read, strength)

    def mean(self, x: Tensor, every: Tensor) -> Tensor:
        """Of the entries [N, C] that are read: [R, C]. Where there are few, or none, `every`."""
        total: Tensor = _Sum.apply(x, self)  # type: ignore[no-untyped-call]
        return self._shrunk(total, every)

    def mean_of(self, table: Tensor, index: Tensor, every: Tensor) -> Tensor:
        """The same of table[index], which is never made."""
        bags = History(index[self.places], self.keep, self.offsets)
        return self._shrunk(pool(table, bags, self.keep[self.places]), every)

    def every(self, x: Tensor) -> Tensor:
        """The mean of all that is read: [C]."""
        return self.keep @ x / self.keep.sum().clamp(min=1)

    def spread(self, means: Tensor, every: Tensor) -> Tensor:
        """How far the means of rows lie from that of everything: [C]."""
        share = self.read / self.read.sum().clamp(min=1)
        return (share @ (means - every).square() + 1e-6).sqrt()

    def _shrunk(self, total: Tensor, every: Tensor) -> Tensor:
        some = max(self.strength, 1e-6)
        return (total + some * every) / (self.read + some)[:, None]


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


class Heard(NamedTuple):
    """All that a row needs to know of the other rows."""

    columns: Tensor  # [I, C']: what each column says
    every: Tensor  # [C]: the mean of all entries
    spread: Tensor  # [C]: of the means of rows
    mean: Tensor  # [C']: of what columns say, over all entries


class Exchangeable(nn.Module):
    """Y_ij = X_ij θ₀ + mean_i' X_i'j θ₁ + mean_j' X_ij' θ₂ + mean X θ₃ + b.

    With `standard`, means of columns and rows are first standardised: they differ by little, and
    by less in every further layer.
    """

    def __init__(self, size: int, out: int, *, standard: bool = False) -> None:
        super().__init__()
        self.standard = standard
        self.own = nn.Linear(size, out, bias=False)
        self.column = nn.Linear(size, out, bias=False)
        self.row = nn.Linear(size, out, bias=False)
        self.every = nn.Linear(size, out)

    def hear(self, x: Tensor, rows: Axis, columns: Axis) -> Heard:
        """Entries [N, C] of a whole matrix."""
        every = rows.every(x)
        means = columns.mean(x, every)
        spread = torch.ones_like(every)
        if self.standard:
            spread = rows.spread(rows.mean(x, every), every)
            means = (means - every) / columns.spread(means, every)
        said = self.column(means) + self.every(every)
        share = columns.read / columns.read.sum().clamp(min=1)
        return Heard(said, every, spread, share @ said)

    def say(self, means: Tensor, heard: Heard) -> Tensor:
        """What rows with these means say to their entries: [B, C']."""
        out: Tensor = self.row((means - heard.every) / heard.spread if self.standard else means)
        return out

    def forward(self, x: Tensor, rows: Axis, column: Tensor, heard: Heard) -> Tensor:
        """Entries [N, C] -> [N, C']."""
        said = self.say(rows.mean(x, heard.every), heard).index_select(0, rows.of)
        out: Tensor = self.own(x) + said + heard.columns.index_select(0, column)
        return out

    def of_rows(self, x: Tensor, rows: Axis, column: Tensor, heard: Heard) -> Tensor:
        """The mean of `forward` over each row, which needs no entry: a mean of linear things."""
        mean = rows.mean(x, heard.every)
        near = rows.mean_of(heard.columns, column, heard.mean)
        out: Tensor = self.own(mean) + self.say(mean, heard) + near
        return out

    def of_columns(self, x: Tensor, rows: Axis, columns: Axis, heard: Heard) -> Tensor:
        """The mean of `forward` over each column."""
        said = self.say(rows.mean(x, heard.every), heard)
        share = rows.read / rows.read.sum().clamp(min=1)
        near = columns.mean_of(said, rows.of, share @ said)
        out: Tensor = self.own(columns.mean(x, heard.every)) + heard.columns + near
        return out
