"""`idcf serve --workers 2` as processes: one port, one model, one /metrics, one reload."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from serve_process import BODY, Server, serving, wait_until
from serve_world import EVEN_HISTORY, fitted

from idcf.errors import ConfigError
from idcf.server.run import open_listening_sockets

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="workers need Linux")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers") / "model"


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    """A server with two workers that all tests share; a test may reload another model."""
    with serving(fitted().save(model), model.parent / "token") as running:
        yield running


@contextmanager
def under_load(server: Server, n_clients: int = 6) -> Iterator[list[Any]]:
    """Request lists all the time, each on a new connection; yield the lists and exceptions."""
    results: list[Any] = []
    stop = threading.Event()

    def send_requests() -> None:
        while not stop.is_set():
            try:
                results.append(server.recommended())
            except (OSError, HTTPException) as error:
                results.append(error)

    threads = [threading.Thread(target=send_requests) for _ in range(n_clients)]
    for thread in threads:
        thread.start()
    try:
        yield results
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_each_worker_has_little_memory_of_its_own(server: Server) -> None:
    pids = server.worker_pids()
    assert len(pids) == 2
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        sizes = {k: int(v) for k, v in re.findall(r"(\w+): +(\d+) kB", text)}
        private = sizes["Private_Dirty"] + sizes["Private_Clean"]
        assert private < 64 * 1024, sizes
        assert private < 0.4 * sizes["Rss"], sizes


def test_any_worker_reports_the_sums_of_all(server: Server) -> None:
    name = 'idcf_http_requests_total{route="/v1/recommend",status="200"}'
    before = server.metrics()
    assert before["idcf_workers"] == 2
    for _ in range(30):
        server.recommended()
    for _ in range(5):  # each on a new connection, so to any worker
        after = server.metrics()
        assert after[name] - before.get(name, 0) == 30
        n_batched = "idcf_batched_requests_total"
        assert after[n_batched] - before[n_batched] == 30
    wait_until(lambda: server.metrics()["idcf_http_open_requests"] == 1)  # this request alone
    assert after["process_cpu_seconds_total"] > 0


def test_a_killed_worker_is_replaced_and_fails_only_the_requests_it_had(server: Server) -> None:
    n_restarts = server.metrics()["idcf_worker_restarts_total"]
    with under_load(server, n_clients=6) as results:
        for _ in range(3):
            time.sleep(0.3)
            victim = server.worker_pids()[0]
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda gone=victim: gone not in server.worker_pids())  # type: ignore[misc]
            wait_until(lambda: len(server.worker_pids()) == 2)
        time.sleep(0.3)
    errors = [x for x in results if isinstance(x, Exception)]
    assert len(errors) <= 3 * 6
    assert all(isinstance(x, ConnectionError | HTTPException) for x in errors)
    n_good = len(results) - len(errors)
    assert n_good > 50
    wait_until(lambda: server.metrics()["idcf_http_open_requests"] == 1)
    metrics = server.metrics()
    assert metrics["idcf_worker_restarts_total"] == n_restarts + 3
    assert metrics['idcf_http_requests_total{route="/v1/recommend",status="200"}'] >= n_good


def test_a_reload_swaps_the_model_of_all_workers_at_once(server: Server, model: Path) -> None:
    lists = {
        name: tuple(x.item_id for x in fitted(name).recommend(EVEN_HISTORY, n=5))
        for name in ("als", "bias", "idcf-dot")
    }
    n_swaps = server.metrics()["idcf_model_swaps_total"]
    names = ["als", "bias", "idcf-dot"] * 2
    with under_load(server, n_clients=4) as results:
        for name in names:
            fitted(name).save(model)
            status, body = server.reload()
            assert (status, body["model"]) == (200, name)
            for _ in range(12):  # on new connections: no worker serves the old model
                assert server.recommended() == lists[name]
    assert not [x for x in results if isinstance(x, Exception)]
    assert set(results) <= set(lists.values())  # each list comes from one model
    assert server.metrics()["idcf_model_swaps_total"] == n_swaps + len(names)


def test_reloads_at_the_same_time_are_done_one_after_the_other(server: Server) -> None:
    n_swaps = server.metrics()["idcf_model_swaps_total"]
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(server.reload()[0])) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 6
    assert server.metrics()["idcf_model_swaps_total"] == n_swaps + 6


def test_replaced_workers_serve_the_reloaded_model(server: Server, model: Path) -> None:
    fitted("als").save(model)
    assert server.reload()[0] == 200
    old = server.worker_pids()
    for pid in old:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(server.worker_pids()) == 2 and not {*old} & {*server.worker_pids()})
    expected = tuple(x.item_id for x in fitted("als").recommend(EVEN_HISTORY, n=5))
    assert {server.recommended() for _ in range(12)} == {expected}


def test_a_damaged_model_reaches_no_worker(server: Server, model: Path) -> None:
    before = server.recommended()
    config = (model / "config.json").read_bytes()
    (model / "config.json").write_text("{}")
    status, body = server.reload()
    assert status == 409
    assert "the old model is still served: " in body["detail"]
    assert "config.json" in body["detail"]
    assert {server.recommended() for _ in range(8)} == {before}
    (model / "config.json").write_bytes(config)
    assert server.reload()[0] == 200


def test_a_port_that_workers_share_is_not_given_to_another_server(server: Server) -> None:
    host, port = server.host.split(":")
    for n in (1, 2):
        with pytest.raises(ConfigError, match=rf"cannot listen on {server.host}.*another --port"):
            open_listening_sockets(host, int(port), n)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 0)]
)
def test_a_signal_ends_all_processes_after_their_requests(
    model: Path, tmp_path: Path, number: int, code: int
) -> None:
    """A request whose body is still on its way when the signal arrives is answered."""
    with serving(fitted().save(tmp_path / "model"), tmp_path / "token") as running:
        host, port = running.host.split(":")
        pids = running.worker_pids()
        head = (
            f"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n\r\n"
        )
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall((head + BODY[:-1]).encode())
            time.sleep(0.2)
            running.process.send_signal(number)
            time.sleep(0.3)
            connection.sendall(BODY[-1:].encode())
            response = connection.makefile("rb").read()
        assert response.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nconnection: close\r\n" in response
        _, errors = running.process.communicate(timeout=20)
        assert (running.process.returncode, errors) == (code, "")
        assert not [x for x in pids if Path(f"/proc/{x}").exists()]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=1).close()


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with serving(fitted().save(tmp_path / "model"), tmp_path / "token") as running:
        pids = running.worker_pids()
        running.process.kill()
        wait_until(lambda: not any(Path(f"/proc/{x}").exists() for x in pids))
