"""Clients that keep a server busy on many connections, and check each answer."""

from __future__ import annotations

import re
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)")


@dataclass(frozen=True)
class Request:
    """The bytes of a request, and what is to be true of its answer."""

    data: bytes
    check: Callable[[bytes], str] | None = None  # gets the body; returns what is wrong


def post(path: str, body: str, check: Callable[[bytes], str] | None = None) -> Request:
    """Return a POST request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return Request((head + body).encode(), check)


def get(path: str) -> Request:
    """Return a GET request."""
    return Request(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


@dataclass(eq=False)
class Connection:
    """A connection, and the request whose answer it waits for."""

    socket: socket.socket
    request: Request | None = None
    start: float = 0.0  # of the request
    waiting_since: float = field(default_factory=time.monotonic)  # for the client to send a request
    received: bytes = b""
    n_answers: int = 0


class BusyClients:
    """Sends requests on some connections, on each the next one as soon as it has an answer."""

    def __init__(
        self,
        address: tuple[str, int],
        requests: Sequence[Request],
        n_connections: int,
        *,
        reconnects: bool = False,
    ) -> None:
        self.address, self.requests = address, requests
        self.reconnects = reconnects
        self.n_sent = 0
        self.statuses: Counter[int] = Counter()
        self.lost: list[str] = []  # requests without an answer
        self.wrong: list[str] = []  # answers that are not what they have to be
        self.slowest_s = 0.0
        self._selector = selectors.DefaultSelector()
        self._stops = threading.Event()
        self.connections = [self._connect() for _ in range(n_connections)]

    @property
    def n_answers(self) -> int:
        """Number of answers on all connections."""
        return self.statuses.total()

    def _connect(self) -> Connection:
        connection = Connection(socket.create_connection(self.address, timeout=60))
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        return connection

    def stop(self) -> None:
        """Send no further request; `run` returns when all are answered."""
        self._stops.set()

    def run(self, n_requests: int | None = None, timeout_s: float = 300.0) -> None:
        """Send requests until there are so many, or until `stop`, or no connection is left.

        When nothing has come for the time, all requests without an answer count as lost.
        """
        last = time.monotonic()
        limit = None if n_requests is None else self.n_sent + n_requests
        self._stops.clear()
        for connection in self.connections:
            self._send(connection, limit)
        while any(x.request for x in self.connections):
            ready = self._selector.select(1.0)
            last = time.monotonic() if ready else last
            if time.monotonic() > last + timeout_s:
                n_open = sum(x.request is not None for x in self.connections)
                self.lost += [f"no answer in {timeout_s:g} s"] * n_open
                break
            for key, _ in ready:
                self._receive(key.data, limit)

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections:
            connection.socket.close()
        self._selector.close()

    def _send(self, connection: Connection, limit: int | None) -> None:
        """Send the next request, unless there are enough of them."""
        if self._stops.is_set() or (limit is not None and self.n_sent >= limit):
            return
        connection.request = self.requests[self.n_sent % len(self.requests)]
        self.n_sent += 1
        connection.start = time.monotonic()
        try:
            connection.socket.sendall(connection.request.data)
        except ConnectionError as error:
            self._lose(connection, error, limit)

    def _lose(self, connection: Connection, error: Exception, limit: int | None) -> None:
        """Note a request that gets no answer, unless the connection was idle for long before."""
        if connection.request is not None and connection.start - connection.waiting_since < 0.5:
            self.lost.append(f"{type(error).__name__} after {connection.n_answers} answers")
        self._end(connection, limit)

    def _end(self, connection: Connection, limit: int | None) -> None:
        """Close a connection, and open another one if clients do so."""
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self.connections.remove(connection)
        if self.reconnects:
            try:
                self.connections.append(self._connect())
            except OSError as error:
                self.lost.append(f"{type(error).__name__} of a new connection")
                return
            self._send(self.connections[-1], limit)

    def _receive(self, connection: Connection, limit: int | None) -> None:
        """Read a part of an answer; after the end of it, send the next request."""
        try:
            part = connection.socket.recv(1 << 17)
        except ConnectionError as error:
            self._lose(connection, error, limit)
            return
        if not part:
            self._lose(connection, ConnectionResetError("closed"), limit)
            return
        connection.received += part
        head, separator, body = connection.received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head) if separator else None
        if not separator or (length is not None and len(body) < int(length[1])):
            return
        now = time.monotonic()
        self.slowest_s = max(self.slowest_s, now - connection.start)
        self._check(connection, head, body)
        connection.received, connection.request = b"", None
        connection.n_answers += 1
        connection.waiting_since = now
        if b"\r\nconnection: close" in head:
            self._end(connection, limit)
        else:
            self._send(connection, limit)

    def _check(self, connection: Connection, head: bytes, body: bytes) -> None:
        """Count an answer, and note what is wrong with it."""
        status = int(head[9:12])
        self.statuses[status] += 1
        request = connection.request
        if request is None:
            self.wrong.append(f"an answer without a request: {head[:200]!r}")
        elif status == 503:
            if b"\r\nretry-after: " not in head:
                self.wrong.append(f"503 without Retry-After: {head[:200]!r}")
        elif status != 200:
            self.wrong.append(f"{status} to {request.data[:60]!r}: {body[:200]!r}")
        elif request.check is not None and (problem := request.check(body)):
            self.wrong.append(problem)


class BusyThread(threading.Thread):
    """Runs `BusyClients` beside the test."""

    def __init__(self, clients: BusyClients) -> None:
        super().__init__(daemon=True)
        self.clients = clients

    def run(self) -> None:
        self.clients.run()

    def wait_for_answers(self, n: int) -> None:
        """Wait until so many further requests have been answered."""
        target, end = self.clients.n_answers + n, time.monotonic() + 60
        while self.clients.n_answers < target and self.is_alive() and time.monotonic() < end:
            time.sleep(0.002)

    def finish(self) -> BusyClients:
        """Stop after the answers that are due; return the clients."""
        self.clients.stop()
        self.join(120)
        return self.clients
