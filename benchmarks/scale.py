"""What training over shards costs with ever more users, and what it is worth, on a known world.

    python benchmarks/scale.py growth --users 1e5,1e6,1e7 [--models idcf-takeup,...] [--engine ...]
    python benchmarks/scale.py shard --users 1e6       # the command `idcf shard`
    python benchmarks/scale.py shards --users 1e6      # N shards one after the other: critical path
    python benchmarks/scale.py engines --users 1e6 --repeats 3      # processes and ray, in turn
    python benchmarks/scale.py embed --users 1e5,1e6,1e7,1e8 --models idcf-bayes \\
        [--embed-options "--engine ray"]               # the command `idcf embed`
    python benchmarks/scale.py all --out benchmarks/reports/scale.jsonl    # `make bench-scale`

Every fit runs in a process of its own. Processor time is that of all its processes, but for the
start of Python in the one that drives; memory is the peak of that process and of the largest worker
(VmHWM). NDCG@20 is that of 1,000 new users of the world, of whom up to ten rows are known. Worlds
are written to --folder and used again. Rows are appended to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from scale_rows import append_row, command_of, descendants, peak_gib, processor_seconds
from scale_world import World, write_world

from idcf import Recommender
from idcf.data.shards import ShardedTable
from idcf.files import atomic_path
from idcf.metrics import RelevantItems, ndcg_at
from idcf.training.block_sums import divide_blocks, run_shard
from idcf.training.engine import Call, Engine, Result, State, open_engine
from idcf.training.sharded import baselines, cooccurrences
from idcf.training.sharded.passes import ItemCounts, UserFilter
from idcf.training.sharded.training import ShardedTraining

HISTORIES = pa.schema(
    {"user_id": pa.int64(), "item_id": pa.int64(), "rating": pa.float32()}
)  # of the files that `idcf embed` reads
_N_NEW_USERS = 1000
_MODELS = "popularity,als,idcf-takeup,idcf-bayes"
_OPTIONS: dict[str, dict[str, Any]] = {
    "als": {"embedding_size": 16, "epochs": 2, "reg": 10.0, "alpha": 10.0}
}


_PARTS = ("growth", "shard", "shards", "engines", "embed")
_ALL = (
    ("scale.py", "growth", "--users", "1e5,1e6,1e7"),
    ("scale.py", "shard", "--users", "1e6"),
    ("scale.py", "shards", "--users", "1e6"),
    ("scale.py", "shards", "--users", "1e7", "--shards", "1,64", "--passes", "sweep of als"),
    ("scale.py", "engines", "--users", "1e6", "--models", "als,idcf-takeup", "--repeats", "2"),
    ("scale.py", "engines", "--users", "1e7", "--models", "als"),
    ("scale.py", "embed", "--users", "1e5,1e6,1e7", "--models", "idcf-bayes"),
    ("ray_kills.py", "--kills", "12"),
    ("ray_kills.py", "--kills", "12", "--seed", "1"),
)


class CountingEngine:
    """An engine that counts the bytes of the results of each kind of pass."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.n_workers = engine, engine.n_workers
        self.bytes_of_pass: dict[str, int] = {}  # name of the work -> of its largest pass

    def map(
        self, call: Call[Result], tasks: Sequence[tuple[Any, ...]], state: State
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results of the engine."""
        n_bytes = 0
        for position, result in self.engine.map(call, tasks, state):
            n_bytes += sum(x.nbytes for x in result.values())
            yield position, result
        name = type(tasks[0][0]).__name__.strip("_")
        self.bytes_of_pass[name] = max(n_bytes, self.bytes_of_pass.get(name, 0))

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()


def worker_peak_gib() -> float | None:
    """Return the largest peak of the processes that compute; None: there are none."""
    peaks = [peak_gib(x) for x in descendants(os.getpid()) if is_worker(command_of(x))]
    return max(peaks, default=None)


def is_worker(command: bytes) -> bool:
    """Return whether a command line is that of a worker of an engine."""
    return b"spawn_main" in command or command.startswith(b"ray::")


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
    world, options = World(), _OPTIONS.get(model, {})
    start, before = time.perf_counter(), processor_seconds()
    engine = CountingEngine(open_engine(engine_name, None if engine_name == "local" else workers))
    opened = time.perf_counter()
    recommender = Recommender(model, device="cpu", **options).fit(
        folder, engine=engine, implicit=model in ("als", "idcf-takeup", "popularity")
    )
    seconds, total, peak = time.perf_counter(), processor_seconds(), worker_peak_gib()
    engine.close()
    data = recommender.manifest.training_data
    return {
        "model": model,
        "options": options,
        "users": data.n_users,
        "items": world.n_items,
        "rows": data.n_rows,
        "engine": engine_name,
        "workers": engine.n_workers,
        "seconds": round(seconds - start, 1),
        "seconds_to_open": round(opened - start, 1),
        "processor_seconds": round(total - before, 1),
        "start_processor_seconds": round(before, 1),
        "driver_peak_gib": round(peak_gib(), 2),
        "worker_peak_gib": peak and round(peak, 2),
        "bytes_of_pass": engine.bytes_of_pass,
        "sha256": artifact_digest(recommender),
        "ndcg@20": round(new_user_ndcg(recommender, world), 4),
    }


def artifact_digest(recommender: Recommender) -> str:
    """Return a digest of all tensors of the fitted models."""
    import hashlib

    digest, artifact = hashlib.sha256(), recommender.artifact
    for model in (artifact.model, artifact.take_up_model):
        for name, value in sorted(model.state_dict().items()) if model else ():
            digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def critical_path(
    folder: Path, numbers: list[int], passes: list[str] | None
) -> Iterator[dict[str, Any]]:
    """Time one pass over N shards, one after the other: the longest shard and adding up the sums
    would be the time on N machines. Times are processor times."""
    table = ShardedTable.open(folder).as_implicit()
    users, rng = UserFilter(12), np.random.default_rng(0)
    size = _OPTIONS["als"]["embedding_size"]
    factors = rng.normal(0, 0.1, (table.n_items, size)).astype(np.float32)
    works: dict[str, Callable[[], tuple[Any, Any]]] = {
        "item counts": lambda: (ItemCounts(users), {}),
        "pairs of items": lambda: pair_work(table, users),
        "sweep of als": lambda: als_work(table, users, factors),
    }
    torch.set_num_threads(1)
    for name in passes or works:
        work, state = works[name]()
        run_shard(work, table, range(4), state)  # caches are filled
        whole = None
        for n_shards in numbers:
            seconds, results = [], []
            for shard in divide_blocks(table.n_blocks, n_shards):
                start = time.process_time()
                results.append(run_shard(work, table, shard, state))
                seconds.append(time.process_time() - start)
            total = work.zeros(table, state)
            start = time.process_time()
            for result in results:
                for key in total:
                    total[key] += result[key]
            reduce = time.process_time() - start
            whole = whole or sum(seconds)
            n_bytes = [sum(x.nbytes for x in result.values()) for result in results]
            yield {
                "pass": name, "users": table.n_users, "shards": n_shards,
                "longest_shard": round(max(seconds), 2), "all_shards": round(sum(seconds), 2),
                "reduce": round(reduce, 3), "bytes_per_shard": max(n_bytes),
                "efficiency": round(whole / (n_shards * (max(seconds) + reduce)), 3),
            }  # fmt: skip


def als_work(table: ShardedTable, users: UserFilter, factors: np.ndarray) -> tuple[Any, Any]:
    """Return a pass of implicit ALS, and its state."""
    from idcf.models.options import FoldInConfig
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


def world_folder(folder: Path, n_users: int) -> Path:
    """Write a world, if it is not there already; return its folder."""
    path = folder / f"world-{n_users}"
    start = time.process_time()
    write_world(World(), path, n_users)
    seconds = time.process_time() - start
    print(f"world of {n_users:,} users: {seconds:.0f} s", file=sys.stderr, flush=True)
    return path


def measure_fits(arguments: argparse.Namespace, engines: list[str]) -> None:
    """Fit every model to every world with every engine, each fit in a process of its own."""
    for n_users in arguments.users:
        folder = world_folder(arguments.folder, n_users)
        for _ in range(arguments.repeats):
            for model in arguments.models.split(","):
                for engine in engines:
                    command = [sys.executable, __file__, "fit", "--models", model, "--world"]
                    command += [str(folder), "--engine", engine, "--workers"]
                    command += [str(arguments.workers)]
                    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                    row = json.loads(process.stdout.splitlines()[-1])
                    append_row(arguments.out, {"part": arguments.part, **row})


def measure_shards(arguments: argparse.Namespace) -> None:
    """Time passes over N shards, one after the other."""
    for n_users in arguments.users:
        world = world_folder(arguments.folder, n_users)
        for row in critical_path(world, arguments.shards, arguments.passes):
            append_row(arguments.out, {"part": "shards", **row})


def measure_embed(arguments: argparse.Namespace) -> None:
    """Run `idcf embed` on the histories of worlds, with the model of --models fitted to the first.

    The histories are a folder of Parquet files, one for each shard of the world; with one shard it
    is that file.
    """
    worlds = [world_folder(arguments.folder, x) for x in arguments.users]
    model = arguments.folder / f"embed-model-{arguments.models}"
    if not model.exists():
        run_idcf(
            *("train", worlds[0], "--out", model, "--model", arguments.models),
            "--no-card-metrics",
        )
    for n_users, world in zip(arguments.users, worlds, strict=True):
        histories = history_files(ShardedTable.open(world), world / "histories")
        out = arguments.folder / f"embeddings-{n_users}"
        seconds, usage, peak = run_idcf(
            "embed", model, histories, "--out", out, *shlex.split(arguments.embed_options)
        )
        append_row(arguments.out, {
            "part": "embed", "model": arguments.models, "users": n_users,
            "options": arguments.embed_options, "seconds": round(seconds, 1),
            "processor_seconds": round(usage, 1), "peak_gib": round(peak, 2),
        })  # fmt: skip


def measure_shard(arguments: argparse.Namespace) -> None:
    """Run `idcf shard` on the rows of worlds in random order, and read all blocks again."""
    for n_users in arguments.users:
        table = ShardedTable.open(world_folder(arguments.folder, n_users))
        source = arguments.folder / f"shuffled-{n_users}.parquet"
        write_shuffled(table, source)
        out = arguments.folder / f"shards-{n_users}"
        seconds, usage, peak = run_idcf("shard", source, "--out", out, "--overwrite")
        source.unlink()
        written = ShardedTable.open(out)
        start = time.process_time()
        n_rows = sum(len(written.read_block(x).items) for x in range(written.n_blocks))
        append_row(arguments.out, {
            "part": "shard", "users": n_users, "rows": n_rows, "seconds": round(seconds, 1),
            "processor_seconds": round(usage, 1), "peak_gib": round(peak, 2),
            "read_processor_seconds": round(time.process_time() - start, 2),
            "bytes": sum(x.stat().st_size for x in out.iterdir()),
        })  # fmt: skip


def write_shuffled(table: ShardedTable, path: Path) -> None:
    """Write the rows of shards in random order; they must fit in memory."""
    blocks = [table.read_block(x) for x in range(table.n_blocks)]
    owner = np.concatenate([
        x.first_user + np.repeat(np.arange(len(x.offsets) - 1), np.diff(x.offsets)) for x in blocks
    ])  # fmt: skip
    order = np.random.default_rng(0).permutation(len(owner))
    items = np.asarray(table.items.ids)[np.concatenate([x.items for x in blocks])]
    columns = [owner, items, np.concatenate([x.ratings for x in blocks])]
    parquet.write_table(pa.table([x[order] for x in columns], schema=HISTORIES), path)


def run_idcf(*arguments: object) -> tuple[float, float, float]:
    """Run the command line; return its seconds, processor seconds and peak memory in GiB."""
    start, command = time.perf_counter(), [sys.executable, "-m", "idcf", *map(str, arguments)]
    process, peak, pid = subprocess.Popen(command, stdout=sys.stderr), 0.0, 0
    while not pid:  # ru_maxrss would be at least that of this process
        with suppress(OSError, IndexError):  # it has ended
            peak = peak_gib(process.pid)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        time.sleep(0 if pid else 0.05)
    if status:
        raise SystemExit(f"{shlex.join(command)} failed")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, peak


def history_files(table: ShardedTable, folder: Path) -> Path:
    """Write the rows of shards with item ids, as `idcf embed` reads them."""
    items = np.asarray(table.items.ids)
    for number, shard in enumerate(table.shards):
        path = folder / f"part-{number:05}.parquet"
        if path.exists():
            continue
        with atomic_path(path) as temporary, parquet.ParquetWriter(temporary, HISTORIES) as writer:
            for block in table.blocks(shard):
                owner = np.repeat(np.asarray(table.user_ids(block.index)), np.diff(block.offsets))
                columns = [owner, items[block.items], block.ratings]
                writer.write_table(pa.table(columns, schema=HISTORIES))
    return folder / "part-00000.parquet" if len(table.shards) == 1 else folder


def measure_all(arguments: argparse.Namespace) -> None:
    """Measure all parts, and replace the file of rows."""
    rows = arguments.out.with_suffix(".new")
    rows.unlink(missing_ok=True)
    for script, *options in _ALL:
        command = [sys.executable, str(Path(__file__).parent / script), *options]
        command += ["--folder", str(arguments.folder), "--out", str(rows)]
        subprocess.run(command, check=True)
    rows.replace(arguments.out)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*_PARTS, "all", "fit"])
    parser.add_argument("--users", default="1e5,1e6")
    parser.add_argument("--models", default=_MODELS)
    parser.add_argument("--engine", default="processes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--shards", default="1,2,4,8,16,32,64", help="numbers of shards")
    parser.add_argument("--passes", nargs="*", help='of `shards`, such as "sweep of als"')
    parser.add_argument("--embed-options", default="", help='such as "--engine ray"')
    parser.add_argument("--folder", type=Path, default=Path("runs/scale"))
    parser.add_argument("--world", type=Path, help="folder of the world of `fit`")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.users = [int(float(x)) for x in arguments.users.split(",")]
    arguments.shards = [int(x) for x in arguments.shards.split(",")]
    if arguments.part == "fit":
        row = fit_once(arguments.models, arguments.world, arguments.engine, arguments.workers)
        print(json.dumps(row))
    elif arguments.part == "all":
        measure_all(arguments)
    elif arguments.part in ("growth", "engines"):
        engines = ["processes", "ray"] if arguments.part == "engines" else [arguments.engine]
        measure_fits(arguments, engines)
    else:
        measure = {"shard": measure_shard, "shards": measure_shards, "embed": measure_embed}
        measure[arguments.part](arguments)


if __name__ == "__main__":
    main()
