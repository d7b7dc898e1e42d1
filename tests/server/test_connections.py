"""Limits of connections: clients that are slow, endless or too many, against a real server."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from serve_world import fitted, served
from slow_clients import KINDS, LINE, call, host_and_port

from idcf.server import routes
from idcf.server.connections import MAX_HEAD_BYTES, MAX_HEADERS, ConnectionLimits

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
SHORT = ConnectionLimits(timeout_s=0.2)


@contextmanager
def connected(address: str, data: bytes = b"") -> Iterator[socket.socket]:
    """Open a connection to a server and send something."""
    with socket.create_connection(host_and_port(address), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(data)
        yield connection


def received(connection: socket.socket) -> bytes:
    """Return all that comes until the server closes the connection."""
    data = b""
    try:
        while part := connection.recv(1 << 16):
            data += part
    except ConnectionError:
        pass
    return data


def is_closed_while_sending(
    connection: socket.socket, data: bytes, n_times: int, pause_s: float = 0.0
) -> bool:
    """Send data again and again; return whether the server closes the connection meanwhile."""
    try:
        for _ in range(n_times):
            time.sleep(pause_s)
            connection.sendall(data)
    except ConnectionError:
        return True
    return False


def response(connection: socket.socket) -> bytes:
    """Return what comes up to the end of a small response."""
    data = b""
    while b"\r\n\r\n" not in data or not data.endswith(b"}"):
        part = connection.recv(1 << 16)
        assert part, data
        data += part
    return data


def metric(address: str, name: str) -> float:
    """Return a number of /metrics."""
    text = httpx2.get(f"{address}/metrics").text
    return float(next(x for x in text.splitlines() if x.startswith(f"{name} ")).split()[1])


@pytest.mark.parametrize("kind", KINDS)
def test_no_client_is_waited_for_without_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that lacks its body gets 408; any other connection is closed."""
    monkeypatch.setattr(routes, "BODY_TIMEOUT_S", 0.2)
    with served(fitted("bias"), connections=SHORT) as address:
        with connected(address, KINDS[kind]) as connection:
            data = received(connection)
        expects_body = "body" in kind or "chunk" in kind
        assert data[9:12] == (b"408" if expects_body else b"200" if "idle" in kind else b"")
        assert call(*host_and_port(address), "/health") == 200


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"", b"\r\n"),  # empty lines before a request
        (GET + b"\r\n", b"\r\n"),
        (GET + b"Content-Length: 100000\r\n\r\n", b"x"),  # a body after the response
        (GET, b"a: b\r\n"),
        (LINE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),  # trailers
    ],
)
def test_bytes_now_and_then_do_not_keep_a_connection_open(
    first: bytes, rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "BODY_TIMEOUT_S", 0.2)
    with served(fitted("bias"), connections=SHORT) as address, connected(address, first) as client:
        assert is_closed_while_sending(client, rest, 1000, 0.02)
        assert metric(address, "idcf_http_open_connections") == 1


def test_a_connection_lives_as_long_as_it_has_requests() -> None:
    """A connection without one is closed at some time in between."""
    limits = ConnectionLimits(timeout_s=1.0)
    with (
        served(fitted("bias"), connections=limits) as address,
        connected(address) as idle,
        connected(address) as good,
    ):
        idle.settimeout(0.01)
        is_closed = False
        while not is_closed:
            good.sendall(GET + b"\r\n")
            assert response(good).startswith(b"HTTP/1.1 200 OK")
            try:
                is_closed = idle.recv(1) == b""
            except TimeoutError:
                continue
        good.sendall(GET + b"\r\n")
        assert response(good).startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_does_not_read_is_closed() -> None:
    with served(fitted("bias"), connections=SHORT) as address, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(host_and_port(address))
        client.settimeout(20)
        request = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
        assert is_closed_while_sending(client, request, 100_000)


def head(n_bytes: int, n_headers: int = 1, line: bytes = GET) -> bytes:
    """Return a complete head whose headers have so many bytes, names and values counted."""
    rest = b"".join(b"x%d: %d\r\n" % (k % 10, k % 10) for k in range(n_headers - 2))
    size = len(line) - len(b" HTTP/1.1\r\n") - len(b"GET ") + len(rest) + len(b"y: \r\n")
    return line + rest + b"y: " + b"a" * (n_bytes - size) + b"\r\n\r\n"


@pytest.mark.parametrize("has_short_cut", [True, False])
def test_the_size_and_the_number_of_headers_are_limited(has_short_cut: bool) -> None:
    """However the head is split; the rest of the connection is not read."""
    post = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
    with served(fitted("bias"), has_short_cut=has_short_cut) as address:
        for size, n_headers, status in (
            (MAX_HEAD_BYTES, 2, b"200"),
            (MAX_HEAD_BYTES + 1, 2, b"431"),
            (3 * MAX_HEAD_BYTES, 2, b"431"),
            (8000, MAX_HEADERS, b"200"),
            (8000, MAX_HEADERS + 1, b"431"),
        ):
            data = head(size, n_headers)
            for piece in (len(data), 5000, len(data) // 2 + 1):
                with connected(address) as client:
                    try:
                        for start in range(0, len(data), piece):
                            client.sendall(data[start : start + piece])
                        seen = response(client)[9:12]
                    except ConnectionError:  # closed while the client was sending
                        seen = b"431" if len(data) > MAX_HEAD_BYTES else b""
                    assert seen == status, (size, n_headers, piece)
        with connected(address, head(9000, MAX_HEADERS - 1, post) + b"{}") as client:
            assert response(client)[9:12] == b"200"
        with connected(address, head(9000, MAX_HEADERS, post) + b"{}") as client:
            data = received(client)
        assert data.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert b"\r\nx-content-type-options: nosniff\r\n" in data
        assert b"\r\nconnection: close\r\n" in data
        assert json.loads(data.partition(b"\r\n\r\n")[2])["detail"] == (
            "the headers are more than 100 or longer than 16,384 bytes"
        )
        text = httpx2.get(f"{address}/metrics").text
        assert 'idcf_http_requests_total{route="other",status="431"} 10\n' in text


@pytest.mark.parametrize("piece", [b"a: b\r\n" * 1000, b"a" * 10_000], ids=["many", "long"])
@pytest.mark.parametrize(
    "start", [GET + b"x: ", LINE + b"Transfer-Encoding: chunked\r\n\r\n0\r\nx: "]
)
def test_headers_and_trailers_without_an_end_are_refused_early(start: bytes, piece: bytes) -> None:
    with served(fitted("bias")) as address, connected(address, start) as client:
        assert is_closed_while_sending(client, piece, 10_000)  # up to 100 MB
        assert call(*host_and_port(address), "/health") == 200


@pytest.mark.parametrize(
    "limits",
    [
        ConnectionLimits(max_connections=20, max_per_address=0),
        ConnectionLimits(max_connections=0, max_per_address=20),
    ],
    ids=["in all", "of one address"],
)
def test_a_new_connection_takes_the_place_of_the_one_that_waited_longest(
    limits: ConnectionLimits,
) -> None:
    with served(fitted("bias"), connections=limits) as address:
        host, port = host_and_port(address)
        clients = [socket.create_connection((host, port), timeout=20) for _ in range(60)]
        try:
            for path in ("/health", "/ready", "/metrics"):
                assert call(host, port, path) == 200
            assert call(host, port, "/v1/recommend", "{}") == 200
            assert all(received(x) == b"" for x in clients[:40])  # closed: the oldest ones
            assert metric(address, "idcf_http_evicted_connections_total") >= 40
            clients[-1].sendall(GET + b"\r\n")
            assert response(clients[-1])[9:12] == b"200"
        finally:
            for client in clients:
                client.close()


def test_the_limit_of_open_files_is_raised_and_is_one_of_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1000), hard))
        limits = ConnectionLimits(max_connections=0).within_open_files()
        n_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert n_files == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))
        assert (limits.max_connections, limits.max_per_address) == (n_files - 128, 2048)
        assert ConnectionLimits(max_connections=50).within_open_files().max_connections == 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
