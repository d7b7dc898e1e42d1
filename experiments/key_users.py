"""How many key users are enough, and which: idcf-bayes on new users, trained on fewer and fewer.

    python experiments/key_users.py ml-1m --jobs 8      runs, writes experiments/results/, draws
    python experiments/key_users.py ml-1m --draw        draws what is there, into docs/

A smaller model than the preset's (embedding size 20, 48 sweeps), since only differences matter.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idcf.data.split import informative
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.inference.scoring import rmse_on
from idcf.paper import figures
from idcf.training.train import Job, train

HERE = Path(__file__).resolve().parent
OPTIONS = {"embedding_size": 20, "rank": 30, "burn_in": 16, "sweeps": 48}
Row = dict[str, Any]


def study(name: str, chosen: str, n: int) -> Row:
    """Train on n key users chosen this way, and predict the new users."""
    torch.set_num_threads(1)
    split, _ = standard_split(open_dataset(name, progress=False))
    keys = split.key_users
    if chosen == "informative":
        keys = informative(split.train, keys, n)
    elif chosen == "random":
        keys = np.sort(np.random.default_rng(n).permutation(keys)[:n])
    began = time.perf_counter()
    job = Job(replace(split, key_users=keys), dataset=name)
    model = train("idcf-bayes", job, options=OPTIONS).model
    error = rmse_on(model, split.test.of(split.query_users), split.train)
    return {
        "dataset": name,
        "model": "idcf-bayes",
        "users": "new",
        "chosen": chosen,
        "key_users": len(keys),
        "rows": int(split.train.counts()[keys].sum()),
        "rmse": round(error, 5),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    ask.add_argument("dataset")
    ask.add_argument("--jobs", type=int, default=1)
    ask.add_argument("--draw", action="store_true", help="only draw what is there")
    options = ask.parse_args()
    path = HERE / "results" / f"key-users-{options.dataset}.jsonl"
    if not options.draw:
        most = len(standard_split(open_dataset(options.dataset))[0].key_users)
        sizes = [n for n in (50, 100, 200, 400, 800, 1600, 3200) if n < most]
        tasks = [("all", most), *((how, n) for how in ("informative", "random") for n in sizes)]
        with ProcessPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(study, [options.dataset] * len(tasks), *zip(*tasks, strict=True)))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    picture = HERE.parent / "docs" / f"key-users-{options.dataset}.png"
    picture.write_bytes(figures.png(figures.budget(rows), dpi=90))
    print(picture)


if __name__ == "__main__":
    main()
