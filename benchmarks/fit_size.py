"""Time and memory of a fit against the size of the table, on synthetic tables of realistic skew.

Users have three tastes each, of many; items belong to one and are popular by Zipf's law; lengths of
histories are lognormal; a quarter of the rows is chosen by popularity alone. Each fit runs in a
process of its own. `implicit` (64 factors, 15 iterations of ALS, the same rows and threads) runs
beside it where IDCF_PEERS names a Python that has it.

    [IDCF_PEERS=PYTHON] python benchmarks/fit_size.py [--threads 2] [--out FILE.jsonl]
        [--models idcf-takeup,idcf-bayes,implicit] USERSxITEMSxROWS ...
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from idcf.data.interactions import Interactions, Vocab
from idcf.data.split import split_by_key_users
from idcf.training.train import TrainingJob, train

_PEER = """
import sys, time, numpy as np, scipy.sparse as sp
from implicit.als import AlternatingLeastSquares
rows = np.load(sys.argv[1])
x = sp.csr_matrix((np.ones(len(rows[0]), np.float32), (rows[0], rows[1])))
model = AlternatingLeastSquares(factors=64, iterations=15, num_threads=int(sys.argv[2]))
start, processor = time.perf_counter(), time.process_time()
model.fit(x, show_progress=False)
print(time.perf_counter() - start, time.process_time() - processor)
"""


def make_table(n_users: int, n_items: int, n_rows: int, *, implicit: bool) -> Interactions:
    """Return a table of about `n_rows` rows, a little fewer because pairs are distinct."""
    rng = np.random.default_rng(0)
    n_tastes = max(20, int(n_items**0.5))
    taste_of_item = rng.integers(n_tastes, size=n_items)
    order = np.argsort(taste_of_item, kind="stable")
    start = np.searchsorted(taste_of_item[order], np.arange(n_tastes + 1))
    popularity = 1 / (rng.permutation(n_items) + 10.0) ** 0.9
    cumulative = np.cumsum(popularity[order])
    ends = np.concatenate([[0], cumulative])[start]
    length = np.maximum(rng.lognormal(0, 1, n_users), 0.3)
    length = np.maximum(3, np.round(length * n_rows * 1.08 / length.sum())).astype(int)
    length = np.minimum(length, n_items // 4)
    share = np.cumsum(1 / (np.arange(n_tastes) + 5.0) ** 0.7)
    tastes = np.searchsorted(share / share[-1], rng.random((n_users, 3)))
    user = np.repeat(np.arange(n_users), length)
    taste = tastes[user, np.minimum(rng.geometric(0.5, len(user)) - 1, 2)]
    drawn = ends[taste] + rng.random(len(user)) * (ends[taste + 1] - ends[taste])
    item = order[np.minimum(np.searchsorted(cumulative, drawn), n_items - 1)]
    by_popularity = np.flatnonzero(rng.random(len(user)) < 0.25)
    total = np.cumsum(popularity)
    item[by_popularity] = np.searchsorted(total, rng.random(len(by_popularity)) * total[-1])
    pairs = np.unique(user * np.int64(n_items) + item)
    if len(pairs) > n_rows:
        pairs = pairs[np.sort(rng.permutation(len(pairs))[:n_rows])]
    user, item = np.divmod(pairs, n_items)
    rating = 3.4 + rng.normal(0, 0.4, n_users)[user] + rng.normal(0, 0.5, n_items)[item]
    rating += 0.5 * (taste_of_item[item][:, None] == tastes[user]).any(1)
    rating = np.clip(np.rint(rating + rng.normal(0, 0.8, len(user))), 1, 5).astype(np.float32)
    users, items = (
        Vocab([f"{kind}{n}" for n in range(size)])
        for kind, size in (("u", n_users), ("i", n_items))
    )
    if implicit:
        rating = np.ones(len(user), np.float32)
    return Interactions(users, items, user, item, rating, None, implicit)


def measure(size: tuple[int, int, int], model: str, n_threads: int) -> dict[str, object]:
    """Fit a model, or `implicit`, to the key users of a table in this process."""
    torch.set_num_threads(n_threads)
    table = make_table(*size, implicit=model != "idcf-bayes")
    counts = table.user_counts()
    no_rows = table.where(np.zeros(len(table), bool))
    split = split_by_key_users(table, no_rows, int(np.median(counts)), "threshold", 0)
    row: dict[str, object] = {
        "model": model,
        "users": size[0],
        "items": size[1],
        "rows": len(table),
        "key_users": len(split.key_users),
        "threads": n_threads,
        "load": round(os.getloadavg()[0], 1),
    }
    if model == "implicit":
        key_rows = table.for_users(split.key_users)
        seconds, processor = _fit_peer(key_rows, n_threads)
        return row | {"seconds": seconds, "processor_seconds": processor}
    start, processor = time.perf_counter(), time.process_time()
    result = train(model, TrainingJob(split))
    return row | {
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
        "peak_gib": round(peak_resident_kib() / 2**20, 2),
        "details": dict(result.details),
    }


def peak_resident_kib() -> int:
    """Return the peak resident memory of this process.

    `ru_maxrss` would begin with the memory of the process that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0])


def _fit_peer(table: Interactions, n_threads: int) -> tuple[float, float]:
    """Return seconds and processor seconds of `implicit`'s ALS on the rows of a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, np.stack([table.user, table.item]))
        command = [os.environ["IDCF_PEERS"], "-c", _PEER, str(path), str(n_threads)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    seconds, processor = out.stdout.split()
    return round(float(seconds), 1), round(float(processor), 1)


def main() -> None:
    """Measure every size and model in a process of its own; print the rows, and append them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="+")
    parser.add_argument("--models", default="idcf-takeup,idcf-bayes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", action="store_true", help="measure one size in this process")
    arguments = parser.parse_args()
    for size in arguments.sizes:
        for model in arguments.models.split(","):
            if arguments.here:
                numbers = [int(float(x)) for x in size.split("x")]
                print(json.dumps(measure((*numbers,), model, arguments.threads)))  # type: ignore[arg-type]
                continue
            command = [sys.executable, __file__, "--here", "--models", model, size]
            command += ["--threads", str(arguments.threads)]
            line = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            print(line, end="", flush=True)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(line)


if __name__ == "__main__":
    main()
