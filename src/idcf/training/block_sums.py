"""Sums over the users of a table: map over its shards, and add up the results.

A table is divided into blocks of users, and its blocks into shards. A `BlockSum` says what one
block adds to some integer arrays, whose sizes depend on the items and not on the users. Integers
add up to the same bits in any order, so that a sum depends neither on the number of shards, nor on
which of them is done first, nor on the engine. `fixed_point` makes integers of real numbers, block
by block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idcf.data.shards import UserBlock, UserBlocks
from idcf.errors import EngineError
from idcf.training.engine import State

Sums = dict[str, NDArray[np.int64]]
BlockRange = range  # of block numbers

FRACTION_BITS = 26  # of fixed-point numbers: steps of 1.5e-8, and sums up to 1.4e11
_MAX_FIXED_POINT = 2.0**52  # of one block, so that a thousand of the largest can be added


class BlockSum(ABC):
    """What the blocks of a table add to integer arrays. Instances are sent to workers."""

    @abstractmethod
    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return the arrays of a sum over no block."""

    @abstractmethod
    def add(self, block: UserBlock, state: State, sums: Sums) -> None:
        """Add one block to the sums, in place, or keep it for a later call."""

    def finish(self, state: State, sums: Sums) -> None:  # noqa: B027 - does nothing by default
        """Add what earlier calls kept."""


class BlockSelection(ABC):
    """Arrays that are selected from each block, and put together in the order of the blocks."""

    @abstractmethod
    def select(self, block: UserBlock, state: State) -> dict[str, NDArray[Any]]:
        """Return the arrays of one block."""


BlockWork = BlockSum | BlockSelection


def fixed_point(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return values as integers, in steps of 2^-`FRACTION_BITS`."""
    scaled = np.asarray(values, np.float64) * 2.0**FRACTION_BITS
    np.rint(scaled, out=scaled)
    largest = max(float(scaled.max()), -float(scaled.min())) if scaled.size else 0.0
    if not largest < _MAX_FIXED_POINT:
        raise EngineError(
            f"a sum over one block of users reaches {largest / 2.0**FRACTION_BITS:.3g}, more than "
            f"{_MAX_FIXED_POINT / 2.0**FRACTION_BITS:.3g}; scale the ratings down"
        )
    return scaled.astype(np.int64)


def from_fixed_point(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the real numbers of `fixed_point`."""
    return values.astype(np.float64) * 2.0**-FRACTION_BITS


def divide_blocks(n_blocks: int, n_shards: int) -> list[BlockRange]:
    """Divide blocks into at most `n_shards` runs of about equal length."""
    n_shards = max(1, min(n_shards, n_blocks))
    ends = [n_blocks * (n + 1) // n_shards for n in range(n_shards)]
    return [range(low, high) for low, high in zip([0, *ends[:-1]], ends, strict=True)]


def run_shard(
    work: BlockWork, table: UserBlocks, shard: BlockRange, state: State
) -> dict[str, NDArray[Any]]:
    """Return the sums over the blocks of one shard, or what is selected from them."""
    if isinstance(work, BlockSum):
        sums = work.zeros(table, state)
        for number in shard:
            work.add(table.read_block(number), state, sums)
        work.finish(state, sums)
        return {name: _narrowed(x) for name, x in sums.items()}
    return concatenate([work.select(table.read_block(number), state) for number in shard])


def _narrowed(sums: NDArray[np.int64]) -> NDArray[Any]:
    """Return sums as 32-bit integers where these hold them: half of the bytes to send and add."""
    limits = np.iinfo(np.int32)
    if sums.size and (sums.max() > limits.max or sums.min() < limits.min):
        return sums
    return sums.astype(np.int32)


def concatenate(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return arrays of several parts, one after the other."""
    return {name: np.concatenate([x[name] for x in parts]) for name in (parts[0] if parts else {})}
