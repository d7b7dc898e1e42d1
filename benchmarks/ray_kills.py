"""Kill workers and nodes of a virtual Ray cluster in the middle of work, and compare the results.

    python benchmarks/ray_kills.py [fit | embed] [--kills 20] [--users 1e5] [--seed 0]
                                   [--out FILE.jsonl]

Three nodes of one processor each. At random moments a worker process is killed (SIGKILL), or a node
is removed with all its processes and another one is added. Each fit must have the digest of the fit
in one process; with `embed`, so must the files of `idcf embed` and `idcf recommend`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster
from scale import artifact_digest
from scale_rows import append_row, command_of, descendants
from scale_world import _BLOCKS_PER_SHARD, World, write_world

from idcf import Recommender
from idcf.inference.bulk import BulkWork
from idcf.inference.bulk_folder import convert_folder
from idcf.training.engine import Call, Engine, LocalEngine, Result, State
from idcf.training.ray_engine import RayEngine

_N_PARTS = 40
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


def embed(verb: str, folder: Path, engine: Engine) -> tuple[str, float]:
    """Return the digest of the results for all users of a world, and the seconds."""
    start, model = time.perf_counter(), folder.with_name(f"{folder.name}-model")
    out = folder.with_name(f"{folder.name}-results")
    shutil.rmtree(out, ignore_errors=True)
    if not model.exists():
        recommender = Recommender("als", device="cpu", **_MODELS["als"])
        recommender.fit(folder, engine=engine, implicit=True).save(model)
    work = BulkWork.of_model(model, "cpu")
    if verb == "recommend":
        work = replace(work, list_options={"n": 5})
    report, digest = convert_folder(work, folder, out, engine), hashlib.sha256()
    for path in sorted(out.glob("*.parquet")):
        digest.update(path.name.encode() + path.read_bytes())
    return f"{report['n_users']}-{digest.hexdigest()[:16]}", time.perf_counter() - start


def main() -> None:
    """Work again and again until there were enough kills."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", nargs="?", choices=("fit", "embed"), default="fit")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--users", default="1e5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/scale"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    n_users = int(float(arguments.users))
    if arguments.mode == "fit":
        names, work, folder = list(_MODELS), fit, arguments.folder / f"world-{n_users}"
        write_world(World(), folder, n_users)
    else:
        names, work = ["embed", "recommend"], embed
        folder = arguments.folder / f"world-{n_users}-{_N_PARTS}"
        write_world(World(), folder, n_users, -(-n_users // (_N_PARTS * _BLOCKS_PER_SHARD)))
    expected = {name: work(name, folder, LocalEngine())[0] for name in names}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    engine, n_runs = KillingEngine(cluster, np.random.default_rng(arguments.seed)), 0
    while engine.n_workers_killed + engine.n_nodes_removed < arguments.kills and n_runs < 50:
        name = names[n_runs % len(names)]
        before = engine.n_workers_killed, engine.n_nodes_removed
        digest, seconds = work(name, folder, engine)
        n_runs += 1
        row = {
            "part": "kills",
            "model" if arguments.mode == "fit" else "verb": name,
            "seed": arguments.seed,
            "users": n_users,
            "seconds": round(seconds, 1),
            "killed_workers": engine.n_workers_killed - before[0],
            "removed_nodes": engine.n_nodes_removed - before[1],
            "is_equal": digest == expected[name],
        }
        append_row(arguments.out, row)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
