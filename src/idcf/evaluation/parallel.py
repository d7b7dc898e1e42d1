"""Many independent pieces of work, here or in a few processes, with one bar for all of them.

`each` gives results in the order of the work, so nothing depends on `jobs`; `finished` gives each
as soon as it is there.
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

T = TypeVar("T")
_DEAD = "a helper process died, perhaps for want of memory; try --jobs 1"


def each(
    work: Callable[..., T],
    tasks: Mapping[str, tuple[Any, ...]],
    *,
    jobs: int = 1,
    progress: bool = False,
) -> list[T]:
    """`work(*arguments)` for each task, in their order; what the first of them raises is raised
    here. With `jobs` > 1 the last task starts first: put the longest there."""
    late = jobs > 1 and len(tasks) > 1
    order = {name: tasks[name] for name in (reversed(list(tasks)) if late else list(tasks))}
    found: dict[str, T] = {}
    for name, done in finished(work, order, jobs=jobs, progress=progress):
        if isinstance(done, Exception):
            raise done
        found[name] = done
    return [found[name] for name in tasks]


def finished(
    work: Callable[..., T],
    tasks: Mapping[str, tuple[Any, ...]],
    *,
    jobs: int = 1,
    progress: bool = False,
) -> Iterator[tuple[str, T | Exception]]:
    """Each task as soon as it is done, with what it gave or what went wrong. They are started in
    their order. If a helper dies, those that were lost with it are done again one by one."""
    bar = tqdm(total=len(tasks), unit="model", disable=None if progress else True)
    with bar:
        if jobs == 1 or len(tasks) == 1:
            for name, task in tasks.items():
                bar.set_description(name)
                yield name, _here(work, task)
                bar.update()
            return
        lost: list[str] = []
        for name, done in _helped(work, tasks, jobs, bar):
            if isinstance(done, BrokenProcessPool):
                lost.append(name)
            else:
                yield name, done
        for name in lost:
            [(_, again)] = _helped(work, {name: tasks[name]}, 1, bar)
            broken = isinstance(again, BrokenProcessPool)
            yield name, ConfigError(_DEAD) if broken else again


def _helped(
    work: Callable[..., T], tasks: Mapping[str, tuple[Any, ...]], jobs: int, bar: tqdm[Any]
) -> Iterator[tuple[str, T | Exception]]:
    """The same in helper processes, of which some may die."""
    context = get_context("spawn")  # a fork would copy the threads of torch half alive
    threads = torch.get_num_threads()
    with ProcessPoolExecutor(jobs, context, _begin, (threads,)) as pool:
        started: dict[Future[T], str] = {}
        try:
            for name, task in tasks.items():
                started[_submit(pool, work, task)] = name
            pending = set(started)
            while pending:
                done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    found: T | Exception = _result(future)
                    yield started[future], found
                    bar.update(not isinstance(future.exception(), BrokenProcessPool))
                busy = [started[f] for f in started if f in pending and f.running()]
                bar.set_description(" and ".join(busy[:jobs]), refresh=False)
                bar.refresh()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _here(work: Callable[..., T], task: tuple[Any, ...]) -> T | Exception:
    try:
        return work(*task)
    except Exception as error:
        return error


def _submit(pool: ProcessPoolExecutor, work: Callable[..., T], task: tuple[Any, ...]) -> Future[T]:
    """A pool that broke while work was handed out takes no more: then that work is lost too."""
    try:
        return pool.submit(work, *task)
    except BrokenProcessPool as error:
        lost: Future[T] = Future()
        lost.set_exception(error)
        return lost


def _result(future: Future[T]) -> T | Exception:
    error = future.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return future.result() if error is None else error


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a helper without a word
