"""The HTTP protocol of the server: uvicorn's, which answers POST /v1/recommend without ASGI.

A plain request of this route is decoded when its body is complete and given to the request batcher;
its response is written in one piece. Every other request, and any with an unusual header, goes to
uvicorn and the ASGI application, whose route answers with the same bytes. uvicorn's attributes that
are used here are no public interface, so its minor version is fixed in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from idcf.server import routes
from idcf.server.batcher import RequestBatcher
from idcf.server.middleware import RequestMiddleware
from idcf.server.schemas import (
    MAX_BODY_BYTES,
    RecommendationList,
    RecommendRequest,
    encode_json,
)

PATH = "/v1/recommend"
_URL = PATH.encode()
_STATUS_OF_DISCONNECT = 400  # in the metrics: the client closed the connection within a body


class RecommendCycle:
    """One request of the route; gets its response from the batcher.

    Stands for uvicorn's RequestResponseCycle, of which the protocol reads the public attributes.
    """

    __slots__ = (
        "chunks",
        "disconnected",
        "keep_alive",
        "message_event",
        "protocol",
        "response_complete",
        "start",
        "timer",
    )

    def __init__(self, protocol: RecommendProtocol, keep_alive: bool) -> None:
        self.protocol = protocol
        self.keep_alive = keep_alive
        self.response_complete = self.disconnected = False
        self.message_event = protocol.no_event
        self.chunks: list[bytes] = []
        self.timer: asyncio.TimerHandle | None = None
        self.start = time.perf_counter()

    def done(self) -> bool:
        """Return False: a request whose client has gone is answered and counted all the same."""
        return False

    def set_result(self, result: RecommendationList, /) -> None:
        """Send the response."""
        self.protocol.finish(self, encode_json(result))

    def set_exception(self, exception: Exception, /) -> None:
        """Send the response of an exception."""
        error = routes.to_http_exception(exception)
        self.protocol.finish(self, *routes.error_response(error))


class RecommendProtocol(HttpToolsProtocol):
    """uvicorn's protocol of one connection, with a short cut for one route."""

    no_event = asyncio.Event()  # for uvicorn, which sets the event of a cycle; nothing waits for it

    def __init__(self, short_cut: ShortCut, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.short_cut = short_cut
        self._incoming: RecommendCycle | None = None  # the request whose body is arriving
        self._is_in_head = False  # a request has begun and its headers are not complete
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Limit the time until the first request."""
        super().connection_made(transport)
        self._limit_head()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived, and limit the time until the rest of a head or body does."""
        super().data_received(data)
        if self._is_in_head and self._head_timer is None:
            self._limit_head()
        cycle = self._incoming
        if cycle is not None and cycle.timer is None:
            cycle.timer = self.loop.call_later(routes.BODY_TIMEOUT_S, self._refuse_slow_body)

    def on_message_begin(self) -> None:
        """Forget the previous request; the scope of ASGI is made when it is needed."""
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._is_in_head = True

    def _limit_head(self) -> None:
        """Close the connection unless the headers of a request are complete in time."""
        self._head_timer = self.loop.call_later(routes.BODY_TIMEOUT_S, self._close_slow_head)

    def _close_slow_head(self) -> None:
        """Close the connection, unless the server does not read from it, as requests wait."""
        if self.flow.read_paused:
            self._limit_head()
        else:
            self.transport.close()

    def _forget_head(self) -> None:
        """Lift the limit: the headers are complete, or the connection is lost."""
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_headers_complete(self) -> None:
        """Begin a request, in ASGI unless it is a plain one of the route."""
        self._forget_head()
        if self.transport.is_closing():  # after a response that closes the connection
            return
        if not self._is_plain_request():
            url, headers, expects = self.url, self.headers, self.expect_100_continue
            super().on_message_begin()
            self.url, self.expect_100_continue = url, expects
            self.headers += headers  # the list is in the scope
            super().on_headers_complete()
            return
        self.short_cut.metrics.open_requests += 1
        self.cycle = self._incoming = RecommendCycle(  # type: ignore[assignment]
            self, self.parser.should_keep_alive()
        )

    def _is_plain_request(self) -> bool:
        """Return whether the request is one of the route, without anything that is special.

        Special are an earlier request without a response, a client that does not read its
        responses, too many open requests, HTTP/1.0, Expect, Upgrade and a chunked or too long body.
        """
        return (
            self.url == _URL
            and self.parser.get_method() == b"POST"
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
            and self.short_cut.has_room()
            and self._content_length() <= MAX_BODY_BYTES
            and self.parser.get_http_version() == "1.1"
        )

    def _content_length(self) -> float:
        """Return the announced length of the body; infinite if there is none."""
        for name, value in self.headers:
            if name == b"content-length":
                return int(value)
        return float("inf")

    def on_body(self, body: bytes) -> None:
        """Collect a part of a body."""
        if self._incoming is None:
            super().on_body(body)
        else:
            self._incoming.chunks.append(body)

    def on_message_complete(self) -> None:
        """Decode a complete request and queue it."""
        cycle, self._incoming = self._incoming, None
        if cycle is None:
            super().on_message_complete()
            return
        if cycle.timer is not None:
            cycle.timer.cancel()
        try:
            request = self.short_cut.decode(b"".join(cycle.chunks))
            self.short_cut.batcher.submit(request, cycle)
        except Exception as error:
            cycle.set_exception(error)

    def finish(
        self,
        cycle: RecommendCycle,
        body: bytes,
        status: int = 200,
        extra_headers: routes.Headers | None = None,
    ) -> None:
        """Count a request, write its response and let uvicorn start the next one.

        The client can ask another worker for the counts as soon as it has the response.
        """
        cycle.response_complete = True
        self.short_cut.count(status, cycle.start)
        if cycle.disconnected:
            return
        if extra_headers and any(name == b"connection" for name, _ in extra_headers):
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            extra_headers = [*(extra_headers or []), routes.CLOSE_CONNECTION]
        head = self.short_cut.encode_head(self.server_state.default_headers, status)
        rest = b"".join([b"%b: %b\r\n" % x for x in extra_headers]) if extra_headers else b""
        self.transport.write(b"%b%d\r\n%b\r\n%b" % (head, len(body), rest, body))
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _refuse_slow_body(self) -> None:
        """Answer a request whose body does not arrive."""
        cycle, self._incoming = self._incoming, None
        if cycle is not None:
            cycle.set_exception(routes.body_too_slow())

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up a request whose body is not complete."""
        super().connection_lost(exc)
        self._forget_head()
        cycle, self._incoming = self._incoming, None
        if cycle is not None:
            if cycle.timer is not None:
                cycle.timer.cancel()
            self.short_cut.count(_STATUS_OF_DISCONNECT, cycle.start)


class ShortCut:
    """What the connections of a server share; a factory of their protocols."""

    def __init__(self, batcher: RequestBatcher, middleware: RequestMiddleware) -> None:
        self.batcher = batcher
        self.metrics = middleware.metrics
        self.max_open_requests = middleware.max_open_requests
        self._default_headers: routes.Headers = []
        self._heads: dict[int, bytes] = {}  # by status, with these headers
        self.decode: Callable[[bytes], RecommendRequest] = routes.body_decoder(RecommendRequest)

    def __call__(self, *args: Any, **options: Any) -> RecommendProtocol:
        """Return the protocol of a new connection, with uvicorn's arguments."""
        return RecommendProtocol(self, *args, **options)

    def encode_head(self, default_headers: routes.Headers, status: int) -> bytes:
        """Return the first lines of a response, up to its length; uvicorn renews the headers."""
        if default_headers is not self._default_headers:
            self._default_headers, self._heads = default_headers, {}
        if (head := self._heads.get(status)) is None:
            headers = [*default_headers, *routes.json_headers(b"", None)]
            lines = b"\r\n".join([b"%b: %b" % x for x in headers])
            head = self._heads[status] = STATUS_LINE[status] + lines[: -len(b"0")]
        return head

    def has_room(self) -> bool:
        """Return whether one more request may be open."""
        return self.metrics.open_requests < self.max_open_requests

    def count(self, status: int, start: float) -> None:
        """Count a request that is no longer open."""
        self.metrics.open_requests -= 1
        self.metrics.record_request(PATH, status, time.perf_counter() - start)
