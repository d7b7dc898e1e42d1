"""Run independent tasks in this process or in several, under one progress bar.

A task is the tuple of arguments of one call. Results do not depend on the number of processes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from idcf.errors import ConfigError
from idcf.training.progress import progress_bar

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
        lost_names: list[str] = []
        for name, result in _run_in_processes(function, tasks, n_jobs, bar):
            if isinstance(result, BrokenProcessPool):
                lost_names.append(name)
            else:
                yield name, result
        for name in lost_names:
            [(_, result)] = _run_in_processes(function, {name: tasks[name]}, 1, bar)
            is_broken = isinstance(result, BrokenProcessPool)
            yield name, ConfigError(_WORKER_DIED) if is_broken else result


def available_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_in_processes(
    function: Callable[..., T],
    tasks: Mapping[str, tuple[Any, ...]],
    n_jobs: int,
    progress_bar: tqdm[Any],
) -> Iterator[tuple[str, T | Exception]]:
    """Run tasks in worker processes; tasks of a dead worker yield `BrokenProcessPool`."""
    context = get_context("spawn")  # a fork would copy the threads of torch in a broken state
    n_threads = torch.get_num_threads()
    with ProcessPoolExecutor(n_jobs, context, _start_worker, (n_threads,)) as pool:
        names: dict[Future[T], str] = {}
        try:
            for name, task in tasks.items():
                try:
                    names[pool.submit(function, *task)] = name
                except BrokenProcessPool as broken:  # in the meantime
                    lost: Future[T] = Future()
                    lost.set_exception(broken)
                    names[lost] = name
            pending = set(names)
            while pending:
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    error = future.exception()  # `result` raises what is not an `Exception`
                    yield names[future], error if isinstance(error, Exception) else future.result()
                    progress_bar.update(not isinstance(error, BrokenProcessPool))
                running = [names[f] for f in names if f in pending and f.running()]
                progress_bar.set_description(" and ".join(running[:n_jobs]), refresh=False)
                progress_bar.refresh()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker(n_threads: int) -> None:
    """Initialize a worker process."""
    torch.set_num_threads(n_threads)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a traceback
