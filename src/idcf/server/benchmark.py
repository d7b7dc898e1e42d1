"""The throughput and the latency of a served model, beside the same model without HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from idcf.errors import ConfigError
from idcf.inference.predictor import Predictor
from idcf.recommender import Recommender
from idcf.rng import random_stream
from idcf.server.batcher import BatcherLimits
from idcf.server.schemas import RecommendRequest
from idcf.server.service import RecommendationService

MAX_REQUESTS = 2_000_000  # of one measurement
_MIN_BODIES, _MAX_BODIES = 50, 1000  # different requests
_MAX_DRAWS = 50_000_000  # random numbers for them
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_PUBLISH_SECONDS = 1.2  # until the CPU time of all workers is in /metrics


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a measurement sends, and for how long."""

    connections: int = 64
    seconds: float = 10.0
    history_length: int = 20
    n: int = 10  # items of a list
    workers: int = 1  # of the server that is started
    url: str | None = None  # of a server that runs already


def measure_server(folder: Path, options: LoadOptions) -> dict[str, Any]:
    """Return requests per second, latencies and errors of a served model, and those in process.

    A server on the loopback interface is started, unless there is a URL. ConfigError: the server
    does not start or does not answer.
    """
    predictor = Recommender.load(folder).predictor
    bodies = make_bodies(predictor, options.history_length, options.n)
    load_average = os.getloadavg()[0]
    if options.url is None:
        with _started_server(folder, options.workers) as url:
            served = _measure_http(url, bodies, options)
    else:
        served = _measure_http(options.url, bodies, options)
    per_worker = max(1, options.connections // served["workers"])
    batch_size = min(per_worker, BatcherLimits().max_batch)
    engine = measure_engine(predictor, bodies, batch_size, min(options.seconds, 5.0))
    requests = max(served["requests"], 1)
    cpu_us = served["server_cpu_seconds"] / requests * 1e6
    return {
        "model": str(folder),
        "connections": options.connections,
        "workers": served.pop("workers"),
        "history_length": options.history_length,
        "requests_per_second": served["requests"] / served["seconds"],
        **served,
        "server_cpu_us_per_request": cpu_us,
        "client_is_bottleneck": served["client_cpu_seconds"] > served["server_cpu_seconds"],
        "engine": engine,
        "ratio": served["requests"] / served["seconds"] / engine["users_per_second"],
        "cpu_ratio": engine["cpu_us_per_user"] / cpu_us if cpu_us else None,
        "load_average": load_average,
        "cores": os.cpu_count(),
    }


def make_bodies(predictor: Predictor, history_length: int, n: int) -> list[bytes]:
    """Return bodies of requests; popular items are more likely in their histories.

    Items have ratings where the model has been trained on ratings.
    """
    rng, item_ids = random_stream(0, "bench-serve"), predictor.item_ids
    n_items = len(item_ids)
    if history_length > n_items:
        raise ConfigError(f"--history-length {history_length} is more than the {n_items:,} items")
    weights = np.ones(n_items)
    if predictor.log_popularity is not None:
        weights = np.exp(predictor.log_popularity.astype(np.float64))
    bodies = []
    for _ in range(min(_MAX_BODIES, max(_MIN_BODIES, _MAX_DRAWS // n_items))):
        times = rng.exponential(size=n_items) / weights  # of first occurrence, by popularity
        rows = times.argpartition(history_length - 1)[:history_length].tolist()
        history: list[dict[str, Any]] = [{"item_id": str(item_ids[x])} for x in rows]
        if not predictor.domain.implicit:
            for item in history:
                item["rating"] = float(rng.choice(predictor.domain.levels))
        bodies.append(json.dumps({"history": history, "n": n}).encode())
    return bodies


def measure_engine(
    predictor: Predictor, bodies: Sequence[bytes], batch_size: int, seconds: float
) -> dict[str, float]:
    """Time the lists of decoded requests in this process, as many at once as the server takes."""
    service = RecommendationService(Recommender.from_artifact(predictor.artifact))
    requests = [msgspec.json.decode(x, type=RecommendRequest) for x in bodies]
    n_users, start, cpu_start = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        for first in range(0, len(requests), batch_size):
            batch = requests[first : first + batch_size]
            service.recommend_batch([service.parse_request(x) for x in batch])
        n_users += len(requests)
    return {
        "batch_size": batch_size,
        "users_per_second": n_users / (time.perf_counter() - start),
        "cpu_us_per_user": (time.process_time() - cpu_start) / n_users * 1e6,
    }


def _measure_http(url: str, bodies: Sequence[bytes], options: LoadOptions) -> dict[str, Any]:
    """Send requests from another process; return its counts and the CPU time of the server."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None or parts.path not in ("", "/"):
        raise ConfigError(f"{url!r} is not the address of a server, such as http://127.0.0.1:8000")
    base = f"http://{parts.netloc}"
    client_options = {
        "host": parts.hostname,
        "port": parts.port or 80,
        "connections": options.connections,
        "max_requests": MAX_REQUESTS,
    }
    _run_client({**client_options, "seconds": min(options.seconds, 1.0)}, bodies)  # a warm-up
    time.sleep(_PUBLISH_SECONDS)
    before = read_metrics(base)
    result = _run_client({**client_options, "seconds": options.seconds}, bodies)
    time.sleep(_PUBLISH_SECONDS)
    after = read_metrics(base)
    counts = {name: after[name] - before.get(name, 0.0) for name in after}
    n_batches = counts["idcf_batches_total"]
    return {
        "requests": result["requests"],
        "seconds": result["seconds"],
        "latency_ms": result["latency_ms"],
        "errors": result["errors"],
        "workers": int(after["idcf_workers"]),
        "mean_batch_size": counts["idcf_batched_requests_total"] / max(n_batches, 1),
        "server_cpu_seconds": counts["process_cpu_seconds_total"],
        "client_cpu_seconds": result["cpu_seconds"],
    }


def _run_client(options: dict[str, Any], bodies: Sequence[bytes]) -> dict[str, Any]:
    """Run the client in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-m", "idcf.server.load_client"],
        input=b"\n".join([json.dumps(options).encode(), *bodies]),
        capture_output=True,
        check=False,
    )
    if process.returncode:
        reason = process.stderr.decode().strip().splitlines()[-1:] or ["no reason given"]
        raise ConfigError(f"the client of {options['host']}:{options['port']} failed: {reason[0]}")
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def read_metrics(url: str) -> dict[str, float]:
    """Return the metrics of a server without labels; ConfigError: it is no server of idcf."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
            text = response.read().decode()
    except OSError as error:
        raise ConfigError(f"{url}/metrics cannot be read: {error}") from None
    metrics = {k: float(v) for k, v in re.findall(r"(?m)^(\w+) (\S+)$", text)}
    if "idcf_workers" not in metrics:
        raise ConfigError(f"{url} is not a server of idcf, or one of an older version")
    return metrics


@contextmanager
def _started_server(folder: Path, workers: int) -> Iterator[str]:
    """Run `idcf serve` on a free port of the loopback interface and yield its address."""
    command = [sys.executable, "-m", "idcf", "serve", str(folder), "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--workers", str(workers)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **_ONE_THREAD},
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise ConfigError(f"the server of {folder} did not start")
        address: str = json.loads(line)["address"]
        yield address
    finally:
        process.terminate()
        process.communicate()
