"""Many independent pieces of work, here or in a few processes, with one bar for all of them.

Results come in the order of the work, whichever is done first, so nothing depends on `jobs`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from idcf.errors import ConfigError

T = TypeVar("T")


def each(
    work: Callable[..., T],
    tasks: Mapping[str, tuple[Any, ...]],
    *,
    jobs: int = 1,
    progress: bool = False,
) -> list[T]:
    """`work(*arguments)` for each task. With `jobs` > 1 the last task starts first: put the
    longest there."""
    bar = tqdm(total=len(tasks), unit="model", disable=None if progress else True)
    with bar:
        if jobs == 1 or len(tasks) == 1:
            return [_here(work, name, task, bar) for name, task in tasks.items()]
        context = get_context("spawn")  # a fork would copy the threads of torch half alive
        threads = torch.get_num_threads()
        with ProcessPoolExecutor(jobs, context, _begin, (threads,)) as pool:
            started = {name: pool.submit(work, *tasks[name]) for name in reversed(list(tasks))}
            try:
                _watch(started, jobs, bar)
                return [started[name].result() for name in tasks]
            except BrokenProcessPool:
                raise ConfigError(
                    "a helper process died, perhaps for want of memory; try --jobs 1"
                ) from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _here(work: Callable[..., T], name: str, task: tuple[Any, ...], bar: tqdm[Any]) -> T:
    bar.set_description(name)
    done = work(*task)
    bar.update()
    return done


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a helper without a word


def _watch(started: Mapping[str, Future[Any]], jobs: int, bar: tqdm[Any]) -> None:
    """Keep the bar moving until all is done or something has failed."""
    pending = set(started.values())
    while pending:
        done, pending = wait(pending, timeout=0.5)
        for future in done:
            future.result()  # what it raised is raised here
            bar.update()
        busy = [name for name, future in started.items() if future in pending and future.running()]
        bar.set_description(" and ".join(busy[:jobs]), refresh=False)
        bar.refresh()
