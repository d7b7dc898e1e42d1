"""`idcf serve`: a process that answers and stops."""

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
from calls import refused


@pytest.fixture
def process(model: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    words = [sys.executable, "-m", "idcf", "serve", str(model), "--port", "0", "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.Popen(
        [*words, "--reload-token-file", str(token)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert found.stdout
    told = json.loads(found.stdout.readline())
    assert told["pid"] == found.pid
    yield found, told["address"]
    found.kill()
    found.communicate()


def test_serve_is_a_process_that_answers_and_stops(
    process: tuple[subprocess.Popen[str], str],
) -> None:
    running, address = process
    assert address.startswith("http://127.0.0.1:")
    body = json.dumps({"history": [{"item_id": "i2", "rating": 5}], "n": 3}).encode()
    with urllib.request.urlopen(f"{address}/v1/recommend", body, timeout=10) as answer:
        assert len(json.load(answer)["items"]) == 3
    asked = urllib.request.Request(f"{address}/admin/reload", b"", method="POST")
    asked.add_header("Authorization", "Bearer 0123456789abcdef")
    with urllib.request.urlopen(asked) as answer:
        assert json.load(answer)["model"] == "als"
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=20)
    assert running.returncode == 0
    assert said == ""


def test_serve_refuses(model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    short = tmp_path / "token"
    short.write_text("short")
    for words, says in (
        (["--reload-token-file", str(short)], "at least 16 characters"),
        (["--reload-token-file", str(tmp_path / "none")], "cannot be read"),
        (["--host", "203.0.113.1"], "cannot listen on 203.0.113.1:8000"),
    ):
        code, said = refused(monkeypatch, capsys, "serve", str(model), *words)
        assert code == 2
        assert says in said


def test_serving_never_imports_training(model: Path) -> None:
    program = f"""
import sys
from idcf.recommender import Recommender
from idcf.server.app import create
from idcf.server.batcher import Engine
create(Engine(Recommender.load({str(model)!r})))
heavy = ("idcf.training", "idcf.evaluation", "idcf.paper")
loaded = [x for x in sys.modules if x.startswith(heavy)]
assert not loaded, loaded
assert "idcf.data.datasets.catalog" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
