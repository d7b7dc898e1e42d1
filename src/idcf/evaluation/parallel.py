"""Run independent tasks in this process or in several, under one progress bar.

A task is the tuple of arguments of one call. Results do not depend on the number of processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from idcf.data.progress import progress_bar
from idcf.errors import ConfigError
from idcf.training.worker_pool import LostTaskError, WorkerPool

T = TypeVar("T")
_WORKER_DIED = "a worker process died (out of memory?); try --jobs 1"


def run_all(
    function: Callable[..., T],
    tasks: Mapping[str, tuple[Any, ...]],
    *,
    n_jobs: int = 1,
    progress: bool = False,
) -> list[T]:
    """Call a function for every task and return the results in the order of the tasks. `tasks` maps
    a name, for the progress bar, to the arguments of a call. With several processes the last task
    starts first: put the longest last. Raises the first exception of a task."""
    ordered = dict(reversed(list(tasks.items()))) if n_jobs > 1 else tasks
    results: dict[str, T] = {}
    for name, result in run_as_completed(function, ordered, n_jobs=n_jobs, progress=progress):
        if isinstance(result, Exception):
            raise result
        results[name] = result
    return [results[name] for name in tasks]


def run_as_completed(
    function: Callable[..., T],
    tasks: Mapping[str, tuple[Any, ...]],
    *,
    n_jobs: int = 1,
    progress: bool = False,
) -> Iterator[tuple[str, T | Exception]]:
    """Call a function for every task and yield (name, result or exception) as tasks end. Tasks
    start in their order. If a worker process dies, the tasks that were lost with it are run again
    one by one; a task that kills its worker again yields a `ConfigError`."""
    label = next(iter(tasks), None) if progress else None
    with progress_bar(label, total=len(tasks), unit="model") as bar:
        if n_jobs == 1 or len(tasks) == 1:
            for name, task in tasks.items():
                bar.set_description(name)
                try:
                    result: T | Exception = function(*task)
                except Exception as error:
                    result = error
                yield name, result
                bar.update()
            return
        yield from _run_in_processes(function, tasks, n_jobs, bar)


def available_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_in_processes(
    function: Callable[..., T],
    tasks: Mapping[str, tuple[Any, ...]],
    n_jobs: int,
    bar: tqdm[Any],
) -> Iterator[tuple[str, T | Exception]]:
    """Run tasks in worker processes, those that are lost once more and one by one."""
    names, lost_names = list(tasks), list[str]()

    def show(running: list[int]) -> None:
        """Name the tasks that are being done."""
        bar.set_description(" and ".join(names[n] for n in running), refresh=False)
        bar.refresh()

    with closing(WorkerPool(n_jobs, torch.get_num_threads())) as pool:
        for n, result in pool.run(function, [tasks[x] for x in names], show):
            if isinstance(result, LostTaskError):
                lost_names.append(names[n])
            else:
                yield names[n], result
                bar.update()
    with closing(WorkerPool(1, torch.get_num_threads())) as pool:
        for name in lost_names:
            [(_, result)] = pool.run(function, [tasks[name]])
            is_lost = isinstance(result, LostTaskError)
            yield name, ConfigError(_WORKER_DIED) if is_lost else result
            bar.update()
