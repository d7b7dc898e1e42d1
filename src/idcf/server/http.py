"""HTTP below the routes: read a request body, send a JSON response, turn errors into statuses.

Knows no route and no model. A response never holds a stack trace. Each logged error is one line of
JSON, so that text sent by a client cannot forge further lines.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from secrets import token_hex

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from idcf.errors import ConfigError, IdcfError, OverloadedError
from idcf.server.schemas import MAX_BODY_BYTES, ErrorDetail, encode_json

LOG = logging.getLogger("idcf.server")
_JSON_CONTENT_TYPE = (b"content-type", b"application/json")
_CLOSE_CONNECTION = {"connection": "close"}
_MAX_TRACE_CHARS = 4000  # the end of a trace is kept: it names the error
_BODY_TIMEOUT_S = 10.0


def to_http_exception(error: Exception) -> HTTPException:
    """Return the HTTP error that a client gets for an exception.

    Errors of idcf keep their message. Any other exception is logged and becomes a status 500 that
    names only the id of the log line.
    """
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, OverloadedError):
        return HTTPException(503, str(error), {"retry-after": "1"})
    if isinstance(error, ConfigError):
        return HTTPException(501, str(error))
    if isinstance(error, IdcfError):
        return HTTPException(422, str(error))
    log_id = token_hex(4)
    log_error("internal error", error, log_id)
    return HTTPException(500, f"internal server error (log id {log_id})")


async def send_error(send: Send, error: HTTPException) -> None:
    """Send the status of an HTTP error through ASGI, with the body {"detail": reason}."""
    headers = [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
    await send_json(send, encode_json(ErrorDetail(error.detail)), error.status_code, headers)


async def send_json(
    send: Send,
    body: bytes,
    status: int = 200,
    extra_headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    """Send a complete response whose body is JSON."""
    headers = [_JSON_CONTENT_TYPE, (b"content-length", b"%d" % len(body)), *(extra_headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the whole body of a request.

    Raises
    ------
    HTTPException
        413 if the body is longer than MAX_BODY_BYTES, 408 if it takes longer than 10 seconds to
        arrive, 400 if the client disconnects.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value or b"0") > MAX_BODY_BYTES:
            raise _body_too_large()
    message = await receive()
    chunks = [_body_chunk(message)]
    if message.get("more_body"):
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                while message.get("more_body"):
                    message = await receive()
                    chunks.append(_body_chunk(message))
                    if sum(map(len, chunks)) > MAX_BODY_BYTES:
                        raise _body_too_large()
        except TimeoutError:
            reason = f"the body took longer than {_BODY_TIMEOUT_S:g} s to arrive"
            raise HTTPException(408, reason, _CLOSE_CONNECTION) from None
    return b"".join(chunks)


def _body_chunk(message: Message) -> bytes:
    """Return the body bytes of one ASGI message; raise if the client left or sent too much."""
    if message["type"] == "http.disconnect":
        raise HTTPException(400, "the client disconnected before the body was complete")
    body: bytes = message.get("body", b"")
    if len(body) > MAX_BODY_BYTES:
        raise _body_too_large()
    return body


def _body_too_large() -> HTTPException:
    """Return the error of a body longer than MAX_BODY_BYTES, which closes the connection."""
    reason = f"the body is longer than {MAX_BODY_BYTES:,} bytes"
    return HTTPException(413, reason, _CLOSE_CONNECTION)


def log_error(event: str, error: Exception, log_id: str = "") -> None:
    """Log an exception with its trace as one line of JSON."""
    fields = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "event": event,
        "log_id": log_id,
        "error": type(error).__name__,
        "trace": "".join(traceback.format_exception(error))[-_MAX_TRACE_CHARS:],
    }
    LOG.error(json.dumps(fields))
