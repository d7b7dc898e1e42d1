"""Slow and endless clients of a server, all at once.

`python tests/server/slow_clients.py URL --sockets 2048` opens connections that never end a request,
prints a line when all are open, and sends endless headers until it is killed.
"""

from __future__ import annotations

import argparse
import resource
import socket
from contextlib import suppress
from http.client import HTTPConnection
from itertools import cycle

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
            with suppress(ConnectionError):
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


def main() -> None:
    """Keep connections open and send headers without an end, until the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("--sockets", type=int, default=2048)
    parser.add_argument("--header-bytes", type=int, default=100 << 20)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    address = host_and_port(options.url)
    connections = open_connections(*address, options.sockets)
    print(len(connections), flush=True)
    for piece in cycle((SMALL_HEADERS, LARGE_HEADER)):
        n_bytes, answer = send_headers(*address, piece, options.header_bytes)
        print(n_bytes, answer[9:12].decode(), flush=True)


if __name__ == "__main__":
    main()
