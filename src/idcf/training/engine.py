"""Calls of a function computed here, by processes of this machine, or by a Ray cluster.

A call whose worker dies is made again. Results come in any order, so whoever uses an engine must
not depend on it: `idcf.training.block_sums` adds integers, `idcf.inference.bulk` writes a file for
each call.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from idcf.errors import ConfigError, EngineError, unknown_name_message
from idcf.models.base import resolve_device
from idcf.training.worker_pool import LostTaskError, WorkerPool

Result = TypeVar("Result")
State = Mapping[str, NDArray[Any]]  # arrays that every call reads
Call = Callable[..., Result]  # of the arguments of a task, then the state

ENGINES = ("local", "processes", "ray")
_MAX_DEATHS = 4  # of each worker in a row, before an error


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
        self._pool = WorkerPool(n_workers)

    def map(
        self, call: Call[Result], tasks: Sequence[tuple[Any, ...]], state: State
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results as they are completed.

        State is written to files once, and mapped into the memory of all processes. A call that is
        lost with its process is made again after the others.
        """
        remaining, n_deaths = list(range(len(tasks))), 0
        with _state_files(state) as folder:
            while remaining:
                calls = [(call, tasks[position], folder) for position in remaining]
                lost = []
                for number, result in self._pool.run(_call_with_files, calls):
                    if isinstance(result, LostTaskError):
                        lost.append(remaining[number])
                        n_deaths += 1
                        if n_deaths == _MAX_DEATHS * min(self.n_workers, len(remaining)):
                            raise self._too_many_deaths(n_deaths)
                        continue
                    if isinstance(result, Exception):
                        raise result
                    n_deaths = 0
                    yield remaining[number], result
                remaining = lost

    def _too_many_deaths(self, n_deaths: int) -> EngineError:
        """Return the error for processes that die again and again."""
        return EngineError(
            f"worker processes died {n_deaths} times in a row; if memory was short, take fewer "
            f"than {self.n_workers} workers or more parts"
        )

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


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
