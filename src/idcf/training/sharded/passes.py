"""Passes over the key users of a table: their histories, counts, and random samples of them.

Users are numbered over the whole table. A random number of a user depends on the seed and on the
number of the user, so that a sample does not depend on the shards.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from idcf.data.interactions import Floats, Ints, offsets_from_lengths, slice_index
from idcf.data.shards import UserBlock, UserBlocks
from idcf.training.block_sums import BlockSelection, BlockSum, Sums
from idcf.training.engine import State

N_LENGTHS = 1 << 16  # numbers of rows of a user that are told apart; longer ones count as the last
N_BUCKETS = 1 << 16  # of random numbers of users
EXCLUDED = "excluded_users"  # name of the state: numbers of users that are left out, ascending


@dataclass(frozen=True)
class Histories:
    """Some users of a block with their rows, which ascend by item."""

    users: Ints  # [n]: numbers of the users in the table
    offsets: Ints  # [n + 1]
    items: NDArray[np.int32]
    ratings: Floats | None
    times: Ints | None
    block_index: int

    @property
    def lengths(self) -> Ints:
        """Number of rows of each user: [n]."""
        return np.diff(self.offsets)

    def owner(self) -> Ints:
        """Return the position of the user of each row."""
        return np.repeat(np.arange(len(self.users)), self.lengths)

    def select(self, chosen: NDArray[np.bool_]) -> Histories:
        """Return some of the users, bool [n]."""
        if chosen.all():
            return self
        index, offsets = slice_index(self.offsets[:-1][chosen], self.lengths[chosen])
        return replace(
            self,
            users=self.users[chosen],
            offsets=offsets,
            items=self.items[index],
            ratings=None if self.ratings is None else self.ratings[index],
            times=None if self.times is None else self.times[index],
        )

    def matrix(self, n_items: int, values: NDArray[Any] | None = None) -> csr_array:
        """Return the rows as a matrix [n, I] of ones, or of other values."""
        data = np.ones(len(self.items)) if values is None else values
        return csr_array((data, self.items, self.offsets), shape=(len(self.users), n_items))


def read_histories(block: UserBlock) -> Histories:
    """Return the histories of a block."""
    users = block.first_user + np.arange(len(block.offsets) - 1)
    return Histories(users, block.offsets, block.items, block.ratings, block.times, block.index)


@dataclass(frozen=True)
class UserFilter:
    """Which users are read: those with `min_rows` rows or more that the state does not exclude."""

    min_rows: int = 1

    def read(self, block: UserBlock, state: State) -> Histories:
        """Return the histories of the users of a block that are read."""
        histories = read_histories(block)
        chosen = histories.lengths >= self.min_rows
        if (excluded := state.get(EXCLUDED)) is not None and len(excluded):
            chosen &= ~np.isin(histories.users, excluded)
        return histories.select(chosen)


@dataclass
class HistorySum(BlockSum):
    """A sum over the users that pass a filter."""

    users: UserFilter

    def add(self, block: UserBlock, state: State, sums: Sums) -> None:
        """Add the users of a block that pass the filter."""
        histories = self.users.read(block, state)
        if len(histories.users):
            self.add_histories(histories, state, sums)

    @abstractmethod
    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Add some users to the sums, in place."""


@dataclass
class ItemCounts(HistorySum):
    """Count the rows of each item: `item_counts` [I]."""

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return zero counts."""
        return {"item_counts": np.zeros(table.n_items, np.int64)}

    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Count rows."""
        counts = sums["item_counts"]
        counts += np.bincount(histories.items, minlength=len(counts))


@dataclass
class LengthCounts(HistorySum):
    """Count the users of each number of rows: `length_counts` [`N_LENGTHS`]."""

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return zero counts."""
        return {"length_counts": np.zeros(N_LENGTHS, np.int64)}

    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Count users."""
        lengths = np.minimum(histories.lengths, N_LENGTHS - 1)
        sums["length_counts"] += np.bincount(lengths, minlength=N_LENGTHS)


@dataclass
class RatingCounts(HistorySum):
    """Count the rows of each rating level, which the state has as `levels`: `level_counts` [L]."""

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return zero counts."""
        return {"level_counts": np.zeros(len(state["levels"]), np.int64)}

    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Count rows."""
        levels = state["levels"]
        position = np.searchsorted(levels, np.asarray(histories.ratings))
        sums["level_counts"] += np.bincount(position, minlength=len(levels))


def user_buckets(users: Ints, seed: int) -> Ints:
    """Return a random number from 0 to `N_BUCKETS` - 1 of each user, by its number and the seed.

    The mixing function is that of SplitMix64 (Steele, Lea and Flood 2014).
    """
    with np.errstate(over="ignore"):
        z = users.astype(np.uint64) + np.uint64(seed % 2**64)
        z = (z + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    buckets: Ints = (z >> np.uint64(48)).astype(np.int64)
    return buckets


@dataclass
class BucketCounts(HistorySum):
    """Count rows and users by their random numbers: `rows`, `users` [`N_BUCKETS`].

    `max_rows` leaves users with more rows out of both.
    """

    seed: int
    max_rows: int = N_LENGTHS

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return zero counts."""
        return {name: np.zeros(N_BUCKETS, np.int64) for name in ("rows", "users")}

    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Count rows and users."""
        histories = histories.select(histories.lengths <= self.max_rows)
        buckets = user_buckets(histories.users, self.seed)
        sums["users"] += np.bincount(buckets, minlength=N_BUCKETS)
        weights = histories.lengths.astype(np.float64)  # exact: far below 2^53
        sums["rows"] += np.bincount(buckets, weights, N_BUCKETS).astype(np.int64)


@dataclass
class SampledHistories(BlockSelection):
    """Select the users whose random numbers are below a limit, with their rows.

    `max_rows` leaves users with more rows out.
    """

    users: UserFilter
    seed: int
    limit: int
    max_rows: int = N_LENGTHS

    def select(self, block: UserBlock, state: State) -> dict[str, NDArray[Any]]:
        """Return numbers and lengths of the users, and their rows."""
        histories = self.users.read(block, state)
        buckets = user_buckets(histories.users, self.seed)
        histories = histories.select((buckets < self.limit) & (histories.lengths <= self.max_rows))
        selected: dict[str, NDArray[Any]] = {
            "users": histories.users,
            "lengths": histories.lengths,
            "items": histories.items,
        }
        if histories.ratings is not None:
            selected["ratings"] = histories.ratings
        if histories.times is not None:
            selected["times"] = histories.times
        return selected


def histories_from_arrays(arrays: dict[str, NDArray[Any]]) -> Histories:
    """Return what `SampledHistories` selected."""
    return Histories(
        arrays["users"], offsets_from_lengths(arrays["lengths"]), arrays["items"],
        arrays.get("ratings"), arrays.get("times"), 0,
    )  # fmt: skip
