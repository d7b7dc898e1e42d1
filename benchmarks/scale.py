"""What training over shards costs with ever more users, and what it is worth, on a known world.

    python benchmarks/scale.py growth --users 1e5,1e6,1e7 [--models idcf-takeup,...] [--engine ...]
    python benchmarks/scale.py shards --users 1e6      # N shards one after the other: critical path
    python benchmarks/scale.py engines --users 1e6     # processes and ray, in turn

Every fit runs in a process of its own. Processor time is that of all processes; memory is the peak
of the process that drives and of the largest worker (VmHWM). NDCG@20 is that of 1,000 new users of
the world, of whom up to ten rows are known. Worlds are written to --folder and used again. Rows are
appended to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scale_world import World, write_world

from idcf import Recommender
from idcf.data.shards import ShardedTable
from idcf.metrics import RelevantItems, ndcg_at
from idcf.training.block_sums import divide_blocks, run_shard
from idcf.training.engine import Engine, ProcessEngine, open_engine
from idcf.training.sharded import baselines, cooccurrences
from idcf.training.sharded.passes import ItemCounts, UserFilter
from idcf.training.sharded.training import ShardedTraining

_N_NEW_USERS = 1000
_MODELS = "popularity,als,idcf-takeup,idcf-bayes"
_OPTIONS: dict[str, dict[str, Any]] = {"als": {"embedding_size": 32, "epochs": 5, "reg": 10.0,
                                               "alpha": 10.0}}  # fmt: skip


def peak_gib(pid: int | str = "self") -> float:
    """Return the peak resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def worker_peak_gib(engine: Engine) -> float | None:
    """Return the largest peak of the processes of an engine; None: it has none of its own."""
    if not isinstance(engine, ProcessEngine) or engine._pool is None:
        return None
    return max(peak_gib(pid) for pid in engine._pool._processes)


def processor_seconds() -> float:
    """Return the processor time of this process and of those that it has ended."""
    usage = [resource.getrusage(x) for x in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(x.ru_utime + x.ru_stime for x in usage)


def new_user_ndcg(recommender: Recommender, world: World) -> float:
    """Return NDCG@20 of new users of the world."""
    users = world.new_users(_N_NEW_USERS)
    implicit = recommender.manifest.domain.implicit
    histories: list[Any] = [list(x) if implicit else x for x, _ in users]
    lists = recommender.recommend(histories, n=20)
    top = np.array([[x.item_id for x in one] for one in lists])
    targets = [np.sort(x) for _, x in users]
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in targets])])
    relevant = RelevantItems(np.concatenate(targets), offsets)
    return float(np.nanmean(ndcg_at(top, relevant, k=20)))


def fit_once(model: str, folder: Path, engine_name: str, workers: int) -> dict[str, Any]:
    """Fit a model to a world in this process, with its workers."""
    world = World()
    start, engine = time.perf_counter(), open_engine(engine_name, workers)
    options = _OPTIONS.get(model, {})
    recommender = Recommender(model, device="cpu", **options).fit(
        folder, engine=engine, implicit=model in ("als", "idcf-takeup", "popularity")
    )
    seconds, workers_peak = time.perf_counter() - start, worker_peak_gib(engine)
    engine.close()
    row = {
        "model": model,
        "users": recommender.manifest.training_data.n_users,
        "items": world.n_items,
        "rows": recommender.manifest.training_data.n_rows,
        "engine": engine_name,
        "workers": workers,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor_seconds(), 1),
        "driver_peak_gib": round(peak_gib(), 2),
        "worker_peak_gib": workers_peak and round(workers_peak, 2),
        "sha256": artifact_digest(recommender),
    }
    return row | {"ndcg@20": round(new_user_ndcg(recommender, world), 4)}


def artifact_digest(recommender: Recommender) -> str:
    """Return a digest of all tensors of the fitted models."""
    import hashlib

    digest, artifact = hashlib.sha256(), recommender.artifact
    for model in (artifact.model, artifact.take_up_model):
        for name, value in sorted(model.state_dict().items()) if model else ():
            digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def critical_path(folder: Path) -> list[dict[str, Any]]:
    """Time one pass over N shards, one after the other: the longest shard and adding up the sums
    would be the time on N machines."""
    table = ShardedTable.open(folder).as_implicit()
    users, rng = UserFilter(12), np.random.default_rng(0)
    factors = rng.normal(0, 0.1, (table.n_items, 32)).astype(np.float32)
    works: dict[str, tuple[Any, Any]] = {
        "item counts": (ItemCounts(users), {}),
        "pairs of items": pair_work(table, users),
        "sweep of als": als_work(table, users, factors),
    }
    torch.set_num_threads(1)
    rows = []
    for name, (work, state) in works.items():
        run_shard(work, table, range(4), state)  # caches are filled
        whole = None
        for n_shards in (1, 2, 4, 8, 16, 32, 64):
            seconds, results = [], []
            for shard in divide_blocks(table.n_blocks, n_shards):
                start = time.perf_counter()
                results.append(run_shard(work, table, shard, state))
                seconds.append(time.perf_counter() - start)
            total = work.zeros(table, state)
            start = time.perf_counter()
            for result in results:
                for key in total:
                    total[key] += result[key]
            reduce = time.perf_counter() - start
            whole = whole or sum(seconds)
            n_bytes = [sum(x.nbytes for x in result.values()) for result in results]
            rows.append({
                "pass": name, "users": table.n_users, "shards": n_shards,
                "longest_shard": round(max(seconds), 2), "all_shards": round(sum(seconds), 2),
                "reduce": round(reduce, 3), "bytes_per_shard": max(n_bytes),
                "efficiency": round(whole / (n_shards * (max(seconds) + reduce)), 3),
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


def als_work(table: ShardedTable, users: UserFilter, factors: np.ndarray) -> tuple[Any, Any]:
    """Return a pass of implicit ALS, and its state."""
    from idcf.models.baselines import FoldInConfig
    from idcf.types import Domain, Ragged

    domain = Domain(0, 0, 0.0, (1.0,), True, Ragged.empty(0))
    config = FoldInConfig(embedding_size=factors.shape[1])
    model = baselines.FoldInModel(config, domain)
    state = {
        "factors": factors,
        "shared": factors.T.astype(float) @ factors + 10 * np.eye(factors.shape[1]),
        "item_bias": np.zeros(table.n_items, np.float32),
    }
    return baselines._NormalEquations(users, model), state


def pair_work(table: ShardedTable, users: UserFilter) -> tuple[Any, Any]:
    """Return the pass that counts pairs of items, for candidates of a sample, and its state."""
    sample = ShardedTraining(table, open_engine("local")).sample("sample", max_rows=500_000)
    from idcf.training.solvers.cooccurrences import MatrixSource

    x = sample.matrix(table.n_items, np.ones(len(sample.items), np.float32))
    nearest = MatrixSource(x).nearest_items(300)
    candidates, offsets, _ = cooccurrences.candidate_pairs(nearest)
    return cooccurrences._CandidatePairs(users, 0), {"candidates": candidates, "offsets": offsets}


def growth(arguments: argparse.Namespace, sizes: list[int], engines: list[str]) -> None:
    """Fit every model to every world, each in a process of its own."""
    for n_users in sizes:
        folder = arguments.folder / f"world-{n_users}"
        start = time.perf_counter()
        write_world(World(), folder, n_users)
        print(f"world of {n_users:,} users: {time.perf_counter() - start:.0f} s", flush=True)
        for model in arguments.models.split(","):
            for engine in engines:
                command = [sys.executable, __file__, "fit", "--models", model, "--folder"]
                command += [str(folder), "--engine", engine, "--workers", str(arguments.workers)]
                out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                row = json.loads(out.splitlines()[-1])
                append(arguments.out, {**row, "load": round(os.getloadavg()[0], 1)})


def append(path: Path | None, row: dict[str, Any]) -> None:
    """Print a row, and append it to a file."""
    print(json.dumps(row), flush=True)
    if path:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["growth", "shards", "engines", "fit"])
    parser.add_argument("--users", default="1e5,1e6")
    parser.add_argument("--models", default=_MODELS)
    parser.add_argument("--engine", default="processes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("runs/scale"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    sizes = [int(float(x)) for x in arguments.users.split(",")]
    if arguments.part == "fit":
        row = fit_once(arguments.models, arguments.folder, arguments.engine, arguments.workers)
        print(json.dumps(row))
    elif arguments.part == "growth":
        growth(arguments, sizes, [arguments.engine])
    elif arguments.part == "engines":
        growth(arguments, sizes, ["local", "processes", "ray"])
    else:
        for n_users in sizes:
            folder = arguments.folder / f"world-{n_users}"
            write_world(World(), folder, n_users)
            for row in critical_path(folder):
                append(arguments.out, row)


if __name__ == "__main__":
    main()
