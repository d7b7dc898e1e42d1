"""One training on a table in blocks: runs passes on an engine, and keeps what they return."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idcf.data.interactions import Floats, Interactions, Ints, Vocab
from idcf.data.progress import progress_bar
from idcf.data.shards import UserBlocks
from idcf.rng import derive_seed
from idcf.training.array_store import StoredSteps
from idcf.training.block_sums import (
    BlockSelection,
    BlockSum,
    BlockWork,
    Sums,
    concatenate,
    divide_blocks,
    run_shard,
)
from idcf.training.engine import Engine, State
from idcf.training.sharded.pass_store import PassStore
from idcf.training.sharded.passes import (
    N_BUCKETS,
    BucketCounts,
    Histories,
    ItemCounts,
    LengthCounts,
    SampledHistories,
    UserFilter,
    histories_from_arrays,
)

_MIN_SHARDS, _SHARDS_PER_WORKER = 16, 4


class ShardedTraining:
    """Passes over the users of a table, or over those with some number of rows (`of_users`).

    `n_shards` changes no result. With a `store`, passes that it holds are not run again.
    """

    def __init__(
        self,
        table: UserBlocks,
        engine: Engine,
        *,
        seed: int = 0,
        n_shards: int | None = None,
        store: PassStore | None = None,
        progress: bool = False,
    ) -> None:
        self.table, self.engine, self.seed = table, engine, seed
        self.label, self.users = "all users", UserFilter()
        self.item_features: Floats | None = None
        self.store, self.progress = store, progress
        wanted = n_shards or max(_MIN_SHARDS, _SHARDS_PER_WORKER * engine.n_workers)
        self.shards = divide_blocks(table.n_blocks, wanted)

    def of_users(
        self, label: str, min_rows: int, item_features: Floats | None = None
    ) -> ShardedTraining:
        """Return the same training, on users with `min_rows` rows or more."""
        other = copy(self)
        for name in ("item_counts", "length_counts"):
            other.__dict__.pop(name, None)  # of the other users
        other.label, other.users, other.item_features = label, UserFilter(min_rows), item_features
        return other

    @property
    def n_items(self) -> int:
        """Number of items of the catalogue."""
        return self.table.n_items

    def sum(
        self, name: str, work: BlockSum, state: State | None = None, *, stored: bool = True
    ) -> Sums:
        """Return the sums over all blocks. The name is that of the progress bar and, if it is
        `stored`, of the stored result."""
        if stored and (earlier := self._load(name)):
            return earlier
        state = state or {}
        total = work.zeros(self.table, state)
        for _, result in self._run(name, work, state):
            for key, value in result.items():
                total[key] += value
        if stored:
            self._save(name, total)
        return total

    def select(
        self, name: str, work: BlockSelection, state: State | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return what is selected from all blocks, in their order."""
        if earlier := self._load(name):
            return earlier
        parts = dict(self._run(name, work, state or {}))
        selected = concatenate([parts[n] for n in range(len(parts))])
        self._save(name, selected)
        return selected

    def stored_steps(self, name: str) -> StoredSteps:
        """Return the stored state of an iteration."""
        return StoredSteps(self.store, name)

    def _run(self, name: str, work: BlockWork, state: State) -> Any:
        """Yield positions and results of the shards, with a progress bar."""
        rows_per_block = self.table.n_rows / max(self.table.n_blocks, 1)
        label = name if self.progress else None
        with progress_bar(label, total=self.table.n_rows, unit=" rows", unit_scale=True) as bar:
            tasks = [(work, self.table, shard) for shard in self.shards]
            for position, result in self.engine.map(run_shard, tasks, state):
                bar.update(round(rows_per_block * len(self.shards[position])))
                yield position, result

    def _load(self, name: str) -> dict[str, NDArray[Any]] | None:
        """Return the stored result of a pass."""
        return self.store.load(f"{self.label}, {name}") if self.store else None

    def _save(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store the result of a pass."""
        if self.store:
            self.store.save(f"{self.label}, {name}", arrays)

    @cached_property
    def item_counts(self) -> Ints:
        """Number of rows of each item: [I]."""
        return self.sum("item counts", ItemCounts(self.users))["item_counts"]

    @cached_property
    def length_counts(self) -> tuple[Ints, Ints]:
        """The different numbers of rows of a user, and how many users have each."""
        counts = self.sum("history lengths", LengthCounts(self.users))["length_counts"]
        lengths = np.flatnonzero(counts)
        return lengths, counts[lengths]

    @property
    def n_users(self) -> int:
        """Number of users that are read."""
        return int(self.length_counts[1].sum())

    @property
    def n_rows(self) -> int:
        """Number of rows of these users."""
        return int(self.item_counts.sum())

    def sample(
        self,
        label: str,
        *,
        max_rows: int | None = None,
        max_users: int | None = None,
        user_rows: tuple[int, int] | None = None,
        state: State | None = None,
    ) -> Histories:
        """Return users drawn at random, as many as have at most `max_rows` rows, or at least
        `max_users`, in the order of their numbers; all of them if there are no more.

        `user_rows` are the smallest and the largest number of rows of a user that is drawn.
        """
        low, high = user_rows or (1, 1 << 62)
        users = UserFilter(max(low, self.users.min_rows))
        seed = derive_seed(self.seed, label)
        counts = self.sum(f"{label} counts", BucketCounts(users, seed, high), state)
        limit = N_BUCKETS
        if max_rows is not None and counts["rows"].sum() > max_rows:
            limit = max(1, int(np.searchsorted(counts["rows"].cumsum(), max_rows, "right")))
        if max_users is not None and counts["users"].sum() > max_users:
            n_users = counts["users"].cumsum()
            limit = min(limit, int(np.searchsorted(n_users, max_users)) + 1)
        work = SampledHistories(users, seed, limit, high)
        return histories_from_arrays(self.select(label, work, state))

    def as_table(self, histories: Histories) -> Interactions:
        """Return sampled users as a table in memory, in which they are numbered from 0."""
        ratings = histories.ratings
        if ratings is None:
            ratings = np.ones(len(histories.items), np.float32)
        return Interactions(
            Vocab(range(len(histories.users))),
            self.table.items,
            histories.owner(),
            histories.items.astype(np.int64),
            ratings,
            histories.times,
            self.table.implicit,
            item_features=self.item_features,
        )
