"""One stage of gradient training: a model that wraps no backbone, and the runs of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from idcf.data import batches
from idcf.data.interactions import Interactions
from idcf.data.split import PredictionTask, hold_out_rows
from idcf.errors import DivergenceError
from idcf.models.base import Backbone, Model
from idcf.models.registry import configure, model_entry
from idcf.rng import derive_seed, random_stream
from idcf.training.checkpoint import TrainingLog
from idcf.training.job import TrainingJob
from idcf.training.loop import fit_by_gradient
from idcf.training.objectives import (
    Objective,
    Penalty,
    RidgePenalty,
    norm_penalty,
    prediction_objective,
)
from idcf.training.options import TrainConfig
from idcf.training.presets import StageConfig
from idcf.training.solvers.bias import initialize_biases, subtract_user_biases
from idcf.training.validation import hold_out_validation_users, validation_metric
from idcf.types import Batch

_ALL_ROWS = (1 << 30, 1 << 30)  # history lengths: every row of a user that is no target


class StageResult(NamedTuple):
    """One stage trained by gradient."""

    config: StageConfig
    model: Model
    log: TrainingLog
    mean_rating: float  # `Domain.mean` that the model, or its backbone, was built with

    @property
    def n_epochs(self) -> int:
        """The number of epochs up to the best one."""
        return self.log.best_epoch + 1


def best_result(trainings: Iterable[Callable[[], StageResult]]) -> StageResult:
    """Do all trainings and return the result with the lowest validation error, the first of equals.

    Trainings that diverge are left out; `DivergenceError` if all do.
    """
    results, error = [], None
    for training in trainings:
        try:
            results.append(training())
        except DivergenceError as divergence:
            error = error or divergence
    if error and not results:
        raise error
    return min(results, key=lambda result: result.log.best_validation())


def select_stage(
    name: str, job: TrainingJob, stage_config: StageConfig, table: Interactions
) -> StageResult:
    """Train with the stage's training options and with each of its alternatives; return the
    result with the lowest validation error."""
    candidates = [stage_config]
    if stage_config.validation:
        candidates += [
            replace(stage_config, train=replace(stage_config.train, **options))
            for options in stage_config.alternatives
        ]
    trainings = []
    for number, candidate in enumerate(candidates):
        folder = job.folder and job.folder / f"try-{number}"
        prefix = f"{job.stage_prefix}try-{number}/" if len(candidates) > 1 else job.stage_prefix
        candidate_job = replace(job, folder=folder, stage_prefix=prefix)
        trainings.append(partial(fit_standalone, name, candidate_job, candidate, table))
    return best_result(trainings)


def fit_standalone(
    name: str,
    job: TrainingJob,
    stage_config: StageConfig,
    table: Interactions,
    *,
    n_epochs: int | None = None,
) -> StageResult:
    """Train a model that wraps no backbone on a table.

    With `n_epochs`, train on all rows for so many epochs. Else hold out validation data, if the
    stage wants any, and stop when its error no longer improves.
    """
    train_rows, task = table, None
    if n_epochs is None and stage_config.validation:
        train_rows, task = _hold_out(name, job, stage_config, table)
    graph = job.split.train if stage_config.graph_includes_query_users else train_rows
    torch.manual_seed(derive_seed(job.seed, name, "weights"))
    model = model_entry(name).build(configure(name, stage_config.options), graph.domain())
    penalty = _make_penalty(stage_config.train, train_rows, job)
    objective = prediction_objective(stage_config.train.loss, penalty)
    if isinstance(model, Backbone) and stage_config.start_from_biases and model.predicts_ratings:
        initialize_biases(model, train_rows)
    if stage_config.center_users and model.predicts_ratings:
        train_rows = subtract_user_biases(train_rows)
    if model.trains_on_binary:
        train_rows = train_rows.as_implicit()
        task = task and PredictionTask(
            task.history_table.as_implicit(), task.target_table.as_implicit()
        )
    lengths = stage_config.history_lengths if model.inductive else _ALL_ROWS
    batch_config = replace(stage_config, history_lengths=lengths)
    epochs = epoch_batches(name, job, batch_config, train_rows, model)
    validate = None if task is None else validation_metric(task, job.seed)
    train_config = stage_config.train
    log = run_gradient_loop(name, model, epochs, objective, train_config, validate, job, n_epochs)
    return StageResult(stage_config, model, log, graph.mean_rating)


def _hold_out(
    name: str, job: TrainingJob, stage_config: StageConfig, table: Interactions
) -> tuple[Interactions, PredictionTask]:
    """Return the rows to train on and the validation task of model `name`.

    For an inductive model and new users: a share `stage_config.validation` of the users, with short
    histories. Otherwise: half that share of the rows, to be predicted from the other rows.
    """
    if job.query_user_mode == "new" and model_entry(name).inductive:
        users = np.flatnonzero(table.user_counts())
        return hold_out_validation_users(table, users, stage_config, job.seed)
    rng = random_stream(job.seed, name, "rows")
    train_rows, targets = hold_out_rows(table, stage_config.validation / 2, rng)
    return train_rows, PredictionTask(train_rows, targets)


def _make_penalty(config: TrainConfig, table: Interactions, job: TrainingJob) -> Penalty:
    """Return the penalty on embedding tables that the options name."""
    if config.penalty == "norm":
        return norm_penalty(config.reg, job.runtime)
    user_counts = torch.from_numpy(table.user_counts()).float()
    item_counts = torch.from_numpy(table.item_counts()).float()
    return RidgePenalty(user_counts, item_counts, config.reg, config.row_reg, config.bias_reg)


def epoch_batches(
    name: str, job: TrainingJob, stage_config: StageConfig, table: Interactions, model: Model
) -> Callable[[int], Iterator[Batch]]:
    """Return a function that maps the number of an epoch to its batches, which hold the inputs that
    the model declares it reads: histories, user features."""
    if not model.reads_user_features:
        table = replace(table, user_features=None)
    runtime = job.runtime
    # several processes divide a batch on the CPU before it is moved
    on_gpu = runtime.world_size == 1 and runtime.device.type == "cuda"
    device = runtime.device if on_gpu else None
    batch_size = stage_config.train.batch_size * runtime.world_size
    n_negatives = stage_config.train.negatives if table.implicit else 0

    def epoch(number: int) -> Iterator[Batch]:
        """Return the batches of an epoch: episodes, or random rows."""
        rng = random_stream(job.seed, name, "epoch", number)
        if not (model.reads_history and stage_config.episodes):
            return batches.row_batches(
                table,
                table if model.reads_history else None,
                batch_size=batch_size,
                rng=rng,
                n_negatives=n_negatives,
                device=device,
            )
        return batches.episode_batches(
            table,
            batch_size=batch_size,
            history_lengths=stage_config.history_lengths,
            targets_per_episode=stage_config.targets_per_episode,
            max_target_share=stage_config.max_target_share,
            rng=rng,
            n_negatives=n_negatives,
        )

    return epoch


def run_gradient_loop(
    name: str,
    model: Model,
    epoch_batches: Callable[[int], Iterator[Batch]],
    objective: Objective,
    config: TrainConfig,
    validate: Callable[[Model], float] | None,
    job: TrainingJob,
    n_epochs: int | None,
) -> TrainingLog:
    """Run `fit_by_gradient` with the job's seed, files and callback.

    The stage is named "search" if the number of epochs is open, else "final".
    """
    stage = "search" if n_epochs is None else "final"
    folder = job.folder and job.folder / stage
    callback = None
    if job.callback:
        callback = partial(job.callback, f"{job.stage_prefix}{stage}/{name}")
    return fit_by_gradient(
        model,
        epoch_batches,
        objective,
        config,
        validate=validate,
        n_epochs=n_epochs,
        runtime=job.runtime,
        seed=derive_seed(job.seed, name),
        checkpoint_path=folder / f"{name}.checkpoint" if folder else None,
        checkpoint_seconds=job.checkpoint_seconds,
        journal_path=folder / f"{name}.jsonl" if folder else None,
        progress_label=name if job.progress else None,
        callback=callback,
        name=name,
    )
