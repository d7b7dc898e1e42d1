"""What strangers may send: each gets a 4xx with a reason, and the server does not notice."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from contextlib import suppress
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from serve_world import EVEN, fitted, said, served

from idcf.server import middleware
from idcf.server.batcher import Limits

I2 = {"item_id": "i2", "rating": 5}
STRINGS = [
    "", "\x00", "' OR 1=1 --", "<script>alert(1)</script>", "../../etc/passwd", "{{7*7}}",
    "${jndi:ldap://x}", "\n\n[CRITICAL] forged line", "\u202e\u0000\ufeff", "💥" * 100, "a" * 300,
    "%s%s%n", "\\u0000", "NaN", "__proto__", "\r\nSet-Cookie: a=b",
]  # fmt: skip
LACKING = ("/v1/explain", "/v1/next-question")
WRONG: list[Any] = [None, True, "5", [], {}, [[]], "NaN"]


def payloads() -> list[tuple[str, bytes]]:
    """(path, body), at least a hundred of them."""
    out: list[tuple[str, Any]] = []
    # strangers as ids: nothing known
    out += [("recommend", {"history": [{"item_id": x, "rating": 5}]}) for x in STRINGS]
    out += [("predict", {"items": [x]}) for x in STRINGS]
    # wrong types
    out += [("recommend", {"history": [{"item_id": "i2", "rating": x}]}) for x in WRONG[1:]]
    out += [("recommend", {"history": [{"item_id": x, "rating": 5}]}) for x in WRONG if x != "5"]
    out += [("recommend", {"history": x}) for x in (None, "i2", 5, {"i2": 5}, ["i2"], [None], True)]
    out += [
        ("recommend", {"n": x}) for x in (0, -1, 501, 2.5, "10", None, True, [], 1e9, -(10**30))
    ]
    out += [("recommend", {"exclude": x}) for x in ("i2", {}, [None], [[]], [True], 5)]
    out += [("recommend", {"candidates": x}) for x in ("i2", ["nowhere"], [{}], 7)]
    out += [("recommend", {"features": x}) for x in ([], {"age": 3}, "x")]
    out += [("recommend", x) for x in ([], None, 5, "x", [I2], True)]
    # numbers far away
    out += [("recommend", {"history": [{"item_id": "i2", "rating": x}]}) for x in (-5, 99, 1e308)]
    # keys nobody knows, or too few
    out += [("recommend", {"histroy": []}), ("recommend", {"history": [{"item": "i2"}]})]
    out += [("recommend", {"history": [{**I2, "weight": 2}]}), ("predict", {}), ("explain", {})]
    # too much
    out += [("recommend", {"history": [I2] * 5001}), ("recommend", {"exclude": ["i2"] * 5001})]
    out += [("predict", {"items": ["i2"] * 1001}), ("next-question", {"n": 51})]
    texts = [(path, json.dumps(x).encode()) for path, x in out]
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
    sent = payloads()
    assert len(sent) >= 100
    for path, body in sent:
        answer = client.post(f"/v1/{path}", content=body)
        assert 400 <= answer.status_code < 500, (path, body[:100], answer.text)
        reason = answer.json()["detail"]
        assert 0 < len(reason) < 1000
        assert "Traceback" not in reason
        assert ".py" not in reason
    assert len(client.post("/v1/recommend", json={"history": [I2]}).json()["items"]) == 10


@pytest.mark.parametrize("text", STRINGS)
def test_hostile_queries_and_paths(address: str, text: str) -> None:
    """Asked for with the standard library: httpx would refuse to send some of them."""
    line, safe = HTTPConnection(address.removeprefix("http://")), quote(text, safe="")
    for path, fine in (("?query=" + safe, (200, 422)), (f"/{safe}/similar", (404, 422))):
        line.request("GET", f"/v1/items{path}")
        answer = line.getresponse()
        assert answer.status in fine
        assert answer.getheader("set-cookie") is None
        assert json.loads(answer.read())
    line.close()


def test_what_is_not_http_at_all(address: str, client: httpx2.Client) -> None:
    host, port = address.removeprefix("http://").split(":")
    for noise in (
        b"\x16\x03\x01",
        b"GET\r\n\r\n",
        b"A" * 70_000,
        b"POST / HTTP/9.9\r\n\r\n",
        b"\x00",
    ):
        with socket.create_connection((host, int(port)), timeout=5) as line:
            line.sendall(noise)
            line.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                assert b"Traceback" not in line.recv(1000)
    assert client.get("/health").status_code == 200


def test_a_bug_is_500_without_a_trace_and_one_escaped_line_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = "x\n2026-01-01 CRITICAL forged\x1b[31m"

    def broken(*_: Any) -> None:
        raise RuntimeError(forged)

    recommender = fitted("bias")
    with served(recommender) as address, caplog.at_level(logging.ERROR, middleware.LOG.name):
        monkeypatch.setattr(type(recommender), "similar_items", broken)
        monkeypatch.setattr("idcf.server.service.Serving.predict", broken)
        answers = [
            httpx2.get(f"{address}/v1/items/i2/similar"),
            httpx2.post(f"{address}/v1/predict", json={"items": ["i2"]}),
        ]
    assert len(caplog.records) == 2
    for answer, record in zip(answers, caplog.records, strict=True):
        assert answer.status_code == 500
        assert "forged" not in answer.text
        line = record.getMessage()
        assert line.count("\n") == 0
        assert "\x1b" not in line
        told = json.loads(line)
        assert told["event"].removeprefix("bug ") in answer.json()["detail"]
        assert forged in told["trace"]


def test_over_capacity_is_503_with_retry_after_and_it_recovers() -> None:
    async def storm(address: str) -> list[httpx2.Response]:
        many = httpx2.Limits(max_connections=80)
        async with httpx2.AsyncClient(base_url=address, limits=many, timeout=30) as client:
            body = {"history": said(EVEN)}
            return await asyncio.gather(
                *(client.post("/v1/recommend", json=body) for _ in range(400))
            )

    with served(fitted(), Limits(room=3, wait=0.02)) as address:
        found = asyncio.run(storm(address))
        assert {x.status_code for x in found} == {200, 503}
        refused = next(x for x in found if x.status_code == 503)
        assert refused.headers["retry-after"] == "1"
        assert "try again in a second" in refused.json()["detail"]
        assert httpx2.get(f"{address}/ready").status_code == 200
        assert httpx2.post(f"{address}/v1/recommend", json={}).status_code == 200
    with served(fitted(), most=0) as address:
        answer = httpx2.get(f"{address}/health")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_schemathesis_finds_no_5xx(address: str) -> None:
    """Made-up requests for everything the description mentions, right and wrong ones."""
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
    seen = set()
    quick = settings(
        max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    for found in schema.get_all_operations():
        operation = found.ok()
        seen.add(operation.path)
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            def one(case: Any) -> None:
                answer = case.call()
                lacking = answer.status_code == 501 and case.operation.path in LACKING
                if not lacking:  # where it is documented: this model has no posterior
                    case.validate_response(answer, checks=checks)

            with suppress(Unsatisfiable):  # nothing about it can be wrong
                quick(given(operation.as_strategy(generation_mode=mode))(one))()
    assert {"/v1/recommend", "/v1/items", "/v1/items/{item_id}/similar", "/metrics"} <= seen
