"""`idcf serve` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import call_with_error


@pytest.fixture
def process(model: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    command = [sys.executable, "-m", "idcf", "serve", str(model), "--port", "0", "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [*command, "--reload-token-file", str(token)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert server.stdout
    values = json.loads(server.stdout.readline())
    assert values["pid"] == server.pid
    yield server, values["address"]
    server.kill()
    server.communicate()


def test_serve_answers_reloads_and_stops(
    process: tuple[subprocess.Popen[str], str],
) -> None:
    running, address = process
    assert address.startswith("http://127.0.0.1:")
    body = json.dumps({"history": [{"item_id": "i2", "rating": 5}], "n": 3}).encode()
    with urllib.request.urlopen(f"{address}/v1/recommend", body, timeout=10) as response:
        assert len(json.load(response)["items"]) == 3
    request = urllib.request.Request(f"{address}/admin/reload", b"", method="POST")
    request.add_header("Authorization", "Bearer 0123456789abcdef")
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["model"] == "als"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 0
    assert json.loads(errors)["event"] == "model reloaded"


def test_serve_rejects_bad_options(
    model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    short = tmp_path / "token"
    short.write_text("short")
    for options, message in (
        (["--reload-token-file", str(short)], "use at least 16 characters"),
        (["--reload-token-file", str(tmp_path / "none")], "cannot be read"),
        (["--workers", "2", "--threads", "2"], "each of several workers has one thread"),
        (["--workers", "2", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1:8000"),
        (["--host", "203.0.113.1"], "cannot listen on 203.0.113.1:8000"),
    ):
        code, output = call_with_error(monkeypatch, capsys, "serve", str(model), *options)
        assert code == 2
        assert message in output


def test_serving_never_imports_training(model: Path) -> None:
    program = f"""
import sys
from idcf.recommender import Recommender
from idcf.server.app import create_app
from idcf.server.batcher import RequestBatcher
create_app(RequestBatcher(Recommender.load({str(model)!r})))
heavy = ("idcf.training", "idcf.evaluation", "idcf.paper")
loaded = [x for x in sys.modules if x.startswith(heavy)]
assert not loaded, loaded
assert "idcf.data.datasets.catalog" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
