"""Two-stage training: pretrain a backbone on key users, then the model that wraps it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from idcf.data.interactions import Interactions
from idcf.data.split import PredictionTask, hold_out_rows
from idcf.models.base import BackboneWrapper
from idcf.models.registry import configure, model_entry
from idcf.rng import derive_seed, random_stream
from idcf.training.checkpoint import TrainingLog
from idcf.training.gradient import (
    StageResult,
    best_result,
    epoch_batches,
    fit_standalone,
    run_gradient_loop,
    select_stage,
)
from idcf.training.job import TrainingJob, TrainingResult
from idcf.training.objectives import adaption_objective
from idcf.training.presets import StageConfig
from idcf.training.solvers.bias import subtract_user_biases
from idcf.training.validation import hold_out_validation_users, validation_metric
from idcf.types import Users


class StageTables(NamedTuple):
    """The rows of both stages."""

    key_rows: Interactions  # the backbone is trained on these; their users are the key users
    adaption_rows: Interactions  # the wrapper is trained on these
    task: PredictionTask | None = None  # validation data of the wrapper


def train_two_stage(
    name: str,
    backbone_name: str,
    job: TrainingJob,
    stage_config: StageConfig,
    backbone_config: StageConfig,
) -> TrainingResult:
    """Train a backbone on key users and the model that wraps it.

    Validation data decides on the options and the number of epochs of each stage; then both stages
    are trained again on all rows, if `refit_on_all` is set.
    """
    full, search = _stage_tables(name, job, stage_config)
    backbone = select_stage(backbone_name, job, backbone_config, search.key_rows)
    candidates = model_entry(name).expand_grid(stage_config.options, full.key_rows.implicit)
    trainings = []
    for number, options in enumerate(candidates):
        folder = job.folder and job.folder / f"grid-{number}"
        candidate = replace(stage_config, options=options)
        candidate_job = replace(job, folder=folder)
        trainings.append(
            partial(_fit_on_backbone, name, candidate_job, candidate, backbone, search)
        )
    wrapper = best_result(trainings)
    logs = {backbone_name: backbone.log, name: wrapper.log}
    if wrapper.config.refit_on_all and search.task is not None:
        backbone = fit_standalone(
            backbone_name, job, backbone.config, full.key_rows, n_epochs=backbone.n_epochs
        )
        wrapper = _fit_on_backbone(
            name, job, wrapper.config, backbone, full, n_epochs=wrapper.n_epochs
        )
    return TrainingResult(
        wrapper.model,
        backbone.model,
        backbone.mean_rating,
        wrapper.config.options,
        logs,
        backbone.config.options,
    )


def _stage_tables(
    name: str, job: TrainingJob, stage_config: StageConfig
) -> tuple[StageTables, StageTables]:
    """Return the tables of the final training, and those of the search with validation data."""
    split, share = job.split, stage_config.validation
    key_rows = split.train.for_users(split.key_users)
    task: PredictionTask | None = None
    if job.query_user_mode == "new":
        train_rows = key_rows
        if share and stage_config.validate_on == "rows":
            rng = random_stream(job.seed, name, "rows")
            train_rows, targets = hold_out_rows(key_rows, share, rng)
            task = PredictionTask(train_rows, targets)
        elif share:
            users = split.key_users
            train_rows, task = hold_out_validation_users(key_rows, users, stage_config, job.seed)
        return StageTables(key_rows, key_rows), StageTables(train_rows, train_rows, task)
    query_rows = split.train.for_users(split.query_users)
    train_rows = query_rows
    if share:
        rng = random_stream(job.seed, name, "rows")
        train_rows, targets = hold_out_rows(query_rows, share, rng)
        task = PredictionTask(train_rows, targets)
    if stage_config.train_on_all_users:
        query_rows, train_rows = split.train, key_rows.concat(train_rows)
    return StageTables(key_rows, query_rows), StageTables(key_rows, train_rows, task)


def _fit_on_backbone(
    name: str,
    job: TrainingJob,
    stage_config: StageConfig,
    backbone: StageResult,
    tables: StageTables,
    *,
    n_epochs: int | None = None,
) -> StageResult:
    """Train the model that wraps `backbone`; only validate it if it has no adaption stage."""
    user_rows = np.flatnonzero(tables.key_rows.user_counts())
    key_users = Users(torch.from_numpy(user_rows), tables.key_rows.history(user_rows))
    torch.manual_seed(derive_seed(job.seed, name, "weights"))
    config = configure(name, stage_config.options)
    model = model_entry(name).build_around(
        config, backbone.model, key_users.to(backbone.model.device)
    )
    validate = None if tables.task is None else validation_metric(tables.task, job.seed)
    if isinstance(model, BackboneWrapper) and not model.has_adaption_stage:
        records = [{"epoch": 0, "valid": validate(model)}] if validate else []
        log = TrainingLog(records, 0)
        return StageResult(stage_config, model.eval(), log, backbone.mean_rating)
    contrast = stage_config.train.contrast if job.query_user_mode == "new" else 0.0
    over = stage_config.train.contrast_over
    objective, rows = adaption_objective(contrast, job.runtime, over), tables.adaption_rows
    if stage_config.center_users and model.predicts_ratings:
        rows = subtract_user_biases(rows)
    epochs = epoch_batches(name, job, stage_config, rows, model)
    train_config = stage_config.train
    log = run_gradient_loop(name, model, epochs, objective, train_config, validate, job, n_epochs)
    return StageResult(stage_config, model, log, backbone.mean_rating)
