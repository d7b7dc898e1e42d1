"""The error of new users after every epoch of the adaption stage of IDCF, under `published`.

    python experiments/epoch_curve.py ml-100k --seeds 0,1,2      about 5 min a seed on one core

The preset's rule for the number of epochs sees the held-out rows alone (`valid`); the test error
(`rmse`) is shown, and chooses nothing. Each epoch is appended to
experiments/results/epoch-curve-<dataset>.jsonl as soon as it is done.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch

from idcf.data.split import PredictionTask, Split
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.inference.scoring import rmse_on
from idcf.models.base import Model
from idcf.training import two_stage
from idcf.training.job import start_runtime
from idcf.training.train import TrainingJob, train
from idcf.training.validation import validation_metric

FOLDER = Path(__file__).resolve().parent / "results"


def train_and_record(name: str, dataset: str, split: Split, seed: int) -> int:
    """Train a model, append a line for each epoch, and return the number of the chosen epoch."""
    path = FOLDER / f"epoch-curve-{dataset}.jsonl"
    test, n_epochs = split.test.for_users(split.query_users), 0

    def metric(task: PredictionTask, metric_seed: int) -> Callable[[Model], float]:
        """Return the validation error of the preset, which records both errors when called."""
        valid_error = validation_metric(task, metric_seed)

        def record(model: Model) -> float:
            nonlocal n_epochs
            n_epochs, valid = n_epochs + 1, valid_error(model)
            rmse = rmse_on(model, test, split.train)
            row = {"model": name, "preset": "published", "users": "new", "seed": seed}
            row |= {"epoch": n_epochs, "valid": round(valid, 5), "rmse": round(rmse, 5)}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"dataset": dataset, **row}) + "\n")
            return valid

        return record

    with patch.object(two_stage, "validation_metric", metric):
        job = TrainingJob(split, "new", "published", dataset, seed, start_runtime())
        return train(name, job).logs[name].best_epoch + 1


def main() -> None:
    """Record the curves that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--model", default="idcf-nn", choices=["idcf-nn", "idcf-gc"])
    parser.add_argument("--seeds", default="0", help="separated by commas")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    split, _ = standard_split(open_dataset(arguments.dataset, progress=False))
    for seed in map(int, arguments.seeds.split(",")):
        epoch = train_and_record(arguments.model, arguments.dataset, split, seed)
        print(f"{arguments.model}, seed {seed}: epoch {epoch} is chosen")


if __name__ == "__main__":
    main()
