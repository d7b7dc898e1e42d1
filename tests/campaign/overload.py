"""More clients than a server can serve, its end while it is busy, and the end of a worker."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from attack import Tally
from busy_clients import BusyClients, BusyThread, get, post
from serve_process import BODY, Server, serving
from serve_world import fitted

CONNECTIONS = (500, 1500, 4000)
ANSWERS = 5  # to each connection
RECOVERY_S = 5.0
N_ENDS = 10  # of servers, and of workers
NO_LIMIT = ("--max-connections-per-address", "0")
REQUESTS = [post("/v1/recommend", BODY)] * 3 + [get("/v1/model")]


def run(folder: Path, seed: int, share: float) -> Tally:
    """Attack servers of one model; of a small share, with a part of the connections."""
    tally, rng = Tally(), random.Random(seed)
    model = fitted("als").save(folder / "model")
    token = folder / "token"
    with serving(model, token, 1 if share >= 1 else 2, *NO_LIMIT) as server:
        for n in CONNECTIONS:
            overload(tally, server, max(20, round(n * share)))
        if share < 1:  # one server is enough
            kill_worker(tally, server, rng, f"seed {seed}")
            end_while_busy(tally, server, f"seed {seed}")
            return tally
    for number in range(N_ENDS):
        with serving(model, token, 1 + number % 2) as server:
            end_while_busy(tally, server, f"seed {seed}, end {number}")
    with serving(model, token, 2) as server:
        for number in range(N_ENDS):
            kill_worker(tally, server, rng, f"seed {seed}, kill {number}")
    return tally


def address_of(server: Server) -> tuple[str, int]:
    """Return the host and the port."""
    host, port = server.host.split(":")
    return host, int(port)


def note(tally: Tally, kind: str, case: str, clients: BusyClients) -> None:
    """Count the answers to clients, and note those that are missing or wrong."""
    tally.count(f"{kind}: answers", clients.n_answers)
    for problem in [*clients.lost, *clients.wrong]:
        tally.fail(kind, case, problem)


def overload(tally: Tally, server: Server, n: int) -> None:
    """Open connections that all send requests at once, and see how soon it is over."""
    kind = f"{n} connections"
    clients = BusyClients(address_of(server), REQUESTS, n)
    clients.run(ANSWERS * n)
    clients.close()
    note(tally, kind, "", clients)
    tally.count(f"{kind}: refused with 503", clients.statuses[503])
    start, status = time.monotonic(), 0
    while status != 200 and time.monotonic() < start + 60:
        status = server.call("POST", "/v1/recommend", BODY)[0]
    seconds = time.monotonic() - start
    tally.measured[f"{kind}: recovery_s"] = round(seconds, 3)
    tally.measured[f"{kind}: slowest_answer_s"] = round(clients.slowest_s, 3)
    if seconds > RECOVERY_S:
        tally.fail(kind, "recovery", f"{seconds:.1f} s until a list was served")


def end_while_busy(tally: Tally, server: Server, case: str) -> None:
    """Send SIGTERM under 64 busy connections: every request gets its answer."""
    kind = "SIGTERM under 64 connections"
    thread = BusyThread(BusyClients(address_of(server), REQUESTS, 64))
    thread.start()
    thread.wait_for_answers(64 * 4)
    server.process.send_signal(signal.SIGTERM)
    thread.join(60)
    if thread.is_alive():
        tally.fail(kind, case, "connections are open after 60 s")
    note(tally, kind, case, thread.finish())
    code = server.process.wait(60)
    if code != -signal.SIGTERM:
        tally.fail(kind, case, f"exit code {code}")
    tally.count(kind)


def kill_worker(tally: Tally, server: Server, rng: random.Random, case: str) -> None:
    """Kill one of two workers: no request is lost beyond one of each of its connections.

    The clients open a new connection for each that they lose.
    """
    kind, n_connections = "a worker of two killed", 32
    thread = BusyThread(BusyClients(address_of(server), REQUESTS, n_connections, reconnects=True))
    thread.start()
    thread.wait_for_answers(rng.randrange(200, 400))
    victim = rng.choice(server.worker_pids())
    n_held = n_sockets(victim)
    os.kill(victim, signal.SIGKILL)
    thread.wait_for_answers(200)
    clients = thread.finish()
    clients.close()
    tally.count(f"{kind}: answers", clients.n_answers)
    tally.count(f"{kind}: requests that it held, lost", len(clients.lost))
    tally.count(kind)
    if len(clients.lost) > n_held:
        tally.fail(kind, case, f"{len(clients.lost)} lost; the worker had {n_held} connections")
    for problem in clients.wrong:
        tally.fail(kind, case, problem)
    end = time.monotonic() + 30
    while len(server.worker_pids()) < 2 or victim in server.worker_pids():
        time.sleep(0.05)
        if time.monotonic() > end:
            tally.fail(kind, case, "the worker is not replaced after 30 s")
            return


def n_sockets(pid: int) -> int:
    """Return the number of connections of a process."""
    links = [str(x.readlink()) for x in Path(f"/proc/{pid}/fd").iterdir() if x.is_symlink()]
    return sum(x.startswith("socket:") for x in links)
