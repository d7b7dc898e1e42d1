"""Accepting connections: which get a parser first, and what each costs the others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from serve_world import fitted, served
from slow_clients import LINE
from test_connections import connected, metric, received, response

from idcf.server.acceptor import Acceptor, NewConnection
from idcf.server.connections import ConnectionLimits
from idcf.server.protocol import RecommendProtocol

POST = LINE + b"Content-Length: 2\r\n\r\n"
GET = b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def accepts(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event without which the loop of a server stands still when it is to accept."""
    event = threading.Event()
    event.set()
    accept = Acceptor._accept

    def late_accept(self: Acceptor) -> None:
        assert event.wait(60)
        accept(self)

    monkeypatch.setattr(Acceptor, "_accept", late_accept)
    return event


@contextmanager
def stopped(accepts: threading.Event) -> Iterator[None]:
    """Accept nothing meanwhile."""
    accepts.clear()
    yield
    accepts.set()


def test_status_requests_come_first_then_complete_requests(
    accepts: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections wait to be accepted at the same time."""
    started: list[bytes] = []
    start = Acceptor.start

    def noted_start(self: Acceptor, connection: NewConnection) -> None:
        started.append(connection.data)
        start(self, connection)

    monkeypatch.setattr(Acceptor, "start", noted_start)
    requests = [b"", *[POST + b"{"] * 30, *[GET] * 10, POST + b"{}", *[HEALTH] * 2]
    with ExitStack() as stack, served(fitted("bias")) as address:
        with stopped(accepts):
            clients = [stack.enter_context(connected(address, x)) for x in requests]
        for client in clients[-13:]:
            assert response(client).startswith(b"HTTP/1.1 200 OK")
        for client in clients[1:31]:
            client.sendall(b"}")
            assert response(client).startswith(b"HTTP/1.1 200 OK")
    assert len(started) == len(requests) - 1  # nothing was sent on the first one
    assert started[:2] == [HEALTH] * 2
    complete = [k for k, x in enumerate(started) if x in (GET, POST + b"{}")]
    assert max(complete) < 16


def test_a_connection_that_says_nothing_has_no_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = RecommendProtocol.__init__

    def counted(self: RecommendProtocol, *args: Any, **options: Any) -> None:
        made.append(self)
        make(self, *args, **options)

    monkeypatch.setattr(RecommendProtocol, "__init__", counted)
    with served(fitted("bias")) as address, ExitStack() as stack:
        silent = [stack.enter_context(connected(address)) for _ in range(50)]
        assert metric(address, "idcf_http_open_connections") == 51
        assert len(made) == 1
        for client in silent:
            client.close()
        while metric(address, "idcf_http_open_connections") > 1:
            pass


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_request_in_pieces_is_answered(piece: int) -> None:
    """Whatever part of it has come when the connection gets its parser."""
    data = LINE + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    with served(fitted("bias")) as address:
        for request in (data, POST + b"{}", GET):
            with connected(address) as client:
                for start in range(0, len(request), piece):
                    client.sendall(request[start : start + piece])
                assert response(client).startswith(b"HTTP/1.1 200 OK")


def test_bytes_before_a_half_close_reach_the_parser() -> None:
    with served(fitted("bias")) as address, connected(address, b"\x00\x01") as client:
        client.shutdown(socket.SHUT_WR)
        assert received(client).startswith((b"HTTP/1.1 400", b""))


def test_complete_requests_are_not_closed_to_make_room(accepts: threading.Event) -> None:
    """Those that have no place are told so."""
    limits = ConnectionLimits(max_connections=20, max_per_address=0)
    with served(fitted("bias"), connections=limits) as address, ExitStack() as stack:
        with stopped(accepts):
            clients = [stack.enter_context(connected(address, GET)) for _ in range(60)]
        statuses = [response(x)[9:12] for x in clients]
    assert set(statuses) == {b"200", b"503"}
    assert statuses[:20] == [b"200"] * 20


def test_connections_that_cannot_be_accepted_are_accepted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [OSError(24, "Too many open files")] * 3

    class FullListener:
        """A listening socket that fails some times."""

        def __init__(self, listener: socket.socket) -> None:
            self.listener = listener

        def accept(self) -> Any:
            if failures:
                raise failures.pop()
            return self.listener.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.listener, name)

    make = Acceptor.__init__

    def made(self: Acceptor, listener: Any, *args: Any) -> None:
        make(self, FullListener(listener), *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Acceptor, "__init__", made)
    with served(fitted("bias")) as address, connected(address, GET) as client:
        assert response(client).startswith(b"HTTP/1.1 200 OK")
    assert failures == []


def test_the_end_of_a_request_is_found() -> None:
    def is_complete(data: bytes) -> bool:
        connection = NewConnection.__new__(NewConnection)
        connection.data = data
        return connection.is_complete()

    for data in (GET, POST + b"{}", POST + b"{}more", b"a" * 20_000, b"\r\n\r\n"):
        assert is_complete(data)
    chunked = LINE + b"transfer-Encoding: chunked\r\n\r\n"
    assert is_complete(chunked + b"2\r\n{}\r\n0\r\n\r\n")
    for data in (b"", GET[:-1], POST, POST + b"{", chunked, chunked + b"2\r\n{}\r\n0\r\n"):
        assert not is_complete(data)
