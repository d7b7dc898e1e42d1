"""The outermost ASGI layer: limit the open requests, turn exceptions into responses, count and time
every request. `prometheus` reports the counts."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from idcf.errors import OverloadedError
from idcf.server.counters import OTHER_ROUTE, ServerMetrics
from idcf.server.routes import log_error, send_error, to_http_exception


class RequestMiddleware:
    """ASGI application that wraps another one with a limit, error responses and metrics.

    One class for the three, on plain ASGI: every request passes here, and they share one `send`.
    """

    def __init__(
        self, app: ASGIApp, metrics: ServerMetrics, *, max_open_requests: int = 2048
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.max_open_requests = max_open_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0  # 0: no response has been started
        is_complete = False

        async def watched_send(message: Message) -> None:
            """Send a message, and note the status and the end of the response."""
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                is_complete = not message.get("more_body")
            await send(message)

        metrics = self.metrics
        metrics.open_requests += 1
        try:
            if metrics.open_requests > self.max_open_requests:
                raise OverloadedError(
                    f"{self.max_open_requests} requests are open already; try again in a second"
                )
            await self.app(scope, receive, watched_send)
        except Exception as error:
            if not status:
                await send_error(watched_send, to_http_exception(error))
            elif not is_complete:  # the status is sent: the server can only close the connection
                log_error("response aborted", error)
        finally:
            metrics.open_requests -= 1
            metrics.record_request(_route_pattern(scope), status, time.perf_counter() - start)


def _route_pattern(scope: Scope) -> str:
    """Return the pattern of the route, never the path: clients must not create metric labels."""
    pattern: str = getattr(scope.get("route"), "path", OTHER_ROUTE)
    return pattern
