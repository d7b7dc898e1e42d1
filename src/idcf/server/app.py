"""The ASGI application: GET routes and the web page by FastAPI, POST routes by `routes`.

Knows HTTP; every answer comes from the batcher or from its service.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from idcf import __version__
from idcf.errors import IdcfError, unknown_name_message
from idcf.server import schemas as s
from idcf.server.access import AccessRules
from idcf.server.batcher import RequestBatcher
from idcf.server.counters import ServerMetrics
from idcf.server.middleware import RequestMiddleware
from idcf.server.openapi import get_route_responses, install_openapi
from idcf.server.prometheus import CONTENT_TYPE, render_metrics
from idcf.server.routes import PostDispatcher, PostRoute, ReloadRoute, to_http_exception

CountParameter = Annotated[
    int, Query(ge=1, le=s.MAX_LISTED_ITEMS, description="Maximum number of items.")
]
SearchParameter = Annotated[
    str,
    Query(
        max_length=200,
        description="Words of a title, or an id; empty: the items recommended without a history.",
        examples=["toy"],
    ),
]
_ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/static/page.css": ("page.css", "text/css; charset=utf-8"),
    **{
        f"/static/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in ("page", "elements", "kept", "key", "notice", "requests", "share")
    },
    "/static/icon.svg": ("icon.svg", "image/svg+xml"),
}
_PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def create_app(
    batcher: RequestBatcher,
    *,
    folder: Path | None = None,
    token: str | None = None,
    mcp: bool = False,
    max_open_requests: int = 2048,
    rules: AccessRules | None = None,
    logs_requests: bool = False,
) -> RequestMiddleware:
    """Build the ASGI application, to be run by uvicorn.

    POST /admin/reload is there only with a model folder and a token, POST /mcp only with `mcp`.
    Beyond `max_open_requests`, requests get status 503, but those of /health, /ready and /metrics.
    """
    post_routes = _post_routes(batcher)
    app = FastAPI(
        title="idcf",
        version=__version__,
        description="Recommendations for new users from their first few interactions.",
        docs_url=None,  # FastAPI's documentation pages load scripts from other servers
        redoc_url=None,
        redirect_slashes=False,  # a redirection would repeat the Host header of the request
        generate_unique_id_function=lambda route: route.name,
        exception_handlers=dict.fromkeys(
            (RequestValidationError, HTTPException, IdcfError, Exception), _handle_error
        ),
    )
    _add_item_routes(app, batcher)
    _add_status_routes(app, batcher, lambda: render_metrics(metrics, batcher))
    _add_page(app)
    install_openapi(app, post_routes)
    routes: dict[str, ASGIApp] = {route.path: route for route in post_routes}
    if folder is not None and token is not None:
        routes[ReloadRoute.path] = ReloadRoute(batcher, folder, token)
    if mcp:
        from idcf.server.mcp_route import McpRoute  # needs the extra `mcp`

        routes[McpRoute.path] = McpRoute(batcher)
    patterns = [x.path for x in app.routes if isinstance(x, Route)]
    metrics = ServerMetrics((*patterns, *routes), n_workers=len(batcher.counts.table))
    return RequestMiddleware(
        PostDispatcher(routes, app),
        metrics,
        max_open_requests=max_open_requests,
        rules=rules,
        logs_requests=logs_requests,
    )


def _post_routes(batcher: RequestBatcher) -> list[PostRoute]:
    """Return the POST routes under /v1, which answer requests for one new user."""

    async def embed(request: s.EmbedRequest) -> s.NewUserEmbedding:
        return batcher.service.embed(request)

    async def predict(request: s.PredictRequest) -> s.ItemScoreList:
        return batcher.service.predict(request)

    async def explain(request: s.ExplainRequest) -> s.ExplanationBody:
        service = batcher.service  # the thread keeps this model if it is swapped meanwhile
        return await batcher.run_in_thread(lambda: service.explain(request))

    async def next_question(request: s.NextQuestionRequest) -> s.QuestionList:
        service = batcher.service
        return await batcher.run_in_thread(lambda: service.next_question(request))

    return [
        PostRoute(
            "/v1/recommend",
            s.RecommendRequest,
            s.RecommendationList,
            batcher.recommend,
            "Recommend items to a new user",
        ),
        PostRoute("/v1/embed", s.EmbedRequest, s.NewUserEmbedding, embed, "Embed a new user"),
        PostRoute(
            "/v1/predict",
            s.PredictRequest,
            s.ItemScoreList,
            predict,
            "Score given items for a new user",
        ),
        PostRoute(
            "/v1/explain",
            s.ExplainRequest,
            s.ExplanationBody,
            explain,
            "Explain the score of an item",
        ),
        PostRoute(
            "/v1/next-question",
            s.NextQuestionRequest,
            s.QuestionList,
            next_question,
            "Choose the items to ask a new user about",
        ),
    ]


def _takes_only(*names: str) -> Any:
    """Return a dependency that refuses other parameters in the address, so that none is ignored."""

    def check(request: Request) -> None:
        """Raise 422 for an unknown parameter."""
        for name in request.query_params:
            if name not in names:
                raise HTTPException(422, unknown_name_message("parameter", name[:80], names))

    return Depends(check)


def _add_item_routes(app: FastAPI, batcher: RequestBatcher) -> None:
    """Add the GET routes that search items by title and list the items similar to one."""

    @app.get(
        "/v1/items",
        summary="Search items by title",
        responses=get_route_responses(s.ItemList, 503),
        dependencies=[_takes_only("query", "n")],
    )
    async def search_items(query: SearchParameter = "", n: CountParameter = 20) -> Response:
        service = batcher.service
        return _json_response(
            await batcher.search_in_thread(lambda: service.search_items(query, n))
        )

    @app.get(
        "/v1/items/{item_id:path}/similar",
        summary="List items similar to an item",
        responses=get_route_responses(s.RecommendationList, 404, 501),
        dependencies=[_takes_only("n")],
    )
    async def similar_items(item_id: str, n: CountParameter = 10) -> Response:
        if not batcher.service.has_item(item_id):
            raise HTTPException(
                404, f"item {item_id[:80]!r} is unknown; find ids with /v1/items?query="
            )
        return _json_response(batcher.service.similar_items(item_id, n))


def _add_status_routes(
    app: FastAPI, batcher: RequestBatcher, metrics_text: Callable[[], str]
) -> None:
    """Add the GET routes /v1/model, /health, /ready and /metrics."""

    @app.get(
        "/v1/model", summary="Describe the served model", responses=get_route_responses(s.ModelInfo)
    )
    async def model_info() -> Response:
        return _json_response(batcher.service.model_info())

    @app.get(
        "/health",
        summary="Tell whether the process is alive",
        responses=get_route_responses(s.ServerStatus),
    )
    async def health() -> Response:
        return _json_response(s.ServerStatus("alive"))

    @app.get(
        "/ready",
        summary="Tell whether the request queue has room, and the server is not about to end",
        responses=get_route_responses(s.ServerStatus, 503),
    )
    async def ready() -> Response:
        if batcher.is_draining:
            raise HTTPException(503, "the server ends", {"retry-after": "1"})
        if batcher.queue_length >= batcher.limits.max_queue:
            raise HTTPException(503, "the request queue is full", {"retry-after": "1"})
        return _json_response(s.ServerStatus("ready"))

    @app.get("/metrics", summary="Report counters for Prometheus", response_class=Response)
    async def metrics() -> Response:
        return Response(metrics_text(), media_type=CONTENT_TYPE)


def _add_page(app: FastAPI) -> None:
    """Add the web page and its assets, read once; they refer to no other server."""
    folder = files("idcf.server") / "static"

    def add_asset(path: str, body: bytes, media_type: str) -> None:
        """Add a GET route for a static file; a request with its current ETag gets status 304."""
        etag = f'"{sha256(body).hexdigest()[:16]}"'

        async def get_asset(request: Request) -> Response:
            if request.headers.get("if-none-match") == etag:
                return Response(status_code=304, headers={"etag": etag})
            return Response(body, headers={**_PAGE_HEADERS, "etag": etag}, media_type=media_type)

        app.add_api_route(path, get_asset, include_in_schema=False)

    for path, (name, media_type) in _ASSETS.items():
        add_asset(path, (folder / name).read_bytes(), media_type)


def _json_response(content: msgspec.Struct) -> Response:
    """Return a response with the JSON of a schema object."""
    return Response(s.encode_json(content), media_type="application/json")


async def _handle_error(request: Request, error: Exception) -> Response:
    """Return the response of any exception that a GET route raises."""
    if isinstance(error, RequestValidationError):
        problems = [f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in error.errors()]
        error = HTTPException(422, "; ".join(problems)[:1000])
    exception = to_http_exception(error, request.scope.get("request_id", ""))
    response = _json_response(s.ErrorDetail(exception.detail))
    response.status_code = exception.status_code
    response.headers.update(exception.headers or {})
    return response
