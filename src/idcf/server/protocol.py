"""The short cut of POST /v1/recommend: the protocol of a connection answers it without ASGI.

A plain request of this route is decoded when its body is complete and given to the request batcher;
its response is written in one piece. Every other request, and any with an unusual header, goes to
uvicorn and the ASGI application, whose route answers with the same bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from idcf.server import routes
from idcf.server.batcher import RequestBatcher
from idcf.server.connections import ConnectionTable, LimitedProtocol
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

    response_started = False  # a response is written in one piece

    __slots__ = (
        "chunks",
        "disconnected",
        "keep_alive",
        "key",
        "message_event",
        "more_body",
        "protocol",
        "request_id",
        "response_complete",
        "start",
    )

    def __init__(self, protocol: RecommendProtocol, keep_alive: bool) -> None:
        self.protocol = protocol
        self.keep_alive = keep_alive
        self.response_complete = self.disconnected = False
        self.more_body = True
        self.message_event = protocol.no_event
        self.chunks: list[bytes] = []
        self.request_id = protocol.request_id
        self.key = protocol.short_cut.key  # the name of the API key
        self.start = time.perf_counter()

    def done(self) -> bool:
        """Return False: a request whose client has gone is answered and counted all the same."""
        return False

    def set_result(self, result: RecommendationList, /) -> None:
        """Send the response."""
        self.protocol.finish(self, encode_json(result))

    def set_exception(self, exception: Exception, /) -> None:
        """Send the response of an exception."""
        error = routes.to_http_exception(exception, self.request_id.decode())
        self.protocol.finish(self, *routes.error_response(error))


class RecommendProtocol(LimitedProtocol):
    """The protocol of one connection, with a short cut for one route."""

    no_event = asyncio.Event()  # for uvicorn, which sets the event of a cycle; nothing waits for it

    def __init__(self, short_cut: ShortCut, *args: Any, **options: Any) -> None:
        super().__init__(short_cut.table, *args, **options)
        self.short_cut = short_cut
        self._incoming: RecommendCycle | None = None  # the request whose body is arriving

    def begin_request(self) -> None:
        """Begin a request, in ASGI unless it is a plain one of the route."""
        if not self._is_plain_request():
            super().begin_request()
            return
        self.short_cut.metrics.open_requests += 1
        self.cycle = self._incoming = RecommendCycle(  # type: ignore[assignment]
            self, self.parser.should_keep_alive()
        )

    def _is_plain_request(self) -> bool:
        """Return whether the request is one of the route, without anything that is special.

        Special are an earlier request without a response, a client that does not read its
        responses, too many open requests, HTTP/1.0, Expect, Upgrade, a chunked or too long body and
        a request that the rules of access refuse or add headers to.
        """
        return (
            self.url == _URL
            and self.parser.get_method() == b"POST"
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
            and 0 <= self.content_length <= MAX_BODY_BYTES
            and self.parser.get_http_version() == "1.1"
            and self.short_cut.has_room()
            and self.short_cut.lets_in(self.headers)
        )

    def on_body(self, body: bytes) -> None:
        """Collect a part of a body."""
        if self._incoming is None:
            super().on_body(body)
        else:
            self._has_content = True
            self._incoming.chunks.append(body)

    def on_message_complete(self) -> None:
        """Decode a complete request and queue it."""
        cycle, self._incoming = self._incoming, None
        if cycle is None:
            super().on_message_complete()
            return
        self._is_idle = True
        cycle.more_body = False
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
        self.short_cut.finish(cycle, status)
        if cycle.disconnected:
            return
        if extra_headers and any(name == b"connection" for name, _ in extra_headers):
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            extra_headers = [*(extra_headers or []), routes.CLOSE_CONNECTION]
        head = self.short_cut.encode_head(self.server_state.default_headers)
        rest = b"".join([b"%b: %b\r\n" % x for x in extra_headers]) if extra_headers else b""
        self.transport.write(
            b"%bx-request-id: %b\r\n%b%d\r\n%b\r\n%b"
            % (STATUS_LINE[status], cycle.request_id, head, len(body), rest, body)
        )
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_timeout(self) -> None:
        """Answer a request whose body does not arrive."""
        cycle, self._incoming = self._incoming, None
        if cycle is None:
            super().on_timeout()
        else:
            cycle.set_exception(routes.body_too_slow())

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up a request whose body is not complete."""
        super().connection_lost(exc)
        cycle, self._incoming = self._incoming, None
        if cycle is not None:
            self.short_cut.finish(cycle, _STATUS_OF_DISCONNECT)


class ShortCut:
    """What the connections of a server share; a factory of their protocols."""

    def __init__(
        self, batcher: RequestBatcher, middleware: RequestMiddleware, table: ConnectionTable
    ) -> None:
        self.batcher = batcher
        self.table = table
        self.middleware = middleware
        self.metrics = middleware.metrics
        self.key = ""  # name of the API key of the request that was let in last
        self.max_open_requests = middleware.max_open_requests
        self._default_headers: routes.Headers | None = None
        self._head = b""  # with these headers
        self.decode: Callable[[bytes], RecommendRequest] = routes.body_decoder(RecommendRequest)

    def __call__(self, *args: Any, **options: Any) -> RecommendProtocol:
        """Return the protocol of a new connection, with uvicorn's arguments."""
        return RecommendProtocol(self, *args, **options)

    def encode_head(self, default_headers: routes.Headers) -> bytes:
        """Return the lines of a response between its id and length; uvicorn renews the headers."""
        if default_headers is not self._default_headers:
            headers = [*default_headers, *routes.json_headers(b"", None)]
            lines = b"\r\n".join([b"%b: %b" % x for x in headers])
            self._default_headers, self._head = default_headers, lines[: -len(b"0")]
        return self._head

    def has_room(self) -> bool:
        """Return whether one more request may be open."""
        return self.metrics.open_requests < self.max_open_requests

    def lets_in(self, headers: routes.Headers) -> bool:
        """Return whether the rules let a request in, and add no headers to its response."""
        access = self.middleware.access
        if access.is_open:
            return True
        if access.cors_headers(headers):
            return False
        try:
            self.key = access.check(PATH, headers)
        except HTTPException:
            return False
        return True

    def finish(self, cycle: RecommendCycle, status: int) -> None:
        """Count and log a request that is no longer open."""
        self.middleware.finish_request(
            PATH,
            status,
            cycle.start,
            method="POST",
            request_id=cycle.request_id.decode(),
            key=cycle.key,
        )
