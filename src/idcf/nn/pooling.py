"""Sums over ragged histories: one fused gather-and-add, nothing padded, nothing materialised."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.types import History

_ENTRIES = 1 << 18  # gathered at a time, so that memory stays bounded


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


def segment_sum(values: Tensor, owner: Tensor, users: int) -> Tensor:
    """Σ over each history of one number per entry: [N] -> [B], where `owner` is the history's."""
    return values.new_zeros(users).index_add(0, owner, values)


def shrunk_mean(values: Tensor, history: History, strength: Tensor | float) -> Tensor:
    """Σ values / (n + strength): the ridge estimate of a user's bias from residuals."""
    n = history.lengths()
    return segment_sum(values, history.owner(), len(n)) / (n + strength).clamp(min=1e-9)


def per_level(history: History, levels: Tensor) -> History:
    """The same entries with one row per (user, rating level): B·L rows, levels ascending.

    A value between two levels counts as the nearest one.
    """
    middle = (levels[1:] + levels[:-1]) / 2
    level = torch.bucketize(history.values, middle)
    key = history.owner() * len(levels) + level
    order = torch.argsort(key, stable=True)
    rows = (len(history.offsets) - 1) * len(levels)
    offsets = key.new_zeros(rows + 1)
    offsets[1:].index_add_(0, key, torch.ones_like(key))
    offsets.cumsum_(0)
    return History(history.items[order], history.values[order], offsets)


def normal_equations(table: Tensor, history: History, target: Tensor) -> tuple[Tensor, Tensor]:
    """Σ q qᵀ [B, D, D] and Σ target · q [B, D] over each history.

    Rows of equal length go through one batched matrix product: no padding, no loop over users.
    """
    rows, size = len(history.offsets) - 1, table.shape[1]
    outer = table.new_zeros(rows, size, size)
    order = torch.argsort(history.lengths(), stable=True)
    lengths, counts = torch.unique_consecutive(history.lengths()[order], return_counts=True)
    begin = 0
    for n, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        step = max(1, _ENTRIES // max(n, 1))
        for start in range(begin, begin + count if n else begin, step):
            some = order[start : min(start + step, begin + count)]
            entries = history.offsets[some, None] + torch.arange(n, device=some.device)
            vectors = table[history.items[entries]]
            outer[some] = vectors.mT @ vectors
        begin += count
    return outer, pool(table, history, target)
