"""Matrices of item-item weights: sparse, and of low rank; the selection of entries."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn

from idcf.models.layers.index_checks import offsets_problem, range_problem
from idcf.models.layers.ragged import sum_pool
from idcf.types import History, Ragged, RaggedRows, select_rows

_MAX_DENSE_CELLS = 1 << 24  # a matrix of up to so many cells is held with its zeros for scoring
_MAX_BLOCK_ENTRIES = 1 << 23  # approximate number of co-occurrences in a block
_MAX_ADDED_ENTRIES = 1 << 22  # stored entries that are gathered at once, unless a row has more
_UINT32_MAX = 0xFFFFFFFF


class ItemMatrix(nn.Module):
    """A sparse matrix [I, I] in CSR form; row j holds the weights of item j for all items.

    It is empty until `set_entries`. In evaluation mode a small one is also held with its zeros:
    adding whole rows is much faster.
    """

    offsets: Tensor  # int64 [I + 1]
    columns: Tensor  # int32 [E], ascending in each row
    values: Tensor  # float32 [E]

    def __init__(self, n_items: int) -> None:
        super().__init__()
        self.n_items = n_items
        self._dense: tuple[Tensor, Tensor] | None = None  # `values`, and the matrix made of them
        self.register_buffer("offsets", torch.zeros(n_items + 1, dtype=torch.int64))
        self.register_buffer("columns", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("values", torch.zeros(0))
        self.register_load_state_dict_pre_hook(_resize_buffers)  # type: ignore[no-untyped-call]

    def set_entries(self, matrix: csr_array) -> None:
        """Replace all entries by those of `matrix`; stored zeros stay stored."""
        matrix = csr_array(matrix)
        matrix.sort_indices()
        self.offsets = torch.from_numpy(matrix.indptr.astype("int64"))
        self.columns = torch.from_numpy(matrix.indices.astype("int32"))
        self.values = torch.from_numpy(matrix.data.astype("float32"))

    def index_problem(self) -> str:
        """Return what is wrong with offsets and columns; "" if they can be used."""
        if len(self.values) != len(self.columns):
            return "there are not as many columns as values"
        return offsets_problem(
            "offsets", self.offsets, self.n_items, len(self.columns)
        ) or range_problem("columns", self.columns, self.n_items)

    def rows(self) -> Ragged[Tensor]:
        """Return the I rows, which point at columns (int32) and hold their values."""
        return Ragged(self.columns, self.values, self.offsets)

    def dense_row(self, item: int) -> Tensor:
        """Return one row with its zeros: [I]."""
        entries = slice(int(self.offsets[item]), int(self.offsets[item + 1]))
        out = self.values.new_zeros(self.n_items)
        return out.index_add_(0, self.columns[entries], self.values[entries])

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the entries of some rows [R] in some columns [C], with their zeros: [R, C].

        Rows [B, R] and columns [B, C] give several such blocks: [B, R, C].
        """
        dense = self._dense_matrix()
        if dense is not None:
            # several times as fast as an index of rows and columns
            cells = rows[..., :, None] * self.n_items + columns[..., None, :]
            return dense.reshape(-1).index_select(0, cells.reshape(-1)).view(cells.shape)
        if rows.dim() > 1:
            return torch.stack([self.block(*x) for x in zip(rows, columns, strict=True)])
        position = torch.full((self.n_items,), -1, device=self.values.device)
        position[columns] = torch.arange(len(columns), device=position.device)
        entries = select_rows(self.rows(), rows)
        column = position[entries.indices]
        inside = column >= 0
        out = self.values.new_zeros(len(rows), len(columns))
        out[entries.owner()[inside], column[inside]] = entries.values[inside]
        return out[:, position[columns]]  # of a repeated column, only the last is filled

    def to_dense(self) -> Tensor:
        """Return the matrix with its zeros: [I, I]."""
        rows = torch.arange(self.n_items + 1, device=self.values.device)
        return self._sum_stored_entries(Ragged(rows[:-1], None, rows), None)

    def sum_pool(self, ragged: RaggedRows, weights: Tensor | None = None) -> Tensor:
        """Return Σ over the entries of each ragged row of weight · row of the matrix: [R, I].

        `ragged` rows point at rows of the matrix, such as histories; `weights` [N] are 1 if not
        given.
        """
        dense = self._dense_matrix()
        if dense is None:
            return self._sum_stored_entries(ragged, weights)
        return sum_pool(dense, ragged, weights)

    def _dense_matrix(self) -> Tensor | None:
        """Return the matrix with its zeros [I, I]; None: it is large, or may still change."""
        if len(self.values) == self.n_items**2:  # no zeros: the values are a dense matrix
            return self.values.view(self.n_items, self.n_items)
        if self.training or self.n_items**2 > _MAX_DENSE_CELLS:
            return None
        if self._dense is None or self._dense[0] is not self.values:
            self._dense = self.values, self.to_dense()
        return self._dense[1]

    def _sum_stored_entries(self, ragged: RaggedRows, weights: Tensor | None) -> Tensor:
        """Return `sum_pool` over the stored entries alone, some rows of the matrix at a time."""
        n_sums, start = len(ragged.offsets) - 1, ragged.owner() * self.n_items
        total = self.values.new_zeros(n_sums * self.n_items)
        n_entries = self.offsets.diff()[ragged.indices]
        for part in _parts(n_entries, _MAX_ADDED_ENTRIES):
            rows, size = select_rows(self.rows(), ragged.indices[part]), n_entries[part]
            n_part = len(rows.indices)
            values = rows.values
            if weights is not None:
                values = values * weights[part].repeat_interleave(size, output_size=n_part)
            cells = start[part].repeat_interleave(size, output_size=n_part)
            total.index_add_(0, cells.add_(rows.indices), values)
        return total.view(n_sums, self.n_items)

    def absolute(self) -> ItemMatrix:
        """Return the matrix of absolute values."""
        out = ItemMatrix(self.n_items)
        out.offsets, out.columns, out.values = self.offsets, self.columns, self.values.abs()
        return out


class LowRankItemMatrix(nn.Module):
    """A matrix [I, I] of rank D with a zero diagonal: entry (j, i) is sources_j · targets_i.

    It is empty, with D = 0, until `set_factors`.
    """

    sources: Tensor  # float32 [I, D]
    targets: Tensor  # float32 [I, D]

    def __init__(self, n_items: int) -> None:
        super().__init__()
        for name in ("sources", "targets"):
            self.register_buffer(name, torch.zeros(n_items, 0))
        self.register_load_state_dict_pre_hook(_resize_buffers)  # type: ignore[no-untyped-call]

    @property
    def rank(self) -> int:
        """D."""
        return self.sources.shape[1]

    def set_factors(self, sources: Tensor, targets: Tensor) -> None:
        """Replace the factors, both [I, D]."""
        self.sources, self.targets = (x.float().contiguous() for x in (sources, targets))

    def diagonal(self) -> Tensor:
        """Return what the product of the factors has in place of the zeros: [I]."""
        return (self.sources * self.targets).sum(1)

    def sum_pool(self, history: History) -> Tensor:
        """Return Σ over the items of each history of value · row of the matrix: [B, I]."""
        out = sum_pool(self.sources, history, history.values) @ self.targets.T
        rows = (self.sources[history.items] * self.targets[history.items]).sum(1)
        return out.index_put_((history.owner(), history.items), -rows * history.values, True)

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the entries of some rows [..., R] in some columns [..., C]: [..., R, C]."""
        products = self.sources[rows] @ self.targets[columns].mT
        return products.masked_fill_(rows[..., :, None] == columns[..., None, :], 0)

    def with_n_items(self, n_items: int) -> LowRankItemMatrix:
        """Return the matrix with further items, all of whose entries are 0."""
        out, n_new = LowRankItemMatrix(n_items), n_items - len(self.sources)
        out.set_factors(*(F.pad(x, (0, 0, 0, n_new)) for x in (self.sources, self.targets)))
        return out


def _parts(sizes: Tensor, max_size: int) -> list[slice]:
    """Divide positions into runs whose sizes add up to about `max_size` at most."""
    end = sizes.cumsum(0)
    if not len(end) or int(end[-1]) <= max_size:
        return [slice(0, len(end))]
    changes = ((end - 1) // max_size).diff().nonzero().ravel() + 1
    return [slice(*x) for x in pairwise([0, *changes.tolist(), len(end)])]


def _resize_buffers(
    module: nn.Module, state: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any
) -> None:
    """Give the buffers the shapes of the state that is about to be loaded."""
    for name in ("columns", "values", "sources", "targets"):
        if (loaded := state.get(prefix + name)) is not None:
            buffer = getattr(module, name)
            setattr(module, name, buffer.new_zeros(loaded.shape))


def cooccurrence_blocks(x: csr_array, n_at_once: int = 1) -> list[tuple[int, int]]:
    """Divide the items of interactions [U, I] into ranges (low, high): `n_at_once` times the rows
    low to high of XᵀX have at most about `_MAX_BLOCK_ENTRIES` entries, unless the range is a single
    item."""
    pairs = np.asarray(x.T @ np.diff(x.indptr)).ravel()
    ends = np.flatnonzero(np.diff(np.cumsum(pairs) // (_MAX_BLOCK_ENTRIES // n_at_once))) + 1
    return list(pairwise([0, *ends.tolist(), x.shape[1]]))


def largest_per_row(block: csr_array, k: int) -> csr_array:
    """Keep the k entries of largest absolute value in each row, and those tied with the last.

    All rows are selected by one sort of integers, without a loop over rows: the bits of
    non-negative floats are ordered as the floats are.
    """
    size, length = np.abs(block.data).astype(np.float32), np.diff(block.indptr)
    row = np.repeat(np.arange(block.shape[0]), length)
    order = np.sort((row << 32) | (_UINT32_MAX - size.view(np.uint32)))
    last = np.minimum(block.indptr[:-1] + k, block.indptr[1:]) - 1
    threshold = np.zeros(len(last), np.int64)
    if len(order):
        threshold = _UINT32_MAX - (order[last.clip(0)] & _UINT32_MAX)
    min_size = np.where(length > 0, threshold, 0).astype(np.uint32).view(np.float32)
    is_large = size >= np.maximum(min_size, np.float32(1e-9))[row]
    data = np.where(is_large, block.data, 0)
    out = csr_array((data, block.indices.copy(), block.indptr.copy()), shape=block.shape)
    out.eliminate_zeros()
    return out
