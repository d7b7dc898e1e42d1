"""Kill workers and nodes of a virtual Ray cluster in the middle of fits, and compare the results.

    python benchmarks/ray_kills.py [--kills 20] [--users 1e5] [--seed 0] [--out FILE.jsonl]

Three nodes of one processor each. At random moments a worker process is killed (SIGKILL), or a node
is removed with all its processes and another one is added. Each fit must have the digest of the fit
in one process.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster
from scale import artifact_digest
from scale_rows import append_row, command_of, descendants
from scale_world import World, write_world

from idcf import Recommender
from idcf.training.engine import Call, Engine, LocalEngine, Result, State
from idcf.training.ray_engine import RayEngine

_MODELS = {
    "als": {"embedding_size": 8, "epochs": 6, "reg": 10.0, "alpha": 10.0},
    "idcf-takeup": {"max_dense_items": 500, "power": 1.0, "spectral_weight": 0.0, "reg": 50.0},
}


def worker_processes() -> list[int]:
    """Return the processes that make a call, among those that this process started."""
    pids = descendants(os.getpid())
    return [pid for pid in pids if command_of(pid).startswith(b"ray::_call_on_worker")]


class KillingEngine(RayEngine):
    """Kills a worker after one result in twelve, and a node instead in one of four kills."""

    def __init__(self, cluster: Cluster, rng: np.random.Generator) -> None:
        super().__init__()
        self.cluster, self.rng = cluster, rng
        self.node = cluster.add_node(num_cpus=1)
        self.n_workers_killed = self.n_nodes_removed = 0

    def map(
        self, call: Call[Result], tasks: Sequence[tuple[Any, ...]], state: State
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results, and kill something now and then."""
        for position, result in super().map(call, tasks, state):
            if self.rng.random() < 1 / 12:
                self._kill()
            yield position, result

    def _kill(self) -> None:
        """Kill a worker that is computing, or a node and its processes."""
        if self.rng.random() < 0.25:
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = self.cluster.add_node(num_cpus=1)
            self.n_nodes_removed += 1
        elif pids := worker_processes():
            try:
                os.kill(int(self.rng.choice(pids)), signal.SIGKILL)
            except ProcessLookupError:
                return
            self.n_workers_killed += 1


def fit(model: str, folder: Path, engine: Engine) -> tuple[str, float]:
    """Return the digest of a fitted model, and the seconds of the fit."""
    start = time.perf_counter()
    recommender = Recommender(model, device="cpu", **_MODELS[model])
    recommender.fit(folder, engine=engine, implicit=True)
    return artifact_digest(recommender), time.perf_counter() - start


def main() -> None:
    """Fit again and again until there were enough kills."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--users", default="1e5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/scale"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    n_users = int(float(arguments.users))
    folder = arguments.folder / f"world-{n_users}"
    write_world(World(), folder, n_users)
    expected = {model: fit(model, folder, LocalEngine())[0] for model in _MODELS}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    engine, n_fits = KillingEngine(cluster, np.random.default_rng(arguments.seed)), 0
    while engine.n_workers_killed + engine.n_nodes_removed < arguments.kills and n_fits < 50:
        model = list(_MODELS)[n_fits % len(_MODELS)]
        before = engine.n_workers_killed, engine.n_nodes_removed
        digest, seconds = fit(model, folder, engine)
        n_fits += 1
        row = {
            "part": "kills",
            "model": model,
            "seed": arguments.seed,
            "users": n_users,
            "seconds": round(seconds, 1),
            "killed_workers": engine.n_workers_killed - before[0],
            "removed_nodes": engine.n_nodes_removed - before[1],
            "is_equal": digest == expected[model],
        }
        append_row(arguments.out, row)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
