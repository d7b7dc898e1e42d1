"""Time of recommendations to new users, beside `implicit` and `cmfrec`, at equal embedding size.

All systems get the same random item vectors of size 64, the same regularization and the same 931
histories of 20 items, and return the ten best other items, of ML-1M's catalogue and of 100,000
synthetic items. `als` of idcf, `implicit` and `cmfrec` solve the same equations, so their lists
must agree; the share of equal items is measured too. Each system runs in its own process with one
thread. The systems take turns, and the best turn counts, since other load distorts single times.

    IDCF_PEERS=PYTHON python benchmarks/peers.py      a Python with implicit, cmfrec or both
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from serving import (
    HISTORY_LENGTH,
    KEY_THRESHOLD,
    N_BEST,
    N_NEW_USERS,
    ONE_THREAD,
    Measurement,
    keep_best,
    load_table,
    log,
    time_calls,
    time_recommender,
    untrained_recommender,
)

SIZE, REG, ALPHA, LARGE_CATALOG = 64, 1.0, 10.0, 100_000
PEERS = ("implicit", "cmfrec")
_BLOCK = 64  # users at a time, where a library ranks no batches
ItemLists = Any  # integer array [new users, N_BEST]
WorkerResult = dict[str, Any]  # "rows": measurements; "lists": system -> its item lists


def measure(n_turns: int = 2, catalogs: Mapping[str, int] | None = None) -> list[Measurement]:
    """Return the best measurements of some turns; a library that is not installed is left out.

    `catalogs` maps a name to a number of items, 0 for ML-1M; by default ML-1M and `LARGE_CATALOG`.
    """
    python = peer_python()
    is_installed = {name: _is_installed(python, name) for name in PEERS}
    for name in (x for x in PEERS if not is_installed[x]):
        log(f"{name} is left out: pip install {name}, and set IDCF_PEERS to that Python")
    measurements: list[Measurement] = []
    default_catalogs = {catalog_name(): 0, f"{LARGE_CATALOG:,} items": LARGE_CATALOG}
    with tempfile.TemporaryDirectory() as folder:
        for catalog, n_items in (catalogs or default_catalogs).items():
            path = Path(folder) / "data.npz"
            prepare(path, n_items)
            best: dict[str, Measurement] = {}
            lists: dict[str, ItemLists] = {}
            for _ in range(n_turns):
                for name in ("idcf", *(x for x in PEERS if is_installed[x])):
                    result = _run_worker(sys.executable if name == "idcf" else python, name, path)
                    lists |= {k: np.array(v) for k, v in result.get("lists", {}).items()}
                    keep_best(best, result.get("rows", []))
            rows = [*best.values(), *_agreement(lists)]
            measurements += [{**row, "name": f"{catalog}: {row['name']}"} for row in rows]
    return measurements


def catalog_name() -> str:
    """Return the name of the first catalogue: ML-1M, or synthetic if that is not installed."""
    from idcf.data.datasets.catalog import find_dataset_folder

    is_found = find_dataset_folder("ml-1m") is not None
    return "ML-1M" if is_found else "synthetic data of ML-1M's size"


def peer_python() -> str:
    """Return the Python that runs other libraries: that of IDCF_PEERS, or this one."""
    path = os.environ.get("IDCF_PEERS", "")
    return path if Path(path).is_file() else sys.executable


def _is_installed(python: str, name: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec(name) is not None
    return not subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode


def prepare(path: Path, n_items: int = 0) -> None:
    """Write item vectors and histories of new users to a file; 0 items stand for ML-1M."""
    rng = np.random.default_rng(0)
    table, _ = load_table(n_items)
    users = np.flatnonzero(table.user_counts() >= HISTORY_LENGTH)
    order, start = table.rows_by_user
    rows = np.stack(
        [order[start[x] : start[x] + HISTORY_LENGTH] for x in np.resize(users, N_NEW_USERS)]
    )
    factors = rng.normal(0, 0.1, (len(table.items), SIZE))
    factors -= factors.mean(0)  # as `from_factors` does
    np.savez(
        path,
        factors=factors.astype(np.float32),
        items=table.item[rows],
        ratings=table.rating[rows],
        n_synthetic_items=n_items,
    )


def measure_idcf(path: Path) -> WorkerResult:
    """Time the models of this package."""
    import torch

    torch.set_num_threads(1)
    from idcf.recommender import Recommender

    data = np.load(path)
    factors, items, ratings = data["factors"], data["items"], data["ratings"].tolist()
    ids = list(range(len(factors)))
    histories = [dict(zip(x, r, strict=True)) for x, r in zip(items.tolist(), ratings, strict=True)]
    implicit = Recommender.from_factors(factors, item_ids=ids, implicit=True, reg=REG, alpha=ALPHA)
    explicit = Recommender.from_factors(factors, item_ids=ids, implicit=False, reg=REG, mean=3.5)
    measurements = [
        *time_recommender("als of idcf", implicit, histories),
        *time_recommender("als of idcf on ratings", explicit, histories),
    ]
    lists = [[x.item_id for x in best] for best in implicit.recommend(histories, n=N_BEST)]
    n_synthetic_items = int(data["n_synthetic_items"])
    table, _ = load_table(n_synthetic_items)
    keys = np.flatnonzero(table.user_counts() >= KEY_THRESHOLD)
    names = np.array(table.items.ids)[items].tolist()
    histories = [dict(zip(x, r, strict=True)) for x, r in zip(names, ratings, strict=True)]
    model = untrained_recommender("idcf-dot", table, keys, SIZE)
    measurements += time_recommender(f"idcf-dot of size {SIZE}", model, histories)
    if not n_synthetic_items:  # second moments of 100,000 items would take gigabytes
        model = untrained_recommender("idcf-bayes", table, keys)
        size = model.manifest.options["embedding_size"]
        measurements += time_recommender(f"idcf-bayes of size {size}", model, histories)
    return {"rows": measurements, "lists": {"idcf": lists}}


def measure_implicit(path: Path) -> WorkerResult:
    """Time `implicit`; its sparse matrices are built beforehand."""
    from implicit.als import AlternatingLeastSquares

    data = np.load(path)
    factors = data["factors"]
    model = AlternatingLeastSquares(SIZE, regularization=REG, num_threads=1)
    model.item_factors = factors
    model.user_factors = np.zeros((N_NEW_USERS, SIZE), np.float32)
    matrix = _sparse_matrix(data["items"], len(factors), 1 + ALPHA)
    single = [
        partial(model.recommend, 0, matrix[n], N=N_BEST, recalculate_user=True)
        for n in range(N_NEW_USERS)
    ]
    users = np.arange(N_NEW_USERS)
    batch = partial(model.recommend, users, matrix, N=N_BEST, recalculate_user=True)
    lists = batch()[0].tolist()
    rows = time_calls("implicit", single, {"rows in and out": batch})
    return {"rows": rows, "lists": {"implicit": lists}}


def measure_cmfrec(path: Path) -> WorkerResult:
    """Time `cmfrec`. It ranks for one user at a time; for a batch, NumPy ranks its vectors."""
    from cmfrec import CMF, CMF_implicit

    data = np.load(path)
    factors, items = data["factors"], data["items"].astype(np.int32)
    ratings = data["ratings"].astype(np.float32)
    ones = np.ones(HISTORY_LENGTH, np.float32)
    user_factors = np.zeros((1, SIZE), np.float32)
    options = {"lambda_": REG, "use_float": True, "nthreads": 1}
    implicit = CMF_implicit.from_model_matrices(user_factors, factors, alpha=ALPHA, **options)
    explicit = CMF.from_model_matrices(
        user_factors, factors, glob_mean=3.5, user_bias=np.zeros(1, np.float32), **options
    )
    single = [partial(implicit.topN_warm, N_BEST, x, ones, exclude=x) for x in items]
    single_ratings = [
        partial(explicit.topN_warm, N_BEST, X_col=x, X_val=r, exclude=x)
        for x, r in zip(items, ratings, strict=True)
    ]
    matrix = _sparse_matrix(items, len(factors), 1.0)

    def batch() -> list[Any]:
        vectors = implicit.factors_multiple(matrix)
        lists: list[Any] = []
        for start in range(0, N_NEW_USERS, _BLOCK):
            scores = vectors[start : start + _BLOCK] @ factors.T
            np.put_along_axis(scores, items[start : start + _BLOCK], -np.inf, 1)
            best = np.argpartition(scores, -N_BEST, 1)[:, -N_BEST:]
            order = np.take_along_axis(scores, best, 1).argsort(1)[:, ::-1]
            lists += np.take_along_axis(best, order, 1).tolist()
        return lists

    lists = [call().tolist() for call in single]
    rows = time_calls("cmfrec", single, {"rows in and out, lists by NumPy": batch})
    return {
        "rows": [*rows, *time_calls("cmfrec on ratings", single_ratings, {})],
        "lists": {"cmfrec": lists},
    }


def _sparse_matrix(items: Any, n_items: int, value: float) -> Any:
    from scipy.sparse import csr_matrix

    owner = np.repeat(np.arange(len(items)), items.shape[1])
    values = np.full(items.size, value, np.float32)
    return csr_matrix((values, (owner, items.reshape(-1))), (len(items), n_items))


def _agreement(lists: Mapping[str, ItemLists]) -> list[Measurement]:
    """Return the share of each library's recommended items that idcf recommends too."""
    reference = lists.get("idcf")
    return [
        {
            "name": f"{name}: share of its lists that idcf gives too",
            "value": round(float((items[:, :, None] == reference[:, None]).any(2).mean()), 4),
            "unit": "",
            "higher_is_better": True,
        }
        for name, items in lists.items()
        if name != "idcf" and reference is not None
    ]


def _run_worker(python: str, name: str, path: Path) -> WorkerResult:
    """Measure in a new process, since numeric libraries read their threads at import."""
    command = [python, str(Path(__file__).resolve()), name, str(path)]
    process = subprocess.run(command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE)
    if process.returncode:
        log(f"{name} could not be timed: exit status {process.returncode}")
        return {}
    result: WorkerResult = json.loads(process.stdout)
    return result


WORKERS: Mapping[str, Callable[[Path], WorkerResult]] = {
    "idcf": measure_idcf,
    "implicit": measure_implicit,
    "cmfrec": measure_cmfrec,
}

if __name__ == "__main__":
    arguments = sys.argv[1:]  # of a worker: its system, and the file with the data
    output: Any = WORKERS[arguments[0]](Path(arguments[1])) if arguments else measure()
    print(json.dumps(output, indent=None if arguments else 2))
