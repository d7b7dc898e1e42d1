"""POST /mcp: the tools of the Model Context Protocol on the HTTP server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from idcf.server.batcher import RequestBatcher
from idcf.server.mcp import make_server
from idcf.server.routes import read_body, require_post
from idcf.server.service import RecommendationService

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class McpRoute:
    """Answers MCP requests, each in itself complete: no sessions, no streams of events."""

    path = "/mcp"

    def __init__(self, batcher: RequestBatcher) -> None:
        self.batcher = batcher
        self.server = make_server(self._answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raise HTTPException 403 for requests of pages of other servers."""
        require_post(scope)
        _refuse_other_origins(scope)
        body = await read_body(scope, receive)

        async def receive_body() -> Message:
            """Return the whole body, which is read already."""
            return {"type": "http.request", "body": body, "more_body": False}

        manager = StreamableHTTPSessionManager(self.server, json_response=True, stateless=True)
        async with manager.run():  # a manager runs once
            await manager.handle_request(scope, receive_body, send)

    async def _answer(self, function: Callable[[RecommendationService], Any]) -> Any:
        """Call a function in a thread, as one of the server's slow requests."""
        service = self.batcher.service
        return await self.batcher.run_in_thread(lambda: function(service))


def _refuse_other_origins(scope: Scope) -> None:
    """Raise HTTPException 403 if a page of another host sent the request, whatever Host it names.

    Browsers send Origin with every POST; clients of the protocol that are programs send none.
    """
    origin = dict(scope["headers"]).get(b"origin", b"").decode("latin-1")
    if origin and urlsplit(origin).hostname not in _LOCAL_HOSTS:
        raise HTTPException(403, f"/mcp: requests of pages at {origin:.80} are refused")
