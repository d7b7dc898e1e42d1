"""How many key users are enough: idcf-bayes for new users, trained on ever fewer key users.

    python experiments/key_users.py ml-1m --jobs 8      train, write experiments/results/, draw
    python experiments/key_users.py ml-1m --draw        draw the stored results into docs/

The model is smaller than that of the preset (embedding size 20, 48 sweeps), since only differences
matter.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from idcf.data.split import select_informative_users
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.files import write_bytes, write_text
from idcf.inference.scoring import rmse_on
from idcf.paper import figures
from idcf.training.train import TrainingJob, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent
OPTIONS = {"embedding_size": 20, "rank": 30, "burn_in": 16, "sweeps": 48}
SIZES = (50, 100, 200, 400, 800, 1600, 3200)
StudyRow = dict[str, Any]  # one line of experiments/results/key-users-<dataset>.jsonl


def measure(name: str, chosen: str, n: int) -> StudyRow:
    """Train on n key users and return the RMSE of new users.

    Parameters
    ----------
    name
        Name of the dataset.
    chosen
        How key users are chosen: "all", "informative" or "random".
    n
        Number of key users.
    """
    torch.set_num_threads(1)
    split, _ = standard_split(open_dataset(name, progress=False))
    keys = split.key_users
    if chosen == "informative":
        keys = select_informative_users(split.train, keys, n)
    elif chosen == "random":
        keys = np.sort(np.random.default_rng(n).permutation(keys)[:n])
    began = time.perf_counter()
    job = TrainingJob(replace(split, key_users=keys), dataset=name)
    model = train("idcf-bayes", job, options=OPTIONS).model
    rmse = rmse_on(model, split.test.for_users(split.query_users), split.train)
    return {
        "dataset": name,
        "model": "idcf-bayes",
        "users": "new",
        "chosen": chosen,
        "key_users": len(keys),
        "rows": int(split.train.user_counts()[keys].sum()),
        "rmse": round(rmse, 5),
        "seconds": round(time.perf_counter() - began, 1),
    }


@figures.with_style
def plot_key_user_budget(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw RMSE of new users against the number of key users, for each way to choose them."""
    figure, axes = figures.make_subplots(1, 1, (6.4, 4.0))
    axis = axes[0][0]
    for chosen, color in (("random", "#7f7f7f"), ("informative", figures.COLORS["idcf-bayes"])):
        points = sorted((row["key_users"], row["rmse"]) for row in rows if row["chosen"] == chosen)
        if points:
            axis.plot(*zip(*points, strict=True), "o-", color=color, lw=1.8, ms=5, label=chosen)
    for row in rows:
        if row["chosen"] == "all":
            axis.axhline(row["rmse"], color="#444444", lw=1.2, label=f"all {row['key_users']:,}")
            axis.axhline(row["rmse"] * 1.005, color="#444444", ls=":", lw=1.2, label="0.5 % worse")
    axis.set_xscale("log")
    axis.set_xlabel("key users trained on")
    axis.set_ylabel("RMSE of new users")
    axis.set_title("How many key users are enough?")
    axis.legend()
    return figure


def main() -> None:
    """Run the study, or draw its stored results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dataset")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--draw", action="store_true", help="only draw the stored results")
    options = parser.parse_args()
    path = FOLDER / "results" / f"key-users-{options.dataset}.jsonl"
    if not options.draw:
        n_keys = len(standard_split(open_dataset(options.dataset))[0].key_users)
        sizes = [n for n in SIZES if n < n_keys]
        tasks = [("all", n_keys), *((how, n) for how in ("informative", "random") for n in sizes)]
        names = [options.dataset] * len(tasks)
        with ProcessPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(measure, names, *zip(*tasks, strict=True)))
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    figure_path = FOLDER.parent / "docs" / f"key-users-{options.dataset}.png"
    write_bytes(figure_path, figures.to_png(plot_key_user_budget(rows), dpi=90))
    print(figure_path)


if __name__ == "__main__":
    main()
