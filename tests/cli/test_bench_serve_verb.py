"""`idcf bench-serve`: a short measurement, its bodies, its errors."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calls import call, call_with_error

from idcf import Recommender
from idcf.server.benchmark import make_bodies
from idcf.server.load_client import LoadClient


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="workers need Linux")
def test_a_short_measurement(model: Path) -> None:
    options = ("--seconds", "0.3", "--connections", "6", "--history-length", "5", "--workers", "2")
    values = json.loads(call("bench-serve", str(model), *options, "--json"))
    assert (values["connections"], values["workers"], values["history_length"]) == (6, 2, 5)
    assert values["errors"] == {}
    assert values["requests"] > 10
    assert values["requests_per_second"] == pytest.approx(values["requests"] / values["seconds"])
    latencies = [values["latency_ms"][x] for x in ("p50", "p90", "p99", "p99.9")]
    assert 0 < latencies[0] <= latencies[1] <= latencies[2] <= latencies[3]
    assert 1 <= values["mean_batch_size"] <= 6
    assert values["engine"]["batch_size"] == 3
    rate = values["engine"]["users_per_second"]
    assert values["ratio"] == pytest.approx(values["requests_per_second"] / rate)
    assert values["server_cpu_seconds"] > 0


def test_popular_items_are_in_more_histories(model: Path) -> None:
    predictor = Recommender.load(model).predictor
    bodies = [json.loads(x) for x in make_bodies(predictor, 10, 7)]
    assert {x["n"] for x in bodies} == {7}
    assert all(len({i["item_id"] for i in x["history"]}) == 10 for x in bodies)
    assert {i["rating"] for x in bodies for i in x["history"]} == {*predictor.domain.levels}
    whole = json.loads(make_bodies(predictor, 80, 1)[0])["history"]
    assert {x["item_id"] for x in whole} == {*predictor.item_ids}
    if predictor.log_popularity is not None:
        counts = dict.fromkeys(predictor.item_ids, 0)
        for body in bodies:
            for item in body["history"]:
                counts[item["item_id"]] += 1
        drawn = np.array([counts[x] for x in predictor.item_ids])
        assert np.corrcoef(drawn, np.exp(predictor.log_popularity))[0, 1] > 0.5


def test_errors_name_the_way_out(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for options, message in (
        (["--history-length", "81"], "--history-length 81 is more than the 80 items"),
        (["--url", "https://127.0.0.1:8000"], "is not the address of a server, such as http://"),
        (["--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
    ):
        code, output = call_with_error(
            monkeypatch, capsys, "bench-serve", str(model), "--seconds", "0.1", *options
        )
        assert code == 2
        assert message in output


def test_the_client_counts_errors_and_split_responses() -> None:
    """A server that answers in two packets, then with 503, then closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n1234"
    busy = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}"

    def answer() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                for parts in ([ok], [ok[:9], ok[9:40], ok[40:]], [busy]):
                    connection.recv(1 << 16)
                    for part in parts:
                        connection.sendall(part)
                        threading.Event().wait(0.02)
                connection.recv(1 << 16)

    thread = threading.Thread(target=answer)
    thread.start()
    client = LoadClient("127.0.0.1", listener.getsockname()[1], [b"{}", b'{"n":1}'])
    result = client.run(n_connections=1, seconds=10, max_requests=4)
    listener.close()
    thread.join()
    assert result["requests"] == 4
    assert result["errors"] == {"503": 1, "ConnectionResetError": 1}
    assert result["latency_ms"]["p50"] > 0
