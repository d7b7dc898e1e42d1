"""Several processes that serve one model on one port, and their parent.

The parent loads the model and forks the workers, which share its memory. Each worker accepts the
connections of its own socket (SO_REUSEPORT). The parent keeps all sockets open: a worker that dies
is replaced by another one on the same socket, which also accepts the connections that wait there.
A reloaded model reaches the parent and all workers as one block of shared memory.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import uvicorn

from idcf.errors import ArtifactError, IdcfError, OverloadedError
from idcf.recommender import Recommender
from idcf.server.batcher import RequestBatcher, freeze_garbage_collector
from idcf.server.counters import ServerMetrics
from idcf.server.prometheus import publish_gauges
from idcf.server.routes import log_error, log_event
from idcf.server.service import RecommendationService
from idcf.server.shared_service import read_service, write_service

_MAX_MESSAGE = 1 << 16
_SWAP_TIMEOUT_S = 60.0  # for one worker to map a new model
_STOP_MARGIN_S = 5.0  # for a worker to end, after the time that it gives its requests
_MIN_LIFETIME_S = 1.0  # a worker that dies sooner is replaced with a delay
_PUBLISH_PERIOD_S = 1.0
_RELOAD, _MODEL, _DONE = b"reload", b"model", b"done"  # messages; other texts are reasons
_REFUSED = b"refused: "  # before the reason why a model cannot be loaded
_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # both end the server


@dataclass
class Worker:
    """A worker as its parent sees it."""

    row: int  # of the counters, and of the listening sockets
    pid: int
    link: socket.socket  # to the process; it ends when the process ends
    start: float


class Loader(NamedTuple):
    """A process that loads the model folder again."""

    pid: int
    link: socket.socket
    requester: Worker  # that was asked to reload


class Supervisor:
    """Starts workers, replaces those that die and passes on signals and reloaded models."""

    def __init__(
        self,
        folder: Path,
        batcher: RequestBatcher,
        metrics: ServerMetrics,
        listeners: Sequence[socket.socket],
        make_server: Callable[[], uvicorn.Server],
        stop_timeout_s: float,
    ) -> None:
        self.stop_timeout_s = stop_timeout_s  # that a worker gives its requests
        self.folder, self.batcher, self.metrics = folder, batcher, metrics
        self.listeners = listeners
        self.make_server = make_server
        self.workers: dict[int, Worker] = {}  # by the file descriptor of the link
        self._stop_signal: int = 0  # the first signal that asked to stop
        self._deadline = 0.0  # at which workers that still run are killed
        self._waiting_reloads: list[Worker] = []  # workers that asked for one
        self._loader: Loader | None = None  # loads a model at the moment

    def run(self, on_start: Callable[[], None]) -> None:
        """Serve until SIGINT or SIGTERM; return after SIGINT, and die by SIGTERM."""
        handlers = {x: signal.signal(x, self._stop) for x in _SIGNALS}
        for row in range(len(self.listeners)):
            self._start_worker(row)
        on_start()
        while self.workers:
            links = [*self.workers, *([self._loader.link.fileno()] if self._loader else [])]
            # only the first one: handling it may read the message of another one, or close links
            for descriptor in select.select(links, [], [], 0.5)[0][:1]:
                if descriptor in self.workers:
                    self._receive(self.workers[descriptor])
                else:
                    self._finish_reload()
            if self._waiting_reloads and self._loader is None:
                self._start_loader(self._waiting_reloads.pop(0))
            if self._stop_signal and time.monotonic() > self._deadline:
                self._signal_workers(signal.SIGKILL)
        if self._loader is not None:
            os.kill(self._loader.pid, signal.SIGKILL)
            os.waitpid(self._loader.pid, 0)
        for stop_signal, handler in handlers.items():
            signal.signal(stop_signal, handler)
        if self._stop_signal == signal.SIGTERM:
            signal.raise_signal(signal.SIGTERM)

    def _stop(self, number: int, _: FrameType | None) -> None:
        """Ask the workers to end; after a second Ctrl-C, without waiting for requests."""
        if not self._stop_signal:
            self._stop_signal = number
            self._deadline = time.monotonic() + self.stop_timeout_s + _STOP_MARGIN_S
            for listener in self.listeners:
                listener.close()
            self._signal_workers(signal.SIGTERM)
        elif number == signal.SIGINT:
            self._signal_workers(signal.SIGINT)

    def _signal_workers(self, number: int) -> None:
        """Send a signal to all workers."""
        for worker in self.workers.values():
            os.kill(worker.pid, number)

    def _start_worker(self, row: int) -> None:
        """Fork a worker."""
        link, child_link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = self._fork()
        if pid == 0:
            link.close()
            self._serve_and_exit(row, child_link)
        child_link.close()
        link.settimeout(_SWAP_TIMEOUT_S)
        self.workers[link.fileno()] = Worker(row, pid, link, time.monotonic())
        if self._stop_signal:  # it came after the fork
            os.kill(pid, signal.SIGTERM)

    def _fork(self) -> int:
        """Fork this process; return the process id in the parent, and 0 in the child.

        The child has the default signal handlers, both signals blocked, and none of the links to
        workers.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with warnings.catch_warnings():
            # Python 3.12 warns of threads: those of Arrow, which handles forks, are idle
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.setpgrp()  # Ctrl-C of a terminal goes to the parent alone
            for worker in self.workers.values():
                worker.link.close()
        else:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return pid

    def _serve_and_exit(self, row: int, link: socket.socket) -> None:
        """Serve as a worker; the process ends here."""
        status = 1
        try:
            for number, listener in enumerate(self.listeners):
                if number != row:
                    listener.close()
            self.metrics.use_row(row)
            self.batcher.counts.use_row(row)
            _run_worker(self.make_server(), self.listeners[row], self.batcher, self.metrics, link)
            status = 0
        except Exception as error:
            log_error("worker failed", error)
        finally:
            os._exit(status)

    def _receive(self, worker: Worker) -> None:
        """Handle a message of a worker, or its end."""
        message, _ = _receive_message(worker.link)
        if message:
            self._waiting_reloads.append(worker)
        else:
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        """Start another worker instead of one that has ended, unless the server stops."""
        del self.workers[worker.link.fileno()]
        worker.link.close()
        os.kill(worker.pid, signal.SIGKILL)  # no effect on a process that has ended
        _, status = os.waitpid(worker.pid, 0)
        if self._stop_signal:
            return
        log_event("worker ended", pid=worker.pid, status=os.waitstatus_to_exitcode(status))
        if time.monotonic() - worker.start < _MIN_LIFETIME_S:
            time.sleep(_MIN_LIFETIME_S)
        if not self._stop_signal:
            self.metrics.count_restart(worker.row)
            self._start_worker(worker.row)

    def _start_loader(self, requester: Worker) -> None:
        """Load the model folder in another process, as a worker was asked to."""
        link, child_link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = self._fork()
        if pid == 0:
            link.close()
            self._load_and_exit(child_link)
        child_link.close()
        self._loader = Loader(pid, link, requester)

    def _finish_reload(self) -> None:
        """Share the model that was loaded, and tell the worker that was asked to reload."""
        if self._loader is None:
            return
        (pid, link, requester), self._loader = self._loader, None
        with link:
            reply, descriptors = _receive_message(link)
        os.waitpid(pid, 0)
        if descriptors:
            reply = self._share_model(descriptors[0])
        _send_message(requester.link, reply or b"the process that loads the model has ended")

    def _load_and_exit(self, link: socket.socket) -> None:
        """Load the model in a process that ends here, so that its memory is free afterwards."""
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            for listener in self.listeners:
                listener.close()
            service = RecommendationService(Recommender.load(self.folder))
            _send_message(link, _MODEL, write_service(service))
        except IdcfError as error:
            _send_message(link, _REFUSED + str(error).encode())
        except Exception as error:
            log_error("reload failed", error)
            _send_message(link, repr(error).encode())
        finally:
            os._exit(0)

    def _share_model(self, descriptor: int) -> bytes:
        """Put a model to work in this process and in all workers; return which of them failed."""
        failures = []
        try:
            self.batcher.service = read_service(descriptor)
            freeze_garbage_collector()
            workers = list(self.workers.values())
            for worker in workers:
                _send_message(worker.link, _MODEL, descriptor)
            for worker in workers:
                if reason := self._swap_failure(worker):
                    failures.append(f"worker {worker.pid} serves the old model: {reason}")
        except Exception as error:
            log_error("reload failed", error)
            failures.append(f"the new model cannot be shared: {error!r:.200}")
        finally:
            os.close(descriptor)
        return "; ".join(failures).encode() or _DONE

    def _swap_failure(self, worker: Worker) -> str:
        """Wait until a worker has swapped its model; return why it has not, or nothing.

        A worker that has died has no failure: the one that replaces it serves the new model.
        """
        while True:
            try:
                message, _ = _receive_message(worker.link)
            except TimeoutError:
                return f"no answer for {_SWAP_TIMEOUT_S:g} s"
            if message != _RELOAD:
                return "" if message in (_DONE, b"") else message.decode()
            self._waiting_reloads.append(worker)


class WorkerLink:
    """The link of a worker to its parent, on the event loop of the worker."""

    def __init__(
        self, link: socket.socket, batcher: RequestBatcher, server: uvicorn.Server
    ) -> None:
        self.link, self.batcher, self.server = link, batcher, server
        self._loop = asyncio.get_running_loop()
        self._reply: asyncio.Future[bytes] | None = None
        self._task: asyncio.Task[None] | None = None  # the swap that is under way
        link.setblocking(False)
        self._loop.add_reader(link, self._receive)
        batcher.swap_in_all_workers = self.reload

    async def reload(self) -> None:
        """Have the parent swap the model in all workers.

        ArtifactError: it cannot be loaded. OverloadedError: some workers could not swap it.
        """
        self._reply = self._loop.create_future()
        _send_message(self.link, _RELOAD)
        reply = await self._reply
        if reply.startswith(_REFUSED):
            raise ArtifactError(reply.removeprefix(_REFUSED).decode())
        if reply != _DONE:
            raise OverloadedError(f"{reply.decode(errors='replace')}; reload again")

    def _receive(self) -> None:
        """Handle a message of the parent; without a parent, the worker ends."""
        try:
            message, descriptors = _receive_message(self.link)
        except BlockingIOError:
            return
        if descriptors:
            self._task = self._loop.create_task(self._swap(descriptors[0]))
        elif message:
            if self._reply is not None and not self._reply.done():
                self._reply.set_result(message)
        else:
            self._loop.remove_reader(self.link)
            self.server.should_exit = True

    async def _swap(self, descriptor: int) -> None:
        """Serve the model of a file, and tell the parent."""
        reply = _DONE
        try:
            self.batcher.replace_service(await asyncio.to_thread(read_service, descriptor))
            freeze_garbage_collector()  # the pages of objects frozen before stay shared
        except Exception as error:
            log_error("reload failed", error)
            reply = f"{type(error).__name__}: {error}"[:500].encode()
        finally:
            os.close(descriptor)
        _send_message(self.link, reply)


def _run_worker(
    server: uvicorn.Server,
    listener: socket.socket,
    batcher: RequestBatcher,
    metrics: ServerMetrics,
    link: socket.socket,
) -> None:
    """Serve in this process until it gets a signal or has no parent."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()

        def publish() -> None:
            publish_gauges(metrics, batcher)
            loop.call_later(_PUBLISH_PERIOD_S, publish)

        publish()
        connection = WorkerLink(link, batcher, server)
        loop.call_soon(signal.pthread_sigmask, signal.SIG_UNBLOCK, _SIGNALS)
        await server.serve([listener])
        del connection

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(serve())


def _send_message(link: socket.socket, message: bytes, *descriptors: int) -> None:
    """Send one message with file descriptors; a process that has ended gets nothing."""
    try:
        socket.send_fds(link, [message], descriptors)
    except OSError:
        return


def _receive_message(link: socket.socket) -> tuple[bytes, list[int]]:
    """Return one message and its file descriptors; nothing if the other process has ended."""
    try:
        message, descriptors, *_ = socket.recv_fds(link, _MAX_MESSAGE, 1)
    except ConnectionError:
        return b"", []
    return message, descriptors
