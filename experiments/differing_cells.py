"""Why do cells of the paper's tables differ from ours? One small experiment for each.

    python experiments/differing_cells.py STUDY [--seeds 3] [--jobs 4] [--results FOLDER]

Studies:

- nnmf-penalty: NNMF on ML-1M with other penalties than that of the public code for this baseline.
- threshold-draws: few-shot users of ML-1M by δ, over random draws of the test rows (table 6).
- threshold-backbone: the same users scored by NNMF, which is trained on all users.
- threshold-rate: the same users by IDCF-NN, with other learning rates of the adaption.
- beauty-gc: IDCF-GC on Amazon-Beauty with tanh in the head, as in the public code there.
- douban-gc: IDCF-GC on Douban with means of messages, and without edge dropout.
- fism-beauty: FISM on Amazon-Beauty whose item biases start at 0 instead of the items' popularity.
- worst-order: NDCG of the test lists in the worst order, in file order and in random order.

Rows are appended to FOLDER/differing-cells.jsonl as trainings end; what is there is not made again.
Nothing is chosen by these rows. `experiments/epoch_curve.py` has the curves over epochs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from idcf import metrics
from idcf.data.split import Split
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.measure import ModelAssignment, compute_metrics
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.evaluation.run import make_evaluation_sets
from idcf.evaluation.source_commit import source_commit
from idcf.models.layers import heads
from idcf.paper.models import fism
from idcf.training.job import QueryUserMode, start_runtime
from idcf.training.train import TrainingJob, train
from idcf.types import Domain

FILE = Path(__file__).resolve().parent / "results" / "differing-cells.jsonl"
THRESHOLDS = (20, 30, 40, 50, 60, 70)  # δ of table 6
Row = dict[str, Any]  # one line of FILE


@dataclass(frozen=True)
class Study:
    """The trainings of one experiment, and the groups of users that are measured."""

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    mode: QueryUserMode
    changes: tuple[Mapping[str, Any], ...] = ({},)  # options over those of the preset
    preset: str = "published"
    groups: tuple[str, ...] = ("new",)
    by_threshold: bool = False  # measure the users below each δ instead of `groups`
    thresholds: tuple[int | None, ...] = (None,)  # δ of the split; None: that of the dataset
    draws: tuple[int | None, ...] = (None,)  # of test rows; None: the standard ones


STUDIES = {
    "nnmf-penalty": Study(
        ("ml-1m",), ("nnmf",), "few-shot",
        ({}, *({"train.reg": x} for x in (0.1, 0.2, 0.4))), groups=("all", "few-shot"),
    ),
    "threshold-draws": Study(
        ("ml-1m",), ("bias", "als"), "few-shot", preset="clean", by_threshold=True,
        draws=tuple(range(1, 11)),
    ),
    "threshold-backbone": Study(
        ("ml-1m",), ("nnmf",), "few-shot", ({}, {"train.reg": 0.2}), by_threshold=True,
    ),
    "threshold-rate": Study(
        ("ml-1m",), ("idcf-nn",), "few-shot",
        ({}, {"train.learning_rate": 0.001}, {"train.learning_rate": 0.003}),
        groups=("few-shot", "all"), thresholds=(30, 40, 70),
    ),
    "beauty-gc": Study(
        ("amazon-beauty",), ("idcf-gc",), "new",
        ({}, {"head": "tanh"}, {"train.learning_rate": 0.0001}),
    ),
    "fism-beauty": Study(
        ("amazon-beauty",), ("fism",), "new", ({}, {"item_biases": "zero"}), preset="clean",
    ),
    "douban-gc": Study(
        ("douban",), ("idcf-gc",), "new",
        ({}, {"average_messages": True}, {"edge_dropout": 0.0}),
    ),
}  # fmt: skip
METRICS = {False: ("rmse", "ndcg"), True: ("auc", "auc-user", "ndcg")}


class Trial(NamedTuple):
    """One training and what is measured of it."""

    study: str
    dataset: str
    model: str
    options: Mapping[str, Any]
    threshold: int | None
    draw: int | None
    seed: int

    def fields(self) -> Row:
        """Return what identifies the trial in a row."""
        fields = self._asdict() | {"options": dict(self.options)}
        return {name: value for name, value in fields.items() if value is not None}


def trials_of(name: str, n_seeds: int) -> Iterator[Trial]:
    """Yield the trials of a study, all of a seed first."""
    study = STUDIES[name]
    for seed in range(n_seeds):
        for dataset in study.datasets:
            for threshold in study.thresholds:
                for draw in study.draws:
                    for model in study.models:
                        for options in study.changes:
                            yield Trial(name, dataset, model, options, threshold, draw, seed)


def run_trial(trial: Trial, device: str) -> list[Row]:
    """Train a model and return its rows."""
    torch.set_num_threads(1)
    study = STUDIES[trial.study]
    dataset = open_dataset(trial.dataset, progress=False)
    split, split_name = standard_split(dataset, threshold=trial.threshold, draw=trial.draw)
    began = time.perf_counter()
    job = TrainingJob(
        split, study.mode, study.preset, trial.dataset, trial.seed, start_runtime(device)
    )
    options = dict(trial.options)
    with ExitStack() as stack:
        if options.pop("head", None) == "tanh":
            stack.enter_context(patch.object(heads, "nn", _WithTanh()))
        if options.pop("item_biases", None) == "zero":
            stack.enter_context(patch.object(fism, "item_log_popularity", _zero_biases))
        result = train(trial.model, job, options=options)
        seconds = time.perf_counter() - began
        assignments = [
            ModelAssignment(result.key_user_model, split.key_users),
            ModelAssignment(result.model, split.query_users),
        ]
        rows = []
        for users, evaluation_set in _evaluation_sets(study, split).items():
            names = METRICS[evaluation_set.test_rows.implicit]
            measured = compute_metrics(evaluation_set, assignments, names=names, rank_catalog=False)
            values = {metric: round(x.interval.value, 5) for metric, x in measured.items()}
            epochs = {x: log.best_epoch + 1 for x, log in result.logs.items()}
            rows.append(
                trial.fields()
                | {"split": split_name, "preset": study.preset, "users": users, **values}
                | {"n_ratings": len(evaluation_set.test_rows), "epochs": epochs}
                | {"seconds": round(seconds, 1), "device": device, "commit": source_commit()}
            )
    return rows


class _WithTanh:
    """The module `torch.nn` with tanh in the place of ReLU."""

    def __getattr__(self, name: str) -> Any:
        return nn.Tanh if name == "ReLU" else getattr(nn, name)


def _zero_biases(domain: Domain) -> torch.Tensor:
    """Return a bias of 0 for each item."""
    return torch.zeros(domain.n_items)


def _evaluation_sets(study: Study, split: Split) -> dict[str, EvaluationSet]:
    """Return the evaluation sets of a study by the name of the group."""
    if not study.by_threshold:
        return make_evaluation_sets(split, study.groups)
    counts = split.train.user_counts()
    return {
        f"fewer than {x}": EvaluationSet.from_split(split, np.flatnonzero(counts < x))
        for x in THRESHOLDS
    }


def worst_order_rows() -> Iterator[Row]:
    """Yield the NDCG of new users' test lists in orders that need no model; of ML-1M, which has no
    official test rows, also the worst of five other draws."""
    splits = [(name, None) for name in ("douban", "ml-100k", "ml-1m")]
    for name, draw in [*splits, *(("ml-1m", n) for n in range(1, 6))]:
        split, split_name = standard_split(open_dataset(name, progress=False), draw=draw)
        rows = split.test.for_users(split.query_users)
        orders = {"worst": metrics.ndcg(rows.user, -rows.rating, rows.rating)}
        if draw is None:
            file_order = -np.arange(len(rows)).astype(np.float32)
            orders["file"] = metrics.ndcg(rows.user, file_order, rows.rating)
            orders["random"] = metrics.random_ndcg(rows.user, rows.rating)
        for order, per_user in orders.items():
            value = float(per_user.total.sum() / per_user.weight.sum())
            row = {"study": "worst-order", "dataset": name, "split": split_name, "order": order}
            row |= {} if draw is None else {"draw": draw}
            yield row | {"users": "new", "ndcg": round(value, 5), "commit": source_commit()}


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def append_rows(path: Path, rows: Iterator[Row] | list[Row]) -> None:
    """Append rows to a file and print them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


def main() -> None:
    """Make the missing trainings of one study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("study", choices=[*STUDIES, "worst-order"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=FILE.parent)
    arguments = parser.parse_args()
    path = arguments.results / FILE.name
    if arguments.study == "worst-order":
        append_rows(path, worst_order_rows())
        return
    rows = read_rows(path)
    missing = [
        trial
        for trial in trials_of(arguments.study, arguments.seeds)
        if not any(trial.fields().items() <= row.items() for row in rows)
    ]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(run_trial, trial, arguments.device) for trial in missing]
        for run in as_completed(runs):
            append_rows(path, run.result())


if __name__ == "__main__":
    main()
