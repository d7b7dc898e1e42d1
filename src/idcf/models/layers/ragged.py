"""Sums over ragged histories: one fused gather-and-add, nothing padded, nothing materialised."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.types import History

_ENTRIES = 1 << 18  # gathered at a time, so that memory stays bounded
_PIECE = 256


def pool(table: Tensor, history: History, weights: Tensor | None = None) -> Tensor:
    """Σ over each history of weight · table[item]: [I, D] -> [B, D]; zero for an empty one."""
    return F.embedding_bag(
        history.items,
        table,
        history.offsets,
        mode="sum",
        per_sample_weights=weights,
        include_last_offset=True,
    )


class Turned(NamedTuple):
    """The same entries, by item."""

    history: History  # whose each of an item's entries is
    order: Tensor  # where it stood


def turn(history: History, n_items: int) -> Turned:
    order = torch.argsort(history.items, stable=True)
    offsets = torch.zeros(n_items + 1, dtype=torch.int64, device=order.device)
    torch.cumsum(torch.bincount(history.items, minlength=n_items), 0, out=offsets[1:])
    return Turned(History(history.owner()[order], history.values[order], offsets), order)


def spread(
    table: Tensor,
    graph: History,
    back: History,
    weights: Tensor | None = None,
    weights_back: Tensor | None = None,
) -> Tensor:
    """`pool` over a graph that stays as it is, of which `back` is the other side."""
    found: Tensor = _Spread.apply(table, graph, back, weights, weights_back)  # type: ignore[no-untyped-call]
    return found


class _Spread(torch.autograd.Function):
    """The gradient of a sum over neighbours is a sum over theirs: no sorting, no scattering, and
    the same bits every time."""

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, graph: History, back: History, weights: Any, weights_back: Any
    ) -> Tensor:
        ctx.back, ctx.weights = back, weights_back
        return pool(table, graph, weights)

    @staticmethod
    def backward(ctx: Any, *on: Tensor) -> tuple[Tensor | None, ...]:
        return pool(on[0].contiguous(), ctx.back, ctx.weights), None, None, None, None


def segment_sum(values: Tensor, owner: Tensor, users: int) -> Tensor:
    """Σ over each history of one number per entry: [N] -> [B], where `owner` is the history's."""
    return values.new_zeros(users).index_add(0, owner, values)


def shrunk_mean(values: Tensor, history: History, strength: Tensor | float) -> Tensor:
    """Σ values / (n + strength): the ridge estimate of a user's bias from residuals."""
    n = history.lengths()
    return segment_sum(values, history.owner(), len(n)) / (n + strength).clamp(min=1e-9)


def nearest(values: Tensor, levels: Tensor) -> Tensor:
    """Which level each value is, or is next to."""
    return torch.bucketize(values, (levels[1:] + levels[:-1]) / 2)


def per_level(history: History, levels: Tensor) -> History:
    """The same entries with one row per (user, rating level): B·L rows, levels ascending.

    A value between two levels counts as the nearest one.
    """
    key = history.owner() * len(levels) + nearest(history.values, levels)
    order = torch.argsort(key, stable=True)
    rows = (len(history.offsets) - 1) * len(levels)
    offsets = key.new_zeros(rows + 1)
    offsets[1:].index_add_(0, key, torch.ones_like(key))
    offsets.cumsum_(0)
    return History(history.items[order], history.values[order], offsets)


class Pieces(NamedTuple):
    """Histories in pieces of at most _PIECE entries, those of equal length together."""

    groups: list[Tensor]  # where the entries of each piece stand: [G, n]
    of_rows: History  # which of the pieces, laid end to end, each history is made of


def pieces(history: History) -> Pieces:
    """Few batched products instead of one for each length that occurs, and still no padding."""
    lengths, device = history.lengths(), history.offsets.device
    count = (lengths + _PIECE - 1) // _PIECE
    offsets = torch.zeros(len(count) + 1, dtype=torch.int64, device=device)
    torch.cumsum(count, 0, out=offsets[1:])
    total = int(offsets[-1])
    owner = torch.arange(len(count), device=device).repeat_interleave(count, output_size=total)
    skipped = (torch.arange(total, device=device) - offsets[owner]) * _PIECE
    start, size = history.offsets[owner] + skipped, (lengths[owner] - skipped).clamp(max=_PIECE)
    order = torch.argsort(size, stable=True)
    sizes, counts = torch.unique_consecutive(size[order], return_counts=True)
    groups, begin = [], 0
    for n, some in zip(sizes.tolist(), counts.tolist(), strict=True):
        step = max(1, _ENTRIES // n)
        for at in range(begin, begin + some, step):
            part = order[at : min(at + step, begin + some)]
            groups.append(start[part, None] + torch.arange(n, device=device))
        begin += some
    place = torch.empty_like(order)
    place[order] = torch.arange(total, device=device)
    return Pieces(groups, History(place, start.new_empty(0), offsets))


def normal_equations(
    table: Tensor, history: History, target: Tensor, cut: Pieces | None = None
) -> tuple[Tensor, Tensor]:
    """Σ q qᵀ [B, D, D] and Σ target · q [B, D] over each history.

    Who asks again and again for the same histories keeps their `pieces`.
    """
    size, cut = table.shape[1], pieces(history) if cut is None else cut
    parts = []
    for entries in cut.groups:
        vectors = table[history.items[entries]]
        parts.append((vectors.mT @ vectors).flatten(1))
    products = torch.cat(parts) if parts else table.new_zeros(0, size * size)
    outer = pool(products, cut.of_rows).view(-1, size, size)
    return outer, pool(table, history, target)
