"""A client that keeps a server busy: one process, raw sockets, no parsing beyond what it needs.

`python -m idcf.server.load_client` reads its options as one line of JSON, then the bodies of the
requests, one per line; it prints one line of JSON.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import sys
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PERCENTILES = (50, 90, 99, 99.9)
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_TIMEOUT_S = 30.0  # without any response


@dataclass
class _Connection:
    """One connection with a request on its way."""

    socket: socket.socket
    start: float = 0.0
    received: bytes = b""


class LoadClient:
    """Sends requests on some connections, on each the next one as soon as it has a response."""

    def __init__(self, host: str, port: int, bodies: Sequence[bytes]) -> None:
        self.address = (host, port)
        head = f"POST /v1/recommend HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        self.requests = [f"{head}Content-Length: {len(x)}\r\n\r\n".encode() + x for x in bodies]
        self.selector = selectors.DefaultSelector()
        self.n_sent = 0
        self.latencies = array("d")
        self.errors: Counter[str] = Counter()  # by the status, or the name of the exception

    def run(self, n_connections: int, seconds: float, max_requests: int) -> dict[str, Any]:
        """Send requests for some seconds, or until there are `max_requests` responses."""
        for _ in range(n_connections):
            self._connect()
        start = time.perf_counter()
        cpu_start, end, last = time.process_time(), start + seconds, start
        while (now := time.perf_counter()) < end and len(self.latencies) < max_requests:
            ready = self.selector.select(min(end - now, 0.5))
            last = time.perf_counter() if ready else last
            if now - last > _TIMEOUT_S:
                raise TimeoutError(f"the server has not answered for {_TIMEOUT_S:g} s")
            for key, _ in ready:
                self._receive(key.data)
        seconds = time.perf_counter() - start
        for key in list(self.selector.get_map().values()):
            key.data.socket.close()
        milliseconds = np.array(self.latencies) * 1000
        return {
            "requests": len(milliseconds),
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu_start,
            "errors": dict(self.errors),
            "latency_ms": {
                f"p{x:g}": float(np.percentile(milliseconds, x)) if len(milliseconds) else None
                for x in PERCENTILES
            },
        }

    def _connect(self) -> None:
        """Open a connection and send a request on it."""
        connection = _Connection(socket.create_connection(self.address, _TIMEOUT_S))
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        """Send the next request."""
        connection.start, connection.received = time.perf_counter(), b""
        connection.socket.sendall(self.requests[self.n_sent % len(self.requests)])
        self.n_sent += 1

    def _receive(self, connection: _Connection) -> None:
        """Read what has arrived; after a whole response, send the next request."""
        try:
            data = connection.socket.recv(1 << 18)
            if not data:
                raise ConnectionResetError
            data = connection.received + data
            head, separator, body = data.partition(b"\r\n\r\n")
            length = _LENGTH.search(head + b"\r\n") if separator else None
            if length is None or len(body) < int(length[1]):
                connection.received = data
                return
            if data[9:12] == b"200":
                self.latencies.append(time.perf_counter() - connection.start)
            else:
                self.errors[data[9:12].decode()] += 1
            self._send(connection)
        except OSError as error:
            self.errors[type(error).__name__] += 1
            self.selector.unregister(connection.socket)
            connection.socket.close()
            self._connect()


def main() -> None:
    """Read options and bodies from standard input, and print the measurement."""
    options = json.loads(sys.stdin.buffer.readline())
    bodies = sys.stdin.buffer.read().splitlines()
    client = LoadClient(options["host"], options["port"], bodies)
    result = client.run(options["connections"], options["seconds"], options["max_requests"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
