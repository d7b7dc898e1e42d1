"""What HTTP costs: requests per second and waits of /v1/recommend beside the engine in process.

ML-1M's catalogue (a world of its size where the data is not at hand), histories of 20 items, ten
best. The server and the engine each have one core to themselves, the client another one. The
client is `wrk`; weights are random, because speed does not depend on them. Of some slices of time
the best one counts, on both sides, and both are also counted per second of CPU: others may be
using the machine.

    python benchmarks/load.py [--slices 5] [--endurance 200000]     prints JSON
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from serving import LENGTH, ONE_THREAD, THRESHOLD, table, untrained

CONNECTIONS = (1, 16, 64)
BATCHES = (1, 4, 16, 64, 256)
PEOPLE, SECONDS = 2000, 2
Measurement = dict[str, Any]
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


def measure(model: str, slices: int, endurance: int) -> list[Measurement]:
    """The engine alone, the server under load, and its memory over many requests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _prepare(model, folder)
        command = [sys.executable, __file__, "--worker", name]
        inside = json.loads(_pinned(command, 0, stdout=subprocess.PIPE).stdout)
        units = {x["unit"] for x in inside}
        best = {u: max(x["value"] for x in inside if x["unit"] == u) for u in units}
        rows = [*inside]
        with server(folder / "model") as (address, pid):
            for connections in CONNECTIONS:
                load(address, connections, 1, folder)  # warm
                found = []
                for _ in range(slices):
                    worked = _cpu(pid)
                    found.append(load(address, connections, SECONDS, folder))
                    found[-1]["cpu"] = _cpu(pid) - worked
                rows += _row(model, connections, found, best)
            if endurance:
                rows += _endure(model, address, pid, endurance, folder)
        return rows


def _prepare(model: str, folder: Path) -> None:
    """A model of the shipped size, and what newcomers will post."""
    people, _ = table()
    counts = people.counts()
    if model == "als":  # solved in a moment, so it is the real one
        from idcf.recommender import Recommender

        made = Recommender("als", key_threshold=THRESHOLD, device="cpu", reg=10.0).fit(people)
    else:
        made = untrained(model, people, np.flatnonzero(counts >= THRESHOLD))
    made.save(folder / "model")
    order, start = people.by_user
    rng = np.random.default_rng(0)
    able = np.flatnonzero(counts >= LENGTH)
    with (folder / "bodies").open("w") as file:
        for user in rng.choice(able, PEOPLE):
            rows = rng.choice(order[start[user] : start[user + 1]], LENGTH, replace=False)
            history = [
                {"item_id": str(people.items.ids[i]), "rating": r}
                for i, r in zip(people.item[rows], people.rating[rows].tolist(), strict=True)
            ]
            file.write(json.dumps({"history": history, "n": 10}) + "\n")


def in_process(folder: Path) -> list[Measurement]:
    """Users per second from decoded questions to finished answers, at some sizes of a pass."""
    import msgspec
    import torch

    from idcf.recommender import Recommender
    from idcf.server.schemas import Ask
    from idcf.server.service import Serving

    torch.set_num_threads(1)
    serving = Serving.of(Recommender.load(folder / "model"))
    lines = (folder / "bodies").read_bytes().splitlines()
    asks = [msgspec.json.decode(x, type=Ask) for x in lines]
    out = []
    for size in BATCHES:
        pace, cheap = [], []
        for _ in range(10):
            began, worked = time.perf_counter(), time.process_time()
            for k in range(0, len(asks), size):
                serving.answer([serving.read(x) for x in asks[k : k + size]])
            pace.append(len(asks) / (time.perf_counter() - began))
            cheap.append(len(asks) / (time.process_time() - worked))
        name = f"in process, {size} a pass"
        out.append({"name": name, "value": round(max(pace)), "unit": "users/s"})
        out.append({"name": f"{name}, CPU", "value": round(max(cheap)), "unit": "users/CPU s"})
    return out


@contextmanager
def server(model: Path) -> Iterator[tuple[str, int]]:
    """`idcf serve` on a free port of the loopback, on the first core."""
    words = ["-m", "idcf", "serve", str(model), "--port", "0", "--json"]
    process = subprocess.Popen(
        [*_core(0), sys.executable, *words],
        stdout=subprocess.PIPE,
        env={**os.environ, **ONE_THREAD},
    )
    try:
        assert process.stdout
        told = json.loads(process.stdout.readline())
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{told['address']}/ready").close()
                break
            except OSError:
                time.sleep(0.05)
        yield told["address"], told["pid"]
    finally:
        process.terminate()
        process.wait()


def load(address: str, connections: int, seconds: float, folder: Path) -> Measurement:
    script = folder / "post.lua"
    script.write_text(_SCRIPT)
    words = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
    env = {**os.environ, "BODIES": str(folder / "bodies")}
    done = _pinned(
        [*words, "-s", str(script), f"{address}/v1/recommend"], 1, stdout=subprocess.PIPE, env=env
    )
    found: Measurement = json.loads(re.findall(rb"\{.*\}", done.stdout)[-1])
    return found


def _row(
    model: str, connections: int, found: list[Measurement], best: Mapping[str, float]
) -> list[Measurement]:
    top = max(found, key=_pace)
    pace, cheap = _pace(top), max(x["requests"] / x["cpu"] for x in found)
    name = f"{model} over HTTP, {connections} connections"
    share = {"": pace / best["users/s"], " per CPU second": cheap / best["users/CPU s"]}
    return [
        {"name": name, "value": round(pace), "unit": "requests/s"},
        {"name": f"{name}, CPU", "value": round(cheap), "unit": "requests/CPU s"},
        {"name": f"{name}, p50", "value": top["p50"], "unit": "ms"},
        {"name": f"{name}, p99", "value": top["p99"], "unit": "ms"},
        {"name": f"{name}, errors", "value": sum(x["errors"] for x in found), "unit": ""},
        *(
            {"name": f"{name}, of in process{how}", "value": round(x, 3), "unit": ""}
            for how, x in share.items()
        ),
    ]


def _pace(found: Measurement) -> float:
    return float(found["requests"] / found["seconds"])


def _endure(model: str, address: str, pid: int, total: int, folder: Path) -> list[Measurement]:
    """Resident memory at a quarter of the requests and at their end."""
    done, marks = 0, []
    while done < total:
        done += load(address, 64, 5, folder)["requests"]
        marks.append((done, _resident(pid)))
    early = next(size for n, size in marks if n >= total / 4)
    return [
        {"name": f"{model} memory after {n:,} requests", "value": round(size, 1), "unit": "MiB"}
        for n, size in marks
    ] + [{"name": "growth since a quarter of them", "value": marks[-1][1] - early, "unit": "MiB"}]


def _cpu(pid: int) -> float:
    """Seconds of work of a process so far, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024


def _core(core: int) -> list[str]:
    able = shutil.which("taskset") and core < (os.cpu_count() or 1)
    return ["taskset", "-c", str(core)] if able else []


def _pinned(words: list[str], core: int, **more: Any) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, **ONE_THREAD, **more.pop("env", {})}
    return subprocess.run([*_core(core), *words], env=env, check=True, **more)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="idcf-dot")
    parser.add_argument("--slices", type=int, default=5)
    parser.add_argument("--endurance", type=int, default=0)
    parser.add_argument("--worker")
    asked = parser.parse_args()
    if asked.worker:
        print(json.dumps(in_process(Path(asked.worker))))
    elif shutil.which("wrk") is None:
        sys.exit("wrk is needed: apt-get install wrk")
    else:
        print(json.dumps(measure(asked.model, asked.slices, asked.endurance), indent=2))
