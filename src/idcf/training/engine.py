"""Calls of a function computed here, by processes of this machine, or by a Ray cluster.

A call whose worker dies is made again. Results come in any order, so whoever uses an engine must
not depend on it: `idcf.training.block_sums` adds integers, `idcf.inference.bulk` writes a file for
each call.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from idcf.errors import ConfigError, EngineError, unknown_name_message
from idcf.models.base import resolve_device

Result = TypeVar("Result")
State = Mapping[str, NDArray[Any]]  # arrays that every call reads
Call = Callable[..., Result]  # of the arguments of a task, then the state

ENGINES = ("local", "processes", "ray")
_MAX_ATTEMPTS = 4  # in a row at calls whose workers die, before an error
_CALLS_PER_WORKER = 2  # that are waiting or running: results are not computed far ahead


class Engine(Protocol):
    """Makes calls on `n_workers` workers, which may compute on `device`: cpu or cuda."""

    n_workers: int
    device: str

    def map(
        self, call: Call[Result], tasks: Sequence[tuple[Any, ...]], state: State
    ) -> Iterator[tuple[int, Result]]:
        """Yield the position and the result of `call(*task, state)` of each task, in any order.

        The call is a function of a module, and is made again if its worker dies. What it raises is
        raised here.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


def open_engine(
    name: str, workers: int | None = None, address: str | None = None, device: str = "cpu"
) -> Engine:
    """Return the engine of a name. Without `workers` it has as many as there are processors;
    `address` is that of a Ray cluster, "auto" for the one that this machine is part of. A `device`
    "auto" is a GPU if the workers have one."""
    if name not in ENGINES:
        raise ConfigError(unknown_name_message("engine", str(name), ENGINES))
    if address is not None and name != "ray":
        raise ConfigError(f"an address ({address}) is for engine='ray', not for {name!r}")
    if name == "local":
        if workers not in (None, 1):
            raise ConfigError(f"engine 'local' has one worker, not {workers}; take 'processes'")
        return LocalEngine(resolve_device(device).type)
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be a whole number from 1, got {workers}")
    if name == "processes":
        n_workers = workers or len(os.sched_getaffinity(0))
        return ProcessEngine(n_workers, resolve_device(device).type)
    from idcf.training.ray_engine import RayEngine

    return RayEngine(address, workers, device)


class LocalEngine:
    """Makes one call after the other in this process."""

    n_workers = 1

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def map(
        self, call: Call[Result], tasks: Sequence[tuple[Any, ...]], state: State
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results in order."""
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in workers, so that the results are the same
        try:
            for position, task in enumerate(tasks):
                yield position, call(*task, state)
        finally:
            torch.set_num_threads(n_threads)

    def close(self) -> None:
        """Do nothing: there are no workers."""


class ProcessEngine:
    """Makes calls in processes of this machine, which are replaced when they die.

    Processes are started when they are first needed; `close` ends them.
    """

    def __init__(self, n_workers: int, device: str = "cpu") -> None:
        self.n_workers, self.device = n_workers, device
        self._pool: ProcessPoolExecutor | None = None

    def map(
        self, call: Call[Result], tasks: Sequence[tuple[Any, ...]], state: State
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results as they are completed.

        State is written to files once, and mapped into the memory of all processes.
        """
        remaining, n_attempts = list(range(len(tasks))), 0
        with _state_files(state) as folder:
            while remaining:
                if n_attempts == _MAX_ATTEMPTS:
                    raise EngineError(
                        f"worker processes died {n_attempts} times in a row, {len(remaining)} of "
                        f"{len(tasks)} parts are not done; if memory was short, take fewer than "
                        f"{self.n_workers} workers or more parts"
                    )
                n_before = len(remaining)
                for position, result in self._attempt(call, tasks, remaining[:], folder):
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
        call: Call[Result],
        tasks: Sequence[tuple[Any, ...]],
        positions: list[int],
        folder: Path,
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results of some calls until all are made or a process dies."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.n_workers, context, _prepare_worker)
        running: dict[Future[Result], int] = {}
        waiting = positions[::-1]
        try:
            while waiting or running:
                while waiting and len(running) < _CALLS_PER_WORKER * self.n_workers:
                    position = waiting.pop()
                    future = self._pool.submit(_call_with_files, call, tasks[position], folder)
                    running[future] = position
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    position = running.pop(future)
                    yield position, future.result()
        except BrokenProcessPool:
            self.close()
        finally:
            for future in running:
                future.cancel()


@contextmanager
def _state_files(state: State) -> Iterator[Path]:
    """Yield a folder with one file for each array, removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="idcf-state-"))
    try:
        for name, value in state.items():
            np.save(folder / f"{name}.npy", value)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _call_with_files(call: Call[Result], task: tuple[Any, ...], folder: Path) -> Result:
    """Make one call in a worker process."""
    state = {x.stem: np.load(x, mmap_mode="r") for x in folder.iterdir()}
    return call(*task, state)


def _prepare_worker() -> None:
    """Compute with one thread, and end when the parent process ends, where that can be had."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG, of Linux
    except (AttributeError, OSError, TypeError):
        return
