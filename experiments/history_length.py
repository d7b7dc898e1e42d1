"""How few ratings are enough: RMSE of new users of whom only some ratings are known.

The users, their test rows and their histories are those of the standard split. Each user shows 0,
1, 2, … random ratings of the history, drawn with the seed of the training; more ratings include the
fewer ones, and every model sees the same. Rows are appended as trainings end, and what is there is
not made again.

    python experiments/history_length.py ml-100k [--seeds 3] [--jobs 4]
    python experiments/history_length.py ml-1m --results FOLDER       writes to FOLDER
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from idcf.data.interactions import Interactions
from idcf.data.split import Split, sample_rows_per_user
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.evaluation.source_commit import source_commit
from idcf.inference.scoring import rmse_on
from idcf.rng import random_stream
from idcf.training.train import TrainingJob, train

FOLDER = Path(__file__).resolve().parent
MODELS = ("bias", "idcf-bayes")
LENGTHS = (0, 1, 2, 3, 5, 10, 20, None)  # ratings shown; None: all
CurveRow = dict[str, Any]  # one line of experiments/results/history-length-<dataset>.jsonl


def measure(name: str, model: str, seed: int) -> list[CurveRow]:
    """Train a model and return its RMSE for new users, by the number of ratings that they show."""
    torch.set_num_threads(1)
    split, split_name = standard_split(open_dataset(name, progress=False))
    trained = train(model, TrainingJob(split, dataset=name, seed=seed)).model
    test = split.test.for_users(split.query_users)
    return [
        {
            "dataset": name,
            "split": split_name,
            "model": model,
            "users": "new",
            "ratings_shown": "all" if length is None else length,
            "seed": seed,
            "rmse": round(rmse_on(trained, test, shown_histories(split, length, seed)), 5),
            "n_users": len(set(test.user.tolist())),
            "n_ratings": len(test),
            "commit": source_commit(),
        }
        for length in LENGTHS
    ]


def shown_histories(split: Split, length: int | None, seed: int) -> Interactions:
    """Return the training rows of the query users, at most `length` random ones of each."""
    histories = split.train.for_users(split.query_users)
    if length is None:
        return histories
    return sample_rows_per_user(histories, length, random_stream(seed, "ratings shown"))


def read_rows(path: Path) -> list[CurveRow]:
    """Return the rows of a file; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def missing_runs(rows: Sequence[CurveRow], n_seeds: int) -> list[tuple[str, int]]:
    """Return model and seed of the trainings without rows, the slowest first."""
    measured = {(row["model"], row["seed"]) for row in rows}
    runs = [(model, seed) for model in reversed(MODELS) for seed in range(n_seeds)]
    return [run for run in runs if run not in measured]


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dataset")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    options = parser.parse_args()
    path = options.results / f"history-length-{options.dataset}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = [
            pool.submit(measure, options.dataset, *run)
            for run in missing_runs(read_rows(path), options.seeds)
        ]
        for run in as_completed(runs):
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in run.result())


if __name__ == "__main__":
    main()
