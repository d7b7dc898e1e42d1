"""The cost of HTTP: throughput and latency of /v1/recommend, beside the service in process.

The catalogue is ML-1M's, or synthetic of its size if ML-1M is not installed; histories have 20
items, lists ten. The server, or the service in process, has one core and the client, `wrk`,
another; several workers share all cores with it. A model is the folder of a saved one, trained on
ML-1M, or a name: then weights are random, since the time does not depend on them. On both sides the
best of some time slices counts, and both are also counted per second of CPU time, because other
load distorts single times. With IDCF_PEERS, a Python with implicit, fastapi and uvicorn, `implicit`
behind a plain FastAPI is measured as well.

    idcf train ml-1m --out model
    python benchmarks/load.py --model model --model idcf-dot --workers 1 --workers 2

prints JSON; [--slices 5] [--endurance 200000] [--out FILE.jsonl]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from serving import HISTORY_LENGTH, KEY_THRESHOLD, ONE_THREAD, load_table, untrained_recommender

from idcf.evaluation.source_commit import source_commit

CONNECTIONS = (1, 16, 64)
BATCH_SIZES = (1, 4, 16, 64, 256)
N_REQUESTS, SLICE_SECONDS = 2000, 2
Measurement = dict[str, Any]  # name, value, unit
LoadSample = dict[str, float]  # requests, seconds, p50, p99 and errors of `wrk`; cpu of the server
_SCRIPT = """
local bodies, n = {}, 0
for line in io.lines(os.getenv("BODIES")) do n = n + 1; bodies[n] = line end
local k = math.random(n)
wrk.method, wrk.headers["Content-Type"] = "POST", "application/json"
request = function() k = k % n + 1; return wrk.format(nil, nil, nil, bodies[k]) end
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '{"requests":%d,"seconds":%.6f,"p50":%.3f,"p99":%.3f,"errors":%d}',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def measure(
    model: str, n_slices: int, n_endurance: int, worker_counts: Sequence[int]
) -> list[Measurement]:
    """Measure a model in process, then served under load in time slices per number of connections.

    Over `n_endurance` requests, if not 0, the server's memory is watched too.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _prepare(model, folder)
        command = [sys.executable, __file__, "--worker", name]
        in_process = json.loads(_run_pinned(command, 0, stdout=subprocess.PIPE).stdout)
        units = {x["unit"] for x in in_process}
        best = {u: max(x["value"] for x in in_process if x["unit"] == u) for u in units}
        measurements = [*in_process]
        for n_workers in worker_counts:
            with start_server(folder / "model", n_workers) as (address, pid):
                for n_connections in CONNECTIONS if n_workers == 1 else CONNECTIONS[-1:]:
                    samples = _load_slices(address, pid, n_connections, n_slices, n_workers, folder)
                    label = f"{model}, {n_workers} workers" if n_workers > 1 else model
                    measurements += _summarize(label, n_connections, samples, best)
                if n_endurance:
                    measurements += _watch_memory(model, address, pid, n_endurance, folder)
        if peer := os.environ.get("IDCF_PEERS"):
            with _start_peer(peer, folder) as (address, pid):
                samples = _load_slices(address, pid, CONNECTIONS[-1], n_slices, 1, folder)
            label = "implicit behind FastAPI"
            measurements += _summarize(label, CONNECTIONS[-1], samples, best)
        return measurements


def _load_slices(
    address: str, pid: int, n_connections: int, n_slices: int, n_workers: int, folder: Path
) -> list[LoadSample]:
    """Return samples of time slices after a warm-up, with the CPU time of the server."""
    core = 1 if n_workers == 1 else None
    send_load(address, n_connections, 1, folder, core)
    samples = []
    for _ in range(n_slices):
        cpu_seconds = _cpu_seconds(pid)
        sample = send_load(address, n_connections, SLICE_SECONDS, folder, core)
        samples.append({**sample, "cpu": _cpu_seconds(pid) - cpu_seconds})
    return samples


def _prepare(model: str, folder: Path) -> None:
    """Save a model, the ids of its items, and the bodies of requests into a folder."""
    from idcf.recommender import Recommender

    table, _ = load_table()
    counts = table.user_counts()
    if Path(model).is_dir():
        recommender = Recommender.load(model)
    elif model == "als":  # trains in seconds, so its weights are not random
        recommender = Recommender("als", key_threshold=KEY_THRESHOLD, device="cpu", reg=10.0)
        recommender.fit(table)
    else:
        keys = np.flatnonzero(counts >= KEY_THRESHOLD)
        recommender = untrained_recommender(model, table, keys)
    recommender.save(folder / "model")
    (folder / "items.json").write_text(json.dumps([str(x) for x in table.items.ids]))
    order, start = table.rows_by_user
    rng = np.random.default_rng(0)
    users = np.flatnonzero(counts >= HISTORY_LENGTH)
    with (folder / "bodies").open("w") as file:
        for user in rng.choice(users, N_REQUESTS):
            rows = rng.choice(order[start[user] : start[user + 1]], HISTORY_LENGTH, replace=False)
            history = [
                {"item_id": str(table.items.ids[i]), "rating": r}
                for i, r in zip(table.item[rows], table.rating[rows].tolist(), strict=True)
            ]
            file.write(json.dumps({"history": history, "n": 10}) + "\n")


def measure_in_process(folder: Path) -> list[Measurement]:
    """Time the service from decoded requests to finished lists, at some batch sizes."""
    import msgspec
    import torch

    from idcf.recommender import Recommender
    from idcf.server.schemas import RecommendRequest
    from idcf.server.service import RecommendationService

    torch.set_num_threads(1)
    service = RecommendationService(Recommender.load(folder / "model"))
    lines = (folder / "bodies").read_bytes().splitlines()
    requests = [msgspec.json.decode(x, type=RecommendRequest) for x in lines]
    measurements = []
    for size in BATCH_SIZES:
        per_second, per_cpu_second = [], []
        for _ in range(10):
            began, cpu_began = time.perf_counter(), time.process_time()
            for k in range(0, len(requests), size):
                service.recommend_batch([service.parse_request(x) for x in requests[k : k + size]])
            per_second.append(len(requests) / (time.perf_counter() - began))
            per_cpu_second.append(len(requests) / (time.process_time() - cpu_began))
        name = f"in process, {size} a pass"
        measurements += [
            {"name": name, "value": round(max(per_second)), "unit": "users/s"},
            {"name": f"{name}, CPU", "value": round(max(per_cpu_second)), "unit": "users/CPU s"},
        ]
    return measurements


@contextmanager
def start_server(model: Path, n_workers: int = 1) -> Iterator[tuple[str, int]]:
    """Run `idcf serve` on a free local port; yield its address and its pid.

    A single worker has the first core.
    """
    arguments = ["-m", "idcf", "serve", str(model), "--port", "0", "--json"]
    command = [sys.executable, *arguments, "--workers", str(n_workers)]
    with _started([*_pin_command(0 if n_workers == 1 else None), *command]) as server:
        yield server


@contextmanager
def _start_peer(python: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Serve `implicit` by another Python, on the first core; yield its address and its pid."""
    script = str(Path(__file__).with_name("fastapi_peer.py"))
    with _started([*_pin_command(0), python, script, str(folder / "items.json")]) as server:
        yield server


@contextmanager
def _started(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Run a server that prints its address and its pid as JSON, and wait until it is ready."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env={**os.environ, **ONE_THREAD},
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the server has no output to read its address from")
        ready = json.loads(process.stdout.readline())
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{ready['address']}/ready").close()
                break
            except OSError:
                time.sleep(0.05)
        yield ready["address"], ready["pid"]
    finally:
        process.terminate()
        process.communicate()


def send_load(
    address: str, n_connections: int, seconds: float, folder: Path, core: int | None = 1
) -> LoadSample:
    """Post requests with `wrk` for some seconds and return its counts and latencies."""
    script = folder / "post.lua"
    script.write_text(_SCRIPT)
    duration = f"-d{max(1, round(seconds))}s"
    command = ["wrk", "-t1", f"-c{n_connections}", duration, "--timeout", "10s"]
    command += ["-s", str(script), f"{address}/v1/recommend"]
    environment = {**os.environ, "BODIES": str(folder / "bodies")}
    process = _run_pinned(command, core, stdout=subprocess.PIPE, env=environment)
    sample: LoadSample = json.loads(re.findall(rb"\{.*\}", process.stdout)[-1])
    return sample


def _summarize(
    model: str, n_connections: int, samples: list[LoadSample], in_process: Mapping[str, float]
) -> list[Measurement]:
    """Return the measurements of the best slice; `in_process` is the best without HTTP, by unit."""
    best = max(samples, key=_requests_per_second)
    per_second = _requests_per_second(best)
    per_cpu_second = max(x["requests"] / x["cpu"] for x in samples)
    name = f"{model} over HTTP, {n_connections} connections"
    share = per_second / in_process["users/s"]
    cpu_share = per_cpu_second / in_process["users/CPU s"]
    return [
        {"name": name, "value": round(per_second), "unit": "requests/s"},
        {"name": f"{name}, CPU", "value": round(per_cpu_second), "unit": "requests/CPU s"},
        {"name": f"{name}, p50", "value": best["p50"], "unit": "ms"},
        {"name": f"{name}, p99", "value": best["p99"], "unit": "ms"},
        {"name": f"{name}, errors", "value": sum(x["errors"] for x in samples), "unit": ""},
        {"name": f"{name}, of in process", "value": round(share, 3), "unit": ""},
        {"name": f"{name}, of in process per CPU second", "value": round(cpu_share, 3), "unit": ""},
    ]


def _requests_per_second(sample: LoadSample) -> float:
    return sample["requests"] / sample["seconds"]


def _watch_memory(
    model: str, address: str, pid: int, n_requests: int, folder: Path
) -> list[Measurement]:
    """Return the server's memory over many requests, and its growth after the first quarter."""
    n_done, memory = 0, []
    while n_done < n_requests:
        n_done += int(send_load(address, 64, 5, folder)["requests"])
        memory.append((n_done, _resident_mib(pid)))
    early = next(mib for n, mib in memory if n >= n_requests / 4)
    growth = memory[-1][1] - early
    return [
        {"name": f"{model} memory after {n:,} requests", "value": round(mib, 1), "unit": "MiB"}
        for n, mib in memory
    ] + [{"name": "growth since a quarter of them", "value": growth, "unit": "MiB"}]


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children so far, in user and kernel mode."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK") + sum(_cpu_seconds(int(x)) for x in children)


def _resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


def _pin_command(core: int | None) -> list[str]:
    """Return the prefix of a command that pins it to a core, or none where that is impossible."""
    if core is None or not shutil.which("taskset") or core >= (os.cpu_count() or 1):
        return []
    return ["taskset", "-c", str(core)]


def _run_pinned(
    command: list[str], core: int | None, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **ONE_THREAD, **options.pop("env", {})}
    return subprocess.run([*_pin_command(core), *command], env=environment, check=True, **options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", help="name or folder; repeatable")
    parser.add_argument("--workers", type=int, action="append", help="repeatable")
    parser.add_argument("--slices", type=int, default=5)
    parser.add_argument("--endurance", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file to append the rows to")
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure_in_process(Path(options.worker))))
    elif shutil.which("wrk") is None:
        sys.exit("wrk is needed: apt-get install wrk")
    else:
        for name in options.model or ["idcf-dot"]:
            state = {"model": name, "load": os.getloadavg()[0], "commit": source_commit()}
            rows = measure(name, options.slices, options.endurance, options.workers or [1])
            print(json.dumps([state, *rows], indent=2))
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(state | row) + "\n" for row in rows)
