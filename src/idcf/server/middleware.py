"""The outermost layer of the server: how much may come in, what may go out, and how long it took.

Whatever happens inside, the client gets an answer without a stack trace, and the log gets one
line per event in which nothing a client sent stands unescaped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from idcf.errors import ConfigError, IdcfError, Overloaded
from idcf.server.prometheus import Metrics
from idcf.server.schemas import BODY, Problem, encode

LOG = logging.getLogger("idcf.server")
_JSON = (b"content-type", b"application/json")
_LONGEST = 4000  # characters of a trace: its end says what happened
_SLOWEST = 10.0  # seconds that a body may take to come in


class Refused(Exception):
    """An answer other than 200, with its reason."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, dict(headers or {})


class Gate:
    """Wraps the application; raw ASGI, because it is on the path of every request."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, most: int = 2048) -> None:
        self.app, self.metrics, self.most = app, metrics, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, whole = time.perf_counter(), 0, False

        async def sending(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                whole = not message.get("more_body")
            await send(message)

        metrics = self.metrics
        metrics.open += 1
        try:
            if metrics.open > self.most:
                raise Overloaded(f"{self.most} requests are open already; try again in a second")
            await self.app(scope, receive, sending)
        except Exception as error:
            if not status:
                await respond(sending, refusal(error))
            elif not whole:  # too late for another answer; the server cuts the connection
                note("cut", error)
        finally:
            metrics.open -= 1
            metrics.saw(_route(scope), status, time.perf_counter() - began)


def _route(scope: Scope) -> str:
    """The pattern, never the path: a client must not be able to make up labels."""
    found: str = getattr(scope.get("route"), "path", "other")
    return found


def refusal(error: Exception) -> Refused:
    """What a client is told of an error. Deliberate ones are for them, others are not."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, Overloaded):
        return Refused(503, str(error), {"retry-after": "1"})
    if isinstance(error, ConfigError):
        return Refused(501, str(error))
    if isinstance(error, IdcfError):
        return Refused(422, str(error))
    name = token_hex(4)
    note(f"bug {name}", error)
    return Refused(
        500, f"something is wrong here, not with the request; the log knows it as {name}"
    )


async def respond(send: Send, refused: Refused) -> None:
    body = encode(Problem(refused.reason))
    headers = [(k.encode(), v.encode()) for k, v in refused.headers.items()]
    await reply(send, body, refused.status, headers)


async def reply(
    send: Send, body: bytes, status: int = 200, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [_JSON, (b"content-length", b"%d" % len(body)), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def body_of(scope: Scope, receive: Receive) -> bytes:
    """All of a body, if it is not too long and does not take too long."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value or b"0") > BODY:
            raise _too_large()
    message = await receive()
    parts = [_part(message)]
    if message.get("more_body"):
        try:
            async with asyncio.timeout(_SLOWEST):
                while message.get("more_body"):
                    message = await receive()
                    parts.append(_part(message))
                    if sum(map(len, parts)) > BODY:
                        raise _too_large()
        except TimeoutError:
            raise Refused(408, f"the body took longer than {_SLOWEST:g} s", _CLOSE) from None
    return b"".join(parts)


_CLOSE = {"connection": "close"}


def _part(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise Refused(400, "the client hung up")
    body: bytes = message.get("body", b"")
    if len(body) > BODY:
        raise _too_large()
    return body


def _too_large() -> Refused:
    return Refused(413, f"the body is longer than {BODY:,} bytes", _CLOSE)


def note(event: str, error: Exception) -> None:
    """One line of JSON: what a client sent may stand in an error's text, and is escaped here."""
    trace = "".join(traceback.format_exception(error))[-_LONGEST:]
    LOG.error(_line(event=event, error=type(error).__name__, trace=trace))


def _line(**fields: Any) -> str:
    return json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **fields})
