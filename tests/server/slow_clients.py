"""Slow and endless clients all at once against a running server, beside clients that are served.

`python tests/server/slow_clients.py URL PID --sockets 2048` prints a line of JSON: the answers to
other clients while the sockets are open, and the memory of the process before and after.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import socket
import time
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

LINE = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\n"
KINDS = {
    "nothing": b"",
    "half a line": LINE[:9],
    "headers without an end": LINE + b"a: b\r\n" * 20,
    "a length without a body": LINE + b"Content-Length: 1\r\n\r\n",
    "chunked without a chunk": LINE + b"Transfer-Encoding: chunked\r\n\r\n",
    "a chunk without an end": LINE + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n{",
    "an idle connection": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
SMALL_HEADERS = b"".join(b"x-%d: %d\r\n" % (k, k) for k in range(4096))
LARGE_HEADER = b"a" * len(SMALL_HEADERS)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of an address such as http://127.0.0.1:8000."""
    host, port = address.removeprefix("http://").split(":")
    return host, int(port)


def open_connections(host: str, port: int, n: int) -> list[socket.socket]:
    """Open n connections that promise a body, and n / 8 of each other kind; leave them open."""
    connections = []
    for kind, data in KINDS.items():
        for _ in range(n if kind == "a length without a body" else n // 8):
            connections.append(socket.create_connection((host, port), timeout=30))
            connections[-1].sendall(data)
    return connections


def send_headers(host: str, port: int, piece: bytes, n_bytes: int) -> tuple[int, bytes]:
    """Send the headers of one request until the server closes; return their size and the answer."""
    n_sent, answer = 0, b""
    with socket.create_connection((host, port), timeout=30) as connection, suppress(OSError):
        connection.sendall(LINE + b"x: ")
        while n_sent < n_bytes:
            connection.sendall(piece)
            n_sent += len(piece)
        connection.settimeout(0.5)
        answer = connection.recv(1 << 16)
    return n_sent, answer


def call(host: str, port: int, path: str, body: str | None = None) -> int:
    """Send one request on a connection of its own; return the status."""
    connection = HTTPConnection(host, port, timeout=30)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def memory_of(pid: int, name: str) -> int:
    """Return the resident memory of a process: VmRSS, or VmHWM since `forget_peak`."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def forget_peak(pid: int) -> None:
    """Let VmHWM of a process begin again."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def probe(host: str, port: int) -> tuple[dict[str, list[int]], float]:
    """Return the statuses that other clients get, by path, and the slowest answer in seconds."""
    statuses: dict[str, set[int]] = {}
    slowest = 0.0
    for _ in range(10):
        for path in ("/health", "/ready", "/metrics", "/v1/recommend"):
            start = time.perf_counter()
            status = call(host, port, path, "{}" if path.startswith("/v1") else None)
            statuses.setdefault(path, set()).add(status)
            slowest = max(slowest, time.perf_counter() - start)
    return {path: sorted(x) for path, x in statuses.items()}, round(slowest, 4)


def attack(host: str, port: int, pid: int, n_sockets: int, header_bytes: int) -> dict[str, Any]:
    """Attack a server and return what its other clients got, and its memory."""
    probe(host, port)
    forget_peak(pid)
    before = memory_of(pid, "VmRSS")
    connections = open_connections(host, port, n_sockets)
    with_sockets = probe(host, port)
    floods = [send_headers(host, port, x, header_bytes) for x in (SMALL_HEADERS, LARGE_HEADER)]
    with_headers = probe(host, port)
    peak = memory_of(pid, "VmHWM")
    for connection in connections:
        connection.close()
    return {
        "connections": len(connections),
        "header_bytes_sent": [n for n, _ in floods],
        "answers_to_headers": [x[:12].decode() for _, x in floods],
        "statuses": [with_sockets[0], with_headers[0]],
        "slowest_answer_s": max(with_sockets[1], with_headers[1]),
        "memory_before": before,
        "memory_growth": round(peak / before - 1, 4),
    }


def main() -> None:
    """Attack the server that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("pid", type=int, help="process whose memory is measured")
    parser.add_argument("--sockets", type=int, default=2048)
    parser.add_argument("--header-bytes", type=int, default=100 << 20)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    address = host_and_port(options.url)
    print(json.dumps(attack(*address, options.pid, options.sockets, options.header_bytes)))


if __name__ == "__main__":
    main()
