"""Train a model by name: choose its options by preset, then its solver or its gradient stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from idcf.models.registry import configure, model_entry, resolve_model
from idcf.training.gradient import fit_standalone, select_stage
from idcf.training.job import QueryUserMode, TrainingJob, TrainingResult, expand_grid
from idcf.training.presets import StageConfig, stage_configs
from idcf.training.solvers import SolverContext
from idcf.training.two_stage import train_two_stage
from idcf.training.validation import grid_search_validation

__all__ = ["QueryUserMode", "TrainingJob", "TrainingResult", "train"]


def train(
    name: str, job: TrainingJob, *, options: Mapping[str, Any] | None = None
) -> TrainingResult:
    """Train the named model.

    Parameters
    ----------
    name
        A name of the registry. For implicit feedback it may resolve to another model.
    job
        The split, the preset, the seed and where to compute.
    options
        Options of the model, of its backbone, or `train.*` options of its training; they win over
        the preset, and options of the model's grid that are given are not searched.

    Returns
    -------
    TrainingResult
        The trained model with the chosen options.

    Raises
    ------
    ConfigError
        If the model, the preset or an option does not exist, or the model does not take this kind
        of feedback.
    """
    name = resolve_model(name, job.split.train.implicit)
    configs = stage_configs(
        name, options, preset=job.preset, dataset=job.dataset, query_user_mode=job.query_user_mode
    )
    if model_entry(name).solver:
        return _train_by_solver(name, job, configs[name].options)
    backbone_name = model_entry(name).backbone
    with torch.random.fork_rng():
        if backbone_name is None:
            return _train_single_stage(name, job, configs[name])
        return train_two_stage(name, backbone_name, job, configs[name], configs[backbone_name])


def _train_by_solver(name: str, job: TrainingJob, options: Mapping[str, Any]) -> TrainingResult:
    """Choose from the model's grid on held-out users, then solve on all rows."""
    table, solver = job.training_table(), model_entry(name).load_solver()
    context = SolverContext(
        seed=job.seed,
        device=job.runtime.device,
        progress_label=name if job.progress else None,
        query_users_in_table=job.query_user_mode == "few-shot",
    )
    candidates = expand_grid(name, options, table.implicit)
    best = candidates[0]
    if len(candidates) > 1:
        train_rows, validate = grid_search_validation(table, job.seed)
        errors = [validate(solver(configure(name, x), train_rows, context)) for x in candidates]
        best = candidates[errors.index(min(errors))]
    model = solver(configure(name, best), table, context).to(job.runtime.device).eval()
    return TrainingResult(model, model, table.mean_rating, best)


def _train_single_stage(name: str, job: TrainingJob, stage_config: StageConfig) -> TrainingResult:
    """Train one gradient stage: validation data decides on the number of epochs, then the model is
    trained again on all rows, if `refit_on_all` is set."""
    table = job.training_table()
    result = select_stage(name, job, stage_config, table)
    log, config = result.log, result.config
    if config.refit_on_all and log.best_epoch >= 0 and config.validation:
        result = fit_standalone(name, job, config, table, n_epochs=result.n_epochs)
    return TrainingResult(
        result.model, result.model, result.mean_rating, config.options, {name: log}
    )
