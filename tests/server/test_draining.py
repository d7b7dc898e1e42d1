"""The end of a server: no request that was sent in time is lost."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import threading
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from serve_process import BODY, Server, serving, wait_until
from serve_world import fitted

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="workers need Linux")
REQUEST = (
    f"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
).encode()
OTHER_REQUEST = b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n"  # answered by ASGI
IDLE_S = 0.5  # half of what a draining server allows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted("als").save(tmp_path_factory.mktemp("draining") / "model")


class BusyClient(threading.Thread):
    """Sends requests on many connections, on each the next one as soon as it has a response.

    A connection ends with a response that says so. `lost` counts those that end otherwise.
    """

    def __init__(self, server: Server, n_connections: int) -> None:
        super().__init__()
        host, port = server.host.split(":")
        self.sockets = [
            socket.create_connection((host, int(port)), timeout=20) for _ in range(n_connections)
        ]
        self.n_answers = dict.fromkeys(self.sockets, 0)
        self.received = dict.fromkeys(self.sockets, b"")
        self.idle_since = dict.fromkeys(self.sockets, 0.0)
        self.lost: list[str] = []

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for connection in self.sockets:
                selector.register(connection, selectors.EVENT_READ)
                self._send(connection)
            while selector.get_map():
                for key, _ in selector.select():
                    connection: Any = key.fileobj
                    if not self._receive(connection):
                        selector.unregister(connection)
                        connection.close()

    def _send(self, connection: socket.socket) -> None:
        """Send the next request, of one of two routes."""
        self.idle_since[connection] = time.monotonic() - self.idle_since[connection]
        is_other = self.n_answers[connection] % 4 == 3
        connection.sendall(OTHER_REQUEST if is_other else REQUEST)

    def _receive(self, connection: socket.socket) -> bool:
        """Read a part of a response; return whether the connection goes on."""
        try:
            part = connection.recv(1 << 16)
            if not part:
                raise ConnectionResetError("closed")
            self.received[connection] += part
            head, separator, body = self.received[connection].partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            if not separator or len(body) < int(length):
                return True
            assert head.startswith(b"HTTP/1.1 200 OK")
            self.received[connection] = b""
            self.n_answers[connection] += 1
            if b"connection: close" in head:
                return False
            self.idle_since[connection] = time.monotonic()
            self._send(connection)
        except ConnectionError as error:
            if self.idle_since[connection] < IDLE_S:  # otherwise this client was too slow
                self.lost.append(repr(error))
            return False
        return True


@pytest.mark.parametrize("workers", [1, 2])
def test_no_request_is_lost_under_64_busy_connections(
    workers: int, model: Path, tmp_path: Path
) -> None:
    with serving(model, tmp_path / "token", workers) as server:
        client = BusyClient(server, 64)
        client.start()
        wait_until(lambda: min(client.n_answers.values()) >= 4)
        server.process.send_signal(signal.SIGTERM)
        client.join(60)
        assert not client.is_alive()
        assert client.lost == []
        _, errors = server.process.communicate(timeout=60)
        assert (server.process.returncode, errors) == (-signal.SIGTERM, "")


def test_no_connection_that_waits_to_be_accepted_is_reset(model: Path, tmp_path: Path) -> None:
    """Each request has a new connection, until there are no more."""
    with serving(model, tmp_path / "token") as server:
        results: list[Any] = []

        def send_requests() -> None:
            while True:
                try:
                    results.append(server.recommended())
                except ConnectionRefusedError:
                    return
                except (OSError, HTTPException) as error:
                    results.append(error)

        threads = [threading.Thread(target=send_requests) for _ in range(16)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(results) > 50)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
    assert [x for x in results if isinstance(x, Exception)] == []


@pytest.mark.parametrize("workers", [1, 2])
def test_ready_turns_first_while_the_server_still_answers(
    workers: int, model: Path, tmp_path: Path
) -> None:
    """Old and new connections, each of which ends with its last response; /health stays 200."""
    with serving(model, tmp_path / "token", workers, "--drain-delay", "600") as server:
        host, port = server.host.split(":")
        for _ in range(20):  # each worker answers some: they all have begun
            server.recommended()
        old, pipelining = (socket.create_connection((host, int(port)), timeout=20) for _ in "12")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: {server.call("GET", "/ready")[0] for _ in range(8)} == {503})
        assert len(server.recommended()) == 5
        assert server.call("GET", "/health")[0] == 200
        old.sendall(REQUEST)
        response = old.makefile("rb").read()  # until it is closed
        assert response.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nconnection: close\r\n" in response
        pipelining.sendall(REQUEST * 3 + OTHER_REQUEST * 2 + REQUEST)
        response = pipelining.makefile("rb").read()
        assert response.count(b"HTTP/1.1 200 OK\r\n") == 6
        assert response.count(b"\r\nconnection: close\r\n") == 1
        for connection in (old, pipelining):
            connection.close()
        children = server.worker_pids()
        server.process.kill()
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def test_a_killed_worker_loses_nothing_that_it_had_not_accepted(
    model: Path, tmp_path: Path
) -> None:
    """A stopped worker accepts nothing: its successor answers all that waits for it."""
    with serving(model, tmp_path / "token") as server:
        host, port = server.host.split(":")
        server.recommended()
        victim = server.worker_pids()[0]
        os.kill(victim, signal.SIGSTOP)
        wait_until(lambda: "T (stopped)" in Path(f"/proc/{victim}/status").read_text())
        connections = [socket.create_connection((host, int(port)), timeout=60) for _ in range(40)]
        for connection in connections:
            connection.sendall(REQUEST)
        os.kill(victim, signal.SIGKILL)
        for connection in connections:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
            connection.close()
        wait_until(lambda: victim not in server.worker_pids())
