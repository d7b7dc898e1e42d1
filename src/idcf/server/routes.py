"""POST routes as plain ASGI applications, with the bodies and errors of all routes.

msgspec decodes the body, a dictionary finds the route: FastAPI would take a third of the time of a
request for this; it serves the GET routes. A response never holds a stack trace. Each logged error
is one line of JSON, so that text sent by a client cannot forge further lines.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from idcf.errors import ArtifactError, ConfigError, IdcfError, OverloadedError
from idcf.server.batcher import RequestBatcher
from idcf.server.schemas import MAX_BODY_BYTES, ErrorDetail, encode_json

T = TypeVar("T")
Headers = list[tuple[bytes, bytes]]
Handler = Callable[[Any], Awaitable[Any]]  # decoded request -> response body
LOG = logging.getLogger("idcf.server")
_JSON_CONTENT_TYPE = (b"content-type", b"application/json")
CLOSE_CONNECTION = (b"connection", b"close")
_CLOSING = {"connection": "close"}
_MAX_TRACE_CHARS = 4000  # the end of a trace is kept: it names the error
BODY_TIMEOUT_S = 10.0
_DISCARD_TIMEOUT_S, _MAX_DISCARDED_BYTES = 1.0, 4 << 20


@dataclass(eq=False)
class PostRoute:
    """A route that decodes a JSON body of one type and responds with another."""

    path: str  # such as /v1/recommend
    request_type: type[Any]  # of `schemas`, as the next one
    response_type: type[Any]
    handler: Handler
    summary: str  # one line for /openapi.json

    def __post_init__(self) -> None:
        self.decode = body_decoder(self.request_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raise HTTPException 422 if the body is not valid."""
        require_post(scope)
        request = self.decode(await read_body(scope, receive))
        await send_json(send, encode_json(await self.handler(request)))


class ReloadRoute:
    """POST /admin/reload: load the model folder again, for clients that send the token."""

    path = "/admin/reload"

    def __init__(self, batcher: RequestBatcher, folder: Path, token: str) -> None:
        self.batcher = batcher
        self.folder = folder
        self._expected_authorization = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Swap the model; raise HTTPException 401 without the token, 409 if loading fails."""
        require_post(scope)
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        request_id = scope.get("request_id", "")
        if not hmac.compare_digest(authorization, self._expected_authorization):
            log_event("reload refused", request_id=request_id, reason="no valid token")
            raise HTTPException(
                401,
                "reloading needs the header 'Authorization: Bearer TOKEN'",
                {"www-authenticate": "Bearer"},
            )
        try:
            await self.batcher.swap_model(self.folder)
        except Exception as error:
            reason = str(error) if isinstance(error, IdcfError) else type(error).__name__
            log_event("reload failed", request_id=request_id, reason=reason[:1000])
            if not isinstance(error, ArtifactError):
                raise
            raise HTTPException(409, f"the old model is still served: {error}") from None
        info = self.batcher.service.model_info()
        log_event(
            "model reloaded",
            request_id=request_id,
            model=info.model,
            training_data_sha256=info.training_data_sha256,
        )
        await send_json(send, encode_json(info))


class PostDispatcher:
    """Sends a request to the route of its path, and any other request to a fallback application."""

    def __init__(self, routes: Mapping[str, ASGIApp], fallback: ASGIApp) -> None:
        self.routes = routes
        self.fallback = fallback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        route = self.routes.get(scope.get("path", ""))
        if route is not None:
            scope["route"] = route
        await (route or self.fallback)(scope, receive, send)


def body_decoder(request_type: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes JSON; it raises HTTPException 422 for a body not valid."""
    decode_json = msgspec.json.Decoder(request_type).decode

    def decode(body: bytes) -> T:
        try:
            return decode_json(body)
        except (msgspec.DecodeError, RecursionError) as error:  # includes ValidationError
            raise HTTPException(422, f"body: {error}") from None
        except UnicodeDecodeError:
            raise HTTPException(422, "body: not valid UTF-8") from None

    return decode


def require_post(scope: Scope) -> None:
    """Raise the HTTP error 405 unless the method is POST."""
    if scope["method"] != "POST":
        raise HTTPException(405, "method not allowed: use POST", {"allow": "POST"})


def to_http_exception(error: Exception, request_id: str = "") -> HTTPException:
    """Return the HTTP error that a client gets for an exception.

    Errors of idcf keep their message. Any other exception is logged and becomes a status 500 that
    names only the id of the log line, which is that of the request.
    """
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, OverloadedError):
        return HTTPException(503, str(error), {"retry-after": "1"})
    if isinstance(error, ConfigError):
        return HTTPException(501, str(error))
    if isinstance(error, IdcfError):
        return HTTPException(422, str(error))
    log_id = request_id or token_hex(4)
    log_error("internal error", error, log_id)
    return HTTPException(500, f"internal server error (log id {log_id})")


async def send_error(send: Send, error: HTTPException) -> None:
    """Send the status of an HTTP error through ASGI, with the body {"detail": reason}."""
    await send_json(send, *error_response(error))


def error_response(error: HTTPException) -> tuple[bytes, int, Headers]:
    """Return the body {"detail": reason}, the status and the extra headers of an HTTP error."""
    headers = [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
    return encode_json(ErrorDetail(error.detail)), error.status_code, headers


async def send_json(
    send: Send, body: bytes, status: int = 200, extra_headers: Headers | None = None
) -> None:
    """Send a complete response whose body is JSON."""
    headers = json_headers(body, extra_headers)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def json_headers(body: bytes, extra_headers: Headers | None) -> Headers:
    """Return the headers of a response whose body is JSON, in their order."""
    return [_JSON_CONTENT_TYPE, (b"content-length", b"%d" % len(body)), *(extra_headers or [])]


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the whole body of a request.

    HTTPException: 413 for a body longer than MAX_BODY_BYTES, 408 for one that takes longer than
    10 seconds to arrive, 400 if the client disconnects.
    """
    headers = dict(scope["headers"])
    if int(headers.get(b"content-length") or b"0") > MAX_BODY_BYTES:
        if b"expect" not in headers:  # otherwise the client waits before it sends the body
            await _discard_body(receive)
        raise _body_too_large()
    chunks, size, is_complete = [], 0, False
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while not is_complete:
                message = await receive()
                chunks.append(_body_chunk(message))
                size += len(chunks[-1])
                is_complete = not message.get("more_body")
                if size > MAX_BODY_BYTES:
                    if not is_complete:
                        await _discard_body(receive)
                    raise _body_too_large()
    except TimeoutError:
        raise body_too_slow() from None
    return b"".join(chunks)


async def _discard_body(receive: Receive) -> None:
    """Read the rest of a body that is too long, for a second and up to 4 MiB.

    A connection that is closed while data arrive is reset, and the client may not get the response.
    """
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_TIMEOUT_S):
            while size < _MAX_DISCARDED_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def _body_chunk(message: Message) -> bytes:
    """Return the body bytes of one ASGI message; raise if the client disconnected."""
    if message["type"] == "http.disconnect":
        raise HTTPException(400, "the client disconnected before the body was complete")
    body: bytes = message.get("body", b"")
    return body


def body_too_slow() -> HTTPException:
    """Return the error of a body that does not arrive in time, which closes the connection."""
    reason = f"the body took longer than {BODY_TIMEOUT_S:g} s to arrive"
    return HTTPException(408, reason, _CLOSING)


def _body_too_large() -> HTTPException:
    """Return the error of a body longer than MAX_BODY_BYTES, which closes the connection."""
    reason = f"the body is longer than {MAX_BODY_BYTES:,} bytes"
    return HTTPException(413, reason, _CLOSING)


def log_event(event: str, **fields: Any) -> None:
    """Log an event as one line of JSON."""
    LOG.info(json.dumps({"time": _time(), "event": event, **fields}))


def log_error(event: str, error: Exception, log_id: str = "") -> None:
    """Log an exception with its trace as one line of JSON."""
    fields = {
        "time": _time(),
        "event": event,
        "log_id": log_id,
        "error": type(error).__name__,
        "trace": "".join(traceback.format_exception(error))[-_MAX_TRACE_CHARS:],
    }
    LOG.error(json.dumps(fields))


def _time() -> str:
    """Return the time of a log line."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
