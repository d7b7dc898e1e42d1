"""Sums over ragged rows, without padding: pooling, segment sums and normal equations.

Rows are histories of users (`History`) or lists of anything else (`Ragged`): shapes below are for
R rows with N entries, which point at the I rows of a table.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.options import DEFAULT_ITEM_SHRINKAGE, DEFAULT_USER_SHRINKAGE
from idcf.types import Domain, Ragged, RaggedRows, Values

_MAX_GATHERED_ENTRIES = 1 << 18  # vectors gathered at a time, which bounds memory
MAX_CHUNK_LENGTH = 256


def sum_pool(table: Tensor, rows: RaggedRows, weights: Tensor | None = None) -> Tensor:
    """Return Σ over the entries of each row of weight · table[index]: [R, D].

    `weights` [N] are 1 if not given; the sum over an empty row is zero.
    """
    return F.embedding_bag(
        rows.indices,
        table,
        rows.offsets,
        mode="sum",
        per_sample_weights=weights,
        include_last_offset=True,
    )


class Transposed(NamedTuple, Generic[Values]):
    """The entries of R rows, grouped by the index that they point at."""

    rows: Ragged[Values]  # I rows, which point at the rows 0..R-1 that the entries come from
    order: Tensor  # int64 [N]: position of each entry in the original rows


def transpose(ragged: Ragged[Values], n_columns: int) -> Transposed[Values]:
    """Group the entries by their index, which is below `n_columns`."""
    order = torch.argsort(ragged.indices, stable=True)
    offsets = torch.zeros(n_columns + 1, dtype=torch.int64, device=order.device)
    torch.cumsum(torch.bincount(ragged.indices, minlength=n_columns), 0, out=offsets[1:])
    values = None if ragged.values is None else ragged.values[order]
    return Transposed(Ragged(ragged.owner()[order], values, offsets), order)


def sum_neighbors(
    table: Tensor,
    graph: RaggedRows,
    transposed: RaggedRows,
    weights: Tensor | None = None,
    transposed_weights: Tensor | None = None,
) -> Tensor:
    """Return `sum_pool(table, graph, weights)` with a faster, deterministic backward pass.

    The gradient of a sum over neighbors is a sum over the neighbors in the fixed transposed graph,
    `transpose(graph, I).rows`, whose entries have `transposed_weights`. The weights get no
    gradient.
    """
    sums: Tensor = _SumNeighbors.apply(table, graph, transposed, weights, transposed_weights)  # type: ignore[no-untyped-call]
    return sums


class _SumNeighbors(torch.autograd.Function):
    """`sum_pool` whose backward pass is `sum_pool` over the transposed graph."""

    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        graph: RaggedRows,
        transposed: RaggedRows,
        weights: Any,
        transposed_weights: Any,
    ) -> Tensor:
        """Return the sums; see `sum_neighbors` for the parameters."""
        ctx.transposed, ctx.weights = transposed, transposed_weights
        return sum_pool(table, graph, weights)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the table, and None for the other arguments."""
        grad = sum_pool(grad_outputs[0].contiguous(), ctx.transposed, ctx.weights)
        return grad, None, None, None, None


def select_entries(ragged: Ragged[Tensor], chosen: Tensor) -> Ragged[Tensor]:
    """Return the rows with the chosen entries, bool [N], alone."""
    n_before = torch.cat([chosen.new_zeros(1, dtype=torch.int64), chosen.cumsum(0)])
    return Ragged(ragged.indices[chosen], ragged.values[chosen], n_before[ragged.offsets])


def segment_sum(values: Tensor, owner: Tensor, n_rows: int) -> Tensor:
    """Return Σ over each row of `values` [N], where `owner` [N] is the row of each value: [R]."""
    return values.new_zeros(n_rows).index_add(0, owner, values)


def shrunk_mean(values: Tensor, rows: RaggedRows, shrinkage: Tensor | float) -> Tensor:
    """Return Σ values / (n + shrinkage) over the n entries of each row [R]: the ridge estimate of a
    bias."""
    n = rows.lengths()
    return segment_sum(values, rows.owner(), len(n)) / (n + shrinkage).clamp(min=1e-9)


def item_ridge_biases(
    domain: Domain,
    user_shrinkage: float = DEFAULT_USER_SHRINKAGE,
    item_shrinkage: float = DEFAULT_ITEM_SHRINKAGE,
    *,
    n_rounds: int = 5,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the item biases b_i [I] of alternating ridge regression, computed in `dtype`.

    b_i = Σ (r - μ - b_u) / (n_i + item_shrinkage) and b_u = Σ (r - μ - b_i) / (n_u +
    user_shrinkage) in turn, from b_u = 0 on. The result is float32.
    """
    item, user = domain.raters.owner(), domain.raters.indices
    centered = (domain.raters.values - domain.mean).to(dtype)
    n_of_item = domain.raters.lengths() + item_shrinkage
    n_of_user = segment_sum(torch.ones_like(centered), user, domain.n_users) + user_shrinkage
    residuals, item_bias = centered, centered.new_zeros(domain.n_items)
    for _ in range(n_rounds):
        item_bias = segment_sum(residuals, item, domain.n_items) / n_of_item
        user_bias = segment_sum(centered - item_bias[item], user, domain.n_users) / n_of_user
        residuals = centered - user_bias[user]
    return item_bias.float()


def nearest_level(values: Tensor, levels: Tensor) -> Tensor:
    """Return the index of the level [L] nearest to each value; a midpoint goes to the lower."""
    return torch.bucketize(values, (levels[1:] + levels[:-1]) / 2)


def split_by_level(ragged: Ragged[Tensor], levels: Tensor) -> Ragged[None]:
    """Split each of R rows by rating level: R · L rows without values, row r · L + l for level l.

    `levels` [L] are ascending; a value counts as the `nearest_level`. Indices keep their order.
    """
    key = ragged.owner() * len(levels) + nearest_level(ragged.values, levels)
    order = torch.argsort(key, stable=True)
    n_rows = (len(ragged.offsets) - 1) * len(levels)
    offsets = key.new_zeros(n_rows + 1)
    offsets[1:].index_add_(0, key, torch.ones_like(key))
    offsets.cumsum_(0)
    return Ragged(ragged.indices[order], None, offsets)


class RowChunks(NamedTuple):
    """Rows cut into chunks of at most `MAX_CHUNK_LENGTH` entries, grouped by length.

    Chunks of one length are multiplied in one batched product, without padding.
    """

    entry_groups: list[Tensor]  # each int64 [G, n]: entries of G chunks of length n
    chunks_of_rows: Ragged[None]  # R rows, which point at chunks, counted over all groups


def split_into_chunks(ragged: RaggedRows) -> RowChunks:
    """Cut rows into chunks for `normal_equations`."""
    lengths, device = ragged.lengths(), ragged.offsets.device
    n_chunks = (lengths + MAX_CHUNK_LENGTH - 1) // MAX_CHUNK_LENGTH
    offsets = torch.zeros(len(n_chunks) + 1, dtype=torch.int64, device=device)
    torch.cumsum(n_chunks, 0, out=offsets[1:])
    total = int(offsets[-1])
    rows = torch.arange(len(n_chunks), device=device)
    owner = rows.repeat_interleave(n_chunks, output_size=total)
    skipped = (torch.arange(total, device=device) - offsets[owner]) * MAX_CHUNK_LENGTH
    start = ragged.offsets[owner] + skipped
    size = (lengths[owner] - skipped).clamp(max=MAX_CHUNK_LENGTH)
    order = torch.argsort(size, stable=True)
    sizes, counts = torch.unique_consecutive(size[order], return_counts=True)
    groups, begin = [], 0
    for n, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        end, step = begin + count, max(1, _MAX_GATHERED_ENTRIES // n)
        for low in range(begin, end, step):
            chunks = order[low : min(low + step, end)]
            groups.append(start[chunks, None] + torch.arange(n, device=device))
        begin = end
    position = torch.empty_like(order)
    position[order] = torch.arange(total, device=device)
    return RowChunks(groups, Ragged(position, None, offsets))


def normal_equations(
    table: Tensor,
    rows: RaggedRows,
    target: Tensor,
    chunks: RowChunks | None = None,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return Σ w q qᵀ [R, D, D] and Σ w · target · q [R, D] over the entries of each row, with q of
    `table` and the `weights` w [N], by default 1.

    `chunks` is `split_into_chunks(rows)`, to be reused when the rows stay and the table changes.
    """
    size, chunks = table.shape[1], split_into_chunks(rows) if chunks is None else chunks
    parts = []
    for entries in chunks.entry_groups:
        vectors = table[rows.indices[entries]]
        scaled = vectors if weights is None else vectors * weights[entries][..., None]
        parts.append((scaled.mT @ vectors).flatten(1))
    products = torch.cat(parts) if parts else table.new_zeros(0, size * size)
    outer = sum_pool(products, chunks.chunks_of_rows).view(-1, size, size)
    return outer, sum_pool(table, rows, target if weights is None else weights * target)
