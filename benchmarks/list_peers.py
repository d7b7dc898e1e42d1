"""Fit recommenders of `implicit` and `irspack`, and rank for new users: the other side of
`list_baselines.py`, run by a Python that has these libraries and not idcf.

    python benchmarks/list_peers.py FOLDER

FOLDER holds `job.json` (library, class, a list of options to try, k, seed), `train.npz` and
`histories.npz` (0/1 matrices of key users and of new users over the same items). The lists of each
trial, [users, k] with -1 where there are fewer, go to `lists-N.npy`, the seconds of each fit to
`seconds.json`: of processor time, which other load distorts less.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, load_npz

_BLOCK = 256  # users whose scores of all items are held at once


def main(folder: Path) -> None:
    """Run every trial of the job in a folder."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    train, histories = (
        csr_matrix(load_npz(folder / f"{name}.npz")) for name in ("train", "histories")
    )
    rank = {"implicit": rank_with_implicit, "irspack": rank_with_irspack}[job["library"]]
    seconds = []
    for number, options in enumerate(job["trials"]):
        lists, fit_seconds = rank(job, options, train, histories)
        np.save(folder / f"lists-{number}.npy", lists)
        seconds.append(fit_seconds)
    (folder / "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")


def rank_with_implicit(
    job: dict[str, Any], options: dict[str, Any], train: csr_matrix, histories: csr_matrix
) -> tuple[np.ndarray, float]:
    """Return the lists of a class of `implicit`, and the seconds of its fit."""
    from implicit import nearest_neighbours
    from implicit.cpu.als import AlternatingLeastSquares

    if job["class"] == "AlternatingLeastSquares":
        model = AlternatingLeastSquares(num_threads=1, random_state=job["seed"], **options)
    else:
        model = getattr(nearest_neighbours, job["class"])(num_threads=1, **options)
    start = time.process_time()
    model.fit(train, show_progress=False)
    seconds = time.process_time() - start
    users = np.arange(histories.shape[0])
    items, scores = model.recommend(users, histories, N=job["k"], recalculate_user=True)
    return np.where(scores > -1e30, items, -1), seconds


def rank_with_irspack(
    job: dict[str, Any], options: dict[str, Any], train: csr_matrix, histories: csr_matrix
) -> tuple[np.ndarray, float]:
    """Return the lists of a class of `irspack`, and the seconds of its fit."""
    from irspack import recommenders

    start = time.process_time()
    model = getattr(recommenders, job["class"])(train.astype(np.float64), **options).learn()
    seconds = time.process_time() - start
    lists = []
    for low in range(0, histories.shape[0], _BLOCK):
        scores = model.get_score_cold_user_remove_seen(
            histories[low : low + _BLOCK].astype(np.float64)
        )
        order = np.argsort(-scores, axis=1, kind="stable")[:, : job["k"]]
        is_item = np.isfinite(np.take_along_axis(scores, order, 1))
        lists.append(np.where(is_item, order, -1))
    return np.concatenate(lists), seconds


if __name__ == "__main__":
    main(Path(sys.argv[1]))
