"""The Markov chain of `idcf.training.solvers.bayes` for large tables, drawn in blocks of rows.

A row is a user or an item. Rows of about equal length are drawn together, a block at a time that
fits into the processor's cache, by one thread each: PyTorch solves many small equations in one
thread. The distributions are those of `GibbsSampler`, the random numbers are not. The result does
not depend on the number of threads. Three things save time and memory:

- A row with n ratings, n < D/2, needs n × n equations: with X its n vectors, each times the root
  of its noise precision, y the ratings, S = Λ⁻¹ and v drawn from the prior N(m, S), e from N(0, I),

      v + S Xᵀ (I + X S Xᵀ)⁻¹ (y - X v - e)

  is a draw from the posterior N(m + S Xᵀ (I + X S Xᵀ)⁻¹ (y - X m), S - S Xᵀ (I + X S Xᵀ)⁻¹ X S).
- Items that no key user has rated are not drawn: nothing depends on them. Their moments are those
  of their prior, computed once for all items of the same features.
- (m, Λ) and the feature weights are drawn given sums over rows, which take one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from idcf.models.layers.ragged import MAX_CHUNK_LENGTH, sum_pool
from idcf.rng import derive_seed, random_stream
from idcf.training.solvers.normal_wishart import (
    FeatureWeights,
    mean_noise_precision,
    sample_noise,
    sample_normal_wishart_from_sums,
)
from idcf.training.solvers.threads import BlockMap, map_blocks, threads_over_blocks
from idcf.types import Ragged

FEATURE_WARMUP_SWEEPS = 6  # sweeps before A and B are drawn: latents start as noise
_MAX_BLOCK_ENTRIES = 1 << 14  # vectors gathered at a time
_MAX_BLOCK_ROWS = 1 << 9  # matrices solved at a time
_SUM_ROWS = 1 << 16  # rows summed in single precision; the sums are added in double precision


class RowBlock(NamedTuple):
    """G rows of about n ratings each, or parts of longer rows; shorter ones are padded."""

    rows: Tensor  # int64 [G]
    others: Tensor  # int32 [G, n]: rows of the other side; padding is its number of rows
    ratings: Tensor  # [G, n]: ratings less μ; padding is 0


class MomentSums(NamedTuple):
    """Where the moments of items are summed over the sweeps of a block of the model."""

    means: Tensor  # [I, D]
    second_moments: Tensor  # [I, P]: packed lower triangles
    weight: float  # of the sweep

    def add(self, rows: Tensor, mean: Tensor, second: Tensor) -> None:
        """Add means [G, D] and second moments [G, D, D] of some rows."""
        size = mean.shape[1]
        low = torch.tril_indices(size, size, device=mean.device)
        packed = second.flatten(1).index_select(1, low[0] * size + low[1])
        self.means[rows] += self.weight * mean
        self.second_moments[rows] += self.weight * packed


def divide_rows(ratings: Ragged[Tensor], n_others: int) -> tuple[list[RowBlock], list[RowBlock]]:
    """Return blocks of whole rows, those without ratings left out, and blocks of parts of the rows
    with more than `MAX_CHUNK_LENGTH` ratings."""
    lengths = ratings.lengths()
    short = torch.nonzero((lengths > 0) & (lengths <= MAX_CHUNK_LENGTH))[:, 0]
    whole = list(_blocks(ratings, short, ratings.offsets[short], lengths[short], n_others))
    long = torch.nonzero(lengths > MAX_CHUNK_LENGTH)[:, 0]
    n_parts = -(-lengths[long] // MAX_CHUNK_LENGTH)
    rows = long.repeat_interleave(n_parts)
    first = (n_parts.cumsum(0) - n_parts).repeat_interleave(n_parts)
    skipped = (torch.arange(len(rows), device=rows.device) - first) * MAX_CHUNK_LENGTH
    sizes = (lengths[rows] - skipped).clamp(max=MAX_CHUNK_LENGTH)
    return whole, list(_blocks(ratings, rows, ratings.offsets[rows] + skipped, sizes, n_others))


def _blocks(
    ratings: Ragged[Tensor], rows: Tensor, start: Tensor, lengths: Tensor, n_others: int
) -> Iterator[RowBlock]:
    """Yield blocks of runs of entries: `lengths` [K] entries from `start` [K] on, of `rows` [K]."""
    widths = _padded_lengths(lengths)
    order = torch.argsort(widths, stable=True)
    sizes, counts = torch.unique_consecutive(widths[order], return_counts=True)
    begin = 0
    for width, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        step = max(1, min(_MAX_BLOCK_ROWS, _MAX_BLOCK_ENTRIES // width))
        columns = torch.arange(width, device=rows.device)
        for part in order[begin : begin + count].split(step):  # type: ignore[no-untyped-call]
            is_entry = columns < lengths[part, None]
            entries = torch.where(is_entry, start[part, None] + columns, 0)
            others = torch.where(is_entry, ratings.indices[entries], n_others)
            yield RowBlock(rows[part], others.int(), ratings.values[entries] * is_entry)
        begin += count


def _padded_lengths(lengths: Tensor) -> Tensor:
    """Return lengths rounded up by less than an eighth, so that there are few different ones."""
    step = torch.exp2((lengths.clamp(min=8).double().log2().floor() - 3).clamp(min=0)).long()
    return -(-lengths // step) * step


@dataclass
class BlockwiseSide:
    """Users or items: their ratings in blocks, their features, and their half of the chain."""

    whole_rows: list[RowBlock]
    row_parts: list[RowBlock]  # of long rows
    long_rows: Tensor  # int64 [K]: the rows that `row_parts` are of
    parts_of_rows: Ragged[None]  # K rows, which point at parts, counted over all of `row_parts`
    lengths: Tensor  # int64 [n]
    is_drawn: Tensor  # bool [n]: the row had ratings at the start
    prior_rows: Tensor  # int64 [K]: for each row without ratings, the first one of its features
    features: Tensor  # [n, F] in float32: φ or ψ, standardized over the rows with ratings
    gram: Tensor  # [F, F] in float64: φᵀφ over the rows with ratings
    gram_inverse: Tensor  # (φᵀφ + λI)⁻¹
    shrinkage: float  # λ
    latents: Tensor  # [n, D], the bias last; 0 for a row without ratings
    mean: Tensor  # [D]
    precision: Tensor  # [D, D]
    feature_weights: Tensor  # [F, D]: B or A

    @classmethod
    def initialize(
        cls,
        ratings: Ragged[Tensor],
        raw_features: Tensor,
        shrinkage: float,
        size: int,
        generator: torch.Generator,
        n_others: int,
    ) -> BlockwiseSide:
        """Return the side with standardized features and small random latents; λ is `shrinkage`.

        `n_others` is the number of rows of the other side.
        """
        whole_rows, row_parts = divide_rows(ratings, n_others)
        lengths, device = ratings.lengths(), ratings.values.device
        long_rows = torch.nonzero(lengths > MAX_CHUNK_LENGTH)[:, 0]
        rated = (lengths > 0)[:, None]
        n_rated = float(rated.sum())
        mean = (raw_features * rated).sum(0, dtype=torch.float64) / n_rated
        square = ((raw_features - mean.to(raw_features)).square() * rated).sum(
            0, dtype=torch.float64
        )
        std = (square / n_rated).sqrt() + 1e-9
        features = (raw_features - mean.to(raw_features)) / std.to(raw_features)
        masked = features * rated
        gram = sum_products(masked, masked)
        eye = torch.eye(len(gram), dtype=torch.float64, device=device)
        latents = torch.randn(len(lengths), size, generator=generator, device=device) * 0.1
        zero = torch.zeros(len(gram), size, dtype=torch.float64, device=device)
        return cls(
            whole_rows=whole_rows,
            row_parts=row_parts,
            long_rows=long_rows,
            parts_of_rows=_group_parts(row_parts, long_rows),
            lengths=lengths,
            is_drawn=lengths > 0,
            prior_rows=_first_equal_rows(features, torch.nonzero(lengths == 0)[:, 0]),
            features=features,
            gram=gram,
            gram_inverse=torch.linalg.inv(gram + shrinkage * eye),
            shrinkage=shrinkage,
            latents=latents * rated,
            mean=zero[0],
            precision=torch.eye(size, dtype=torch.float64, device=device),
            feature_weights=zero,
        )

    def prior_means(self) -> Tensor:
        """Return the prior mean of each row: [n, D]."""
        weights, mean = self.feature_weights.to(self.features), self.mean.to(self.features)
        return self.features @ weights + mean

    def copy_prior_moments(self, *sums: Tensor) -> None:
        """Copy sums [n, ...] of the rows `prior_rows` to all rows without ratings."""
        unrated = ~self.is_drawn
        for total in sums:
            total[unrated] = total[self.prior_rows]

    def rated_latents(self) -> Tensor:
        """Return the latents of the rows that have ratings."""
        return self.latents if bool(self.is_drawn.all()) else self.latents[self.is_drawn]

    def without_entries(self, rows: Tensor, others: Tensor) -> BlockwiseSide:
        """Return the side without the ratings of some rows, bool [n], and those of some rows of the
        other side, bool [n_others], in the present state; they become padding."""
        others = torch.cat([others, others.new_ones(1)])
        n_removed = torch.zeros_like(self.lengths)

        def select(block: RowBlock) -> RowBlock:
            """Return a block without the entries; count those that are no padding."""
            removed = others[block.others] | rows[block.rows, None]
            is_rating = removed & (block.others < len(others) - 1)
            n_removed.index_add_(0, block.rows, is_rating.sum(1))
            padded = block.others.masked_fill(removed, len(others) - 1)
            return RowBlock(block.rows, padded, block.ratings.masked_fill(removed, 0))

        whole_rows, row_parts = ([select(x) for x in b] for b in (self.whole_rows, self.row_parts))
        return replace(
            self, whole_rows=whole_rows, row_parts=row_parts, lengths=self.lengths - n_removed,
            latents=self.latents.clone(),
        )  # fmt: skip


def _group_parts(row_parts: list[RowBlock], long_rows: Tensor) -> Ragged[None]:
    """Return, for each of the long rows, its parts, counted over all blocks of parts."""
    rows = torch.cat([long_rows[:0], *(block.rows for block in row_parts)])
    row_of_part = torch.searchsorted(long_rows, rows)  # `long_rows` ascend
    order = torch.argsort(row_of_part, stable=True)
    counts = torch.bincount(row_of_part, minlength=len(long_rows))
    return Ragged(order, None, torch.cat([counts.new_zeros(1), counts.cumsum(0)]))


def _first_equal_rows(features: Tensor, rows: Tensor) -> Tensor:
    """Return, for each of some rows [K], the first of them that has the same features: [K]."""
    if not len(rows):
        return rows
    group = torch.unique(features[rows], dim=0, return_inverse=True)[1]
    first = torch.full_like(rows, features.shape[0])
    first.scatter_reduce_(0, group, rows, "amin")
    return first[group]


def sum_products(rows: Tensor, other_rows: Tensor) -> Tensor:
    """Return XᵀY of X [n, A] and Y [n, B], in float64 though the factors are float32."""
    total = rows.new_zeros(rows.shape[1], other_rows.shape[1], dtype=torch.float64)
    for low in range(0, len(rows), _SUM_ROWS):
        total += rows[low : low + _SUM_ROWS].T @ other_rows[low : low + _SUM_ROWS]
    return total


class BlockwiseSampler:
    """The Markov chain; `sweep` draws every variable once.

    `noise_dof` is ν, the degrees of freedom of the users' noise; infinite for equal weights w_u.
    """

    def __init__(
        self, users: BlockwiseSide, items: BlockwiseSide, noise_dof: float, seed: int
    ) -> None:
        self.users, self.items = users, items
        self.noise_dof = noise_dof
        self.noise_precision = 1.5  # α
        self.n_sweeps = 0
        self.user_weights = torch.ones_like(users.latents[:, 0])  # w_u
        self._map: BlockMap = map_blocks
        self.rng = random_stream(seed, "gibbs")
        device = users.latents.device
        self.generator = torch.Generator(device).manual_seed(derive_seed(seed, "gibbs"))

    def sweep(self, moments: MomentSums | None = None) -> None:
        """Draw hyperparameters, users, items and noise, in this order.

        The moments of the distributions that the items were drawn from are added to `moments`, of
        items without ratings in the rows `prior_rows` only.
        """
        is_cpu = self.users.latents.device.type == "cpu"
        with threads_over_blocks(None if is_cpu else 1) as self._map:
            for side in (self.users, self.items):
                self._sample_hyperparameters(side)
            root = (self.noise_precision * self.user_weights).sqrt()
            self.sample_latents(self.users, _vector_table(self.items.latents), root)
            self.sample_latents(self.items, _vector_table(self.users.latents, root), None, moments)
            self._sample_noise()
        self.n_sweeps += 1

    def mean_noise_precision(self) -> float:
        """Return the noise precision of the mean rating."""
        return mean_noise_precision(self.noise_precision, self.user_weights, self.users.lengths)

    def without_users(self, removed: Tensor) -> BlockwiseSampler:
        """Return a sampler in this one's state without the ratings of some users, bool [U]."""
        out, no_item = copy(self), torch.zeros_like(self.items.is_drawn)
        out.users = self.users.without_entries(removed, no_item)
        out.items = self.items.without_entries(no_item, removed)
        return out

    def _sample_hyperparameters(self, side: BlockwiseSide) -> None:
        """Draw (m, Λ) of one side and, after the warm-up, its feature weights."""
        latents, weights, like = side.latents, side.feature_weights, side.mean
        n = int(side.is_drawn.sum())
        cross = sum_products(side.features, latents)  # rows without ratings have latents of 0
        square = sum_products(latents, latents) - cross.T @ weights - weights.T @ cross
        square += weights.T @ side.gram @ weights
        center = latents.sum(0, dtype=torch.float64) / n  # the mean of the features is 0
        scatter = square - n * torch.outer(center, center)
        prior = FeatureWeights(weights.cpu().numpy(), side.shrinkage)
        mean, precision = sample_normal_wishart_from_sums(
            n, center.cpu().numpy(), scatter.cpu().numpy(), prior, self.rng
        )
        side.mean, side.precision = (torch.from_numpy(x).to(like) for x in (mean, precision))
        if self.n_sweeps >= FEATURE_WARMUP_SWEEPS:
            noise = torch.from_numpy(self.rng.normal(size=weights.shape)).to(like)
            rows = torch.linalg.cholesky(side.gram_inverse)
            columns = torch.linalg.inv(torch.linalg.cholesky(side.precision))
            side.feature_weights = side.gram_inverse @ cross + rows @ noise @ columns

    def sample_latents(
        self,
        side: BlockwiseSide,
        table: Tensor,
        row_root: Tensor | None,
        moments: MomentSums | None = None,
    ) -> None:
        """Draw the latents of one side.

        `table` is the `_vector_table` of the other side. `row_root` [n] is the root of the noise
        precision of each row; None: the table holds those of the ratings.
        """
        prior, device = side.prior_means(), table.device
        shape, dtype = side.latents.shape, side.latents.dtype
        noise = torch.randn(shape, generator=self.generator, device=device, dtype=dtype)
        conditional = _Conditional(side.precision, prior, noise, moments)
        seeds = derive_seeds(self.generator, len(side.whole_rows))

        def draw_block(block: RowBlock, seed: int) -> None:
            """Draw the rows of one block."""
            vectors, rows = _gather(table, block), block.rows
            if row_root is not None:
                vectors *= row_root[rows][:, None, None]
            if 2 * vectors.shape[1] < prior.shape[1]:
                generator = torch.Generator(device).manual_seed(seed)
                side.latents[rows] = conditional.draw_short(rows, vectors, generator)
            else:
                vectors[..., -1:] -= vectors[..., :-1] @ prior[rows][..., None]
                side.latents[rows] = conditional.draw(rows, vectors.mT @ vectors)

        self._map(draw_block, side.whole_rows, seeds)
        if side.row_parts:
            products = self._long_products(side, table, prior)
            if row_root is not None:
                products *= row_root[side.long_rows].square()[:, None, None]
            for part in torch.arange(len(products), device=device).split(_MAX_BLOCK_ROWS):  # type: ignore[no-untyped-call]
                rows = side.long_rows[part]
                side.latents[rows] = conditional.draw(rows, products[part])
        if moments is not None:
            conditional.add_prior_moments(torch.unique(side.prior_rows))

    def _long_products(self, side: BlockwiseSide, table: Tensor, prior: Tensor) -> Tensor:
        """Return the products [K, D + 1, D + 1] of the vectors and targets of the long rows."""

        def part_products(block: RowBlock) -> Tensor:
            """Return the products of parts of rows."""
            vectors = _gather(table, block)
            vectors[..., -1:] -= vectors[..., :-1] @ prior[block.rows][..., None]
            return (vectors.mT @ vectors).flatten(1)

        parts = torch.cat(self._map(part_products, side.row_parts))
        size = table.shape[1]
        return sum_pool(parts, side.parts_of_rows).view(-1, size, size)

    def _sample_noise(self) -> None:
        """Draw the users' weights w_u and α."""
        users, table = self.users, _vector_table(self.items.latents)
        blocks = (*users.whole_rows, *users.row_parts)

        def squared_errors(block: RowBlock) -> Tensor:
            """Return the sums of squared errors of the rows of a block."""
            vectors = _gather(table, block)
            fitted = (vectors[..., :-1] @ users.latents[block.rows][..., None])[..., 0]
            return (vectors[..., -1] - fitted).square_().sum(1)

        squares = torch.zeros_like(users.latents[:, 0])
        for block, error in zip(blocks, self._map(squared_errors, blocks), strict=True):
            squares.index_add_(0, block.rows, error)
        self.noise_precision, weights = sample_noise(
            squares.double().cpu().numpy(),
            users.lengths.cpu().numpy(),
            self.noise_precision,
            self.noise_dof,
            self.rng,
        )
        self.user_weights = torch.from_numpy(weights).to(self.user_weights)


def derive_seeds(generator: torch.Generator, n: int) -> list[int]:
    """Draw n seeds."""
    seeds: list[int] = torch.randint(
        1 << 62, (n,), generator=generator, device=generator.device
    ).tolist()
    return seeds


class _Conditional:
    """The normal distributions of rows given the other side, their draws and their moments.

    `prior` are the prior means [n, D], `noise` standard normal numbers [n, D].
    """

    def __init__(
        self, precision: Tensor, prior: Tensor, noise: Tensor, moments: MomentSums | None
    ) -> None:
        self.prior, self.noise, self.moments = prior, noise, moments
        self.bordered_precision = torch.nn.functional.pad(precision.to(prior), (0, 1, 0, 1))
        self.bordered_precision[-1, -1] = 1
        self.covariance = torch.linalg.inv(precision).to(prior)
        self.covariance_root = torch.linalg.cholesky(torch.linalg.inv(precision)).to(prior)

    def draw(self, rows: Tensor, products: Tensor) -> Tensor:
        """Draw rows [G] from the sums of products [G, D + 1, D + 1] of their vectors and their
        targets less what is expected at the prior mean.

        The last row of the Cholesky factor of [[A, b], [bᵀ, c]] is (L⁻¹b, d), with L that of A.
        Solving [[Lᵀ, L⁻¹b], [0, d]] (x, z) = (e, -d) gives x = L⁻ᵀ(L⁻¹b + e), a draw around A⁻¹b.
        """
        factor = torch.linalg.cholesky(products + self.bordered_precision)
        right = factor.new_zeros(len(rows), factor.shape[1], 1 if self.moments is None else 2)
        right[:, :-1, 0] = self.noise[rows]
        right[:, -1] = -factor[:, -1:, -1]
        solved = torch.linalg.solve_triangular(factor.mT, right, upper=True)[:, :-1]
        prior = self.prior[rows]
        if self.moments is not None:
            mean = prior + solved[..., 1]
            covariance = torch.cholesky_inverse(factor[:, :-1, :-1])
            self.moments.add(rows, mean, torch.baddbmm(covariance, mean[..., None], mean[:, None]))
        drawn: Tensor = prior + solved[..., 0]
        return drawn

    def draw_short(self, rows: Tensor, vectors: Tensor, generator: torch.Generator) -> Tensor:
        """Draw rows [G] from their vectors and targets [G, n, D + 1], by n × n equations."""
        n_rows, n, _ = vectors.shape
        x, target, prior = vectors[..., :-1], vectors[..., -1:], self.prior[rows]
        start = prior + self.noise[rows] @ self.covariance_root.T
        projected = x @ self.covariance
        equations = projected @ x.mT
        equations.diagonal(dim1=1, dim2=2).add_(1)
        factor = torch.linalg.cholesky(equations)
        error = target - x @ torch.stack([start, prior], 2)
        error[..., 0] -= torch.randn(n_rows, n, generator=generator, device=x.device)
        right = torch.cat([projected, error], 2)
        solved = torch.linalg.solve_triangular(factor, right, upper=False)
        gain = solved[..., :-2]
        change = gain.mT @ solved[..., -2:]
        if self.moments is not None:
            mean = prior + change[..., 1]
            covariance = torch.baddbmm(self.covariance, gain.mT, gain, alpha=-1)
            self.moments.add(rows, mean, torch.baddbmm(covariance, mean[..., None], mean[:, None]))
        drawn: Tensor = start + change[..., 0]
        return drawn

    def add_prior_moments(self, rows: Tensor) -> None:
        """Add the moments of rows without ratings: those of the prior."""
        if self.moments is None:
            return
        for part in rows.split(_SUM_ROWS):  # type: ignore[no-untyped-call]
            mean = self.prior[part]
            self.moments.add(part, mean, self.covariance + mean[:, :, None] * mean[:, None])


def _vector_table(latents: Tensor, root: Tensor | None = None) -> Tensor:
    """Return (q, 1, b) of each row, times `root` [n] if given, and a row of zeros for padding:
    [n + 1, D + 1]."""
    n, size = latents.shape
    table = latents.new_zeros(n + 1, size + 1)
    table[:-1, : size - 1], table[:-1, -2], table[:-1, -1] = latents[:, :-1], 1, latents[:, -1]
    if root is not None:
        table[:-1] *= root[:, None]
    return table


def _gather(table: Tensor, block: RowBlock) -> Tensor:
    """Return the vectors (q, 1) of the entries and, in the last column, their targets, the ratings
    less b: [G, n, D + 1]."""
    vectors = table.index_select(0, block.others.flatten()).view(*block.others.shape, -1)
    vectors[..., -1] = block.ratings * vectors[..., -2] - vectors[..., -1]
    return vectors
