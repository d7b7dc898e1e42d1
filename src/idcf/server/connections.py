"""Limits of connections: the time a client may take, the size of a head, the number of them.

Every connection has the protocol of this module, uvicorn's with limits; `protocol` adds a short cut
for one route. uvicorn's attributes that are used here are no public interface, so its minor version
is fixed in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from secrets import token_hex
from typing import Any, Protocol

from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from idcf.server import routes
from idcf.server.counters import OTHER_ROUTE
from idcf.server.middleware import RequestMiddleware

with suppress(ImportError):  # Windows has no such module
    import resource

MAX_HEAD_BYTES = 16 << 10  # of names and values of headers
MAX_HEADERS = 100
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_RESERVED_FILES = 128  # files that are no connections, and connections that are being accepted
_MAX_OPEN_FILES = 65_536
_SWEEP_DELAY_S = 0.02
_MAX_SWEPT = 32  # connections closed in one turn of the event loop


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of the connections of one process; 0: no limit."""

    timeout_s: float = routes.BODY_TIMEOUT_S  # for a head, for a body, and between two requests
    max_connections: int = 8192
    max_per_address: int = 2048

    def within_open_files(self) -> ConnectionLimits:
        """Return the limits that the number of open files allows, which is raised if possible."""
        if "resource" not in globals():
            return self
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
        if 0 <= soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        largest = max(soft - _RESERVED_FILES, 16) if soft > 0 else self.max_connections
        return replace(self, max_connections=min(self.max_connections or largest, largest))


class WaitingConnection(Protocol):
    """A connection whose client has the next step to do."""

    loop: asyncio.AbstractEventLoop
    address: str  # of the client

    def is_idle(self) -> bool:
        """Return whether no part of a request has arrived since the last response."""

    def on_timeout(self) -> None:
        """Close the connection, or wait once more."""

    def close(self) -> None:
        """Close the connection after what is written has been sent."""

    def abort(self) -> None:
        """Close the connection at once."""


class ConnectionTable:
    """The open connections of a process, and since when the server waits for which client.

    All limits of time are equal, so the connection that waits longest is the first one to be
    closed. When there are too many connections, it is closed at once: a new connection, such as one
    that asks for /health, is served whatever the others do.
    """

    def __init__(
        self, middleware: RequestMiddleware, limits: ConnectionLimits | None = None
    ) -> None:
        self.metrics = middleware.metrics
        self.limits = limits or ConnectionLimits()
        self.is_draining = False  # no connection is kept open after its requests
        self._n_open = 0
        self._n_of_address: Counter[str] = Counter()
        self._waiting: OrderedDict[WaitingConnection, float] = OrderedDict()  # since, in order
        self._is_sweeping = False  # a sweep will start by itself
        self._id_prefix = token_hex(4).encode()
        self._numbers = count()

    def new_request_id(self) -> bytes:
        """Return an id that no other request has."""
        return b"%b%08x" % (self._id_prefix, next(self._numbers))

    def add(self, connection: WaitingConnection, address: str) -> bool:
        """Count a new connection; return False if it has no place."""
        self._n_open += 1
        self._n_of_address[address] += 1
        self.metrics.open_connections = self._n_open
        self.wait_for(connection)
        limits = self.limits
        has_place = True
        if limits.max_per_address and self._n_of_address[address] > limits.max_per_address:
            same = (x for x in self._waiting if x.address == address)
            has_place = self._close_first(same, connection)
        elif limits.max_connections and self._n_open > limits.max_connections:
            has_place = self._close_first(iter(self._waiting), connection)
        return has_place

    def _close_first(self, waiting: Iterator[WaitingConnection], new: WaitingConnection) -> bool:
        """Close the first connection that waits for its client; return False if it is the new."""
        first = next(waiting)
        if first is new:
            return False
        del self._waiting[first]
        self.metrics.n_evictions += 1
        first.abort()
        return True

    def remove(self, connection: WaitingConnection, address: str) -> None:
        """Forget a connection that is closed."""
        self._n_open -= 1
        self.metrics.open_connections = self._n_open
        self._n_of_address[address] -= 1
        if not self._n_of_address[address]:
            del self._n_of_address[address]
        self.stop_waiting(connection)

    def wait_for(self, connection: WaitingConnection) -> None:
        """Wait for the client from now on."""
        loop = connection.loop
        self._waiting[connection] = loop.time()
        self._waiting.move_to_end(connection)
        if not self._is_sweeping:
            self._is_sweeping = True
            loop.call_later(self.limits.timeout_s, self._sweep_soon, loop)

    def stop_waiting(self, connection: WaitingConnection) -> None:
        """Wait for the client no longer: the server is at work for it."""
        self._waiting.pop(connection, None)

    def close_idle(self, time: float) -> None:
        """Close the connections without a request since this time or longer."""
        for connection in self.waiting_since(time):
            if connection.is_idle():
                connection.close()

    def _sweep_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sweep after what has arrived is read: the loop may have been busy for long."""
        loop.call_later(_SWEEP_DELAY_S, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close connections whose clients have taken too long, a few in a turn of the loop."""
        start = loop.time() - self.limits.timeout_s
        connections = self.waiting_since(start, _MAX_SWEPT)
        for connection in connections:
            connection.on_timeout()
        self._is_sweeping = bool(self._waiting) or len(connections) == _MAX_SWEPT
        if len(connections) == _MAX_SWEPT:
            loop.call_later(0, self._sweep, loop)
        elif self._is_sweeping:
            first = next(iter(self._waiting.values()))
            loop.call_later(max(first - start, 0.0), self._sweep_soon, loop)

    def waiting_since(self, time: float, n: int | None = None) -> list[WaitingConnection]:
        """Return up to n connections that wait for their clients since this time or longer."""
        waiting = takewhile(lambda x: x[1] <= time, self._waiting.items())
        return [connection for connection, _ in islice(waiting, n)]


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol of one connection, with limits and the id of each request."""

    request_id: bytes  # of the last head that is complete

    def __init__(
        self,
        table: ConnectionTable,
        *args: Any,
        early_data: bytes = b"",
        has_place: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.table = table
        self.early_data = early_data  # that was received before there was a protocol
        self.has_place = has_place  # in the table; None: it has to be asked
        self.address = ""
        self.headers = []
        self.content_length = -1  # announced by the head; -1: no length
        self._is_idle = True  # the client has sent no part of a request that is not complete
        self._has_progress = False  # since the last update: a part of a request is complete
        self._has_content = False  # this piece of data begins a request or is part of a body
        self._piece_size = 0
        self._received = 0  # bytes of the pieces since the one in which the request began
        self._excess = 0  # bytes since the request began that were pieces without content
        self._refusal: HTTPException | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Limit the time until the first request, and the number of connections."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self.has_place is None:
            self.has_place = self.table.add(self, self.address)
        else:
            self.table.wait_for(self)
        if not self.has_place:
            self.refuse(HTTPException(503, "too many connections are open", {"retry-after": "1"}))
        elif self.early_data:
            self.data_received(self.early_data)
        self.early_data = b""

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self.table.remove(self, self.address)

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived, in pieces that are not larger than a head."""
        if len(data) <= MAX_HEAD_BYTES:
            self._parse(data)
        else:
            for start in range(0, len(data), MAX_HEAD_BYTES):
                if not self.transport.is_closing():
                    self._parse(data[start : start + MAX_HEAD_BYTES])
        if self._is_busy():
            self.table.stop_waiting(self)
        elif self._has_progress:
            self.table.wait_for(self)
        self._has_progress = False

    def _parse(self, data: bytes) -> None:
        """Parse a piece; refuse headers, or trailers of a body, that are too large."""
        self._piece_size, self._has_content = len(data), False
        self._received += len(data)
        super().data_received(data)
        if not self._has_content:
            self._excess += len(data)
        is_too_large = self._excess > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS
        if is_too_large and not self.transport.is_closing():
            self.refuse(_head_too_large())

    def _is_busy(self) -> bool:
        """Return whether the server, not the client, has the next step to do."""
        if self.flow.write_paused:
            return False
        cycle = self.cycle
        is_open = cycle is not None and not cycle.response_complete
        return (is_open and not cycle.more_body) or bool(self.pipeline)

    def is_idle(self) -> bool:
        """Return whether no request has begun to arrive since the last response."""
        return self._is_idle and (self.cycle is None or self.cycle.response_complete)

    def on_message_begin(self) -> None:
        """Forget the previous request; the scope of ASGI is made when it is needed."""
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._has_progress = self._has_content = True
        self._is_idle, self._received = False, self._piece_size
        self._excess = 0

    def on_headers_complete(self) -> None:
        """Begin a request; raise if its head is too large."""
        self._has_progress = True
        if self.transport.is_closing():  # after a response that closes the connection
            return
        if len(self.headers) > MAX_HEADERS or (
            self._received > MAX_HEAD_BYTES and _size(self.url, self.headers) > MAX_HEAD_BYTES
        ):
            self._refusal = _head_too_large()
            raise ValueError  # uvicorn calls `send_400_response`
        self._read_headers()
        if self.table.is_draining:
            self._keep_alive_for_next_request()
        self.begin_request()
        if self.table.is_draining:
            self.cycle.keep_alive = False

    def _read_headers(self) -> None:
        """Find the headers that the protocol itself uses."""
        self.content_length, request_id = -1, b""
        for name, value in self.headers:
            if name == b"content-length":
                self.content_length = int(value)
            elif name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                request_id = value
        self.request_id = request_id or self.table.new_request_id()

    def begin_request(self) -> None:
        """Begin a request in ASGI."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # the list is in the scope
        self.scope["request_id"] = self.request_id.decode()  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        self.cycle.default_headers = [
            (b"x-request-id", self.request_id),
            *self.server_state.default_headers,
        ]

    def on_body(self, body: bytes) -> None:
        """Collect a part of a body."""
        self._has_content = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that a request is complete."""
        self._is_idle = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin the next request that the client has sent, or wait for one."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        if not self._is_busy():
            self.table.wait_for(self)

    def pause_writing(self) -> None:
        """Limit the time until the client reads its responses."""
        super().pause_writing()
        self.table.wait_for(self)

    def resume_writing(self) -> None:
        """Lift this limit."""
        super().resume_writing()
        if self._is_busy():
            self.table.stop_waiting(self)

    def close(self) -> None:
        """Close the connection after what is written has been sent."""
        self.transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def on_timeout(self) -> None:
        """Close the connection; abort it where the client does not read its responses.

        A body that an application waits for is limited by the application, which answers.
        """
        if self.transport.is_closing() or self.flow.write_paused:
            self.table.stop_waiting(self)
            self.transport.abort()
            return
        self.table.wait_for(self)
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def refuse(self, error: HTTPException) -> None:
        """Answer outside of any request, and close the connection."""
        self.headers = []
        self.table.metrics.record_request(OTHER_ROUTE, error.status_code, 0.0)
        body, status, extra_headers = routes.error_response(error)
        headers = [
            *self.server_state.default_headers,
            *routes.json_headers(body, [*extra_headers, routes.CLOSE_CONNECTION]),
        ]
        lines = b"".join([b"%b: %b\r\n" % x for x in headers])
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, or a head that is too large."""
        self.refuse(self._refusal or HTTPException(400, msg))

    def shutdown(self) -> None:
        """Close the connection after the last request that has been read."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self.table.wait_for(self)  # `DrainingServer` closes it if nothing comes soon

    def _keep_alive_for_next_request(self) -> None:
        """Keep the connection open after the previous request, unless its response has begun."""
        cycle = self.cycle
        if cycle is not None and not (cycle.response_complete or cycle.response_started):
            cycle.keep_alive = True


def _size(url: bytes, headers: routes.Headers) -> int:
    """Return the number of bytes of a head."""
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


def _head_too_large() -> HTTPException:
    """Return the error of headers that are too many or too long."""
    reason = f"the headers are more than {MAX_HEADERS} or longer than {MAX_HEAD_BYTES:,} bytes"
    return HTTPException(431, reason)
