"""Accepts connections, and gives each a transport and a parser when there is work for them.

That costs ten times as much as to accept a connection, and is done for few of them in one turn of
the event loop: first for those that ask for the status of the server, then for complete requests,
then for what has arrived of others. So a burst of connections does not delay requests for long, and
a client that sends nothing costs a socket.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ssl import SSLContext

from idcf.server.connections import MAX_HEAD_BYTES, ConnectionTable, LimitedProtocol
from idcf.server.routes import log_error

_MAX_ACCEPTED = 64  # connections in one turn; fewer than the reserved files of `connections`
_MAX_STARTED = 8  # connections that get a parser in one turn
_MAX_STATUS_STARTED = 16
_MAX_INCOMPLETE_STARTED = 2  # 1 while there are others
_PAUSE_S = 0.1  # when the system has no files or memory for another connection
_STATUS_REQUESTS = tuple(
    f"{method} {path} ".encode()
    for method in ("GET", "HEAD")
    for path in ("/health", "/ready", "/metrics")
)
_BODY_LENGTH = re.compile(rb"(?i)\r\n(?:content-length:[ \t]*(\d{1,9})|transfer-encoding:)")


class NewConnection:
    """A connection before its first request is complete."""

    __slots__ = ("acceptor", "address", "data", "is_queued", "is_watched", "loop", "socket")

    def __init__(self, acceptor: Acceptor, connection: socket.socket, address: str) -> None:
        self.acceptor, self.socket, self.address = acceptor, connection, address
        self.loop = acceptor.loop
        self.data = b""  # that the client has sent
        self.is_queued = False
        self.is_watched = False  # by the event loop

    def is_idle(self) -> bool:
        """Return whether the client has sent nothing."""
        return not self.data

    def is_complete(self) -> bool:
        """Return whether a parser would find a request, or more than it needs to refuse it."""
        head, separator, body = self.data.partition(b"\r\n\r\n")
        if not separator:
            return len(self.data) > MAX_HEAD_BYTES
        length = _BODY_LENGTH.search(head)
        if length is None:
            return True
        if length[1] is None:  # chunked
            return body.endswith(b"0\r\n\r\n")
        return len(body) >= min(int(length[1]), MAX_HEAD_BYTES)

    def on_timeout(self) -> None:
        """Close the connection of a client that has sent nothing; the parser answers others."""
        if self.data:
            self.acceptor.start(self)
        else:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self.acceptor.forget(self)
        self.socket.close()

    abort = close


class Acceptor:
    """Accepts the connections of one listening socket and starts their protocols."""

    def __init__(
        self,
        listener: socket.socket,
        table: ConnectionTable,
        make_protocol: Callable[..., LimitedProtocol],
        tls: SSLContext | None = None,
    ) -> None:
        self.listener, self.table = listener, table
        self.make_protocol, self.tls = make_protocol, tls
        self.loop = asyncio.get_running_loop()
        self.connections: set[NewConnection] = set()
        self._tasks: set[asyncio.Task[object]] = set()  # that start a connection
        self._status: deque[NewConnection] = deque()
        self._complete: deque[NewConnection] = deque()
        self._incomplete: deque[NewConnection] = deque()  # some are complete or closed since
        self._is_scheduled = False  # queued connections will be started in the next turn
        self._is_behind = False  # more connections may wait to be accepted
        self._is_closed = False
        listener.setblocking(False)
        with suppress(OSError):  # accepted sockets inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop.add_reader(listener, self._accept)

    def has_connections(self) -> bool:
        """Return whether a connection has been accepted that is not served yet."""
        return bool(self.connections or self._tasks)

    def close(self) -> None:
        """Accept no more connections; those that say nothing get a little more time."""
        self._is_closed = True
        self.loop.remove_reader(self.listener)
        for connection in self.connections:
            self.table.wait_for(connection)

    def abort(self) -> None:
        """Close the connections that are not served yet."""
        for task in self._tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.close()

    def forget(self, connection: NewConnection) -> None:
        """Forget a connection that is closed."""
        self._unwatch(connection)
        self.connections.discard(connection)
        self.table.remove(connection, connection.address)

    def _accept(self) -> None:
        """Accept connections that wait for it."""
        for _ in range(_MAX_ACCEPTED):
            try:
                connection, address = self.listener.accept()
            except BlockingIOError:
                self._is_behind = False
                return
            except ConnectionError:  # it has gone already
                continue
            except OSError as error:
                log_error("no connection can be accepted", error)
                self.loop.remove_reader(self.listener)
                self.loop.call_later(_PAUSE_S, self._accept_again)
                return
            connection.setblocking(False)
            self._add(NewConnection(self, connection, address[0]))
        self._is_behind = True

    def _accept_again(self) -> None:
        """Go on to accept connections, unless the server ends."""
        if not self._is_closed:
            self.loop.add_reader(self.listener, self._accept)

    def _add(self, connection: NewConnection) -> None:
        """Count a connection and wait for its client; refuse one that has no place."""
        self.connections.add(connection)
        if not self.table.add(connection, connection.address):
            if not self.tls:
                with suppress(OSError):  # closing a socket with unread data would reset it
                    connection.data = connection.socket.recv(MAX_HEAD_BYTES)
            self.start(connection, has_place=False)
            return
        if not self.tls:
            self._receive(connection)
        if connection in self.connections and not connection.is_queued:
            connection.is_watched = True
            read = self._queue if self.tls else self._receive
            self.loop.add_reader(connection.socket, read, connection)

    def _receive(self, connection: NewConnection) -> None:
        """Read what a client has sent, and queue the connection."""
        try:
            data = connection.socket.recv(MAX_HEAD_BYTES + 1 - len(connection.data))
        except BlockingIOError:
            return
        except OSError:
            connection.close()
            return
        is_new = not connection.data
        connection.data += data
        if not connection.data:
            connection.close()
        elif not data or connection.is_complete():
            self._queue(connection)
        elif is_new:
            self._incomplete.append(connection)
            self._schedule()

    def _queue(self, connection: NewConnection) -> None:
        """Queue a connection; the server, not its client, has the next step to do."""
        self._unwatch(connection)
        self.table.stop_waiting(connection)
        connection.is_queued = True
        is_status = connection.data.startswith(_STATUS_REQUESTS)
        (self._status if is_status else self._complete).append(connection)
        self._schedule()

    def _unwatch(self, connection: NewConnection) -> None:
        """Let the event loop no longer watch a connection."""
        if connection.is_watched:
            connection.is_watched = False
            self.loop.remove_reader(connection.socket)

    def _schedule(self) -> None:
        """Start queued connections in the next turn."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._start_some)

    def _start_some(self) -> None:
        """Start some of the queued connections, fewest of the incomplete ones."""
        self._is_scheduled = False
        is_idle = not (self._is_behind or self._status or self._complete)
        self._start_first(self._status, _MAX_STATUS_STARTED)
        self._start_first(self._complete, _MAX_STARTED)
        self._start_first(self._incomplete, _MAX_INCOMPLETE_STARTED if is_idle else 1)
        if self._status or self._complete or self._incomplete:
            self._schedule()

    def _start_first(self, queue: deque[NewConnection], n: int) -> None:
        """Start up to n connections of a queue."""
        while queue and n:
            connection = queue.popleft()
            if connection in self.connections:
                self.start(connection)
                n -= 1

    def start(self, connection: NewConnection, has_place: bool = True) -> None:
        """Give a connection its protocol, which refuses it if it has no place.

        One of TLS gets its place after the handshake, which has the time limit of a request.
        """
        self._unwatch(connection)
        self.connections.discard(connection)
        if self.tls:
            self.table.remove(connection, connection.address)
        else:
            self.table.stop_waiting(connection)
        protocol = self.make_protocol(
            early_data=connection.data, has_place=None if self.tls else has_place
        )
        timeout = self.table.limits.timeout_s if self.tls else None
        task: asyncio.Task[object] = self.loop.create_task(
            self.loop.connect_accepted_socket(
                lambda: protocol,
                connection.socket,
                ssl=self.tls,
                ssl_handshake_timeout=timeout,
                ssl_shutdown_timeout=timeout,
            )
        )
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish_start, connection, protocol))

    def _finish_start(
        self, connection: NewConnection, protocol: LimitedProtocol, task: asyncio.Task[object]
    ) -> None:
        """Log what went wrong, but for clients that have gone or do not speak TLS."""
        self._tasks.discard(task)
        if protocol.transport is None and not self.tls:  # otherwise the protocol does this
            self.table.remove(connection, connection.address)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not isinstance(error, OSError):
            log_error("a connection cannot be served", error)
