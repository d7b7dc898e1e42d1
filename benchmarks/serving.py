"""How long a newcomer waits: history → vector → ten best of ML-1M's items, on one thread.

Every figure of a run comes from processes that are started one after the other with one thread
each. Weights are random: speed does not depend on them. `implicit` is timed in this Python where
it is installed, else in the one that $IDCF_PEERS names .

    python benchmarks/serving.py            prints one JSON list of measurements
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("idcf-dot", "idcf-nn", "idcf-bayes")
LENGTH, BEST, NEWCOMERS, THRESHOLD = 20, 10, 931, 30
LIBRARIES = ("OMP", "OPENBLAS", "MKL", "NUMBA")
ONE_THREAD = dict.fromkeys((f"{name}_NUM_THREADS" for name in LIBRARIES), "1")
Measurement = dict[str, Any]


def measure(passes: int = 2) -> list[Measurement]:
    """All measurements, the best of some passes that take turns, so that a busy spell of the
    machine hurts nobody alone. A peer that is absent is left out, which is said on stderr."""
    python = peer_python()
    if python is None:
        _say("implicit is not installed: pip install implicit, or set IDCF_PEERS to a Python")
    best: dict[str, Measurement] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        for _ in range(passes):
            found = _worker(sys.executable, "idcf", data)
            found += _worker(python, "implicit", data) if python else []
            for row in found:
                old = best.setdefault(row["name"], row)
                if (row["value"] > old["value"]) == row["higher_is_better"]:
                    best[row["name"]] = row
    return list(best.values())


def peer_python() -> str | None:
    """A Python that has implicit, or None."""
    if importlib.util.find_spec("implicit"):
        return sys.executable
    path = os.environ.get("IDCF_PEERS", "")
    return path if Path(path).exists() else None


def of_idcf(data: Path) -> list[Measurement]:
    """Time the models of this package, and leave the table for the peer."""
    import torch

    torch.set_num_threads(1)
    table, note = _table()
    counts = table.counts()
    key = counts >= THRESHOLD
    people = [x for x in np.flatnonzero(~key if note else counts) if counts[x] >= LENGTH]
    newcomers = np.resize(np.array(people, np.int64), NEWCOMERS)
    order, start = table.by_user
    rows = np.stack([order[start[x] : start[x] + LENGTH] for x in newcomers])
    known = table.of(np.flatnonzero(key))
    _say(f"{note or 'synthetic'}: {known!r}, {key.sum():,} key users")
    shape = np.array([len(table.users), len(table.items)])
    np.savez(data, user=known.user, item=known.item, shape=shape, histories=table.item[rows])
    ids = np.array(table.items.ids)[table.item[rows]].tolist()
    told = [
        dict(zip(x, r, strict=True)) for x, r in zip(ids, table.rating[rows].tolist(), strict=True)
    ]
    out: list[Measurement] = []
    for name in MODELS:
        out += _time_model(name, table, np.flatnonzero(key), told)
    return out


def _table() -> tuple[Any, str]:
    """ML-1M where it is at hand, else a world of its size; and the name of the real one."""
    from idcf.data.sources import find, load
    from idcf.data.synthetic import at_scale

    if find("ml-1m") is not None:
        return load("ml-1m", progress=False).interactions, "ml-1m"
    return at_scale(1_000_000, np.random.default_rng(0), users=6040, items=3706), ""


def untrained(name: str, table: Any, keys: np.ndarray[Any, Any]) -> Any:
    """A recommender of the shipped sizes with random weights."""
    import torch

    from idcf.artifact import Artifact
    from idcf.config import plain
    from idcf.data.split import Split
    from idcf.manifest import Manifest, Origin, World
    from idcf.models import configure, entry
    from idcf.recommender import Recommender
    from idcf.train.presets import setting
    from idcf.types import Users

    found, base = entry(name), None
    config = configure(name, setting(name).options)
    if found.backbone:
        base = configure(found.backbone, setting(found.backbone).options)
        backbone = entry(found.backbone).build(base, table.of(keys).domain())
        who = Users(torch.from_numpy(keys), table.history(keys))
        model = found.build(config, backbone, who)
    else:  # the posterior, of ML-1M's size
        config = configure(name, setting(name, dataset="ml-1m").options)
        model = drawn(found.build(config, table.of(keys).domain()))
    split = Split(table, table.where(slice(0)), keys, keys[:0])
    world, data = World.of(table, model), Origin.of(split, THRESHOLD)
    out = Recommender(name)
    manifest = Manifest(
        model=name,
        options=plain(config),
        backbone=found.backbone,
        backbone_options=plain(base) if base else {},
        domain=world,
        data=data,
    )
    out._use(Artifact(manifest, model, table.items, (None,) * len(table.items)))
    return out


def drawn(model: Any) -> Any:
    """A posterior of random items, each known up to the same variance."""
    import torch

    draw = torch.Generator().manual_seed(0)
    for tensor in (model.means, model.link, model.basis):
        tensor.copy_(torch.randn(tensor.shape, generator=draw) * 0.3)
    size = model.means.shape[2]
    second = model.means[..., :, None] * model.means[..., None, :] + 0.05 * torch.eye(size)
    low = torch.tril_indices(size, size)
    model.seconds.copy_(second[..., low[0], low[1]])
    model.raters += 1
    return model


def _time_model(
    name: str, table: Any, keys: np.ndarray[Any, Any], told: list[dict[Any, float]]
) -> list[Measurement]:
    from idcf.data.histories import as_users

    recommender = untrained(name, table, keys)
    desk = recommender._desk()
    single = [partial(recommender.recommend, x, n=BEST) for x in told]
    users = as_users([desk.reader.one(x) for x in told])
    index = desk.index
    return [
        *_waits(f"{name} one newcomer", single),
        _pace(f"{name} batch, dicts in and lists out", lambda: recommender.recommend(told, n=BEST)),
        _pace(f"{name} batch, rows in and out", lambda: index.top(users, BEST, users.history)),
    ]


def of_implicit(data: Path) -> list[Measurement]:
    """The same newcomers by ALS with 64 factors, whose rows and matrices are made beforehand."""
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    found = np.load(data)
    n_items, histories = int(found["shape"][1]), found["histories"]

    def matrix(user: Any, item: Any, rows: int) -> Any:
        return csr_matrix((np.ones(len(user), np.float32), (user, item)), (rows, n_items))

    known = matrix(found["user"], found["item"], int(found["shape"][0]))
    model = AlternatingLeastSquares(64, iterations=1, num_threads=1, random_state=0)
    model.fit(known, show_progress=False)
    owner = np.repeat(np.arange(len(histories)), histories.shape[1])
    everyone = matrix(owner, histories.reshape(-1), len(histories))
    each = [everyone[n] for n in range(len(histories))]
    single = [partial(model.recommend, 0, x, N=BEST, recalculate_user=True) for x in each]
    who = np.arange(len(histories))
    return [
        *_waits("implicit one newcomer", single),
        _pace(
            "implicit batch, rows in and out",
            lambda: model.recommend(who, everyone, N=BEST, recalculate_user=True),
        ),
    ]


def _waits(name: str, calls: Sequence[Callable[[], Any]], rounds: int = 3) -> list[Measurement]:
    """p50 and p99 of single calls, after a warm-up."""
    for call in calls[:50]:
        call()
    seconds = []
    for call in [*calls] * rounds:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    p50, p99 = np.percentile(np.array(seconds) * 1000, [50, 99]).tolist()
    return [_row(f"{name} p50", p50, "ms", False), _row(f"{name} p99", p99, "ms", False)]


def _pace(name: str, call: Callable[[], Any], rounds: int = 15) -> Measurement:
    """Newcomers per second in the fastest of some rounds: others may be using the machine."""
    call()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return _row(name, NEWCOMERS / min(seconds), "users/s", True)


def _row(name: str, value: float, unit: str, higher_is_better: bool) -> Measurement:
    rounded = float(f"{value:.4g}")
    return {"name": name, "value": rounded, "unit": unit, "higher_is_better": higher_is_better}


def _worker(python: str, what: str, data: Path) -> list[Measurement]:
    """Threads of the numeric libraries are chosen before they are loaded: a process of its own."""
    command = [python, str(Path(__file__).resolve()), what, str(data)]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE)
    if done.returncode:
        _say(f"{what} could not be timed: exit status {done.returncode}")
        return []
    found: list[Measurement] = json.loads(done.stdout)
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr)


WORKERS: Mapping[str, Callable[[Path], list[Measurement]]] = {
    "idcf": of_idcf,
    "implicit": of_implicit,
}

if __name__ == "__main__":
    worker = sys.argv[1:]
    result = WORKERS[worker[0]](Path(worker[1])) if worker else measure()
    print(json.dumps(result, indent=None if worker else 2))
