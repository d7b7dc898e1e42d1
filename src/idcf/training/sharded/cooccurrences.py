"""The rows of key users in shards, as the source of `ItemRelation`, and idcf-takeup fitted to them.

Sums over pairs of items have the size of the items, times the number of pairs that are held for
each. In a large catalogue the pairs are chosen on a random sample of users, and then counted over
all of them; where the sample holds all users, the pairs are those of rows in memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor

from idcf.data.interactions import Ints, offsets_from_lengths, slice_index
from idcf.data.shards import UserBlocks
from idcf.models.options import TakeUpConfig
from idcf.models.take_up import TakeUpModel
from idcf.rng import random_stream
from idcf.training.block_sums import Sums, fixed_point, from_fixed_point
from idcf.training.engine import State
from idcf.training.sharded.passes import (
    EXCLUDED,
    N_LENGTHS,
    Histories,
    HistorySum,
    ItemCounts,
    LengthCounts,
)
from idcf.training.sharded.training import ShardedTraining
from idcf.training.solvers import SolverContext
from idcf.training.solvers.cooccurrences import LengthWeight, MatrixSource
from idcf.training.solvers.nearest_items import (
    MAX_PAIRED_ITEMS,
    NearestItems,
    ordered_by_nearness,
    sample_long_rows,
)
from idcf.training.solvers.take_up import (
    MAX_CUTS,
    MAX_SCORED_CELLS,
    N_HISTORIES,
    TakeUpRows,
    fit_relation,
)
from idcf.types import Domain

CANDIDATE_ROWS = 8_000_000  # of the users on whom the pairs of a large catalogue are chosen
_MAX_PAIRS = 1 << 24  # of items, held before they are looked up


@dataclass
class _WeightedPairs(HistorySum):
    """Sum the weights of the users who have both of two items: `pairs` [I, I].

    The state has a weight for each number of items, `weights` at `lengths`.
    """

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return zero sums."""
        return {"pairs": np.zeros((table.n_items, table.n_items), np.int64)}

    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Add the pairs of some users."""
        x = histories.matrix(len(sums["pairs"]))
        weights = state["weights"][np.searchsorted(state["lengths"], histories.lengths)]
        scaled = histories.matrix(x.shape[1], np.repeat(weights, histories.lengths))
        pairs = csr_array(x.T @ scaled).tocoo()
        sums["pairs"][pairs.row, pairs.col] += fixed_point(pairs.data)


@dataclass
class _CandidatePairs(HistorySum):
    """Count the users who have both items of each pair of the state: `counts` [P].

    The pairs of item i are it and `candidates`[o_i : o_(i + 1)], which ascend, o = `offsets`. Of
    histories of more than `MAX_PAIRED_ITEMS` items a part is read, drawn at random.
    """

    seed: int
    _parts: list[csr_array] = field(default_factory=list)
    _n_pairs: int = 0

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return zero counts."""
        return {"counts": np.zeros(len(state["candidates"]), np.int64)}

    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Keep the rows of some users; count pairs once they are many."""
        rng = random_stream(self.seed, "long histories", histories.block_index)
        n_items = len(state["offsets"]) - 1
        x = sample_long_rows(histories.matrix(n_items), MAX_PAIRED_ITEMS, rng)
        self._parts.append(x)
        self._n_pairs += int((np.diff(x.indptr).astype(np.int64) ** 2).sum())
        if self._n_pairs >= _MAX_PAIRS:
            self.finish(state, sums)

    def finish(self, state: State, sums: Sums) -> None:
        """Count the pairs of the rows that were kept."""
        if self._parts:
            x = csr_array(vstack(self._parts))
            self._parts, self._n_pairs = [], 0
            add_pair_counts(x, state["candidates"], state["offsets"], sums["counts"])


def add_pair_counts(x: csr_array, candidates: Ints, offsets: Ints, counts: Ints) -> None:
    """Add, to the count of each pair of items, the number of rows of x that have both."""
    by_item, n_items = csr_array(x.T), x.shape[1]
    present = np.flatnonzero(np.diff(by_item.indptr))
    n_pairs = (by_item @ np.diff(x.indptr))[present].cumsum()
    ends = np.flatnonzero(np.diff(n_pairs // _MAX_PAIRS)) + 1
    for items in np.split(present, ends):
        # two conversions sort the columns of each row in linear time
        block = csr_array(csr_array(by_item[items] @ x).tocsc().tocsr())
        entries, starts = slice_index(offsets[items], np.diff(offsets)[items])
        pattern = candidates[entries], starts
        ones = np.ones(len(entries), np.int64)
        shape = len(items), n_items
        users = csr_array(block.multiply(csr_array((ones, *pattern), shape=shape)))
        block.data[:] = 1
        position = csr_array(block.multiply(csr_array((entries + 1, *pattern), shape=shape)))
        counts[position.data.astype(np.int64) - 1] += users.data.astype(np.int64)


class ShardedSource:
    """The key users of a table in shards, but for some that are left out."""

    def __init__(
        self, training: ShardedTraining, label: str, excluded_users: Ints | None = None
    ) -> None:
        self.training, self.label = training, label
        excluded = np.empty(0, np.int64) if excluded_users is None else np.sort(excluded_users)
        self.state: State = {EXCLUDED: excluded}
        self.n_items = training.n_items
        if len(excluded):
            users = training.users
            self.item_counts = self._sum("item counts", ItemCounts(users))["item_counts"]
            counts = self._sum("lengths", LengthCounts(users))["length_counts"]
            lengths = np.flatnonzero(counts)
            self._length_counts = lengths, counts[lengths]
        else:
            self.item_counts = training.item_counts
            self._length_counts = training.length_counts
        self.n_users = int(self._length_counts[1].sum())
        self.n_entries = int(self.item_counts.sum())

    def _sum(self, name: str, work: HistorySum, state: State | None = None) -> Sums:
        """Return sums over these users."""
        return self.training.sum(f"{self.label}, {name}", work, {**self.state, **(state or {})})

    def length_counts(self) -> tuple[Ints, Ints]:
        """Return the different numbers of items of a user, and how many users have each."""
        return self._length_counts

    def weighted_gram(self, weight: LengthWeight) -> Tensor:
        """Return Σ_u weight(|x_u|) x_uᵀ x_u [I, I]."""
        lengths = self._length_counts[0]
        weights = weight(lengths.astype(np.float64))
        digest = hashlib.sha256(weights.tobytes()).hexdigest()[:12]
        work, state = _WeightedPairs(self.training.users), {"lengths": lengths, "weights": weights}
        sums = self._sum(f"pairs weighted {digest}", work, state)
        return torch.from_numpy(from_fixed_point(sums["pairs"]))

    def sampled_rows(self, max_entries: int) -> csr_array:
        """Return random rows."""
        return self._sample("sampled rows", max_entries)

    def _sample(self, name: str, max_entries: int) -> csr_array:
        """Return the rows of users drawn at random."""
        label = f"{self.label}, {name}"
        histories = self.training.sample(label, max_rows=max_entries, state=self.state)
        return histories.matrix(self.n_items, np.ones(len(histories.items), np.float32))

    def nearest_items(self, n_nearest: int) -> NearestItems:
        """Return the nearest items of each item, among those that a sample of users has it with."""
        sample = self._sample("users who choose pairs", CANDIDATE_ROWS)
        nearest = MatrixSource(sample).nearest_items(n_nearest)
        if sample.shape[0] == self.n_users:
            return nearest
        candidates, offsets, items = candidate_pairs(nearest)
        state: State = {"candidates": candidates, "offsets": offsets}
        work = _CandidatePairs(self.training.users, seed=0)
        counts = np.zeros(items.shape, np.float32)
        is_pair = np.arange(items.shape[1]) < np.diff(offsets)[:, None]
        counts[is_pair] = self._sum("pairs of items", work, state)["counts"]
        return ordered_by_nearness(items, counts, self.item_counts)


def candidate_pairs(nearest: NearestItems) -> tuple[NDArray[np.int32], Ints, NDArray[np.int32]]:
    """Return the nearest items of all items in ascending order, where those of each item start, and
    as rows [I, M], of which those without a count are last."""
    items, is_pair = nearest.items.numpy(), nearest.counts.numpy() > 0
    order = np.argsort(np.where(is_pair, items, nearest.n_items), axis=1, kind="stable")
    items, is_pair = np.take_along_axis(items, order, 1), np.take_along_axis(is_pair, order, 1)
    return items[is_pair], offsets_from_lengths(is_pair.sum(1)), items


def fit_take_up(
    config: TakeUpConfig, training: ShardedTraining, domain: Domain, context: SolverContext
) -> TakeUpModel:
    """Fit idcf-takeup; see `idcf.training.solvers.take_up`."""
    rng = random_stream(context.seed, "take-up")
    light = hold_out_users(config, training, rng)
    whole = ShardedSource(training, "all users")
    others = ShardedSource(training, "other users", light.users)
    if not others.n_users:
        others = whole
    n_cuts = min(MAX_CUTS, max(1, N_HISTORIES // max(1, len(light.users))))
    order = np.argsort(light.lengths, kind="stable")
    rows = light.matrix(training.n_items, np.ones(len(light.items), np.float32))
    rows = csr_array(rows[np.repeat(order, n_cuts)])
    return fit_relation(config, domain, TakeUpRows(whole, others, rows), context, rng)


def hold_out_users(
    config: TakeUpConfig, training: ShardedTraining, rng: np.random.Generator
) -> Histories:
    """Return users of the least active quarter, drawn at random, with two rows or more."""
    max_users = min(config.max_held_out_users, max(100, MAX_SCORED_CELLS // training.n_items))
    limit = quantile_of_counts(*training.length_counts, 0.25)
    for longest in (limit, N_LENGTHS):
        light = training.sample("held-out users", max_users=max_users, user_rows=(2, longest))
        if len(light.users):
            break
    chosen = np.zeros(len(light.users), bool)
    chosen[rng.permutation(len(light.users))[:max_users]] = True
    return light.select(chosen)


def quantile_of_counts(values: Ints, counts: Ints, share: float) -> int:
    """Return the largest value that is not above the quantile of values that occur so often."""
    position = share * (counts.sum() - 1)
    low, high = (int(np.searchsorted(counts.cumsum(), x, "right"))
                 for x in (np.floor(position), np.ceil(position)))  # fmt: skip
    quantile = values[low] + (position % 1) * (values[high] - values[low])
    return int(np.floor(quantile))
