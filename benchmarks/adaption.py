"""Time of the adaption stage of IDCF-NN: the published data flow against ours, on one thread.

The published data flow is our own plain implementation of it (`plain.py`), not the authors' code.
Both sides start from one pretrained NNMF (D = 16, head 48-32-16-1) and have 4 heads, 200 sampled
key users and the contrastive loss; our side is `idcf.training.loop.fit_by_gradient`. An epoch
predicts each rating once.

The plain side embeds one user for each row, 256 rows a step. Our side embeds a user once for up to
16 rows: with 256 users a step it computes as many attentions a step and takes a sixteenth of the
steps; with 256 rows a step it takes as many steps. Both are reported. The sides take turns, and the
best epoch of each counts, so that other load on the machine does not fall on one side alone.

    python benchmarks/adaption.py [--quick]       prints {"measurements": [...], "notes": [...]}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plain
import torch
from serving import Measurement, log, measurement
from torch import Tensor, nn

from idcf.data import batches
from idcf.data.datasets.catalog import find_dataset_folder, load_dataset
from idcf.data.interactions import Interactions
from idcf.data.split import (
    PredictionTask,
    hold_out_rows,
    hold_out_users,
    sample_users,
    split_by_threshold,
)
from idcf.inference.scoring import rmse_on
from idcf.models.base import Backbone, Model
from idcf.models.registry import configure, model_entry
from idcf.rng import random_stream
from idcf.testing.synthetic import long_tailed
from idcf.training.loop import fit_by_gradient
from idcf.training.objectives import RidgePenalty, adaption_objective, prediction_objective
from idcf.training.options import TrainConfig
from idcf.training.presets import StageConfig, stage_config
from idcf.types import Batch, Users

N_HEADS, N_ATTENDED_USERS = 4, 200
NNMF_OPTIONS = {"embedding_size": 16, "hidden": [32, 16]}
BATCH_SIZE, KEY_THRESHOLD = 256, 30
PLAIN_LEARNING_RATE = 0.001  # of the published code; our side has the rate of its preset
FLOWS = {  # name -> the preset of our side, and its rows a step
    "256 users a step": ("clean", 4096),  # as many attention queries a step as the plain side
    "256 rows a step": ("clean", BATCH_SIZE),
    "256 rows a step, published data flow": ("published", BATCH_SIZE),
}
PRESET_FLOW = "256 users a step"  # the batch size of the preset
SCHEDULES = {  # name -> training options of our side in `time_to_best`
    "ours": {},
    "ours, fast schedule": {"train.learning_rate": 0.005, "train.decay": 0.3},
}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    n_turns: int = 3  # turns of the two sides
    epochs_per_turn: int = 3  # of our side
    pretraining_epochs: int = 10
    plain_epochs: int = 4  # of the plain side in `time_to_best`
    max_epochs: int = 40  # of our side in `time_to_best`; it stops early
    max_batches: int | None = None  # of the plain side per epoch; None: all


QUICK = Size(
    n_turns=1,
    epochs_per_turn=1,
    pretraining_epochs=1,
    plain_epochs=1,
    max_epochs=2,
    max_batches=2,
)


@dataclass(frozen=True)
class BenchmarkData:
    """Ratings of key users, a validation task on some of them, and a pretrained backbone."""

    name: str
    key_rows: Interactions
    train_rows: Interactions  # `key_rows` without the validation users
    validation: PredictionTask
    backbone: Backbone


def measure(quick: bool = False) -> tuple[list[Measurement], list[str]]:
    """Return all measurements, and notes for the report."""
    torch.set_num_threads(1)
    size = QUICK if quick else Size()
    data = prepare(quick, size.pretraining_epochs)
    epoch_measurements, epoch_notes = epoch_times(data, size)
    best_measurements, best_notes = times_to_best(data, size)
    return (
        epoch_measurements + best_measurements,
        [f"adaption on {data.name}: {data.key_rows!r}", *epoch_notes, *best_notes],
    )


def prepare(quick: bool, pretraining_epochs: int) -> BenchmarkData:
    """Load ML-100K, or synthetic data of its size if it is not installed, and train a backbone."""
    rng = random_stream(0, "benchmark")
    name, train, test = _load_ratings(quick, rng)
    train = replace(train, user_features=None)  # IDCF-NN reads none
    split = split_by_threshold(train, test, 10 if quick else KEY_THRESHOLD)
    key_rows = train.for_users(split.key_users)
    validation_users = sample_users(split.key_users, 0.1, rng)
    history_lengths = (4, 9) if quick else (4, KEY_THRESHOLD - 1)
    train_rows, validation = hold_out_users(key_rows, validation_users, history_lengths, rng)
    backbone = _pretrained_backbone(train_rows, pretraining_epochs)
    return BenchmarkData(name, key_rows, train_rows, validation, backbone)


def _load_ratings(quick: bool, rng: np.random.Generator) -> tuple[str, Interactions, Interactions]:
    """Return the name of the data, its training rows and its test rows."""
    if not quick and find_dataset_folder("ml-100k") is not None:
        dataset = load_dataset("ml-100k", progress=False)
        if dataset.train is not None and dataset.test is not None:
            return "ml-100k", dataset.train, dataset.test
        return "ml-100k", *hold_out_rows(dataset.interactions, 0.2, rng)
    if quick:
        name, table = "small synthetic data", long_tailed(3000, rng, n_users=120, n_items=150)
    else:
        name, table = "synthetic data", long_tailed(100_000, rng, n_users=943, n_items=1682)
    return name, *hold_out_rows(table, 0.2, rng)


def _pretrained_backbone(table: Interactions, n_epochs: int) -> Backbone:
    config = stage_config("nnmf", dataset="ml-100k", options=NNMF_OPTIONS)
    train = config.train
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_entry("nnmf").build(configure("nnmf", config.options), table.domain())
    if not isinstance(model, Backbone):
        raise TypeError(f"nnmf is a {type(model).__name__}, not a Backbone")
    train_backbone(model, table, train, n_epochs, stream="pretrain")
    return model


def train_backbone(
    model: Model, table: Interactions, train: TrainConfig, n_epochs: int, *, stream: str
) -> list[dict[str, float]]:
    """Train a backbone on ratings and return the record of each epoch.

    `stream` labels the random numbers that order the rows.
    """
    user_counts = torch.from_numpy(table.user_counts()).float()
    item_counts = torch.from_numpy(table.item_counts()).float()
    penalty = RidgePenalty(user_counts, item_counts, train.reg, train.row_reg, train.bias_reg)

    def epoch_batches(epoch: int) -> Iterator[Batch]:
        rng = random_stream(0, stream, epoch)
        return batches.row_batches(table, None, batch_size=train.batch_size, rng=rng)

    objective = prediction_objective(penalty=penalty)
    return fit_by_gradient(model, epoch_batches, objective, train, n_epochs=n_epochs).records


class PlainTrainer:
    """The plain side: its model, optimizer and data."""

    def __init__(self, backbone: Backbone, table: Interactions, max_batches: int | None) -> None:
        layers = [x for x in backbone.head.modules() if isinstance(x, nn.Linear)]
        mlp: list[tuple[Tensor, Tensor]] = [(x.weight, x.bias) for x in layers]
        users, items = backbone.user_table, backbone.item_table
        self.model = plain.PlainIDCF(
            users.vector,
            items.vector,
            users.bias,
            items.bias + backbone.mean,
            mlp,
            torch.from_numpy(np.flatnonzero(table.user_counts())),
            heads=N_HEADS,
            samples=N_ATTENDED_USERS,
            generator=torch.Generator().manual_seed(0),
        )
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(parameters, lr=PLAIN_LEARNING_RATE)
        self.rows, self.histories = _columns(table), _history_lists(table)
        self.rng = np.random.default_rng(0)
        self.max_batches = max_batches
        n_steps = -(-len(table) // BATCH_SIZE)
        self.epoch_per_measured = n_steps / min(max_batches or n_steps, n_steps)

    def train_epoch(self) -> float:
        """Train for an epoch, or its first batches; return the seconds of a whole epoch."""
        _, seconds = plain.train_epoch(
            self.model,
            self.optimizer,
            self.rows,
            self.histories,
            BATCH_SIZE,
            rng=self.rng,
            max_batches=self.max_batches,
        )
        return seconds * self.epoch_per_measured

    def rmse(self, task: PredictionTask) -> float:
        """Return the RMSE on a validation task."""
        histories = _history_lists(task.history_table)
        return plain.rmse(self.model, _columns(task.target_table), histories)


def train_ours(
    flow: str,
    backbone: Backbone,
    table: Interactions,
    n_epochs: int,
    validate: Callable[[Model], float] | None = None,
    schedule: Mapping[str, float] | None = None,
) -> list[dict[str, float]]:
    """Train IDCF-NN with our loop and return the record of each epoch.

    `flow` is a key of `FLOWS`; the backbone is copied; `schedule` replaces training options of the
    preset. `validate` gives the validation error of a model: it may stop training early, and adds
    a record of the untrained model.
    """
    config = _stage_config(flow, schedule or {})
    train, keys = config.train, np.flatnonzero(table.user_counts())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        key_users = Users(torch.from_numpy(keys), table.history(keys))
        options = configure("idcf-nn", config.options)
        model = model_entry("idcf-nn").build_around(options, deepcopy(backbone), key_users)

    def epoch_batches(epoch: int) -> Iterator[Batch]:
        rng = random_stream(0, "adapt", epoch)
        if not config.episodes:
            return batches.row_batches(table, table, batch_size=train.batch_size, rng=rng)
        return batches.episode_batches(
            table,
            batch_size=train.batch_size,
            history_lengths=config.history_lengths,
            targets_per_episode=config.targets_per_episode,
            rng=rng,
        )

    before = [{"seconds": 0.0, "valid": validate(model)}] if validate else []
    objective = adaption_objective(train.contrast)
    limits: dict[str, Any] = {"validate": validate, "n_epochs": n_epochs}
    return before + fit_by_gradient(model, epoch_batches, objective, train, **limits).records


def epoch_times(data: BenchmarkData, size: Size) -> tuple[list[Measurement], list[str]]:
    """Return the seconds of an epoch over all rows of key users, and the ratios of the sides."""
    plain_side = PlainTrainer(data.backbone, data.key_rows, size.max_batches)
    seconds: dict[str, list[float]] = {"plain": [], **{flow: [] for flow in FLOWS}}
    for _ in range(size.n_turns):
        seconds["plain"].append(plain_side.train_epoch())
        for flow in FLOWS:
            records = train_ours(flow, data.backbone, data.key_rows, size.epochs_per_turn)
            seconds[flow] += [record["seconds"] for record in records]
        log({name: [round(x, 3) for x in values] for name, values in seconds.items()})
    best = {name: min(values) for name, values in seconds.items()}
    measurements = [measurement("adaption epoch, plain", best["plain"], "s", False)]
    for flow in FLOWS:
        ratio = best["plain"] / best[flow]
        measurements += [
            measurement(f"adaption epoch, {flow}", best[flow], "s", False),
            measurement(f"adaption epoch, {flow}, speed-up", ratio, "x", True),
        ]
    notes = [f"seconds of each epoch, {name}: {_join(values)}" for name, values in seconds.items()]
    return measurements, notes


def times_to_best(data: BenchmarkData, size: Size) -> tuple[list[Measurement], list[str]]:
    """Return the seconds until the best RMSE on validation users, and the ratios of the sides."""
    plain_side = PlainTrainer(data.backbone, data.train_rows, size.max_batches)
    clock, errors = [0.0], [plain_side.rmse(data.validation)]
    for _ in range(size.plain_epochs):
        clock.append(clock[-1] + plain_side.train_epoch())
        errors.append(plain_side.rmse(data.validation))
        log(f"plain: {errors[-1]:.4f} after {clock[-1]:.1f} s")
    best = int(np.argmin(errors[1:])) + 1
    plain_error, plain_seconds = errors[best], clock[best]
    measurements = [
        measurement("validation RMSE before adaption, plain", errors[0], "RMSE", False),
        measurement("best validation RMSE, plain", plain_error, "RMSE", False),
        measurement("time to best validation RMSE, plain", plain_seconds, "s", False),
    ]
    notes = [
        f"validation RMSE before and after each epoch, plain: {_join(errors)}",
        "the time to the best is that of training, in whole epochs, to the lowest RMSE of the run",
        f"the plain side trains for {size.plain_epochs} epochs, so its best may lie later",
        "our model may reach the plain side's best before adaption; the time is then one epoch",
    ]
    for name, schedule in SCHEDULES.items():
        values, note = _our_times_to_best(data, size, name, schedule, (plain_error, plain_seconds))
        measurements += values
        notes.append(note)
    return measurements, notes


def _our_times_to_best(
    data: BenchmarkData,
    size: Size,
    name: str,
    schedule: Mapping[str, float],
    plain_best: tuple[float, float],
) -> tuple[list[Measurement], str]:
    """Measure our side under one schedule; `plain_best` is the other side's RMSE and seconds."""
    task, (plain_error, plain_seconds) = data.validation, plain_best

    def validate(model: Model) -> float:
        return rmse_on(model, task.target_table, task.history_table)

    records = train_ours(
        PRESET_FLOW, data.backbone, data.train_rows, size.max_epochs, validate, schedule
    )
    clock = np.cumsum([record["seconds"] for record in records])
    errors = [record["valid"] for record in records]
    best = int(np.argmin(errors[1:])) + 1
    log(f"{name}: {errors[best]:.4f} after {clock[best]:.2f} s ({best} epochs)")
    seconds_to = {"best": clock[best]}
    if as_good := [n for n in range(1, len(errors)) if errors[n] <= plain_error]:
        seconds_to["the plain side's best"] = clock[as_good[0]]
    measurements = [
        measurement(f"validation RMSE before adaption, {name}", errors[0], "RMSE", False),
        measurement(f"best validation RMSE, {name}", errors[best], "RMSE", False),
    ]
    for goal, seconds in seconds_to.items():
        label = f"time to {goal} validation RMSE, {name}"
        ratio = plain_seconds / float(seconds)
        measurements += [
            measurement(label, float(seconds), "s", False),
            measurement(f"{label}, speed-up", ratio, "x", True),
        ]
    return measurements, f"validation RMSE before and after each epoch, {name}: {_join(errors)}"


def _stage_config(flow: str, schedule: Mapping[str, float]) -> StageConfig:
    preset, batch_size = FLOWS[flow]
    options = {
        "heads": N_HEADS,
        "n_attended_users": N_ATTENDED_USERS,
        "train.batch_size": batch_size,
        **schedule,
    }
    return stage_config("idcf-nn", preset=preset, dataset="ml-100k", options=options)


def _columns(table: Interactions) -> plain.Rows:
    return plain.Rows(table.user, table.item, table.rating)


def _history_lists(table: Interactions) -> list[list[int]]:
    """Return the items of each user as a Python list."""
    order, start = table.rows_by_user
    return [part.tolist() for part in np.split(table.item[order], start[1:-1])]


def _join(values: Sequence[float]) -> str:
    return ", ".join(f"{x:.4g}" for x in values)


if __name__ == "__main__":
    measurements, notes = measure("--quick" in sys.argv[1:])
    print(json.dumps({"measurements": measurements, "notes": notes}))
