"""Enclosing subgraphs of many (user, item) pairs at once (Zhang & Chen 2020).

The subgraph of (u, i) has u, i, the items of u's history, the raters of i, and the ratings among
them, as a matrix of rating levels: row 0 is u, column 0 is i, 0 is "no edge". A missing node, with
user id U or item id I, is a row or column without edges; no message reaches it, so no mask is
needed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.layers.cache import TensorCache
from idcf.models.layers.ragged import nearest_level
from idcf.models.options import DEFAULT_ITEM_SHRINKAGE, DEFAULT_USER_SHRINKAGE
from idcf.types import History, Ragged

_MAX_DENSE_CELLS = 1 << 28  # largest training table that is stored as a dense matrix of bytes


class CappedHistories(NamedTuple):
    """At most H items of each of B histories, padded with item I and level 0."""

    items: Tensor  # int64 [B, H]
    level: Tensor  # uint8 [B, H], from 1


class NodeOffsets(NamedTuple):
    """Shrunken mean residual of each node, and the number of ratings it is computed from."""

    value: Tensor  # in units of the standard deviation of the ratings
    n_ratings: Tensor  # float, in the order of `value`

    def take(self, nodes: Tensor) -> NodeOffsets:
        """Return the offsets of some nodes."""
        return NodeOffsets(self.value[nodes], self.n_ratings[nodes])


class RatingLookup(NamedTuple):
    """Quantities derived from the training table: levels by (user, item), offsets of all nodes."""

    level: Tensor  # uint8: a dense matrix [(U + 1) * (I + 1)], or the level of each of `keys`
    keys: Tensor | None  # int64, ascending: user * (I + 1) + item; None if `level` is dense
    user_offsets: NodeOffsets  # [U + 1]
    item_offsets: NodeOffsets  # [I + 1]


class Subgraphs(NamedTuple):
    """The enclosing subgraphs of P pairs, with up to R raters and H items beside the targets."""

    level: Tensor  # uint8 [P, 1 + R, 1 + H]
    raters: Tensor  # int64 [P, R], U where a rater is missing
    items: Tensor  # int64 [P, H], I where an item is missing


class RatingGraph(nn.Module):
    """The training ratings: the raters of each item, and the rating of any user for any item.

    Where a node has more than `cap` neighbours, a subset is used: in training a random one;
    otherwise that of a hash, so that a score depends on neither batch, order of the history nor
    chance.
    """

    raters: Tensor  # int32 [E]: the raters of each item, ordered by a hash
    edge_level: Tensor  # uint8 [E], from 1
    starts: Tensor  # int64 [I + 1]: where the raters of each item begin
    levels: Tensor  # [L]
    scaled_levels: Tensor  # [L + 1]: 0 for no edge, then the standardized levels
    rating_std: Tensor  # []: standard deviation of the ratings

    def __init__(
        self, raters: Ragged[Tensor], n_users: int, levels: tuple[float, ...], mean: float
    ) -> None:
        super().__init__()
        self.n_users, self.n_items = n_users, len(raters.offsets) - 1
        self.register_buffer("levels", torch.tensor(levels))
        std = raters.values.std(correction=0) if len(raters.indices) else torch.tensor(1.0)
        self.register_buffer("rating_std", std.clamp(min=1e-6))
        self.register_buffer("scaled_levels", F.pad((self.levels - mean) / self.rating_std, (1, 0)))
        item = raters.owner()
        order = torch.argsort(item << 31 | _hash(raters.indices * self.n_items + item))
        self.register_buffer("raters", raters.indices[order].to(torch.int32))
        self.register_buffer("edge_level", self._level_number(raters.values)[order])
        self.register_buffer("starts", raters.offsets.clone())
        self._lookup_cache: TensorCache[RatingLookup] = TensorCache()

    def cap_histories(self, history: History, cap: int) -> CappedHistories:
        """Select at most `cap` entries of each history."""
        n, owner = history.lengths(), history.owner()
        width = min(cap, int(n.max())) if len(history.items) else 0
        key = _hash(history.items)
        if self.training:
            key = torch.randint_like(key, 1 << 31)
        order = torch.argsort(owner << 31 | key)
        column = torch.arange(len(order), device=n.device) - history.offsets[owner]
        selected = column < width
        order, cells = order[selected], (owner[selected], column[selected])
        items = n.new_full((len(n), width), self.n_items)
        level = torch.zeros_like(items, dtype=torch.uint8)
        level[cells] = self._level_number(history.values[order])
        items[cells] = history.items[order]
        return CappedHistories(items, level)

    def extract_subgraphs(
        self,
        histories: CappedHistories,
        owner: Tensor,
        items: Tensor,
        cap: int,
        exclude_users: Tensor,
    ) -> Subgraphs:
        """Extract the subgraphs of P pairs; none contains the edge between its two targets.

        Pair p is user owner[p] of `histories` and items[p]. The ratings of the training user
        exclude_users[p], or -1 for none, are hidden from it. A target item has at most `cap`
        raters.
        """
        positions, is_rater = self._rater_positions(items, cap)
        raters = self.raters[positions].long()
        is_rater = is_rater & (raters != exclude_users[:, None])
        raters = raters.masked_fill(~is_rater, self.n_users)
        level = histories.level[owner]
        level = level[:, : int((level > 0).sum(1).max())] if len(level) else level
        history_items = histories.items[owner, : level.shape[1]]
        is_other_item = history_items != items[:, None]
        history_items = history_items.masked_fill(~is_other_item, self.n_items)
        shape = len(items), raters.shape[1] + 1, history_items.shape[1] + 1
        block = raters.new_zeros(shape, dtype=torch.uint8)
        block[:, 0, 1:] = level * is_other_item
        block[:, 1:, 0] = self.edge_level[positions] * is_rater
        block[:, 1:, 1:] = self.lookup_levels(raters[:, :, None], history_items[:, None, :])
        return Subgraphs(block, raters, history_items)

    def _rater_positions(self, items: Tensor, cap: int) -> tuple[Tensor, Tensor]:
        """Return positions in `raters` of up to `cap` raters of each item, and which are valid:
        [P, R] each. In training the raters are a window that begins at a random one."""
        start, n = self.starts[items], self.starts.diff()[items]
        step = torch.arange(min(cap, int(n.max())) if len(n) else 0, device=n.device)
        first = torch.rand(len(n), 1, device=n.device) if self.training else n.new_zeros(1, 1)
        shift = ((first * n[:, None]).long() + step) % n.clamp(min=1)[:, None]
        positions = (start[:, None] + shift).clamp(max=max(len(self.raters) - 1, 0))
        return positions, step < n[:, None]

    def lookup_levels(self, users: Tensor, items: Tensor) -> Tensor:
        """Return the rating level (1..L) of each pair (user, item), 0 without a rating; the shapes
        are broadcast. The rows U and I stand for missing nodes."""
        lookup = self.rating_lookup()
        pairs = users * (self.n_items + 1) + items
        if lookup.keys is None:
            return lookup.level[pairs]
        at = torch.searchsorted(lookup.keys, pairs).clamp(max=len(lookup.keys) - 1)
        return lookup.level[at] * (lookup.keys[at] == pairs)

    def user_offsets(self, history: History) -> NodeOffsets:
        """Return the offsets of B users from their histories: [B]."""
        scaled_ratings = self.scaled_levels[self._level_number(history.values).int()]
        residuals = scaled_ratings - self.rating_lookup().item_offsets.value[history.items]
        return _shrunken_offsets(residuals, history.owner(), len(history.offsets) - 1)

    def item_offsets_without(self, items: Tensor, exclude_users: Tensor) -> NodeOffsets:
        """Return the offsets of items [P] without the rating of one user each, or -1 for none."""
        no_user = torch.full_like(exclude_users, self.n_users)
        users = torch.where(exclude_users < 0, no_user, exclude_users)
        level = self.lookup_levels(users, items).int()
        value, n = self.rating_lookup().item_offsets.take(items)
        total = value * (n + DEFAULT_ITEM_SHRINKAGE) - self.scaled_levels[level]
        n_other = n - (level > 0).to(n.dtype)
        return NodeOffsets(total / (n_other + DEFAULT_ITEM_SHRINKAGE), n_other)

    def adjusted_rater_offsets(self, raters: Tensor, item_change: Tensor) -> NodeOffsets:
        """Return the offsets of raters [P, R] of one item each, whose offset changed by [P]."""
        value, n = self.rating_lookup().user_offsets.take(raters)
        return NodeOffsets(value - item_change[:, None] / (n + DEFAULT_USER_SHRINKAGE), n)

    def rating_lookup(self) -> RatingLookup:
        """Return the levels of all training pairs and the offsets of all nodes; cached."""
        return self._lookup_cache.get(self.edge_level, self._build_lookup)

    def _build_lookup(self) -> RatingLookup:
        """Compute the lookup of the training ratings, dense up to _MAX_DENSE_CELLS cells."""
        width = self.n_items + 1
        every_item = torch.arange(self.n_items, device=self.edge_level.device)
        item = every_item.repeat_interleave(self.starts.diff())
        key, level = self.raters.long() * width + item, self.edge_level
        if (self.n_users + 1) * width <= _MAX_DENSE_CELLS:
            keys, cells = None, level.new_zeros((self.n_users + 1) * width)
            cells.index_copy_(0, key, level)
        else:
            keys, order = torch.sort(key)
            cells = level[order]
        scaled_ratings = self.scaled_levels[level.int()]
        sums = self.scaled_levels.new_zeros(width).index_add_(0, item, scaled_ratings)
        n = F.pad(self.starts.diff(), (0, 1)).to(sums.dtype)
        items = NodeOffsets(sums / (n + DEFAULT_ITEM_SHRINKAGE), n)
        residuals = scaled_ratings - items.value[item]
        users = _shrunken_offsets(residuals, self.raters, self.n_users + 1)
        return RatingLookup(cells, keys, users, items)

    def _level_number(self, values: Tensor) -> Tensor:
        """Return the number, from 1, of the level nearest to each value."""
        return (nearest_level(values, self.levels) + 1).to(torch.uint8)


def _hash(x: Tensor) -> Tensor:
    """Return 31 pseudo-random bits for each integer."""
    for factor in (0x45D9F3B, 0x119DE1F3):
        x = ((x ^ x >> 16) * factor) & 0x7FFFFFFF
    return x ^ x >> 15


def _shrunken_offsets(residuals: Tensor, owner: Tensor, n_users: int) -> NodeOffsets:
    """Return Σ residuals / (n + shrinkage) of each user."""
    sums, n = (
        residuals.new_zeros(n_users).index_add_(0, owner, x)
        for x in (residuals, torch.ones_like(residuals))
    )
    return NodeOffsets(sums / (n + DEFAULT_USER_SHRINKAGE), n)
