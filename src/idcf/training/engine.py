"""Sums over the users of a table: map over its shards, add up the results, send state to workers.

A table is divided into blocks of users, and its blocks into shards. A `BlockSum` says what one
block adds to some integer arrays, whose sizes depend on the items and not on the users. Integers
add up to the same bits in any order, so that a sum depends neither on the number of shards, nor on
which of them is done first, nor on the engine: this process (`LocalEngine`), processes of this
machine (`ProcessEngine`) or a cluster (`idcf.training.ray_engine`). `fixed_point` makes integers of
real numbers, block by block.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from idcf.data.shards import UserBlock, UserBlocks
from idcf.errors import EngineError

State = Mapping[str, NDArray[Any]]  # what every shard reads
Sums = dict[str, NDArray[np.int64]]
Shard = range  # block numbers

FRACTION_BITS = 26  # of fixed-point numbers: steps of 1.5e-8, and sums up to 1.4e11
_MAX_ATTEMPTS = 4  # at one shard, by workers that die


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


ShardWork = BlockSum | BlockSelection


def fixed_point(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return values as integers, in steps of 2^-`FRACTION_BITS`."""
    scaled = np.rint(np.asarray(values, np.float64) * 2.0**FRACTION_BITS)
    if scaled.size and not np.abs(scaled).max() < 2.0**52:
        raise EngineError(
            f"a sum over one block reaches {np.abs(values).max():.3g}, too much for exact sums; "
            "ratings or weights of this size have to be scaled down"
        )
    return scaled.astype(np.int64)


def from_fixed_point(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the real numbers of `fixed_point`."""
    return values.astype(np.float64) * 2.0**-FRACTION_BITS


def divide_blocks(n_blocks: int, n_shards: int) -> list[Shard]:
    """Divide blocks into at most `n_shards` runs of about equal length."""
    n_shards = max(1, min(n_shards, n_blocks))
    ends = [n_blocks * (n + 1) // n_shards for n in range(n_shards)]
    return [range(low, high) for low, high in zip([0, *ends[:-1]], ends, strict=True)]


def run_shard(
    work: ShardWork, table: UserBlocks, shard: Shard, state: State
) -> dict[str, NDArray[Any]]:
    """Return the sums over the blocks of one shard, or what is selected from them."""
    torch.set_num_threads(1)
    if isinstance(work, BlockSum):
        sums = work.zeros(table, state)
        for number in shard:
            work.add(table.read_block(number), state, sums)
        work.finish(state, sums)
        return sums
    parts = [work.select(table.read_block(number), state) for number in shard]
    return concatenate(parts)


def concatenate(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return arrays of several parts, one after the other."""
    return {name: np.concatenate([x[name] for x in parts]) for name in (parts[0] if parts else {})}


class Engine(Protocol):
    """Computes the results of shards, each of which is done again if its worker dies."""

    n_workers: int

    def map_shards(
        self, work: ShardWork, table: UserBlocks, shards: Sequence[Shard], state: State
    ) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Yield the position and the result of each shard, in any order."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class LocalEngine:
    """Computes one shard after the other in this process."""

    n_workers = 1

    def map_shards(
        self, work: ShardWork, table: UserBlocks, shards: Sequence[Shard], state: State
    ) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Yield the results in order."""
        n_threads = torch.get_num_threads()
        try:
            for position, shard in enumerate(shards):
                yield position, run_shard(work, table, shard, state)
        finally:
            torch.set_num_threads(n_threads)

    def close(self) -> None:
        """Do nothing: there are no workers."""


class ProcessEngine:
    """Computes shards in processes of this machine, which are replaced when they die.

    Processes are started when they are first needed; `close` ends them.
    """

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers
        self._pool: ProcessPoolExecutor | None = None

    def map_shards(
        self, work: ShardWork, table: UserBlocks, shards: Sequence[Shard], state: State
    ) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Yield the results as they are completed.

        State is written to files once, and mapped into the memory of all processes.
        """
        remaining, n_attempts = list(range(len(shards))), 0
        with state_files(state) as folder:
            while remaining:
                if n_attempts == _MAX_ATTEMPTS:
                    raise EngineError(
                        f"worker processes died {n_attempts} times at shard {remaining[0] + 1} of "
                        f"{len(shards)}; is there enough memory for {self.n_workers} workers? Take "
                        "fewer workers, or more shards"
                    )
                n_before = len(remaining)
                for position, result in self._attempt(work, table, shards, remaining[:], folder):
                    remaining.remove(position)
                    yield position, result
                n_attempts = n_attempts + 1 if len(remaining) == n_before else 0

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _attempt(
        self,
        work: ShardWork,
        table: UserBlocks,
        shards: Sequence[Shard],
        positions: list[int],
        folder: Path,
    ) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Yield the results of some shards until all are done or a process dies."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.n_workers, context, _end_with_parent)
        running: dict[Future[dict[str, NDArray[Any]]], int] = {}
        waiting = positions[::-1]
        try:
            while waiting or running:
                while waiting and len(running) < 2 * self.n_workers:
                    position = waiting.pop()
                    arguments = work, table, shards[position], folder
                    running[self._pool.submit(_run_in_process, *arguments)] = position
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    position = running.pop(future)
                    yield position, future.result()
        except BrokenProcessPool:
            self.close()
        except BaseException:
            for future in running:
                future.cancel()
            raise


@contextmanager
def state_files(state: State) -> Iterator[Path]:
    """Yield a folder with one file for each array, removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="idcf-state-"))
    try:
        for name, value in state.items():
            np.save(folder / f"{name}.npy", value)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_in_process(
    work: ShardWork, table: UserBlocks, shard: Shard, folder: Path
) -> dict[str, NDArray[Any]]:
    """Compute one shard in a worker process."""
    state = {x.stem: np.load(x, mmap_mode="r") for x in folder.iterdir()}
    return run_shard(work, table, shard, state)


def _end_with_parent() -> None:
    """Let the system end this process when its parent ends, where it can (Linux)."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
    except (AttributeError, OSError, TypeError):
        return
