"""The description at /openapi.json: FastAPI's own, with what is read by msgspec put in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from idcf.server import schemas as s

_REF = "#/components/schemas/{name}"
_WHY = {
    400: "The client hung up.",
    404: "There is no such item.",
    408: "The body took too long to come in.",
    413: "The body is too long.",
    422: "Something in the request cannot be used; the reason says what.",
    501: "The model that is served cannot do this.",
    503: "More is asked than can be answered soon: try again after Retry-After seconds.",
}


class Described(Protocol):
    path: str
    takes: type[Any]
    gives: type[Any]
    summary: str


def reads(gives: type[Any], *also: int) -> dict[int | str, dict[str, Any]]:
    """The answers of a route that reads no body."""
    return {200: _body(gives, gives.__doc__), **{k: _problem(k) for k in (422, *also)}}


def describe(app: FastAPI, posts: Sequence[Described]) -> None:
    """Replace the application's description by one that knows the posts."""
    gets = (s.Found, s.Model, s.State, s.Problem)
    types = {x: None for post in posts for x in (post.takes, post.gives)}
    _, parts = msgspec.json.schema_components([*types, *gets], ref_template=_REF)
    for kind, example in s.EXAMPLES.items():
        parts[kind.__name__]["examples"] = [example]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            found.setdefault("components", {})["schemas"] = parts
            for post in posts:
                found["paths"][post.path] = {"post": _operation(post)}
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _operation(post: Described) -> dict[str, Any]:
    may_lack = (501,) if post.path != "/v1/recommend" else ()
    problems = {str(k): _problem(k) for k in (408, 413, 422, 503, *may_lack)}
    taken = _body(post.takes)["content"]
    taken["application/json"]["example"] = s.EXAMPLES[post.takes]
    return {
        "summary": post.summary,
        "operationId": post.path.strip("/").replace("/", "_").replace("-", "_"),
        "requestBody": {"required": True, "content": taken},
        "responses": {"200": _body(post.gives, post.gives.__doc__), **problems},
    }


def _problem(status: int) -> dict[str, Any]:
    found = _body(s.Problem, _WHY[status])
    if status == 503:
        found["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return found


def _body(kind: type[Any], description: str | None = None) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=kind.__name__)}
    return {
        "description": (description or kind.__name__).strip(),
        "content": {"application/json": {"schema": schema}},
    }
