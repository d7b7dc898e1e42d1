"""Worker processes of this machine: the dead are replaced, and none outlives this process."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import RLock, Thread, current_thread, main_thread
from typing import Any, TypeVar, cast

import torch
from tqdm import tqdm

from idcf.errors import EngineError

T = TypeVar("T")
_WAIT_SECONDS = 0.5  # between two calls of `on_wait`


class LostTaskError(EngineError):
    """The worker process of a task died."""


@dataclass
class _Worker:
    """A worker process and, while it has one, the number of its task."""

    process: BaseProcess
    connection: Connection
    is_ready: bool = False  # it has been started and waits for tasks
    task: int | None = None


class WorkerPool:
    """Processes that do tasks; they are started when they are first needed, and `close` ends them.

    A worker has one task at a time, so that no thread of this process can wait for a dead one.
    """

    def __init__(self, n_workers: int, n_threads: int = 1) -> None:
        self.n_workers, self.n_threads = n_workers, n_threads
        self._workers: dict[Connection, _Worker] = {}
        self._is_running = False

    def run(
        self,
        function: Callable[..., T],
        tasks: Sequence[tuple[Any, ...]],
        on_wait: Callable[[list[int]], None] | None = None,
    ) -> Iterator[tuple[int, T | Exception]]:
        """Yield the number of a task, and what the function returned or raised, as tasks end.

        Tasks start in their order. The result of a task whose worker died is a `LostTaskError`; if
        workers die before they can have a task, it is raised. `on_wait` is called again and again
        with the numbers of the tasks that are being done. If the results are not wanted any more,
        workers are ended with their tasks; so are all on SIGTERM, with the exit code 143.
        """
        if self._is_running:
            raise EngineError("a pool of workers does the tasks of one call at a time")
        self._is_running = True
        waiting = deque(range(len(tasks)))
        n_spare = self.n_workers  # workers that may die before they are ready
        try:
            with _exit_on_sigterm():
                while waiting or self._running():
                    self._start_workers(len(waiting) + len(self._running()))
                    self._give(function, tasks, waiting)
                    if on_wait:
                        on_wait(self._running())
                    results = []
                    for worker in self._wait():
                        is_alive, result = _receive(worker)
                        if worker.task is not None:
                            results.append((worker.task, result))
                            worker.task = None
                        elif not is_alive and not worker.is_ready:
                            n_spare -= 1
                        worker.is_ready = True
                        if not is_alive:
                            _end(self._workers.pop(worker.connection))
                    if n_spare < 0:
                        raise LostTaskError(
                            "worker processes die before they have a task (out of memory?); take "
                            "fewer workers or jobs"
                        )
                    self._give(function, tasks, waiting)  # now, for what follows may take long
                    yield from results
        finally:
            for worker in [x for x in self._workers.values() if x.task is not None]:
                _end(self._workers.pop(worker.connection))
            self._is_running = False

    def close(self) -> None:
        """End the processes."""
        while self._workers:
            _end(self._workers.popitem()[1])

    def _running(self) -> list[int]:
        """Return the numbers of the tasks that workers have."""
        return [x.task for x in self._workers.values() if x.task is not None]

    def _give(
        self, function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], waiting: deque[int]
    ) -> None:
        """Give waiting tasks to workers without one."""
        idle = [x for x in self._workers.values() if x.is_ready and x.task is None]
        for worker in idle[: len(waiting)]:
            worker.task = waiting.popleft()
            _send(worker, (function, tasks[worker.task]))

    def _start_workers(self, n_tasks: int) -> None:
        """Start as many workers as tasks need."""
        while len(self._workers) < min(self.n_workers, n_tasks):
            worker = _start_worker(self.n_threads)
            self._workers[worker.connection] = worker

    def _wait(self) -> list[_Worker]:
        """Return the workers that have sent something or died; wait a moment for one."""
        connections = wait(list(self._workers), timeout=_WAIT_SECONDS)
        return [self._workers[cast("Connection", x)] for x in connections]


def _receive(worker: _Worker) -> tuple[bool, Any]:
    """Return whether a worker lives, and the result of its task, which may be an exception."""
    try:
        return True, worker.connection.recv()
    except (EOFError, OSError):
        return False, LostTaskError("a worker process died")
    except Exception as error:  # a result that cannot be read
        return True, error


def _send(worker: _Worker, task: tuple[Any, ...]) -> None:
    """Send a task to a worker; if that died, the next `_receive` says so."""
    with suppress(BrokenPipeError, ConnectionResetError):
        worker.connection.send(task)


def _start_worker(n_threads: int) -> _Worker:
    """Start a worker process, which sends None when it is ready."""
    context = get_context("spawn")  # a fork would copy the threads of torch in a broken state
    connection, end_of_worker = context.Pipe()
    process = context.Process(target=_work, args=(end_of_worker, n_threads), daemon=True)
    with _interrupts_blocked():
        process.start()
    end_of_worker.close()  # else a dead worker's end would stay open here
    return _Worker(process, connection)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in this thread and in processes that it starts, which would print a traceback
    at Ctrl-C while they import modules: the first process ends its workers."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it unblocks SIGINT when it starts
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


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
            connection.send(EngineError(f"a result cannot be sent to the first process: {error}"))


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
