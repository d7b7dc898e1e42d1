"""The short cut of POST /v1/recommend against the ASGI route: same bytes, same counts."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
import uvicorn
from serve_world import EVEN_HISTORY, fitted, history_body, served
from test_hostile import payloads
from uvicorn.protocols.http import httptools_impl

from idcf.server import routes
from idcf.server.batcher import BatcherLimits
from idcf.server.connections import ConnectionLimits
from idcf.server.middleware import RequestMiddleware
from idcf.server.schemas import MAX_BODY_BYTES

BODY = json.dumps({"history": history_body(EVEN_HISTORY), "n": 3}).encode()
Pair = tuple[str, str]  # addresses of a server with the short cut, and of one without


def request(
    body: bytes = BODY, *headers: str, line: str = "POST /v1/recommend HTTP/1.1", length: str = ""
) -> bytes:
    """Return a request as bytes; `length` replaces the length of the body."""
    lines = [line, "Host: x", *headers, f"Content-Length: {length or len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(*parts: bytes) -> bytes:
    """Return a request whose body is sent in chunks."""
    head = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(x), x) for x in (*parts, b""))


def exchange(address: str, parts: Sequence[bytes], n_responses: int = 1) -> list[bytes]:
    """Send parts through one connection; return the responses and, if it is closed, b"closed"."""
    host, port = address.removeprefix("http://").split(":")
    responses = []
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position, part in enumerate(parts):
            if position:
                time.sleep(0.002)
            connection.sendall(part)
        with connection.makefile("rb") as stream:
            for _ in range(n_responses):
                responses.append(_read_response(stream, is_head=parts[0].startswith(b"HEAD")))
            if responses and b"connection: close" in responses[-1] and stream.read() == b"":
                responses.append(b"closed")
    return responses


def _read_response(stream: Any, is_head: bool) -> bytes:
    """Return one response without its date and without an id that the server has made."""
    lines = []
    while (line := stream.readline()) not in (b"\r\n", b""):
        lines.append(line)
    head = b"".join(x for x in lines if not x.startswith(b"date: "))
    length = re.search(rb"content-length: (\d+)", head)
    body = stream.read(int(length[1])) if length and not is_head else b""
    made_id = re.compile(rb"((?:log id|x-request-id:) )[0-9a-f]{16,}\b")
    return made_id.sub(rb"\1", head) + made_id.sub(rb"\1", body)


def request_counts(address: str) -> list[str]:
    """Return the lines of /metrics that count requests to the route, and all open requests."""
    text = httpx2.get(f"{address}/metrics").text
    pattern = r".*/v1/recommend.*|idcf_http_open_requests .*|idcf_(?:batched|rejected).*_total .*"
    lines = re.findall(f"(?m)^(?:{pattern})$", text)
    return [x for x in lines if "duration_seconds_bucket" not in x and "_sum" not in x]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """Two servers of one model."""
    with served(fitted()) as fast, served(fitted(), has_short_cut=False) as slow:
        yield fast, slow


def assert_alike(pair: Pair, *parts: bytes, n: int = 1) -> list[bytes]:
    """Compare the responses of both servers and return them."""
    fast, slow = (exchange(address, parts, n) for address in pair)
    assert fast == slow, parts[0][:300]
    return fast


@pytest.fixture(autouse=True)
def _same_counts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare the counts of both servers after each test that uses them."""
    yield
    if "pair" in request.fixturenames:
        fast, slow = map(request_counts, request.getfixturevalue("pair"))
        assert fast == slow
        assert "idcf_http_open_requests 1" in fast  # this request


def test_good_requests(pair: Pair, short_cuts: list[int]) -> None:
    """Lists of all lengths, options, filters, unknown items and empty histories."""
    history = history_body(EVEN_HISTORY)
    bodies: list[dict[str, Any]] = [{"history": history, "n": n} for n in range(1, 41)]
    bodies += [{"history": [*history[:k], {"item_id": "new", "rating": 5}]} for k in range(1, 4)]
    bodies += [{}, {"history": []}, {"n": 500}, {"exclude": ["i1", "x"]}, {"history": history * 9}]
    bodies += [{"history": history, "candidates": ["i9", "i12"]}]
    bodies += [{"history": history, "diversity": x / 4} for x in range(5)]
    for body in bodies:
        (response,) = assert_alike(pair, request(json.dumps(body).encode()))
        assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    assert short_cuts == [200] * len(bodies)


def test_invalid_bodies(pair: Pair, short_cuts: list[int]) -> None:
    """JSON that is not valid, wrong types, unknown fields, long lists and bodies; also unknown
    items, for which popular ones are recommended."""
    bodies = [x for path, x in payloads() if path == "recommend" and len(x) <= MAX_BODY_BYTES]
    statuses = [int(assert_alike(pair, request(body))[0][9:12]) for body in bodies]
    assert short_cuts == statuses
    assert set(statuses) == {200, 422}
    assert statuses.count(422) > 50


@pytest.mark.parametrize(
    ("data", "n_short_cuts"),
    [
        (request(BODY, "Content-Type: text/plain"), 1),
        (request(BODY, "Content-Type: application/json", "Accept-Encoding: gzip"), 1),
        (request(BODY, "Connection: keep-alive"), 1),
        (request(BODY, "Connection: close"), 1),
        (request(BODY, "cOnNeCtIoN: Close", "X-Long: " + "x" * 9000), 1),
        (request(b"", "Connection: close"), 1),
        (request(BODY, line="POST /v1/recommend HTTP/1.0"), 0),
        (request(BODY, "Connection: keep-alive", line="POST /v1/recommend HTTP/1.0"), 0),
        (request(BODY, line="POST /v1/recommend?x=1 HTTP/1.1"), 0),
        (request(BODY, line="POST /v1/%72ecommend HTTP/1.1"), 0),
        (request(BODY, line="POST /v1/recommend/ HTTP/1.1"), 0),
        (request(BODY, line="POST http://x/v1/recommend HTTP/1.1"), 0),
        (request(b"", line="GET /v1/recommend HTTP/1.1"), 0),
        (request(b"", line="HEAD /v1/recommend HTTP/1.1"), 0),
        (request(BODY, line="PUT /v1/recommend HTTP/1.1"), 0),
        (request(BODY, line="post /v1/recommend HTTP/1.1"), 0),
        (request(BODY, line="POST /v1/recommend HTTP/9.9"), 0),
        (request(BODY, length="9" * 30), 0),
        (request(BODY, length=str(MAX_BODY_BYTES + 1)), 0),
        (request(BODY, length="-5"), 0),
        (request(BODY, "Transfer-Encoding: chunked"), 0),
        (request(BODY, "Content-Length: 3"), 0),
        (request(b" " * (MAX_BODY_BYTES - len(BODY)) + BODY), 1),
        (chunked(BODY), 0),
        (chunked(*(bytes([x]) for x in BODY)), 0),
        (chunked(b" " * MAX_BODY_BYTES, b" ")[:-7], 0),  # the response comes before the end
        (b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\n\r\n", 0),
    ],
)
def test_headers_methods_versions_and_lengths(
    pair: Pair, short_cuts: list[int], data: bytes, n_short_cuts: int
) -> None:
    assert_alike(pair, data)
    assert len(short_cuts) == n_short_cuts


def test_a_request_split_at_every_byte(pair: Pair, short_cuts: list[int]) -> None:
    data = request(b'{"n":2}')
    responses = {tuple(assert_alike(pair, data[:k], data[k:])) for k in range(1, len(data))}
    assert len(responses) == 1
    assert short_cuts == [200] * (len(data) - 1)


def test_expect_continue(pair: Pair) -> None:
    head, _, body = request(BODY, "Expect: 100-continue").partition(b"\r\n\r\n")
    first, second = assert_alike(pair, head + b"\r\n\r\n", body, n=2)
    assert first == b"HTTP/1.1 100 Continue\r\n"
    assert second.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("size", [1, 40, 10**9])
def test_pipelined_requests_are_answered_in_their_order(pair: Pair, size: int) -> None:
    """Good and bad ones, one of another route, in packets of some sizes."""
    bodies = [b'{"n":1}', b"{", b'{"n":2}', b"[]", BODY, b'{"n":3}'] * 3
    requests = [request(x) for x in bodies]
    requests[3:3] = [request(b"", line="GET /health HTTP/1.1"), chunked(BODY), request(BODY)]
    data = b"".join(requests)[: 300 if size == 1 else None]
    n = data.count(b" HTTP/1.1\r\n") - (size == 1)  # the last of the shortened ones is incomplete
    parts = [data[k : k + size] for k in range(0, len(data), size)]
    responses = assert_alike(pair, *parts, n=n)
    assert [b" 200 " in x for x in responses[:3]] == [True, False, True][:n]


def test_requests_one_after_the_other_on_one_connection(pair: Pair, short_cuts: list[int]) -> None:
    parts = [request(b'{"n":%d}' % n) for n in range(1, 6)]
    assert_alike(pair, *parts, request(BODY, "Connection: close"), n=6)
    last_one_counts = request(BODY, "Connection: close") + request(BODY)
    assert assert_alike(pair, last_one_counts)[1] == b"closed"
    assert len(short_cuts) >= 2  # the first one and the last one


def test_clients_that_close_early(pair: Pair) -> None:
    """Within the head, within the body, and before the response; the counts are compared."""
    data = request()
    for end in (10, len(data) - len(BODY), len(data) - 1, len(data)):
        for address in pair:
            assert exchange(address, [data[:end]], 0) == []
    time.sleep(0.1)
    fast = "\n".join(request_counts(pair[0]))
    assert 'idcf_http_requests_total{route="/v1/recommend",status="400"} 2' in fast


def test_bodies_that_do_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BODY_TIMEOUT_S", 0.05)
    short = ConnectionLimits(timeout_s=0.05)
    with ExitStack() as stack:
        fast, slow = (
            stack.enter_context(served(fitted(), connections=short, has_short_cut=x))
            for x in (True, False)
        )
        for end in (-len(BODY), -1):
            response, closed = assert_alike((fast, slow), request()[:end])
            assert response.startswith(b"HTTP/1.1 408 ")
            assert closed == b"closed"


@pytest.mark.parametrize(
    ("limits", "options"),
    [(BatcherLimits(max_queue=0), {}), (BatcherLimits(), {"max_open_requests": 0})],
)
def test_an_overloaded_server(limits: BatcherLimits, options: dict[str, int]) -> None:
    with ExitStack() as stack:
        fast, slow = (
            stack.enter_context(served(fitted(), limits, has_short_cut=x, **options))
            for x in (True, False)
        )
        response, _ = assert_alike((fast, slow), request(), request(BODY), n=2)
        assert response.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: 1\r\n" in response


def test_an_unexpected_error(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("idcf.server.service.RecommendationService.recommend_batch", broken)
    (response,) = assert_alike(pair, request())
    assert response.startswith(b"HTTP/1.1 500 ")
    monkeypatch.setattr("idcf.server.service.RecommendationService.parse_request", broken)
    assert assert_alike(pair, request()) == [response]


def test_open_requests_of_the_short_cut_count_against_the_limit() -> None:
    """One request waits for its body: the limit of one leaves no room for another route."""
    with served(fitted(), max_open_requests=1) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(request()[:-1])
            time.sleep(0.1)
            assert httpx2.get(f"{address}/v1/model").status_code == 503
            for path in ("/health", "/ready", "/metrics"):  # answered whatever the load
                assert httpx2.get(f"{address}{path}").status_code == 200
            assert httpx2.post(f"{address}/v1/recommend", json={}).status_code == 503
            connection.sendall(request()[-1:])
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert httpx2.get(f"{address}/v1/model").status_code == 200


def test_a_client_that_does_not_read_its_responses(short_cuts: list[int]) -> None:
    """Responses wait in the ASGI route then, so that the server's buffer does not grow."""
    data, n_sent = request(b'{"n":40}'), 700
    with served(fitted()) as address, socket.socket() as connection:
        host, port = address.removeprefix("http://").split(":")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.settimeout(10)
        for _ in range(n_sent):
            connection.sendall(data)
            time.sleep(0.001)
        n_short_cuts, received = len(short_cuts), b""
        while received.count(b"HTTP/1.1 200 OK") < n_sent:
            received += connection.recv(1 << 20)
        assert 0 < n_short_cuts < n_sent


# The methods and attributes of uvicorn that `connections`, `protocol` and `draining` call, override
# or stand for. If this test fails after an upgrade, read what changed, adapt them, then write the
# new digest here.
USED_METHODS = (
    "__init__", "connection_made", "connection_lost", "data_received", "on_message_begin", "on_url",
    "on_header", "on_headers_complete", "on_body", "on_message_complete", "on_response_complete",
    "shutdown", "_unset_keepalive_if_required", "timeout_keep_alive_handler", "send_400_response",
    "pause_writing", "resume_writing", "_start_asgi_task",
)  # fmt: skip
DIGEST = "7b58a2d700819ea3"


def test_the_internals_of_uvicorn_are_those_that_the_protocol_was_written_for() -> None:
    sources = [
        inspect.getsource(getattr(httptools_impl.HttpToolsProtocol, name)) for name in USED_METHODS
    ]
    sources += [inspect.getsource(httptools_impl.RequestResponseCycle)]
    sources += [inspect.getsource(uvicorn.Server)]
    assert uvicorn.__version__.startswith("0.54.")
    digest = hashlib.sha256("".join(sources).encode()).hexdigest()[:16]
    assert digest == DIGEST, f"uvicorn {uvicorn.__version__} has other internals: {digest}"


def test_the_settings_of_uvicorn_do_not_wrap_the_application() -> None:
    """The protocol counts in the middleware's metrics, which a wrapper would hide."""
    from idcf.server.app import create_app
    from idcf.server.batcher import RequestBatcher
    from idcf.server.run import ServerOptions, server_config

    app = create_app(RequestBatcher(fitted("bias")))
    config = server_config(app, "httptools", ServerOptions())
    config.load()
    assert config.loaded_app is app
    assert isinstance(app, RequestMiddleware)
    assert (config.limit_concurrency, config.root_path) == (None, "")
    assert config.encoded_headers == [(b"x-content-type-options", b"nosniff")]
