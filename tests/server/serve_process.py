"""`idcf serve` as a process, and calls of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from serve_world import EVEN_HISTORY, TOKEN, history_body

BODY = json.dumps({"history": history_body(EVEN_HISTORY), "n": 5})


class Server(NamedTuple):
    process: subprocess.Popen[str]
    host: str  # with the port

    def worker_pids(self) -> list[int]:
        """Return the ids of the child processes."""
        pid = self.process.pid
        return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def call(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
        """Send one request on a connection of its own; return the status and the body."""
        connection = HTTPConnection(self.host, timeout=60)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def recommended(self) -> tuple[str, ...]:
        """Return the items of a list."""
        status, body = self.call("POST", "/v1/recommend", BODY)
        assert status == 200
        return tuple(x["item_id"] for x in json.loads(body)["items"])

    def reload(self) -> tuple[int, Any]:
        """Reload the model; return the status and the body."""
        status, body = self.call("POST", "/admin/reload", Authorization=f"Bearer {TOKEN}")
        return status, json.loads(body)

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name with labels."""
        lines = re.findall(r"(?m)^([^#].*) (\S+)$", self.call("GET", "/metrics")[1])
        return {name: float(value) for name, value in lines}


@contextmanager
def serving(folder: Path, token: Path, workers: int = 2, *options: str) -> Iterator[Server]:
    """Run `idcf serve` on a free port."""
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "idcf", "serve", str(folder), "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--workers", str(workers), "--reload-token-file", str(token), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout
        address = json.loads(process.stdout.readline())["address"]
        yield Server(process, address.removeprefix("http://"))
    finally:
        process.terminate()
        process.communicate(timeout=30)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for at most 20 seconds."""
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError("the condition is still false")
