"""The error on test rows after every epoch of a model, for the users below the threshold.

    python experiments/epoch_curve.py ml-100k --seeds 0,1,2      about 5 min a seed on one core
    python experiments/epoch_curve.py ml-1m --users few-shot --threshold 40 --device cuda

The preset's rule for the number of epochs sees the held-out rows or users alone (`valid`); the test
figures are shown, and choose nothing. Each epoch is appended to
experiments/results/epoch-curve-<dataset>.jsonl as soon as it is done; `chosen` ends a curve.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from idcf.data.split import PredictionTask
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.measure import ModelAssignment, compute_metrics
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.evaluation.source_commit import source_commit
from idcf.models.base import Model
from idcf.models.registry import model_entry
from idcf.training import gradient, two_stage
from idcf.training.job import start_runtime
from idcf.training.train import TrainingJob, train
from idcf.training.validation import validation_metric

FOLDER = Path(__file__).resolve().parent / "results"
METRICS = {False: ("rmse", "ndcg"), True: ("auc", "ndcg")}
ValidationMetric = Callable[[PredictionTask, int], Callable[[Model], float]]


class Curve(NamedTuple):
    """The curve of one training."""

    dataset: str
    model: str
    users: str  # new or few-shot
    seed: int
    preset: str = "published"
    threshold: int | None = None  # δ; None: that of the dataset
    options: dict[str, Any] | None = None  # over those of the preset

    def fields(self) -> dict[str, Any]:
        """Return what identifies the curve in a line."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def record_curve(curve: Curve, path: Path, device: str = "cpu") -> int:
    """Train a model, append a line for each epoch, and return the number of the chosen epoch."""
    dataset = open_dataset(curve.dataset, progress=False)
    split, _ = standard_split(dataset, threshold=curve.threshold)
    evaluation_set = EvaluationSet.from_split(split, split.query_users)
    names, n_epochs = METRICS[split.train.implicit], 0

    def append(row: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            line = curve.fields() | row | {"commit": source_commit()}
            file.write(json.dumps(line) + "\n")

    def metric(task: PredictionTask, metric_seed: int) -> Callable[[Model], float]:
        """Return the validation error of the preset, which records all errors when called."""
        valid_error = validation_metric(task, metric_seed)

        def record(model: Model) -> float:
            nonlocal n_epochs
            n_epochs, valid = n_epochs + 1, valid_error(model)
            assignments = [ModelAssignment(model, split.query_users)]
            measured = compute_metrics(evaluation_set, assignments, names=names, rank_catalog=False)
            values = {name: round(x.interval.value, 5) for name, x in measured.items()}
            append({"epoch": n_epochs, "valid": round(valid, 5), **values})
            return valid

        return record

    mode = "few-shot" if curve.users == "few-shot" else "new"
    job = TrainingJob(split, mode, curve.preset, curve.dataset, curve.seed, start_runtime(device))
    with _validation(curve.model, metric):
        result = train(curve.model, job, options=curve.options)
    chosen = result.logs[curve.model].best_epoch + 1
    append({"chosen": chosen})
    return chosen


@contextmanager
def _validation(model: str, metric: ValidationMetric) -> Iterator[None]:
    """Replace the validation metric of the last stage of a model."""
    module = two_stage if model_entry(model).backbone else gradient
    with patch.object(module, "validation_metric", metric):
        yield


def main() -> None:
    """Record the curves that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dataset")
    parser.add_argument("--model", default="idcf-nn")
    parser.add_argument("--users", default="new", choices=["new", "few-shot"])
    parser.add_argument("--preset", default="published")
    parser.add_argument("--threshold", type=int)
    parser.add_argument("--options", type=json.loads, help="JSON, over those of the preset")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = arguments.results / f"epoch-curve-{arguments.dataset}.jsonl"
    for seed in map(int, arguments.seeds.split(",")):
        curve = Curve(
            arguments.dataset,
            arguments.model,
            arguments.users,
            seed,
            arguments.preset,
            arguments.threshold,
            arguments.options,
        )
        epoch = record_curve(curve, path, arguments.device)
        print(f"{arguments.model}, seed {seed}: epoch {epoch} is chosen", flush=True)


if __name__ == "__main__":
    main()
