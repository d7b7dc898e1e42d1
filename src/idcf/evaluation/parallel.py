"""Run independent tasks in this process or in several, under one progress bar.

A task is the tuple of arguments of one call. Results do not depend on the number of processes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import RLock, Thread, current_thread, main_thread
from typing import Any, TypeVar, cast

import torch
from tqdm import tqdm

from idcf.data.progress import progress_bar
from idcf.errors import ConfigError

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
            if isinstance(result, _LostTask):
                lost_names.append(name)
            else:
                yield name, result
        for name in lost_names:
            [(_, result)] = _run_in_processes(function, {name: tasks[name]}, 1, bar)
            is_lost = isinstance(result, _LostTask)
            yield name, ConfigError(_WORKER_DIED) if is_lost else result


def available_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _LostTask(Exception):
    """The worker process of a task died."""


@dataclass
class _Worker:
    """A worker process and, while it has one, the name of its task."""

    process: BaseProcess
    connection: Connection
    task: str | None = None


def _run_in_processes(
    function: Callable[..., T],
    tasks: Mapping[str, tuple[Any, ...]],
    n_jobs: int,
    progress_bar: tqdm[Any],
) -> Iterator[tuple[str, T | Exception]]:
    """Run tasks in worker processes; the task of a worker that dies yields `_LostTask`.

    A worker has one task at a time, so that no thread of this process can wait for a dead one. All
    workers end with this generator, on SIGTERM with exit code 143.
    """
    waiting, n_running = deque(tasks), 0
    n_spare = n_jobs  # workers that may die before they have a task
    workers: dict[Connection, _Worker] = {}
    try:
        with _exit_on_sigterm():
            while waiting or n_running:
                while len(workers) < min(n_jobs, len(waiting) + n_running):
                    worker = _start_worker()
                    workers[worker.connection] = worker
                for connection in wait(list(workers), timeout=0.5):
                    worker = workers[cast("Connection", connection)]
                    is_alive, result = _receive(worker)
                    if worker.task is not None:
                        yield worker.task, result
                        progress_bar.update(is_alive)
                        worker.task, n_running = None, n_running - 1
                    elif not is_alive:
                        n_spare -= 1
                        if n_spare < 0:
                            raise ConfigError(_WORKER_DIED)
                    if not is_alive:
                        _end(workers.pop(worker.connection))
                    elif waiting:
                        worker.task, n_running = waiting.popleft(), n_running + 1
                        _send(worker, (function, tasks[worker.task]))
                running = [x.task for x in workers.values() if x.task]
                progress_bar.set_description(" and ".join(running), refresh=False)
                progress_bar.refresh()
    finally:
        for worker in workers.values():
            _end(worker)


def _receive(worker: _Worker) -> tuple[bool, Any]:
    """Return whether a worker lives, and the result of its task, which may be an exception."""
    try:
        return True, worker.connection.recv()
    except (EOFError, OSError):
        return False, _LostTask(_WORKER_DIED)
    except Exception as error:  # a result that cannot be read
        return True, error


def _send(worker: _Worker, task: tuple[Any, ...]) -> None:
    """Send a task to a worker; if that died, the next `_receive` says so."""
    with suppress(BrokenPipeError, ConnectionResetError):
        worker.connection.send(task)


def _start_worker() -> _Worker:
    """Start a worker process, which sends None when it is ready."""
    context = get_context("spawn")  # a fork would copy the threads of torch in a broken state
    connection, end_of_worker = context.Pipe()
    process = context.Process(
        target=_work, args=(end_of_worker, torch.get_num_threads()), daemon=True
    )
    process.start()
    end_of_worker.close()  # else a dead worker's end would stay open here
    return _Worker(process, connection)


def _end(worker: _Worker) -> None:
    """End a worker process."""
    worker.connection.close()
    worker.process.kill()
    worker.process.join()
    worker.process.close()


def _work(connection: Connection, n_threads: int) -> None:
    """Do the tasks that arrive; the main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(n_threads)
    tqdm.set_lock(RLock())  # that of tqdm is a semaphore, which a killed process would not release
    connection.send(None)
    while True:
        try:
            function, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            result = function(*arguments)
        except Exception as error:
            result = error
        try:
            connection.send(result)
        except OSError:
            return
        except Exception as error:  # it cannot be pickled
            connection.send(ConfigError(f"a result cannot be sent to the first process: {error}"))


def _end_with_parent() -> None:
    """End this worker process when the process that started it ends, however that ends."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit with 143, so that workers are ended; else they would live on."""
    if current_thread() is not main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        """Leave the process."""
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)
