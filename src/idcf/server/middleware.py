"""The outermost ASGI layer: rules of access, a limit of open requests, exceptions to responses,
counts, times and the access log of every request. `prometheus` reports the counts."""

from __future__ import annotations

import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from idcf.errors import OverloadedError
from idcf.server.access import AccessControl, AccessRules
from idcf.server.counters import OTHER_ROUTE, ServerMetrics
from idcf.server.routes import log_error, log_event, send_error, to_http_exception

STATUS_PATHS = frozenset({"/health", "/ready", "/metrics"})  # answered whatever the load


class RequestMiddleware:
    """ASGI application that wraps another one with rules, error responses and metrics.

    One class for all, on plain ASGI: every request passes here, and they share one `send`.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: ServerMetrics,
        *,
        max_open_requests: int = 2048,
        rules: AccessRules | None = None,
        logs_requests: bool = False,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.max_open_requests = max_open_requests
        self.access = AccessControl(rules or AccessRules())
        self.logs_requests = logs_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0  # 0: no response has been started
        is_complete = False
        cors_headers = self.access.cors_headers(scope["headers"])

        async def watched_send(message: Message) -> None:
            """Send a message, and note the status and the end of the response."""
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                if cors_headers:
                    MutableHeaders(scope=message).update(cors_headers)
            else:
                is_complete = not message.get("more_body")
            await send(message)

        method = scope["method"]
        if method == "HEAD":  # the protocol leaves the body out
            scope = {**scope, "method": "GET"}
        self.metrics.open_requests += 1
        try:
            await self._answer(scope, receive, watched_send)
        except Exception as error:
            if not status:
                exception = to_http_exception(error, scope.get("request_id", ""))
                await send_error(watched_send, exception)
            elif not is_complete:  # the status is sent: the server can only close the connection
                log_error("response aborted", error)
        finally:
            self.finish_request(
                _route_pattern(scope),
                status,
                start,
                method=method,
                request_id=scope.get("request_id", ""),
                key=scope.get("key_name", ""),
            )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or raise the error of a rule or of the limit."""
        if not self.access.is_open:
            headers = self.access.preflight_headers(scope["method"], scope["headers"])
            if headers is not None:
                await send({"type": "http.response.start", "status": 204, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
            scope["key_name"] = self.access.check(scope["path"], scope["headers"])
        is_full = self.metrics.open_requests > self.max_open_requests
        if is_full and scope["path"] not in STATUS_PATHS:
            raise OverloadedError(
                f"{self.max_open_requests} requests are open already; try again in a second"
            )
        await self.app(scope, receive, send)

    def finish_request(
        self, route: str, status: int, start: float, *, method: str, request_id: str, key: str
    ) -> None:
        """Count a request that is no longer open; log it, without anything of its body or path."""
        seconds = time.perf_counter() - start
        self.metrics.open_requests -= 1
        self.metrics.record_request(route, status, seconds)
        if self.logs_requests:
            log_event(
                "request",
                request_id=request_id,
                key=key,
                method=method,
                route=route,
                status=status,
                ms=round(seconds * 1000, 3),
            )


def _route_pattern(scope: Scope) -> str:
    """Return the pattern of the route, never the path: clients must not create metric labels."""
    pattern: str = getattr(scope.get("route"), "path", OTHER_ROUTE)
    return pattern
