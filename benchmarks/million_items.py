"""Lists from a million items: latency, throughput and memory, on one thread.

Each case runs in a process of its own:

    dense     item vectors of size 64 whose norms are skewed by popularity, by
              `Recommender.from_factors`; saved, and loaded again to measure memory
    plain     the same vectors, without the scan of 8-bit codes
    filter    `dense`, with candidates that are one item in a hundred
    ratings   the default list of a rating model: expected benefit, shapes as fitted
    clicks    the default list without ratings: the take-up model alone
    faiss     a flat index of inner products over the vectors, for given user vectors
    implicit  `recommend` of its ALS with the same vectors, which solves for new users

Other jobs change times, so that each is given as the median and the minimum of wall time and as
processor time. `faiss` and `implicit` run where IDCF_PEERS names a Python that has them.

    [IDCF_PEERS=PYTHON] python benchmarks/million_items.py [--items 1000000] [--out FILE.jsonl]
        [CASE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CASES = ("dense", "plain", "filter", "ratings", "clicks", "faiss", "implicit")
LIBRARIES = ("OMP", "OPENBLAS", "MKL", "NUMBA")
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in LIBRARIES}
SIZE, N_BEST, HISTORY_LENGTH, BATCH, N_SINGLE = 64, 10, 20, 256, 60
MAX_SECONDS = 40.0  # of batches, once there are two
REG, ALPHA = 0.5, 10.0
Row = dict[str, Any]


def make_data(n_items: int) -> tuple[Any, Any]:
    """Return item vectors [I, 64] and the item rows [256, 20] of histories.

    Items belong to tastes; their norms grow with their popularity, which follows Zipf's law.
    """
    rng = np.random.default_rng(0)
    taste = rng.integers(200, size=n_items)
    centers = rng.normal(size=(200, SIZE)).astype(np.float32)
    vectors = rng.normal(size=(n_items, SIZE)).astype(np.float32)
    vectors += centers[taste]
    rank = rng.permutation(n_items) + 10.0
    norm = 0.3 * (n_items / rank) ** 0.2 * rng.lognormal(0, 0.2, n_items)
    vectors *= (norm / np.linalg.norm(vectors, axis=1))[:, None].astype(np.float32)
    weight = rank**-0.9
    cumulative = np.cumsum(weight / weight.sum())
    histories = np.empty((BATCH, HISTORY_LENGTH), np.int64)
    for n in range(BATCH):
        drawn = np.searchsorted(cumulative, rng.random(40 * HISTORY_LENGTH)).clip(0, n_items - 1)
        likes = np.isin(taste[drawn], rng.integers(200, size=20)) | (rng.random(len(drawn)) < 0.2)
        rows = np.unique(np.concatenate([drawn[likes], drawn]))[: 4 * HISTORY_LENGTH]
        histories[n] = rng.choice(rows, HISTORY_LENGTH, replace=False)
    return vectors, histories


def resident_mib(key: str = "VmRSS") -> float:
    """Return the resident memory of this process; "RssAnon": without files, "VmHWM": its peak."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split(f"{key}:")[1].split()[0]) / 1024


def reset_peak() -> None:
    """Let the peak of the resident memory begin at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def timed(calls: Sequence[Callable[[], object]]) -> tuple[Any, Any]:
    """Return wall and processor milliseconds of each call, after one that is not counted."""
    calls[0]()
    wall, processor = [], []
    for call in calls:
        start = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    return np.array(wall) * 1e3, np.array(processor) * 1e3


def time_lists(single: Sequence[Callable[[], object]], batch: Callable[[], object]) -> Row:
    """Return the times of lists for one user each, and of one batch of 256 users."""
    wall, processor = timed(single)
    row: Row = {
        "p50_ms": np.median(wall),
        "p99_ms": np.quantile(wall, 0.99),
        "min_ms": wall.min(),
        "processor_p50_ms": np.median(processor),
        "processor_min_ms": processor.min(),
    }
    start, batches = time.perf_counter(), []
    while len(batches) < 2 or (len(batches) < 7 and time.perf_counter() - start < MAX_SECONDS):
        batches.append([x[0] for x in timed([batch])])
    wall, processor = np.array(batches).T
    row["users_per_second"] = BATCH / np.median(wall) * 1e3
    row["users_per_second_best"] = BATCH / wall.min() * 1e3
    row["users_per_processor_second"] = BATCH / np.median(processor) * 1e3
    return {name: round(float(x), 2) for name, x in row.items()}


def time_recommender(recommender: Any, histories: Sequence[Any], **options: Any) -> Row:
    """Return the times of `recommend`."""
    single = [
        lambda h=h: recommender.recommend(h, n=N_BEST, **options)  # type: ignore[misc]
        for h in histories[:N_SINGLE]
    ]
    return time_lists(single, lambda: recommender.recommend(histories, n=N_BEST, **options))


def measure_dense(data: Path, case: str) -> Row:
    """Time item vectors, with or without the scan of their codes."""
    import torch

    torch.set_num_threads(1)
    from idcf.inference import topk
    from idcf.recommender import Recommender

    if case == "plain":
        topk._MIN_SCANNED_ITEMS = 1 << 62
    folder, histories = data / "model", np.load(data / "histories.npy")
    if not folder.is_dir():
        return save_model(data)
    before = resident_mib("RssAnon")
    recommender = Recommender.load(folder)
    recommender.predictor.read_new_user(histories[0].tolist())  # the index of the ids
    loaded = resident_mib("RssAnon")
    n_items, ids = len(recommender.predictor.item_ids), histories.tolist()
    vectors = n_items * SIZE * 4 / 2**20
    options: Row = {}
    if case == "filter":
        rng = np.random.default_rng(1)
        options["candidates"] = rng.choice(n_items, n_items // 100, replace=False).tolist()
        predictor = recommender.predictor
        query = predictor.list_query(n=N_BEST, **options)
        queries = [query._replace(new_user=predictor.read_new_user(x)) for x in ids]
        single = [lambda q=q: predictor.recommend([q]) for q in queries[:N_SINGLE]]  # type: ignore[misc]
        return time_lists(single, lambda: predictor.recommend(queries, min_batch=1))
    recommender.recommend(ids[0])
    ready, resident = resident_mib("RssAnon"), resident_mib()
    reset_peak()
    row = time_recommender(recommender, ids)
    memory = {
        "vectors_mib": vectors,
        "model_and_ids_mib": loaded - before,
        "ranker_mib": ready - loaded,
        "lists_mib": resident_mib("VmHWM") - resident,  # peak, with pages of libraries
    }
    row |= {name: round(x, 1) for name, x in memory.items()}
    row["memory_over_vectors"] = round(1 + (ready - loaded + memory["lists_mib"]) / vectors, 3)
    lists = [[x.item_id for x in best] for best in recommender.recommend(ids, n=N_BEST)]
    np.save(data / f"lists-{case}.npy", np.array(lists))
    return row


def save_model(data: Path) -> Row:
    """Save the model of the vectors, so that it can be loaded in another process."""
    from idcf.recommender import Recommender

    vectors = np.load(data / "vectors.npy")
    ids = list(range(len(vectors)))
    model = Recommender.from_factors(vectors, item_ids=ids, implicit=True, reg=REG, alpha=ALPHA)
    model.save(data / "model")
    return {}


def measure_default_list(data: Path, case: str) -> Row:
    """Time the default list of random models with the shapes of a fit."""
    import torch
    from serving import key_users_and_histories, load_table, untrained_recommender
    from serving import with_take_up_model as add_take_up_model

    torch.set_num_threads(1)
    from dataclasses import replace

    from idcf.recommender import Recommender

    table, _ = load_table(len(np.load(data / "vectors.npy", mmap_mode="r")))
    keys, histories = key_users_and_histories(table, is_real=False)
    recommender = add_take_up_model(untrained_recommender("idcf-bayes", table, keys))
    if case == "clicks":
        artifact = recommender.predictor.artifact
        manifest = replace(
            artifact.manifest,
            model="idcf-takeup",
            options=artifact.manifest.take_up_options,
            domain=replace(artifact.manifest.domain, implicit=True, levels=(1.0,), mean=0.0),
            take_up_model=None,
            take_up_options={},
        )
        artifact = replace(
            artifact, manifest=manifest, model=artifact.take_up_model, take_up_model=None
        )
        recommender = Recommender.from_artifact(artifact)
        return time_recommender(recommender, [list(x) for x in histories[:BATCH]])
    return time_recommender(recommender, histories[:BATCH])


def measure_faiss(data: Path, case: str) -> Row:
    """Time a flat index; the users are the mean vectors of their histories."""
    import faiss

    faiss.omp_set_num_threads(1)
    vectors, histories = np.load(data / "vectors.npy"), np.load(data / "histories.npy")
    index = faiss.IndexFlatIP(SIZE)
    index.add(vectors)
    users = vectors[histories].mean(1)
    single = [lambda n=n: index.search(users[n : n + 1], N_BEST) for n in range(N_SINGLE)]  # type: ignore[misc]
    return time_lists(single, lambda: index.search(users, N_BEST))


def measure_implicit(data: Path, case: str) -> Row:
    """Time `implicit`; its sparse matrices are built beforehand."""
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    vectors, histories = np.load(data / "vectors.npy"), np.load(data / "histories.npy")
    model = AlternatingLeastSquares(SIZE, regularization=REG, num_threads=1)
    model.item_factors = vectors - vectors.mean(0)  # as `from_factors` does
    model.user_factors = np.zeros((BATCH, SIZE), np.float32)
    owner = np.repeat(np.arange(BATCH), HISTORY_LENGTH)
    values = np.full(histories.size, 1 + ALPHA, np.float32)
    matrix = csr_matrix((values, (owner, histories.ravel())), (BATCH, len(vectors)))
    rows, users = [matrix[n] for n in range(N_SINGLE)], np.arange(BATCH)
    single = [
        lambda x=x: model.recommend(0, x, N=N_BEST, recalculate_user=True)  # type: ignore[misc]
        for x in rows
    ]
    row = time_lists(
        single, lambda: model.recommend(users, matrix, N=N_BEST, recalculate_user=True)
    )
    lists = data / "lists-dense.npy"
    if lists.is_file():
        best = model.recommend(users, matrix, N=N_BEST, recalculate_user=True)[0]
        shared = (best[:, :, None] == np.load(lists)[:, None]).any(2)
        row["share_of_lists_of_dense"] = round(float(shared.mean()), 4)
    return row


WORKERS = dict.fromkeys(("dense", "plain", "filter"), measure_dense)
WORKERS |= dict.fromkeys(("ratings", "clicks"), measure_default_list)
WORKERS |= {"faiss": measure_faiss, "implicit": measure_implicit}


def run_worker(case: str, data: Path) -> Row:
    """Measure a case in a new process."""
    python = sys.executable
    if case in ("faiss", "implicit"):
        python = os.environ.get("IDCF_PEERS", sys.executable)
        if subprocess.run([python, "-c", f"import {case}"], capture_output=True).returncode:
            print(f"{case} is not installed", file=sys.stderr)
            return {}
    command = [python, str(Path(__file__).resolve()), "--worker", case, str(data)]
    process = subprocess.run(command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE)
    if process.returncode:
        print(f"{case} failed", file=sys.stderr)
        return {}
    row: Row = json.loads(process.stdout)
    return row


def main() -> None:
    """Measure each case in a process of its own; print the rows, and append them to --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help="measure one case in this process")
    arguments = parser.parse_args()
    if arguments.worker:
        case, folder = arguments.cases
        print(json.dumps(WORKERS[case](Path(folder), case)))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        vectors, histories = make_data(arguments.items)
        np.save(data / "vectors.npy", vectors)
        np.save(data / "histories.npy", histories)
        run_worker("dense", data)  # saves the model
        for case in arguments.cases:
            load = os.getloadavg()[0]
            row = run_worker(case, data)
            if not row:
                continue
            row = {"case": case, "items": arguments.items, **row}
            row["load"] = [round(load, 1), round(os.getloadavg()[0], 1)]
            print(json.dumps(row), flush=True)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
