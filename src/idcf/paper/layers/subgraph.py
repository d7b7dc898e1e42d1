"""Enclosing subgraphs of many (user, item) pairs at once (Zhang & Chen 2020).

The subgraph of (u, i) is u, i, the items u had, the raters of i, and the ratings among them. It is
bipartite, so it is a small matrix of rating levels: row 0 is u, column 0 is i, and 0 is "no edge".
A node that is not there is a row or column without edges: it reaches nobody, so it needs no mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.types import History

_USER, _ITEM = (
    5.0,
    3.0,
)  # ratings of "nothing unusual" that a node's own must outweigh, as in `bias`
_DENSE = 1 << 28  # cells up to which the whole table is laid out as a matrix of bytes


class Near(NamedTuple):
    """What B users had: [B, H], `nothing` where they had less."""

    items: Tensor
    level: Tensor  # uint8


class Offsets(NamedTuple):
    """How much nodes deviate from the mean, shrunk, and from how many ratings that is known."""

    value: Tensor
    n: Tensor


class Laid(NamedTuple):
    """The table, laid out for asking."""

    level: Tensor  # uint8: a matrix [(U + 1) * (I + 1)], or, where it would be large, of `keys`
    keys: Tensor | None  # ascending
    users: Offsets  # of U + 1
    items: Offsets  # of I + 1


class Subgraphs(NamedTuple):
    """Of P pairs; user U and item I are nobody and nothing."""

    level: Tensor  # uint8 [P, 1 + R, 1 + H]
    raters: Tensor  # [P, R]
    items: Tensor  # [P, H]


class Graph(nn.Module):
    """The training table: who rated an item, and how anybody rated anything.

    Neighbours beyond `cap` are left out: by a hash, so that nothing depends on the batch, on the
    order of a history or on chance; in training by chance, so that all of them are met.
    """

    raters: Tensor  # int32 [E]: of each item, in the order of a hash
    level: Tensor  # uint8 [E], from 1
    starts: Tensor  # int64 [I + 1]
    levels: Tensor  # [L]
    scaled: Tensor  # [L + 1]: the levels, standardised; 0 for no edge
    spread: Tensor  # []: what they were divided by

    def __init__(self, raters: History, users: int, levels: tuple[float, ...], mean: float) -> None:
        super().__init__()
        self.n_users, self.n_items = users, len(raters.offsets) - 1
        self.register_buffer("levels", torch.tensor(levels))
        spread = raters.values.std(correction=0) if len(raters.items) else torch.tensor(1.0)
        self.register_buffer("spread", spread.clamp(min=1e-6))
        self.register_buffer("scaled", F.pad((self.levels - mean) / self.spread, (1, 0)))
        item = raters.owner()
        order = torch.argsort(item << 31 | _hash(raters.items * self.n_items + item))
        self.register_buffer("raters", raters.items[order].to(torch.int32))
        self.register_buffer("level", self._level(raters.values)[order])
        self.register_buffer("starts", raters.offsets.clone())
        self._kept: tuple[tuple[int, int], Laid] | None = None

    def near(self, history: History, cap: int) -> Near:
        """The items of each history, at most `cap`."""
        n, owner = history.lengths(), history.owner()
        width = min(cap, int(n.max())) if len(history.items) else 0
        key = _hash(history.items)
        if self.training:
            key = torch.randint_like(key, 1 << 31)
        order = torch.argsort(owner << 31 | key)
        place = torch.arange(len(order), device=n.device) - history.offsets[owner]
        order, row = order[place < width], owner[place < width]
        at = row, place[place < width]
        items = n.new_full((len(n), width), self.n_items)
        level = torch.zeros_like(items, dtype=torch.uint8)
        level[at] = self._level(history.values[order])
        items[at] = history.items[order]
        return Near(items, level)

    def around(
        self, near: Near, owner: Tensor, items: Tensor, cap: int, without: Tensor
    ) -> Subgraphs:
        """The subgraphs of (owner[p], items[p]).

        The user's own rating of the item is never in them, if the history has it; `without` [P]
        is the user whose row of the table must not be seen either, or -1.
        """
        start, n = self.starts[items], self.starts.diff()[items]
        step = torch.arange(min(cap, int(n.max())) if len(n) else 0, device=n.device)
        first = torch.rand(len(n), 1, device=n.device) if self.training else n.new_zeros(1, 1)
        place = start[:, None] + ((first * n[:, None]).long() + step) % n.clamp(min=1)[:, None]
        place = place.clamp(max=max(len(self.raters) - 1, 0))
        who = self.raters[place].long()
        there = (step < n[:, None]) & (who != without[:, None])
        who = who.masked_fill(~there, self.n_users)
        level = near.level[owner]
        level = level[:, : int((level > 0).sum(1).max())] if len(level) else level
        had = near.items[owner, : level.shape[1]]
        mine = had != items[:, None]
        had = had.masked_fill(~mine, self.n_items)
        block = who.new_zeros(len(items), who.shape[1] + 1, had.shape[1] + 1, dtype=torch.uint8)
        block[:, 0, 1:] = level * mine
        block[:, 1:, 0] = self.level[place] * there
        block[:, 1:, 1:] = self.lookup(who[:, :, None], had[:, None, :])
        return Subgraphs(block, who, had)

    def lookup(self, users: Tensor, items: Tensor) -> Tensor:
        """How users rated items, 0 where they did not; user U and item I are nobody and nothing."""
        laid = self.laid()
        wanted = users * (self.n_items + 1) + items
        if laid.keys is None:
            return laid.level[wanted]
        at = torch.searchsorted(laid.keys, wanted).clamp(max=len(laid.keys) - 1)
        return laid.level[at] * (laid.keys[at] == wanted)

    def offsets(self, history: History) -> Offsets:
        """Of people with these histories."""
        left = (
            self.scaled[self._level(history.values).int()] - self.laid().items.value[history.items]
        )
        return _shrunk(left, history.owner(), len(history.offsets) - 1)

    def without(self, items: Tensor, users: Tensor) -> Offsets:
        """Of the items, without what one user each, or nobody (-1), said of them."""
        nobody = torch.full_like(users, self.n_users)
        level = self.lookup(torch.where(users < 0, nobody, users), items).int()
        value, n = (x[items] for x in self.laid().items)
        rest = n - (level > 0).to(n.dtype)
        return Offsets((value * (n + _ITEM) - self.scaled[level]) / (rest + _ITEM), rest)

    def without_too(self, raters: Tensor, change: Tensor) -> Offsets:
        """Of raters [P, R] of an item each, whose own offset has changed [P]."""
        value, n = (x[raters] for x in self.laid().users)
        return Offsets(value - change[:, None] / (n + _USER), n)

    def laid(self) -> Laid:
        """What is derived from the table, once."""
        state = self.level.data_ptr(), self.level._version
        if self._kept is None or self._kept[0] != state:
            self._kept = state, self._lay()
        return self._kept[1]

    def _lay(self) -> Laid:
        width = self.n_items + 1
        every = torch.arange(self.n_items, device=self.level.device)
        item = every.repeat_interleave(self.starts.diff())
        key, level = self.raters * width + item, self.level
        if (self.n_users + 1) * width <= _DENSE:
            keys, cells = None, level.new_zeros((self.n_users + 1) * width)
            cells.index_copy_(0, key, level)
        else:
            keys, order = torch.sort(key)
            cells = level[order]
        sums = self.scaled.new_zeros(width).index_add_(0, item, self.scaled[level.int()])
        n = F.pad(self.starts.diff(), (0, 1)).to(sums.dtype)
        items = Offsets(sums / (n + _ITEM), n)
        left = self.scaled[level.int()] - items.value[item]
        return Laid(cells, keys, _shrunk(left, self.raters, self.n_users + 1), items)

    def _level(self, values: Tensor) -> Tensor:
        """From 1; a value between two levels counts as the nearest one."""
        middle = (self.levels[1:] + self.levels[:-1]) / 2
        return (torch.bucketize(values, middle) + 1).to(torch.uint8)


def _hash(x: Tensor) -> Tensor:
    """31 bits that look drawn, from whole numbers."""
    for factor in (0x45D9F3B, 0x119DE1F3):
        x = ((x ^ x >> 16) * factor) & 0x7FFFFFFF
    return x ^ x >> 15


def _shrunk(left: Tensor, owner: Tensor, users: int) -> Offsets:
    """Of users, from what their items' offsets leave of their ratings."""
    sums, n = (left.new_zeros(users).index_add_(0, owner, x) for x in (left, torch.ones_like(left)))
    return Offsets(sums / (n + _USER), n)
