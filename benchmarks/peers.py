"""Newcomers beside `implicit` and `cmfrec`, at equal embedding size: who answers sooner?

Everybody gets the same items' vectors (64 numbers each, drawn), the same strengths and the same 931
histories of 20 items, and says which ten other items are best: of ML-1M's and of 100,000 made up.
`als` of idcf, `implicit` and `cmfrec` solve the same equations, so their lists must agree, and that
is counted too. Each runs in a process of its own with one thread; they take turns, and the best of
some turns counts: others may be using the machine.

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
    BEST,
    LENGTH,
    NEWCOMERS,
    ONE_THREAD,
    THRESHOLD,
    Measurement,
    say,
    table,
    time_model,
    timed,
    untrained,
)

SIZE, REG, ALPHA, MANY = 64, 1.0, 10.0, 100_000
PEERS = ("implicit", "cmfrec")
_BLOCK = 64  # people at a time, where a peer has no list for many
Lists = Any  # [newcomers, BEST]
Found = dict[str, Any]  # measurements, and lists by the name of who made them


def measure(turns: int = 2, worlds: Mapping[str, int] | None = None) -> list[Measurement]:
    """All measurements. A peer that is absent is left out, which is said on stderr."""
    python = peer_python()
    have = {name: _has(python, name) for name in PEERS}
    for name in (x for x in PEERS if not have[x]):
        say(f"{name} is left out: pip install {name}, and set IDCF_PEERS to that Python")
    out: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        for world, items in (worlds or {catalogue(): 0, f"{MANY:,} items": MANY}).items():
            data = Path(folder) / "data.npz"
            prepare(data, items)
            best: dict[str, Measurement] = {}
            lists: dict[str, Lists] = {}
            for _ in range(turns):
                for name in ("idcf", *(x for x in PEERS if have[x])):
                    found = _worker(sys.executable if name == "idcf" else python, name, data)
                    lists |= {k: np.array(v) for k, v in found.get("lists", {}).items()}
                    for row in found.get("rows", []):
                        old = best.setdefault(row["name"], row)
                        if (row["value"] > old["value"]) == row["higher_is_better"]:
                            best[row["name"]] = row
            rows = [*best.values(), *_agreement(lists)]
            out += [{**row, "name": f"{world}: {row['name']}"} for row in rows]
    return out


def catalogue() -> str:
    """Whose items the first world has: rows are not called ML-1M where it is not at hand."""
    from idcf.data.datasets.catalog import find

    return "ML-1M" if find("ml-1m") is not None else "a world of ML-1M's size"


def peer_python() -> str:
    path = os.environ.get("IDCF_PEERS", "")
    return path if Path(path).is_file() else sys.executable


def _has(python: str, name: str) -> bool:
    if python == sys.executable:
        return importlib.util.find_spec(name) is not None
    return not subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode


def prepare(data: Path, n_items: int = 0) -> None:
    """Vectors of items and histories of newcomers; of ML-1M's catalogue if there are 0 items."""
    rng = np.random.default_rng(0)
    people, _ = table(n_items)
    counts = people.counts()
    able = np.flatnonzero(counts >= LENGTH)
    order, start = people.by_user
    rows = np.stack([order[start[x] : start[x] + LENGTH] for x in np.resize(able, NEWCOMERS)])
    factors = rng.normal(0, 0.1, (len(people.items), SIZE))
    factors -= factors.mean(0)  # as `from_factors` would
    np.savez(
        data,
        factors=factors.astype(np.float32),
        items=people.item[rows],
        ratings=people.rating[rows],
        made=n_items,
    )


def of_idcf(data: Path) -> Found:
    import torch

    torch.set_num_threads(1)
    from idcf.recommender import Recommender

    world = np.load(data)
    factors, items, ratings = world["factors"], world["items"], world["ratings"]
    ids = np.arange(len(factors))
    told = [
        dict(zip(x, r, strict=True)) for x, r in zip(items.tolist(), ratings.tolist(), strict=True)
    ]
    taste = Recommender.from_factors(factors, item_ids=ids, implicit=True, reg=REG, alpha=ALPHA)
    rated = Recommender.from_factors(factors, item_ids=ids, implicit=False, reg=REG, mean=3.5)
    out = [
        *time_model("als of idcf", taste, told),
        *time_model("als of idcf on ratings", rated, told),
    ]
    lists = [[x.item_id for x in answer] for answer in taste.recommend(told, n=BEST)]
    people, _ = table(int(world["made"]))
    keys = np.flatnonzero(people.counts() >= THRESHOLD)
    names = np.array(people.items.ids)[items].tolist()
    told = [dict(zip(x, y.values(), strict=True)) for x, y in zip(names, told, strict=True)]
    out += time_model(f"idcf-dot of size {SIZE}", untrained("idcf-dot", people, keys, SIZE), told)
    if not world["made"]:  # its second moments would be gigabytes
        made = untrained("idcf-bayes", people, keys)
        out += time_model(f"idcf-bayes of size {made.about.options['embedding_size']}", made, told)
    return {"rows": out, "lists": {"idcf": lists}}


def of_implicit(data: Path) -> Found:
    """Rows and matrices are made beforehand."""
    from implicit.als import AlternatingLeastSquares

    world = np.load(data)
    factors = world["factors"]
    model = AlternatingLeastSquares(SIZE, regularization=REG, num_threads=1)
    model.item_factors, model.user_factors = factors, np.zeros((NEWCOMERS, SIZE), np.float32)
    everyone = _matrix(world["items"], len(factors), 1 + ALPHA)
    single = [
        partial(model.recommend, 0, everyone[n], N=BEST, recalculate_user=True)
        for n in range(NEWCOMERS)
    ]
    who = np.arange(NEWCOMERS)
    many = partial(model.recommend, who, everyone, N=BEST, recalculate_user=True)
    lists = many()[0].tolist()
    rows = timed("implicit", single, {"rows in and out": many})
    return {"rows": rows, "lists": {"implicit": lists}}


def of_cmfrec(data: Path) -> Found:
    """It lists for one at a time; for many it makes vectors, of which NumPy then makes lists."""
    from cmfrec import CMF, CMF_implicit

    world = np.load(data)
    factors, items = world["factors"], world["items"].astype(np.int32)
    ratings = world["ratings"].astype(np.float32)
    ones = np.ones(LENGTH, np.float32)
    nobody = np.zeros((1, SIZE), np.float32)
    how = {"lambda_": REG, "use_float": True, "nthreads": 1}
    taste = CMF_implicit.from_model_matrices(nobody, factors, alpha=ALPHA, **how)
    rated = CMF.from_model_matrices(
        nobody, factors, glob_mean=3.5, user_bias=np.zeros(1, np.float32), **how
    )
    single = [partial(taste.topN_warm, BEST, x, ones, exclude=x) for x in items]
    explicit = [
        partial(rated.topN_warm, BEST, X_col=x, X_val=r, exclude=x)
        for x, r in zip(items, ratings, strict=True)
    ]
    everyone = _matrix(items, len(factors), 1.0)

    def many() -> list[Any]:
        vectors = taste.factors_multiple(everyone)
        parts = []
        for start in range(0, NEWCOMERS, _BLOCK):
            scores = vectors[start : start + _BLOCK] @ factors.T
            np.put_along_axis(scores, items[start : start + _BLOCK], -np.inf, 1)
            best = np.argpartition(scores, -BEST, 1)[:, -BEST:]
            order = np.take_along_axis(scores, best, 1).argsort(1)[:, ::-1]
            parts += np.take_along_axis(best, order, 1).tolist()
        return parts

    lists = [x().tolist() for x in single]
    rows = timed("cmfrec", single, {"rows in and out, lists by NumPy": many})
    return {
        "rows": [*rows, *timed("cmfrec on ratings", explicit, {})],
        "lists": {"cmfrec": lists},
    }


def _matrix(items: Any, n_items: int, value: float) -> Any:
    from scipy.sparse import csr_matrix

    owner = np.repeat(np.arange(len(items)), items.shape[1])
    values = np.full(items.size, value, np.float32)
    return csr_matrix((values, (owner, items.reshape(-1))), (len(items), n_items))


def _agreement(lists: Mapping[str, Lists]) -> list[Measurement]:
    """How much of a list is in that of idcf too."""
    ours = lists.get("idcf")
    return [
        {
            "name": f"{name}: share of its lists that idcf gives too",
            "value": round(float((theirs[:, :, None] == ours[:, None]).any(2).mean()), 4),
            "unit": "",
            "higher_is_better": True,
        }
        for name, theirs in lists.items()
        if name != "idcf" and ours is not None
    ]


def _worker(python: str, what: str, data: Path) -> Found:
    """Threads of the numeric libraries are chosen before they are loaded: a process of its own."""
    command = [python, str(Path(__file__).resolve()), what, str(data)]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE)
    if done.returncode:
        say(f"{what} could not be timed: exit status {done.returncode}")
        return {}
    found: Found = json.loads(done.stdout)
    return found


WORKERS: Mapping[str, Callable[[Path], Found]] = {
    "idcf": of_idcf,
    "implicit": of_implicit,
    "cmfrec": of_cmfrec,
}

if __name__ == "__main__":
    worker = sys.argv[1:]
    result: Any = WORKERS[worker[0]](Path(worker[1])) if worker else measure()
    print(json.dumps(result, indent=None if worker else 2))
