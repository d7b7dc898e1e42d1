"""The routes: HTTP on one side, the engine on the other.

What is posted goes past FastAPI (a dictionary finds the route, msgspec reads the body), which
costs a third of the time; FastAPI does the rest and describes all of it at /openapi.json.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from idcf import __version__
from idcf.errors import ArtifactError, IdcfError
from idcf.server import schemas as s
from idcf.server.batcher import Engine
from idcf.server.middleware import Gate, Refused, body_of, refusal, reply
from idcf.server.openapi import describe, reads
from idcf.server.prometheus import TYPE, Metrics

Handler = Callable[[Any], Awaitable[Any]]
Best = Annotated[int, Query(ge=1, le=100, description="How many, at most.")]
_ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/static/page.css": ("page.css", "text/css; charset=utf-8"),
    "/static/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/static/icon.svg": ("icon.svg", "image/svg+xml"),
}
_SAFE = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Post:
    """A route that reads one kind of body and answers with another."""

    def __init__(
        self, path: str, takes: type[Any], gives: type[Any], handler: Handler, summary: str
    ) -> None:
        self.path, self.takes, self.gives, self.summary = path, takes, gives, summary
        self._decode, self._handle = msgspec.json.Decoder(takes).decode, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _require_post(scope)
        body = await body_of(scope, receive)
        try:
            asked = self._decode(body)
        except (msgspec.DecodeError, RecursionError) as error:  # a ValidationError is one too
            raise Refused(422, f"body: {error}") from None
        except UnicodeDecodeError:
            raise Refused(422, "body: it is not UTF-8") from None
        await reply(send, s.encode(await self._handle(asked)))


class Reload:
    """Puts the folder's present model to work, for whoever knows the token."""

    path = "/admin/reload"

    def __init__(self, engine: Engine, folder: Path, token: str) -> None:
        self.engine, self.folder, self._word = engine, folder, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _require_post(scope)
        said = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(said, self._word):
            raise Refused(401, "reload needs the token", {"www-authenticate": "Bearer"})
        try:
            await self.engine.swap(self.folder)
        except ArtifactError as error:
            raise Refused(409, f"the old model stays at work: {error}") from None
        await reply(send, s.encode(self.engine.now.model()))


class Front:
    """What is posted is found here; everything else is FastAPI's."""

    def __init__(self, posts: Mapping[str, ASGIApp], rest: ASGIApp) -> None:
        self.posts, self.rest = posts, rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.posts.get(scope.get("path", ""))
        if found is not None:
            scope["route"] = found
        await (found or self.rest)(scope, receive, send)


def create(
    engine: Engine, *, folder: Path | None = None, token: str | None = None, most: int = 2048
) -> Gate:
    """The whole application. Reloading is there only with a folder and a token."""
    metrics = Metrics()
    posts = _posts(engine)
    app = FastAPI(
        title="idcf",
        version=__version__,
        description="Recommendations for people nobody has met, from what they did.",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        exception_handlers={
            RequestValidationError: _invalid,
            HTTPException: _http,
            IdcfError: _known,
            Exception: _known,
        },
    )
    _gets(app, engine, metrics)
    _page(app)
    describe(app, posts)
    routes: dict[str, ASGIApp] = {x.path: x for x in posts}
    if folder is not None and token is not None:
        routes[Reload.path] = Reload(engine, folder, token)
    return Gate(Front(routes, app), metrics, most=most)


def _posts(engine: Engine) -> list[Post]:
    async def embed(person: s.Person) -> s.Vector:
        return engine.now.embed(person)

    async def predict(asked: s.Pairs) -> s.Scores:
        return engine.now.predict(asked)

    async def explain(why: s.Why) -> s.Because:
        now = engine.now
        return await engine.aside(lambda: now.explain(why))

    async def ask(person: s.Next) -> s.Questions:
        now = engine.now
        return await engine.aside(lambda: now.next_question(person))

    return [
        Post("/v1/recommend", s.Ask, s.Answer, engine.recommend, "The best items for a newcomer"),
        Post("/v1/embed", s.Person, s.Vector, embed, "The vector of a newcomer"),
        Post("/v1/predict", s.Pairs, s.Scores, predict, "The score of each of some items"),
        Post("/v1/explain", s.Why, s.Because, explain, "Why an item is recommended"),
        Post("/v1/next-question", s.Next, s.Questions, ask, "What to ask a newcomer about"),
    ]


def _gets(app: FastAPI, engine: Engine, metrics: Metrics) -> None:
    @app.get("/v1/items", summary="Items by title", responses=reads(s.Found))
    async def items(
        query: Annotated[
            str, Query(max_length=200, description="As typed.", examples=["toy"])
        ] = "",
        n: Best = 20,
    ) -> Response:
        return _json(engine.now.items(query, n))

    @app.get(
        "/v1/items/{item_id:path}/similar",
        summary="Items like this one",
        responses=reads(s.Answer, 404, 501),
    )
    async def similar(item_id: str, n: Best = 10) -> Response:
        if not engine.now.knows(item_id):
            raise HTTPException(
                404, f"item {item_id[:80]!r} is unknown; /v1/items?query= finds ids"
            )
        return _json(engine.now.similar(item_id, n))

    @app.get("/v1/model", summary="What is being served", responses=reads(s.Model))
    async def model() -> Response:
        return _json(engine.now.model())

    @app.get("/health", summary="Is the process alive?", responses=reads(s.State))
    async def health() -> Response:
        return _json(s.State("alive"))

    @app.get("/ready", summary="Is there room for a request?", responses=reads(s.State, 503))
    async def ready() -> Response:
        if engine.waiting >= engine.limits.room:
            raise HTTPException(503, "no room at present", {"retry-after": "1"})
        return _json(s.State("ready"))

    @app.get("/metrics", summary="Counters for Prometheus", response_class=Response)
    async def metrics_() -> Response:
        return Response(metrics.text(engine), media_type=TYPE)


def _page(app: FastAPI) -> None:
    """The page and its parts, read once. They refer to nothing outside this server."""
    home = files("idcf.server") / "static"

    def serve(path: str, body: bytes, kind: str) -> None:
        tag = f'"{sha256(body).hexdigest()[:16]}"'

        async def part(request: Request) -> Response:
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers={"etag": tag})
            return Response(body, headers={**_SAFE, "etag": tag}, media_type=kind)

        app.add_api_route(path, part, methods=["GET", "HEAD"], include_in_schema=False)

    for path, (name, kind) in _ASSETS.items():
        serve(path, (home / name).read_bytes(), kind)


def _json(answer: msgspec.Struct, status: int = 200) -> Response:
    return Response(s.encode(answer), status, media_type="application/json")


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = [f"{'.'.join(str(x) for x in e['loc'])}: {e['msg']}" for e in error.errors()]
    return _json(s.Problem("; ".join(said)[:1000]), 422)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = _json(s.Problem(error.detail), error.status_code)
    answer.headers.update(error.headers or {})
    return answer


async def _known(request: Request, error: Exception) -> Response:
    said = refusal(error)
    answer = _json(s.Problem(said.reason), said.status)
    answer.headers.update(said.headers)
    return answer


def _require_post(scope: Scope) -> None:
    if scope["method"] != "POST":
        raise Refused(405, "this address wants POST", {"allow": "POST"})
