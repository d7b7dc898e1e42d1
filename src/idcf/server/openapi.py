"""The description at /openapi.json: FastAPI's, completed with the msgspec types and POST routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from idcf.server import schemas as s
from idcf.server.routes import PostRoute

_REF_TEMPLATE = "#/components/schemas/{name}"
_STATUS_DESCRIPTIONS = {
    404: "There is no such item.",
    408: "The body took too long to arrive.",
    413: "The body is too long.",
    422: "The request is not valid; `detail` says why.",
    501: "The served model cannot do this.",
    503: "The server is overloaded: try again after Retry-After seconds.",
}


def get_route_responses(
    response_type: type[Any], *extra_statuses: int
) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of a GET route: 200, 422 and further statuses."""
    return {
        200: _json_body(response_type, response_type.__doc__),
        **{status: _error_response(status) for status in (422, *extra_statuses)},
    }


def install_openapi(app: FastAPI, post_routes: Sequence[PostRoute]) -> None:
    """Make the application publish a description that includes the POST routes."""
    types = dict.fromkeys(x for r in post_routes for x in (r.request_type, r.response_type))
    get_types = (s.ItemList, s.ModelInfo, s.ServerStatus, s.ErrorDetail)
    _, schemas = msgspec.json.schema_components([*types, *get_types], ref_template=_REF_TEMPLATE)
    for request_type, example in s.EXAMPLES.items():
        schemas[request_type.__name__]["examples"] = [example]

    def openapi() -> dict[str, Any]:
        """Return the OpenAPI description of all routes, which is built once."""
        if app.openapi_schema is None:
            description = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            description.setdefault("components", {})["schemas"] = schemas
            for route in post_routes:
                description["paths"][route.path] = {"post": _post_operation(route)}
            app.openapi_schema = description
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _post_operation(route: PostRoute) -> dict[str, Any]:
    """Describe one POST route; every model can recommend, not every model can do the rest."""
    unsupported = (501,) if route.path != "/v1/recommend" else ()
    errors = {str(status): _error_response(status) for status in (408, 413, 422, 503, *unsupported)}
    content = _json_body(route.request_type)["content"]
    content["application/json"]["example"] = s.EXAMPLES[route.request_type]
    return {
        "summary": route.summary,
        "operationId": route.path.removeprefix("/v1/").replace("-", "_"),
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": _json_body(route.response_type, route.response_type.__doc__),
            **errors,
        },
    }


def _error_response(status: int) -> dict[str, Any]:
    """Return the OpenAPI response of an error status."""
    response = _json_body(s.ErrorDetail, _STATUS_DESCRIPTIONS[status])
    if status == 503:
        response["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return response


def _json_body(schema_type: type[Any], description: str | None = None) -> dict[str, Any]:
    """Return an OpenAPI body that refers to a schema; its name is the default description."""
    schema = {"$ref": _REF_TEMPLATE.format(name=schema_type.__name__)}
    text = " ".join((description or schema_type.__name__).split())
    return {"description": text, "content": {"application/json": {"schema": schema}}}
