"""Hostile requests: each gets a 4xx with a reason, and the server keeps working."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from contextlib import suppress
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from serve_world import EVEN_HISTORY, fitted, history_body, served

from idcf.data.title_search import TitleIndex
from idcf.server.batcher import BatcherLimits
from idcf.server.routes import LOG

I2 = {"item_id": "i2", "rating": 5}
STRINGS = [
    "", "\x00", "' OR 1=1 --", "<script>alert(1)</script>", "../../etc/passwd", "{{7*7}}",
    "${jndi:ldap://x}", "\n\n[CRITICAL] forged line", "\u202e\u0000\ufeff", "💥" * 100, "a" * 300,
    "%s%s%n", "\\u0000", "NaN", "__proto__", "\r\nSet-Cookie: a=b",
]  # fmt: skip
UNSUPPORTED = ("/v1/explain", "/v1/next-question")
WRONG_TYPES: list[Any] = [None, True, "5", [], {}, [[]], "NaN"]


def payloads() -> list[tuple[str, bytes]]:
    """Return at least a hundred invalid requests as (path, body)."""
    bodies: list[tuple[str, Any]] = []
    # unknown ids
    bodies += [("recommend", {"history": [{"item_id": x, "rating": 5}]}) for x in STRINGS]
    bodies += [("predict", {"item_ids": [x]}) for x in STRINGS]
    # wrong types
    bodies += [
        ("recommend", {"history": [{"item_id": "i2", "rating": x}]}) for x in WRONG_TYPES[1:]
    ]
    bodies += [
        ("recommend", {"history": [{"item_id": x, "rating": 5}]}) for x in WRONG_TYPES if x != "5"
    ]
    bodies += [
        ("recommend", {"history": x}) for x in (None, "i2", 5, {"i2": 5}, ["i2"], [None], True)
    ]
    bodies += [
        ("recommend", {"n": x}) for x in (0, -1, 501, 2.5, "10", None, True, [], 1e9, -(10**30))
    ]
    bodies += [("recommend", {"exclude": x}) for x in ("i2", {}, [None], [[]], [True], 5)]
    bodies += [("recommend", {"candidates": x}) for x in ("i2", ["nowhere"], [{}], 7)]
    bodies += [("recommend", {"features": x}) for x in ([], {"age": 3}, "x")]
    bodies += [("recommend", x) for x in ([], None, 5, "x", [I2], True)]
    # ratings far outside the scale
    bodies += [
        ("recommend", {"history": [{"item_id": "i2", "rating": x}]}) for x in (-5, 99, 1e308)
    ]
    # unknown or missing fields
    bodies += [("recommend", {"histroy": []}), ("recommend", {"history": [{"item": "i2"}]})]
    bodies += [("recommend", {"history": [{**I2, "weight": 2}]}), ("predict", {}), ("explain", {})]
    # too many entries
    bodies += [("recommend", {"history": [I2] * 5001}), ("recommend", {"exclude": ["i2"] * 5001})]
    bodies += [("predict", {"item_ids": ["i2"] * 1001}), ("next-question", {"n": 51})]
    texts = [(path, json.dumps(x).encode()) for path, x in bodies]
    texts += [
        ("recommend", x)
        for x in (
            b"", b"{", b"nonsense", b"\xff\xfe", b'{"history": [{"item_id": "\xff", "rating": 1}]}',
            b'{"n": NaN}', b'{"n": Infinity}', b'{"history":[{"item_id":"i2","rating":NaN}]}',
            b'{"history":[{"item_id":"i2","rating":1e999}]}', b"[" * 100_000, b'{"a":' * 50_000,
            b'{"features":' * 3000 + b"1" + b"}" * 3000, b"{}{}", b"{'n': 5}", b'{"n": 0x10}',
            b'{"history":[{"item_id":"\\ud800","rating":1}]}', b"\x00" * 1000, b"[1,2,",
            b"9" * 5000, b" " * (1 << 20),
        )
    ]  # fmt: skip
    return texts


def test_a_hundred_hostile_payloads_each_get_a_4xx(client: httpx2.Client) -> None:
    """But histories of unknown items, which count as empty."""
    requests = payloads()
    assert len(requests) >= 100
    for path, body in requests:
        response = client.post(f"/v1/{path}", content=body)
        if response.status_code == 200:
            ids = [x["item_id"] for x in json.loads(body)["history"]]
            assert response.json()["unknown_items"] == list(map(str, ids))
            continue
        assert 400 <= response.status_code < 500, (path, body[:100], response.text)
        reason = response.json()["detail"]
        assert 0 < len(reason) < 1000
        assert "Traceback" not in reason
        assert ".py" not in reason
    assert len(client.post("/v1/recommend", json={"history": [I2]}).json()["items"]) == 10


@pytest.mark.parametrize("text", STRINGS)
def test_hostile_queries_and_paths(address: str, text: str) -> None:
    """Uses the standard library: httpx refuses to send some of the texts."""
    connection, quoted = HTTPConnection(address.removeprefix("http://")), quote(text, safe="")
    for path, statuses in (
        (f"?query={quoted}", (200, 422)),
        (f"/{quoted}/similar", (404, 422)),
    ):
        connection.request("GET", f"/v1/items{path}")
        response = connection.getresponse()
        assert response.status in statuses
        assert response.getheader("set-cookie") is None
        assert json.loads(response.read())
    connection.close()


def test_bytes_that_are_not_http(address: str, client: httpx2.Client) -> None:
    host, port = address.removeprefix("http://").split(":")
    for noise in (
        b"\x16\x03\x01",
        b"GET\r\n\r\n",
        b"A" * 70_000,
        b"POST / HTTP/9.9\r\n\r\n",
        b"\x00",
    ):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(noise)
            connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                assert b"Traceback" not in connection.recv(1000)
    assert client.get("/health").status_code == 200


def test_an_unexpected_error_is_500_without_a_trace_and_one_escaped_line_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = "x\n2026-01-01 CRITICAL forged\x1b[31m"

    def broken(*_: Any) -> None:
        raise RuntimeError(forged)

    with served(fitted("bias")) as address, caplog.at_level(logging.ERROR, LOG.name):
        monkeypatch.setattr("idcf.server.service.similar_items", broken)
        monkeypatch.setattr("idcf.server.service.RecommendationService.predict", broken)
        responses = [
            httpx2.get(f"{address}/v1/items/i2/similar"),
            httpx2.post(f"{address}/v1/predict", json={"item_ids": ["i2"]}),
        ]
    assert len(caplog.records) == 2
    for response, record in zip(responses, caplog.records, strict=True):
        assert response.status_code == 500
        assert "forged" not in response.text
        line = record.getMessage()
        assert line.count("\n") == 0
        assert "\x1b" not in line
        fields = json.loads(line)
        assert f"log id {fields['log_id']}" in response.json()["detail"]
        assert forged in fields["trace"]


def test_over_capacity_is_503_with_retry_after_and_it_recovers() -> None:
    async def send_many(address: str) -> list[httpx2.Response]:
        limits = httpx2.Limits(max_connections=80)
        async with httpx2.AsyncClient(base_url=address, limits=limits, timeout=30) as client:
            body = {"history": history_body(EVEN_HISTORY)}
            return await asyncio.gather(
                *(client.post("/v1/recommend", json=body) for _ in range(400))
            )

    with served(fitted(), BatcherLimits(max_queue=3, max_delay_s=0.02)) as address:
        responses = asyncio.run(send_many(address))
        assert {x.status_code for x in responses} == {200, 503}
        rejected = next(x for x in responses if x.status_code == 503)
        assert rejected.headers["retry-after"] == "1"
        assert "try again in a second" in rejected.json()["detail"]
        assert httpx2.get(f"{address}/ready").status_code == 200
        assert httpx2.post(f"{address}/v1/recommend", json={}).status_code == 200
    with served(fitted(), max_open_requests=0) as address:
        response = httpx2.get(f"{address}/v1/model")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert httpx2.get(f"{address}/health").status_code == 200


def test_a_search_runs_in_a_thread_and_too_many_are_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers others while a search cannot go on."""
    started, go_on = threading.Event(), threading.Event()
    search = TitleIndex.search

    def slow_search(self: TitleIndex, text: str, n: int) -> list[int]:
        started.set()
        assert go_on.wait(60)
        return search(self, text, n)

    monkeypatch.setattr(TitleIndex, "search", slow_search)
    responses: list[httpx2.Response] = []
    with served(fitted("bias"), BatcherLimits(max_searches=1)) as address:
        url = f"{address}/v1/items?query=film"
        thread = threading.Thread(target=lambda: responses.append(httpx2.get(url, timeout=60)))
        thread.start()
        try:
            assert started.wait(60)
            assert httpx2.post(f"{address}/v1/recommend", json={}).status_code == 200
            refused = httpx2.get(url)
        finally:
            go_on.set()
            thread.join()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["detail"] == "1 searches are open already; try again in a second"
        assert responses[0].status_code == httpx2.get(url).status_code == 200


def test_schemathesis_finds_no_5xx(address: str) -> None:
    """Valid and invalid generated requests for every operation of /openapi.json."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [
        not_a_server_error,
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    ]
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    paths = set()
    few_examples = settings(
        max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    for result in schema.get_all_operations():
        operation = result.ok()
        paths.add(operation.path)
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            def check_case(case: Any) -> None:
                response = case.call()
                is_unsupported = response.status_code == 501 and case.operation.path in UNSUPPORTED
                if not is_unsupported:  # documented: this model has no posterior
                    case.validate_response(response, checks=checks)

            with suppress(Unsatisfiable):  # an operation without invalid requests
                few_examples(given(operation.as_strategy(generation_mode=mode))(check_case))()
    assert {"/v1/recommend", "/v1/items", "/v1/items/{item_id}/similar", "/metrics"} <= paths
