"""A matrix between items of which each row keeps what matters."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from idcf.models.layers.ragged import pool
from idcf.types import History, pick

_PAIRS = 1 << 23  # of a block of co-occurrences, about
_BITS = 0xFFFFFFFF


class Sparse(nn.Module):
    """Rows of [I, I], end to end: row j says what having item j says of the others."""

    offsets: Tensor  # int64 [I + 1]
    columns: Tensor  # int32 [E], ascending in each row
    values: Tensor  # float32 [E]

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("offsets", torch.zeros(size + 1, dtype=torch.int64))
        self.register_buffer("columns", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("values", torch.zeros(0))
        self.register_load_state_dict_pre_hook(_make_room)  # type: ignore[no-untyped-call]

    def fill(self, matrix: csr_array) -> None:
        """Take these entries; zeros that are stored stay stored."""
        matrix = csr_array(matrix)
        matrix.sort_indices()
        self.offsets = torch.from_numpy(matrix.indptr.astype("int64"))
        self.columns = torch.from_numpy(matrix.indices.astype("int32"))
        self.values = torch.from_numpy(matrix.data.astype("float32"))

    def rows(self) -> History:
        return History(self.columns, self.values, self.offsets)

    def row(self, item: int) -> Tensor:
        """One row with its zeros: [I]."""
        own = slice(int(self.offsets[item]), int(self.offsets[item + 1]))
        out = self.values.new_zeros(self.size)
        return out.index_add_(0, self.columns[own], self.values[own])

    def dense(self) -> Tensor:
        """All of it: [I, I]."""
        every = torch.arange(self.size + 1, device=self.values.device)
        return self.pool(History(every[:-1], self.values.new_ones(self.size), every))

    def pool(self, history: History, weights: Tensor | None = None) -> Tensor:
        """Σ over each history of weight · row: [B, I]."""
        if len(self.values) == self.size**2:  # nothing is left out: it lies there as a matrix
            return pool(self.values.view(self.size, self.size), history, weights)
        said = pick(self.rows(), history.items)
        each, users = said.lengths(), len(history.offsets) - 1
        place = (history.owner() * self.size).repeat_interleave(each, output_size=len(said.items))
        value = said.values
        if weights is not None:
            value = value * weights.repeat_interleave(each, output_size=len(value))
        total = value.new_zeros(users * self.size)
        return total.index_add_(0, place + said.items, value).view(users, self.size)

    def magnitude(self) -> Sparse:
        """The same with absolute values."""
        out = Sparse(self.size)
        out.offsets, out.columns, out.values = self.offsets, self.columns, self.values.abs()
        return out


def _make_room(
    module: nn.Module, state: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
) -> None:
    """How many entries there are is known only when they come."""
    for name in ("columns", "values"):
        if (found := state.get(prefix + name)) is not None:
            old = getattr(module, name)
            setattr(module, name, old.new_zeros(found.shape))


def co_occurring(x: csr_array) -> list[tuple[int, int]]:
    """Blocks of items whose rows of XᵀX have no more than so many entries."""
    pairs = np.asarray(x.T @ np.diff(x.indptr)).ravel()
    ends = np.flatnonzero(np.diff(np.cumsum(pairs) // _PAIRS)) + 1
    cuts = [0, *ends.tolist(), x.shape[1]]
    return list(pairwise(cuts))


def nearest(block: csr_array, k: int) -> csr_array:
    """Of each row the k largest in size, and whatever equals the last of them."""
    size, length = np.abs(block.data).astype(np.float32), np.diff(block.indptr)
    row = np.repeat(np.arange(block.shape[0]), length)
    # bits of floats that are not negative are in the order of the floats: one sort of integers
    order = np.sort((row << 32) | (_BITS - size.view(np.uint32)))
    last = np.minimum(block.indptr[:-1] + k, block.indptr[1:]) - 1
    least = _BITS - (order[last.clip(0)] & _BITS) if len(order) else np.zeros(len(last), np.int64)
    floor = np.where(length > 0, least, 0).astype(np.uint32).view(np.float32)
    stays = size >= np.maximum(floor, np.float32(1e-9))[row]
    data = np.where(stays, block.data, 0)
    out = csr_array((data, block.indices.copy(), block.indptr.copy()), shape=block.shape)
    out.eliminate_zeros()
    return out
