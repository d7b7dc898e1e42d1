"""Clients that are slow, endless, broken or cunning, each on its own and all at once.

Each connection ends within the limits of the server, which serves others meanwhile.
"""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import slow_clients
from attack import Tally
from overload import address_of
from serve_process import Server, serving
from serve_world import fitted
from slow_clients import KINDS, call

LIMIT_S = 25.0  # twice the server's limit of 10 s, for the head and for the body, and its delays
N_SOCKETS = 2048
HELD_S = 30.0  # for which all attack at once
MAX_DELAY_MS = 100.0
MAX_MEMORY_GROWTH = 0.2
PATHS = ("/health", "/ready", "/metrics", "/v1/recommend")
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
LEAKS = (b"Traceback", b".py", b"/src/", b"/site-packages")


@dataclass(frozen=True)
class Case:
    """What a client sends, at once or in pieces, and the statuses that it may get."""

    data: bytes
    statuses: str = ""  # separated by spaces; "-": closed without an answer
    repeats: bytes = b""  # sent again and again until the server closes the connection
    pause_s: float = 0.0  # between the pieces
    pieces: int = 1
    n_answers: int = 1
    half_closes: bool = False

    def is_slow(self) -> bool:
        """Return whether the connection ends only with the time limit of the server."""
        return self.pause_s >= 0.01 or "408" in self.statuses


CASES: dict[str, Case] = {
    **{f"never goes on: {name}": Case(data, "- 200 408") for name, data in KINDS.items()},
    "byte by byte": Case(GET + b"\r\n", "200", pause_s=0.01, pieces=1000),
    "an empty line each second": Case(b"", "- 408", repeats=b"\r\n", pause_s=1.0),
    "a header each second": Case(GET, "- 408", repeats=b"a: b\r\n", pause_s=1.0),
    "a body byte each second": Case(POST + b"Content-Length: 99\r\n\r\n", "408", b"x", 1.0),
    "endless headers": Case(GET, "431 -", repeats=b"a: b\r\n" * 100),
    "endless header": Case(GET + b"x: ", "431 -", repeats=b"a" * 4096),
    "endless line": Case(b"GET /", "431 400 -", repeats=b"a" * 4096),
    "endless empty lines": Case(b"", "431 400 -", repeats=b"\r\n" * 1000),
    "endless chunks": Case(CHUNKED, "413 -", repeats=b"400\r\n" + b"a" * 1024 + b"\r\n"),
    "endless trailers": Case(CHUNKED + b"0\r\n", "431 -", repeats=b"a: b\r\n" * 100),
    "oversized header": Case(GET + b"x: " + b"a" * 20_000 + b"\r\n\r\n", "431 -"),
    "101 headers": Case(GET + b"a: b\r\n" * 101 + b"\r\n", "431"),
    "oversized body": Case(POST + b"Content-Length: 99999999\r\n\r\n", "413 -", b"a" * 65536),
    "body of 10^30 bytes": Case(POST + b"Content-Length: 1" + b"0" * 30 + b"\r\n\r\n", "400 413 -"),
    "negative length": Case(POST + b"Content-Length: -1\r\n\r\n", "400"),
    "length in words": Case(POST + b"Content-Length: two\r\n\r\n{}", "400"),
    "two lengths": Case(POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", "400"),
    "two equal lengths": Case(
        POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "400 200"
    ),
    "length and chunks": Case(
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "400"
    ),
    "chunked twice": Case(
        POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "400 200"
    ),
    "chunked and more": Case(
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "400"
    ),
    "chunk size that is none": Case(CHUNKED + b"xyz\r\n{}\r\n0\r\n\r\n", "400 -"),
    "chunk size of 2^64": Case(CHUNKED + b"1" + b"0" * 16 + b"\r\n", "400 -"),
    "chunk extensions": Case(CHUNKED + b"2;a=b\r\n{}\r\n0\r\n\r\n", "200 400"),
    "chunk extensions without an end": Case(CHUNKED + b"2;", "431 413 400 408 -", b"a" * 4096),
    "space before the colon": Case(GET + b"a : b\r\n\r\n", "400"),
    "folded header": Case(GET + b"a: b\r\n c\r\n\r\n", "200 400"),
    "bare line feeds": Case(b"GET /health HTTP/1.1\nHost: localhost\n\n", "400 200 -"),
    "carriage return in a header": Case(GET + b"a: b\rc\r\n\r\n", "400"),
    "NUL in the request line": Case(b"GET /hea\x00lth HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"),
    "NUL in a header": Case(GET + b"a: b\x00c\r\n\r\n", "400"),
    "bad method": Case(b"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "400 405"),
    "lower-case method": Case(b"get /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"),
    "TRACE": Case(b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
    "CONNECT": Case(
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", "400 404 405 -"
    ),
    "HTTP/0.9": Case(b"GET /health\r\n\r\n", "200 400 -"),
    "HTTP/1.0": Case(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n", "200"),
    "HTTP/9.9": Case(b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", "400"),
    "HTTP/2 preface": Case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0", "400 -"),
    "upgrade to HTTP/2": Case(
        GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n\r\n",
        "200 400",
    ),
    "upgrade to a WebSocket": Case(
        b"GET /v1/recommend HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n\r\n",
        "400 405 426",
    ),
    "TLS hello": Case(b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03" + bytes(range(200)), "400 -"),
    "SSH banner": Case(b"SSH-2.0-OpenSSH_9.2\r\n", "400 -"),
    "noise": Case(bytes(range(256)) * 20, "400 -"),
    "absolute URI": Case(
        b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n", "200 404 421 400"
    ),
    "hostile Host": Case(b"GET /v1/model HTTP/1.1\r\nHost: evil.example\r\n\r\n", "421"),
    "two Hosts": Case(b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\nHost: x\r\n\r\n", "400"),
    "no Host": Case(b"GET /v1/model HTTP/1.1\r\n\r\n", "400"),
    "Host with a line": Case(b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n x\r\n\r\n", "400 421"),
    "expects 100 and sends nothing": Case(
        POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", "100 408"
    ),
    "path upwards": Case(
        b"GET /static/../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"
    ),
    "path of 15 kB": Case(
        b"GET /" + b"%2e" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"
    ),
    "200 pipelined": Case((GET + b"\r\n") * 200, "200", n_answers=200),
    "pipelined behind nonsense": Case(GET + b"\r\n" + b"\0\0\0\r\n\r\n" + GET + b"\r\n", "200 400"),
    "half-closed after a request": Case(GET + b"\r\n", "200 -", half_closes=True),
    "half-closed in a request": Case(GET, "400 -", half_closes=True),
}


def run(folder: Path, seed: int, share: float) -> Tally:
    """Try each kind, all of a full attack at the same time; then slow and endless ones together."""
    tally, rng = Tally(), random.Random(seed)
    model = fitted("als").save(folder / "model")
    names = [x for x in CASES if share >= 1 or not CASES[x].is_slow()]
    rng.shuffle(names)
    with serving(model, folder / "token", 1) as server:
        address = address_of(server)
        with Others(tally, address, "each kind"), ThreadPoolExecutor(len(names)) as pool:
            for _ in pool.map(lambda name: try_case(tally, address, name), names):
                pass
        try_many_connections(tally, address, max(50, round(8192 * share)))
        n_sockets, seconds = max(64, round(N_SOCKETS * share)), max(1.0, HELD_S * share)
        if share < 1:
            try_all_at_once(tally, server, server, n_sockets, seconds)
        server.process.terminate()
        errors = server.process.communicate(timeout=60)[1]
        if "Traceback" in errors or "trace" in errors:
            tally.fail("log", f"seed {seed}", errors)
    for workers in (1, 2) if share >= 1 else ():
        with (
            serving(model, folder / "token", workers) as server,
            serving(model, folder / "quiet token", 1) as quiet,
        ):
            try_all_at_once(tally, server, quiet, n_sockets, seconds)
    return tally


class Others(threading.Thread):
    """Clients that ask for the status and for a list all the time, each on a new connection."""

    def __init__(self, tally: Tally, address: tuple[str, int], kind: str) -> None:
        super().__init__()
        self.tally, self.address, self.kind = tally, address, kind
        self.is_over = threading.Event()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.join()

    def run(self) -> None:
        while not self.is_over.wait(0.05):
            for path in PATHS:
                try:
                    status: object = call(*self.address, path, "{}" if "v1" in path else None)
                except OSError as error:
                    status = repr(error)
                self.tally.count("answers to others")
                if status != 200:
                    self.tally.fail("others", self.kind, f"{path}: {status}")


def try_case(tally: Tally, address: tuple[str, int], name: str) -> None:
    """Send what a case says; note an answer that it may not get, and a connection without end."""
    case, start = CASES[name], time.monotonic()
    data = exchange(case, address)
    seconds = time.monotonic() - start
    statuses = [x.decode() for x in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]
    tally.count(name)
    if not {*(statuses or ["-"])} <= {*case.statuses.split()}:
        tally.fail(name, "", f"statuses {statuses}: {data[:300]!r}")
    if len(statuses) != case.n_answers and case.n_answers > 1:
        tally.fail(name, "", f"{len(statuses)} answers, not {case.n_answers}")
    if any(x in data for x in LEAKS):
        tally.fail(name, "", f"a leak: {data[:1000]!r}")
    if seconds > LIMIT_S:
        tally.fail(name, "", f"open for {seconds:.0f} s")


def exchange(case: Case, address: tuple[str, int]) -> bytes:
    """Return what the server sends until it closes the connection or has answered."""
    data, end = b"", time.monotonic() + 2 * LIMIT_S
    size = max(1, -(-len(case.data) // case.pieces))
    pieces = [case.data[k : k + size] for k in range(0, len(case.data), size)]
    with socket.create_connection(address, timeout=LIMIT_S) as connection, suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(case.pause_s if case.pieces > 1 else 0)
        if case.half_closes:
            connection.shutdown(socket.SHUT_WR)
        connection.settimeout(case.pause_s if case.repeats else LIMIT_S)
        for piece in repeat(case.repeats):
            with suppress(BlockingIOError, TimeoutError):
                part = connection.recv(1 << 16)
                data += part
                if not part or is_answered(data, case.n_answers):
                    break
            if time.monotonic() > end:
                break
            if piece:
                try:
                    connection.settimeout(LIMIT_S)
                    connection.sendall(piece)
                finally:
                    connection.settimeout(case.pause_s)
    return data


def is_answered(data: bytes, n: int) -> bool:
    """Return whether there are n complete answers, not counting 100 Continue."""
    final = data.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    *_, last = final.split(b"HTTP/1.1 ")
    head, separator, body = last.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    is_complete = bool(separator) and length is not None and len(body) >= int(length[1])
    return is_complete and final.count(b"HTTP/1.1 ") >= n


def try_many_connections(tally: Tally, address: tuple[str, int], n: int) -> None:
    """Open many connections from one address and keep them; others find a place."""
    kind, connections = "connections from one address", []
    with Others(tally, address, kind):
        for _ in range(n):
            connections.append(socket.create_connection(address, timeout=LIMIT_S))
    tally.count(kind, n)
    for connection in connections:
        connection.close()


def try_all_at_once(
    tally: Tally, server: Server, quiet: Server, n_sockets: int, seconds: float
) -> None:
    """Hold idle, silent and endless connections and send endless headers, all at once.

    Others are answered by the server in a tenth of a second of its own time: what it waits for a
    processor, on a machine that has other work, is not counted. A quiet server beside it, asked in
    turn, shows the time of the clock in which both answer.
    """
    pids = server.worker_pids() or [server.process.pid]
    kind = f"all at once, {len(pids)} workers" if len(pids) > 1 else "all at once"
    probes = {"attacked": Probes(address_of(server), pids)}
    if quiet is not server:
        probes["quiet"] = Probes(address_of(quiet), [quiet.process.pid])
    for _ in range(10):
        for x in probes.values():
            x.ask()
    for x in probes.values():
        x.forget()
    before = {pid: memory_of(pid, "VmRSS") for pid in pids}
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # VmHWM begins again
    command = [sys.executable, slow_clients.__file__, f"http://{server.host}"]
    attackers = subprocess.Popen([*command, "--sockets", str(n_sockets)], stdout=subprocess.PIPE)
    assert attackers.stdout is not None
    try:
        os.set_blocking(attackers.stdout.fileno(), False)
        lines, end = b"", time.monotonic() + 120
        while time.monotonic() < end:
            for x in probes.values():
                x.ask()
            is_held = bool(lines)
            lines += attackers.stdout.read() or b""
            if lines and not is_held:  # all connections are open
                end = time.monotonic() + seconds
        if attackers.poll() is not None or not lines:
            tally.fail(kind, "", f"the attackers ended: {attackers.returncode}, {lines[:200]!r}")
    finally:
        attackers.kill()
        attackers.wait()
        attackers.stdout.close()
    growth = max(memory_of(pid, "VmHWM") / before[pid] - 1 for pid in pids)
    opened, *floods = lines.splitlines() or [b"0"]
    tally.count(f"{kind}: connections", int(opened))
    tally.count(f"{kind}: endless headers", len(floods))
    tally.measured[f"{kind}: memory_growth"] = round(growth, 4)
    if growth > MAX_MEMORY_GROWTH:
        tally.fail(kind, "", f"memory grew by {growth:.0%}")
    for name, x in probes.items():
        x.report(tally, f"{kind}, {name}")


class Probes:
    """Requests to a server, each on a new connection, with their times."""

    def __init__(self, address: tuple[str, int], pids: list[int]) -> None:
        self.address, self.pids = address, pids
        self.forget()

    def forget(self) -> None:
        """Forget all times."""
        self.problems: list[str] = []
        self.wall_ms: dict[str, list[float]] = {x: [] for x in PATHS}
        self.server_ms: dict[str, list[float]] = {x: [] for x in PATHS}

    def ask(self) -> None:
        """Send a request of each kind."""
        for path in PATHS:
            work = [processor_ms(x) for x in self.pids]
            start = time.perf_counter()
            try:
                status: object = call(*self.address, path, "{}" if "v1" in path else None)
            except OSError as error:
                status = repr(error)
            self.wall_ms[path].append((time.perf_counter() - start) * 1000)
            used = [processor_ms(x) - y for x, y in zip(self.pids, work, strict=True)]
            self.server_ms[path].append(max(used))
            if status != 200:
                self.problems.append(f"{path}: {status}")

    def report(self, tally: Tally, kind: str) -> None:
        """Count the requests, and note those that failed or took too long."""
        for path in PATHS:
            tally.count(f"{kind}: {path}", len(self.wall_ms[path]))
            middle = sorted(self.wall_ms[path])[len(self.wall_ms[path]) // 2]
            tally.measured[f"{kind}: {path} median_ms"] = round(middle, 1)
            tally.measured[f"{kind}: {path} slowest_ms"] = round(max(self.wall_ms[path]), 1)
            slowest = max(self.server_ms[path])
            tally.measured[f"{kind}: {path} slowest_processor_ms"] = round(slowest, 1)
            if slowest > MAX_DELAY_MS and path != "/v1/recommend":
                tally.fail(kind, path, f"the server took {slowest:.0f} ms of its own time")
        for problem in self.problems:
            tally.fail(kind, "", problem)


def processor_ms(pid: int) -> float:
    """Return the processor time of all threads of a process, in milliseconds."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(x.read_text().split()[0]) for x in files) / 1e6


def memory_of(pid: int, name: str) -> int:
    """Return the resident memory of a process: VmRSS, or VmHWM, the most since a reset."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024
