"""Calls of ASGI applications in this process, without a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

from starlette.types import ASGIApp


class Answer(NamedTuple):
    """A response as a client sees it; status 0: none was started."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def http_scope(path: str = "/x", method: str = "POST", **headers: str) -> dict[str, Any]:
    """Return the scope of a request; underscores of header names become hyphens."""
    pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return {"type": "http", "method": method, "path": path, "query_string": b"", "headers": pairs}


def body_messages(*parts: bytes) -> list[dict[str, Any]]:
    """Return the ASGI messages of a body that arrives in parts."""
    last = len(parts) - 1
    return [
        {"type": "http.request", "body": part, "more_body": n < last}
        for n, part in enumerate(parts)
    ]


async def call(app: ASGIApp, scope: dict[str, Any], messages: list[dict[str, Any]]) -> Answer:
    """Run an application on one request; further messages never arrive."""
    waiting, sent = list(messages), []

    async def receive() -> Any:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next((x for x in sent if x["type"] == "http.response.start"), {})
    headers = {k.decode(): v.decode() for k, v in start.get("headers", [])}
    body = b"".join(x.get("body", b"") for x in sent if x["type"] == "http.response.body")
    return Answer(start.get("status", 0), headers, body)


def answer(app: ASGIApp, scope: dict[str, Any], *parts: bytes) -> Answer:
    """Run an application on one request whose body arrives in these parts."""
    return asyncio.run(call(app, scope, body_messages(*parts)))
