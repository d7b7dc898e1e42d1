"""Half a million requests of all kinds: the memory, files and threads of the server stay."""

from __future__ import annotations

import json
import os
import random
import re
import time
from pathlib import Path
from typing import Any

from attack import Tally
from busy_clients import BusyClients, Request, get, post
from serve_process import serving
from serve_world import fitted

REQUESTS = 500_000
N_CONNECTIONS = 16
WARM_UP = 0.1  # of the requests
POOL = min(32, (os.cpu_count() or 1) + 4)  # threads that an event loop starts as it needs them
MAX_GROWTH_BYTES = 8 << 20  # of resident memory after the warm-up
KINDS = {  # with their weights
    "/v1/recommend": 880,
    "/v1/predict": 30,
    "/v1/embed": 30,
    "/health": 20,
    "/v1/items?query=film": 10,
    "/v1/items/i2/similar": 10,
    "/v1/model": 10,
    "/v1/explain": 4,
    "/v1/next-question": 2,
    "/": 2,
    "/metrics": 2,
}


def run(folder: Path, seed: int, share: float) -> Tally:
    """Send the requests in tenths; compare the server after the first with the end."""
    tally, n_requests = Tally(), max(1000, round(REQUESTS * share))
    model = fitted("idcf-bayes").save(folder / "model")
    start = time.monotonic()
    with serving(model, folder / "token", 1) as server:
        host, port = server.host.split(":")
        n_threads = usage(server.process.pid)["threads"] + POOL
        clients = BusyClients((host, int(port)), requests(seed), N_CONNECTIONS)
        clients.run(round(n_requests * WARM_UP))
        before = usage(server.process.pid)
        clients.run(n_requests - round(n_requests * WARM_UP))
        after = usage(server.process.pid)
        clients.close()
    seconds = time.monotonic() - start
    for status, n in sorted(clients.statuses.items()):
        tally.count(f"answers with status {status}", n)
    for problem in [*clients.lost, *clients.wrong]:
        tally.fail("answer", f"seed {seed}", problem)
    tally.measured = {
        "requests_per_second": round(clients.n_answers / seconds),
        "slowest_answer_s": round(clients.slowest_s, 3),
        "memory_mib": round(after["memory"] / 2**20, 1),
        "memory_growth_mib": round((after["memory"] - before["memory"]) / 2**20, 2),
        "files": after["files"],
        "threads": after["threads"],
    }
    if after["memory"] - before["memory"] > MAX_GROWTH_BYTES:
        tally.fail("memory", f"seed {seed}", tally.measured)
    if after["files"] > before["files"]:
        tally.fail("files", f"seed {seed}", f"{before['files']} before, {after['files']} after")
    if after["threads"] > n_threads:
        tally.fail("threads", f"seed {seed}", f"{after['threads']}, more than {n_threads}")
    return tally


def requests(seed: int) -> list[Request]:
    """Return requests of all kinds in a random order."""
    rng = random.Random(seed)
    result = [request(path, rng) for path, n in KINDS.items() for _ in range(n)]
    rng.shuffle(result)
    return result


def request(path: str, rng: random.Random) -> Request:
    """Return a request of a kind, with a random history."""
    if path.count("/") < 2 or path.startswith(("/v1/items", "/v1/model")):
        return get(path)
    history = [
        {"item_id": f"i{k}", "rating": rng.randint(1, 5)}
        for k in rng.sample(range(40), rng.randint(0, 20))
    ]
    body: dict[str, Any] = {"history": history}
    if path == "/v1/predict":
        body["item_ids"] = [f"i{k}" for k in rng.sample(range(40), 5)]
    elif path == "/v1/explain":
        body["item_id"] = f"i{rng.randrange(40)}"
    return post(path, json.dumps(body))


def usage(pid: int) -> dict[str, int]:
    """Return the resident memory, the open files and the threads of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    memory, threads = (int(re.search(rf"{x}:\s+(\d+)", text)[1]) for x in ("VmRSS", "Threads"))  # type: ignore[index]
    return {
        "memory": memory * 1024,
        "threads": threads,
        "files": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
    }
