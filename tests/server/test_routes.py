"""Routes and middleware as plain ASGI: bodies, statuses, headers, logs and counts."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from asgi_calls import answer, body_messages, call, http_scope
from serve_world import fitted
from starlette.exceptions import HTTPException

from idcf.errors import (
    ArtifactError,
    ColdUserError,
    ConfigError,
    DataError,
    IdcfError,
    OverloadedError,
)
from idcf.server import routes
from idcf.server.batcher import RequestBatcher
from idcf.server.counters import BUCKET_BOUNDS_S, ServerMetrics
from idcf.server.middleware import RequestMiddleware
from idcf.server.routes import (
    LOG,
    PostDispatcher,
    PostRoute,
    ReloadRoute,
    log_error,
    read_body,
    to_http_exception,
)
from idcf.server.schemas import MAX_BODY_BYTES, ErrorDetail, PredictRequest, ServerStatus


async def count_items(request: PredictRequest) -> ServerStatus:
    """Answer with the number of requested items."""
    return ServerStatus(f"{len(request.item_ids)} items")


ROUTE = PostRoute("/v1/count", PredictRequest, ServerStatus, count_items, "Count")


def wrapped(app: Any, **options: Any) -> RequestMiddleware:
    return RequestMiddleware(app, ServerMetrics((ROUTE.path,)), **options)


def raising(error: BaseException) -> Any:
    """Return an application that raises."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise error

    return app


async def received_body(*messages: dict[str, Any], **headers: str) -> bytes:
    """Return what `read_body` makes of messages."""
    waiting = list(messages)

    async def receive() -> Any:
        await asyncio.sleep(0)
        return waiting.pop(0)

    return await read_body(http_scope(**headers), receive)


def refused_body(*messages: dict[str, Any], **headers: str) -> HTTPException:
    """Return the error that `read_body` raises for messages."""
    with pytest.raises(HTTPException) as caught:
        asyncio.run(received_body(*messages, **headers))
    return caught.value


@pytest.mark.parametrize(
    "parts", [[b'{"item_ids":["a","b"]}'], [b"", b'{"item_ids":', b"", b'["a",', b'"b"]}', b""]]
)
def test_a_body_may_arrive_in_parts(parts: list[bytes]) -> None:
    response = answer(ROUTE, http_scope(), *parts)
    assert (response.status, response.json()) == (200, {"status": "2 items"})
    assert response.headers == {
        "content-type": "application/json",
        "content-length": str(len(response.body)),
    }


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "body: Input data was truncated"),
        (b"{}", "body: Object missing required field `item_ids`"),
        (b'{"item_ids":[]}', "body: Expected `array` of length >= 1 - at `$.item_ids`"),
        (b'{"item_ids":["a"],"itmes":1}', "body: Object contains unknown field `itmes`"),
        (b'{"item_ids":[true]}', "body: Expected `int | float | str`, got `bool`"),
        (b'{"item_ids":["a"],"n":1}', "body: Object contains unknown field `n`"),
        (b"[" * 5000, "body: "),
    ],
)
def test_an_invalid_body_is_422_with_the_place(body: bytes, reason: str) -> None:
    response = answer(wrapped(ROUTE), http_scope(), body)
    assert response.status == 422
    assert response.json()["detail"].startswith(reason)


def test_bytes_that_are_no_text_are_422() -> None:
    response = answer(wrapped(ROUTE), http_scope(), b'{"item_ids":["\xff\xfe"]}')
    assert response.status == 422
    assert "utf" in response.json()["detail"].lower()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_other_methods_are_405(method: str) -> None:
    response = answer(wrapped(ROUTE), http_scope(method=method), b"{}")
    assert (response.status, response.headers["allow"]) == (405, "POST")
    assert response.json() == {"detail": "method not allowed: use POST"}


def test_a_body_of_the_largest_size_is_read() -> None:
    whole = b" " * MAX_BODY_BYTES
    length = str(MAX_BODY_BYTES)
    assert asyncio.run(received_body(*body_messages(whole), content_length=length)) == whole
    halves = body_messages(whole[: len(whole) // 2], whole[len(whole) // 2 :])
    assert asyncio.run(received_body(*halves)) == whole


@pytest.mark.parametrize(
    ("messages", "headers"),
    [
        (body_messages(b" "), {"content_length": str(MAX_BODY_BYTES + 1)}),  # as announced
        (body_messages(*[b" " * 1000] * (MAX_BODY_BYTES // 400)), {}),  # the rest is discarded
        (body_messages(b" " * (MAX_BODY_BYTES + 1)), {}),
        (body_messages(b" " * MAX_BODY_BYTES, b" "), {}),
        (body_messages(b" ", b" " * (MAX_BODY_BYTES + 1)), {}),
        (body_messages(*[b" " * 1000] * (MAX_BODY_BYTES // 1000 + 1)), {"content_length": "5"}),
    ],
)
def test_a_longer_body_is_413(messages: list[dict[str, Any]], headers: dict[str, str]) -> None:
    error = refused_body(*messages, **headers)
    assert (error.status_code, error.headers) == (413, {"connection": "close"})
    assert error.detail == f"the body is longer than {MAX_BODY_BYTES:,} bytes"


@pytest.mark.parametrize(
    "before", [[], [{"type": "http.request", "body": b"{", "more_body": True}]]
)
def test_a_client_that_leaves_is_400(before: list[dict[str, Any]]) -> None:
    error = refused_body(*before, {"type": "http.disconnect"})
    assert (error.status_code, error.detail) == (
        400,
        "the client disconnected before the body was complete",
    )


def test_a_slow_body_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BODY_TIMEOUT_S", 0.01)
    first = {"type": "http.request", "body": b"{", "more_body": True}
    response = asyncio.run(call(wrapped(ROUTE), http_scope(), [first]))
    assert (response.status, response.headers["connection"]) == (408, "close")
    assert response.json()["detail"] == "the body took longer than 0.01 s to arrive"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DataError("d"), 422),
        (ColdUserError("c"), 422),
        (ArtifactError("a"), 422),
        (IdcfError("i"), 422),
        (ConfigError("g"), 501),
        (OverloadedError("o"), 503),
        (HTTPException(418, "t"), 418),
    ],
)
def test_the_status_of_an_error(error: Exception, status: int) -> None:
    exception = to_http_exception(error)
    assert exception.status_code == status
    assert exception.detail == (error.detail if isinstance(error, HTTPException) else str(error))
    assert ("retry-after" in (exception.headers or {})) is (status == 503)


def test_other_errors_are_logged_and_hidden(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, LOG.name):
        exception = to_http_exception(KeyError("a secret"))
    assert exception.status_code == 500
    (record,) = caplog.records
    fields = json.loads(record.getMessage())
    assert exception.detail == f"internal server error (log id {fields['log_id']})"
    assert fields["error"] == "KeyError"
    assert "a secret" in fields["trace"]
    assert "secret" not in exception.detail


def test_a_long_trace_keeps_its_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, LOG.name):
        log_error("event", ValueError("x" * 9000 + "the end"), "id")
    fields = json.loads(caplog.records[0].getMessage())
    assert (fields["event"], fields["log_id"]) == ("event", "id")
    assert len(fields["trace"]) == 4000
    assert fields["trace"].rstrip().endswith("the end")
    assert fields["time"].endswith("Z")


def test_the_dispatcher_finds_the_exact_path_only() -> None:
    async def fallback(scope: Any, receive: Any, send: Any) -> None:
        await routes.send_json(send, b'"fallback"', 404)

    app = PostDispatcher({ROUTE.path: ROUTE}, fallback)
    body = b'{"item_ids":[1]}'
    assert answer(app, http_scope(ROUTE.path), body).status == 200
    for path in ("/v1/count/", "/v1/Count", "/v1", "", "/v1/count?x=1"):
        scope = http_scope(path)
        assert answer(app, scope, body).status == 404
        assert "route" not in scope


def test_reloading_compares_the_whole_header(tmp_path: Path) -> None:
    batcher = RequestBatcher(fitted("bias"))
    folder = fitted("als").save(tmp_path / "model")
    app = wrapped(ReloadRoute(batcher, folder, "tökén"))
    for value in ("", "Bearer", "Bearer ", "Bearer töké", "bearer tökén", "Bearer tökén ", "tökén"):
        response = answer(app, http_scope(authorization=value))
        assert response.status == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert "kén" not in response.json()["detail"]
    assert batcher.service.model_info().model == "bias"
    response = answer(app, http_scope(authorization="Bearer tökén"))
    assert (response.status, response.json()["model"]) == (200, "als")
    broken = wrapped(ReloadRoute(batcher, tmp_path / "nothing", "t"))
    response = answer(broken, http_scope(authorization="Bearer t"))
    assert response.status == 409
    assert response.json()["detail"].startswith("the old model is still served: no saved model at")
    assert batcher.service.model_info().model == "als"


def test_requests_are_counted_by_the_pattern_of_their_route() -> None:
    app = wrapped(PostDispatcher({ROUTE.path: ROUTE}, raising(HTTPException(404, "no"))))
    for path, body in (
        (ROUTE.path, b'{"item_ids":[1]}'),
        (ROUTE.path, b"{}"),
        ("/<script>", b""),
        ("/other", b""),
    ):
        answer(app, http_scope(path), body)
    assert app.metrics.request_counts == {
        (ROUTE.path, 200): 1,
        (ROUTE.path, 422): 1,
        ("other", 404): 2,
    }
    assert app.metrics.open_requests == 0
    assert sum(app.metrics.bucket_counts["other"]) == 2


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (0.001, 0), (0.0011, 1), (0.05, 5), (1.0, 8), (1.01, 9), (1e9, 9)],
)
def test_a_duration_is_in_the_first_bucket_that_holds_it(seconds: float, bucket: int) -> None:
    metrics = ServerMetrics(("r",))
    metrics.record_request("r", 200, seconds)
    metrics.record_request("r", 500, seconds)
    counts = metrics.bucket_counts["r"]
    assert len(counts) == len(BUCKET_BOUNDS_S) + 1
    assert [n for n, count in enumerate(counts) if count] == [bucket]
    assert metrics.total_seconds["r"] == 2 * seconds


def test_requests_beyond_the_limit_are_503_and_not_passed_on() -> None:
    async def scenario() -> None:
        release, started = asyncio.Event(), []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            started.append(scope)
            await release.wait()
            await routes.send_json(send, b"{}")

        limited = wrapped(app, max_open_requests=2)
        tasks = [asyncio.create_task(call(limited, http_scope(), [])) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await call(limited, http_scope(), [])
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["detail"] == "2 requests are open already; try again in a second"
        release.set()
        assert [x.status for x in await asyncio.gather(*tasks)] == [200, 200]
        assert len(started) == 2
        assert limited.metrics.open_requests == 0
        assert (await call(limited, http_scope(), [])).status == 200

    asyncio.run(scenario())


def test_an_error_after_the_status_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("lost")

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        await routes.send_json(send, b"{}")
        raise RuntimeError("late")

    with caplog.at_level(logging.ERROR, LOG.name):
        responses = [answer(wrapped(x), http_scope()) for x in (half, whole)]
    assert [x.status for x in responses] == [200, 200]
    assert responses[0].body == b"half"
    (record,) = caplog.records  # the response of the second was complete
    assert json.loads(record.getMessage())["event"] == "response aborted"


def test_a_cancelled_request_is_no_longer_open() -> None:
    app = wrapped(raising(asyncio.CancelledError()))

    async def scenario() -> None:
        with pytest.raises(asyncio.CancelledError):
            await call(app, http_scope(), [])

    asyncio.run(scenario())
    assert app.metrics.open_requests == 0
    assert app.metrics.request_counts == {("other", 0): 1}


def test_connections_that_are_not_http_pass_uncounted() -> None:
    kinds = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kinds.append(scope["type"])

    outer = wrapped(app)
    answer(outer, {"type": "lifespan"})
    assert kinds == ["lifespan"]
    assert not outer.metrics.request_counts


def test_the_body_of_an_error_is_its_detail() -> None:
    response = answer(wrapped(raising(DataError('say "no"\n'))), http_scope())
    assert response.status == 422
    assert response.body == routes.encode_json(ErrorDetail('say "no"\n'))
    assert response.json() == {"detail": 'say "no"\n'}
