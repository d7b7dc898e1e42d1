"""Train a model by name: `train` on a split, `fit_artifact` on a whole table."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.linalg import LinAlgError  # type: ignore[attr-defined]
from tqdm import tqdm

import idcf
from idcf.config import dataclass_to_dict
from idcf.data.interactions import Interactions
from idcf.data.progress import progress_bar
from idcf.data.side_tables import EnrichedInteractions
from idcf.data.split import Split, default_key_threshold, split_by_key_users
from idcf.errors import ConfigError, DataError, DivergenceError
from idcf.inference.artifact import (
    Artifact,
    assign_tensors,
    check_scores,
    library_versions,
    make_contiguous,
)
from idcf.inference.manifest import (
    DomainInfo,
    Manifest,
    NewUserCurve,
    RecommenderConfig,
    TrainingData,
)
from idcf.models.base import Model
from idcf.models.registry import (
    configure,
    has_option,
    model_entry,
    require_weights,
    resolve_model,
)
from idcf.rng import random_stream
from idcf.training.array_store import CHECKPOINT_SECONDS, ArrayStore, StoredSteps
from idcf.training.checkpoint import EpochCallback, claim_folder
from idcf.training.choice_slope import fit_choice_slope
from idcf.training.fit_cost import TableSize, estimate_fit
from idcf.training.gradient import fit_standalone, select_stage
from idcf.training.job import QueryUserMode, TrainingJob, TrainingResult, start_runtime
from idcf.training.memory import check_memory
from idcf.training.options import TrainConfig
from idcf.training.presets import StageConfig, stage_configs
from idcf.training.recency import fit_recency
from idcf.training.solvers import SolverContext
from idcf.training.two_stage import train_two_stage
from idcf.training.validation import grid_search_validation

__all__ = [
    "QueryUserMode",
    "TrainingJob",
    "TrainingResult",
    "fit_artifact",
    "fit_list_recency",
    "train",
    "train_take_up_model",
]

_DESCRIPTION = "description"  # no tensor has this name
_WEIGHT_POWERS = (1.0, 0.5, 0.0)  # of the weights of clicks; 0: every click counts once
MIN_KEY_USERS = 3  # one for validation, and two for a variance


def fit_artifact(
    config: RecommenderConfig,
    data: EnrichedInteractions,
    titles: Sequence[str | None],
    *,
    progress: bool = False,
    callback: EpochCallback | None = None,
    memory: int | float | str | None = None,
    resume: Path | None = None,
) -> Artifact:
    """Train a model on the key users of a table and describe it: the work of `Recommender.fit`.

    `titles` has one entry per item; `memory` is the limit of `check_memory`; `resume` is a folder
    for checkpoints, from which an interrupted training by epochs goes on. Raises `DataError` if
    there are too few key users, and `ConfigError` for an unknown option, for a `callback` of a
    model that has no epochs, or if the fit needs too much memory.
    """
    table, (split, threshold) = data.interactions, _split_key_users(data.interactions, config)
    name = resolve_model(config.model, table.implicit)
    entry = model_entry(name)
    if entry.solver and callback is not None:
        raise ConfigError(
            f"{config.model!r} is solved, not trained by epochs: leave out the callback or tracker"
        )
    job = TrainingJob(
        split,
        preset=config.preset,
        seed=config.seed,
        runtime=start_runtime(config.device),
        progress=progress,
        callback=callback,
        folder=resume and resume / "model",
        checkpoint_seconds=CHECKPOINT_SECONDS,
    )
    _check_cost(config, split, memory, progress)
    options = _route_train_options(name, config.options)
    result = train(name, job, options=options)
    curve_job = dataclasses.replace(job, folder=resume and resume / "card")
    curve = _measure_curve(name, curve_job, options) if config.card_metrics else None
    take_up = train_take_up_model(entry.take_up_model, job)
    details, slope = {name: dict(result.details)}, None
    if entry.take_up_model and take_up:
        details[entry.take_up_model] = dict(take_up.details)
        slope = _fit_choice_slope(result.model, table, split, config.seed)
    list_name, list_result = entry.take_up_model or name, take_up or result
    if table.time is not None and list_result.model.weighs_history:
        details[list_name]["recency"] = fit_list_recency(list_name, job, list_result)
    manifest = Manifest(
        model=config.model,
        options=_all_options(name, result.options),
        backbone=entry.backbone,
        backbone_options=_all_options(entry.backbone, result.backbone_options),
        take_up_model=entry.take_up_model,
        take_up_options=_all_options(entry.take_up_model, take_up.options if take_up else {}),
        details={key: x for key, x in details.items() if x},
        choice_slope=slope,
        domain=DomainInfo.from_table(table, result.mean_rating),
        training_data=TrainingData.from_split(split, threshold, config.key_users),
        preset=config.preset,
        seed=config.seed,
        versions=library_versions(),
        user_encoder=data.user_encoder,
        new_user_curve=curve,
    )
    result.model.discard_training_state()
    model = make_contiguous(result.model)
    take_up_model = make_contiguous(take_up.model) if take_up else None
    artifact = Artifact(manifest, model, table.items, tuple(titles), take_up_model, data.attributes)
    return check_scores(artifact)


def _all_options(name: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model with its defaults, as JSON values; none without a name."""
    return dataclass_to_dict(configure(name, options)) if name else {}


def _measure_curve(name: str, job: TrainingJob, options: Mapping[str, Any]) -> NewUserCurve | None:
    """Return the quality for new users of a second model; None: there are too few."""
    from idcf.training.new_user_curve import measure_new_user_curve  # imports this module

    return measure_new_user_curve(name, job, options)


def _check_cost(
    config: RecommenderConfig, split: Split, memory: int | float | str | None, progress: bool
) -> None:
    """Raise ConfigError if the fit needs too much memory; with progress, print what it needs."""
    cost = estimate_fit(
        config.model,
        TableSize.from_split(split),
        config.options,
        preset=config.preset,
        threads=torch.get_num_threads(),
        card_metrics=config.card_metrics,
    )
    if cost is None:
        return
    if progress:
        tqdm.write(str(cost), file=sys.stderr)
    check_memory(cost, memory)


def train_take_up_model(name: str | None, job: TrainingJob) -> TrainingResult | None:
    """Train the model that orders the lists of a model of ratings; None without a name."""
    if name is None:
        return None
    split = dataclasses.replace(
        job.split, train=job.split.train.as_implicit(), test=job.split.test.as_implicit()
    )
    folder = job.folder and job.folder / "lists"
    return train(name, dataclasses.replace(job, split=split, folder=folder))


def _fit_choice_slope(model: Model, table: Interactions, split: Split, seed: int) -> float | None:
    """Return how choice grows with the rating; None: the model has no standard deviations."""
    if not model.has_uncertainty:
        return None
    rng = random_stream(seed, "choice-slope")
    return fit_choice_slope(model.eval(), table, split.key_users, rng)


def fit_list_recency(name: str, job: TrainingJob, result: TrainingResult) -> float:
    """Return the recency that is best for the lists of held-out key users; see `recency`."""
    chosen = {key: x for key, x in result.details.items() if has_option(name, key)}
    if has_option(name, "max_held_out_users"):
        chosen["max_held_out_users"] = 50  # only the order counts, not how well P is calibrated

    def train_on(table: Interactions) -> Model:
        """Train the model on other rows, with the settings that it chose on all of them."""
        split = dataclasses.replace(job.split, train=table, test=table.where(table.item < 0))
        trial_job = dataclasses.replace(job, split=split, folder=None)
        return train(name, trial_job, options={**result.options, **chosen}).model

    table = dataclasses.replace(job.training_table().as_implicit(), weight=None)
    return fit_recency(table, train_on, random_stream(job.seed, "recency"))


def _split_key_users(table: Interactions, config: RecommenderConfig) -> tuple[Split, int]:
    """Return the split and the threshold of key users: by default 30 rows, or the median of the
    users' numbers of rows if that is less."""
    threshold, rule = config.key_threshold, config.key_users
    if threshold is None:
        threshold = default_key_threshold(table.user_counts())
    no_test_rows = table.where(np.zeros(len(table), bool))
    split = split_by_key_users(table, no_test_rows, threshold, rule, config.seed)
    if len(split.key_users) < MIN_KEY_USERS:
        chosen = "" if rule == "threshold" else f" and are chosen by key_users={rule!r}"
        raise DataError(
            f"only {len(split.key_users)} of {len(table.users)} users have {threshold} rows or "
            f"more{chosen}; at least {MIN_KEY_USERS} key users are needed: lower key_threshold "
            "or give more data"
        )
    return split, threshold


def _route_train_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with the prefix `train.` on those that the model does not have."""
    entry = model_entry(name)
    if entry.solver:
        return dict(options)
    model_fields = {f.name for f in dataclasses.fields(entry.config_class)}
    train_fields = {f.name for f in dataclasses.fields(TrainConfig)} - model_fields
    return {f"train.{k}" if k in train_fields else k: v for k, v in options.items()}


def train(
    name: str, job: TrainingJob, *, options: Mapping[str, Any] | None = None
) -> TrainingResult:
    """Train a model of the registry; for implicit feedback it may resolve to another one.

    `options` are those of the model, of its backbone, or `train.*` options of its training. They
    win over the preset, and options of the model's grid that are given are not searched.
    """
    name = resolve_model(name, job.split.train.implicit)
    if job.split.train.weight is not None:
        require_weights(name)
    configs = stage_configs(
        name, options, preset=job.preset, dataset=job.dataset, query_user_mode=job.query_user_mode
    )
    if job.folder:
        identity = _training_identity(name, job, configs)
        claim_folder(job.folder, identity, writes=job.runtime.rank == 0)
    if model_entry(name).solver:
        return _train_by_solver(name, job, configs[name].options)
    backbone_name = model_entry(name).backbone
    with torch.random.fork_rng():
        if backbone_name is None:
            return _train_single_stage(name, job, configs[name])
        return train_two_stage(name, backbone_name, job, configs[name], configs[backbone_name])


def _training_identity(
    name: str, job: TrainingJob, configs: Mapping[str, StageConfig]
) -> dict[str, Any]:
    """Return what the weights of a training depend on, by name."""
    table, digest = job.split.train, hashlib.sha256()
    columns = (table.user, table.item, table.rating, table.time, job.split.key_users)
    for column in (*columns, table.weight, table.user_features, table.item_features):
        if column is not None:
            digest.update(f"{column.shape}{column.dtype}".encode())
            digest.update(np.ascontiguousarray(column).tobytes())
    return {
        "data": digest.hexdigest(),
        "model": name,
        "options": {key: dataclass_to_dict(x) for key, x in configs.items()},
        "seed": job.seed,
        "treatment of query users": job.query_user_mode,
        "version of idcf": idcf.__version__,
    }


def _train_by_solver(name: str, job: TrainingJob, options: Mapping[str, Any]) -> TrainingResult:
    """Choose from the model's grid on held-out users, then solve on all rows."""
    table, solver = job.training_table(), model_entry(name).load_solver()
    context = SolverContext(
        seed=job.seed,
        device=job.runtime.device,
        progress_label=name if job.progress else None,
        query_users_in_table=job.query_user_mode == "few-shot",
        new_user_lengths=job.new_user_lengths(),
        store=ArrayStore(job.folder) if job.folder and job.runtime.rank == 0 else None,
    )
    if solved := _stored_solution(name, table, context):
        return solved

    def solve(candidate: Mapping[str, Any], rows: Interactions, context: SolverContext) -> Model:
        """Return the model of some options; DivergenceError: there is no finite one."""
        try:
            model = solver(configure(name, candidate), rows, context)
        except (LinAlgError, np.linalg.LinAlgError) as error:
            raise _no_solution(name, str(error).split("\n")[0]) from None
        if tensor := model.nonfinite_tensor():
            raise _no_solution(name, f"{tensor!r} is not finite")
        return model

    def error_of(candidate: Mapping[str, Any], power: float) -> float:
        """Return the error on held-out users; infinity if the model has no finite solution."""
        try:
            error = validate(solve(candidate, train_rows.weights_raised_to(power), quiet))
        except DivergenceError:
            return math.inf
        return math.inf if math.isnan(error) else error

    powers = (0.0,) if table.weight is None else _WEIGHT_POWERS
    grid = model_entry(name).expand_grid(options, table.implicit)
    candidates = list(product(grid, powers))
    best = candidates[0]
    if len(candidates) > 1:
        metric = model_entry(name).implicit_grid_metric
        train_rows, validate = grid_search_validation(table, job.seed, metric)
        quiet = dataclasses.replace(context, progress_label=None, store=None)
        label = f"{name}: options" if job.progress else None
        steps = StoredSteps(context.store, "options")
        errors = steps.load()[1].get("errors", np.empty(0)).tolist()
        with progress_bar(label, steps=candidates[len(errors) :], unit="fit") as bar:
            for candidate in bar:
                errors.append(error_of(*candidate))
                if steps.is_due():
                    steps.save(len(errors), {"errors": np.array(errors)})
        best = candidates[errors.index(min(errors))]
    (chosen, power), start = best, time.monotonic()
    model = solve(chosen, table.weights_raised_to(power), context)
    if table.weight is not None:
        context.details["weight_power"] = power
    if context.store and time.monotonic() - start >= CHECKPOINT_SECONDS:
        _store_solution(model, chosen, context)
    model = model.to(job.runtime.device).eval()
    return TrainingResult(model, model, table.mean_rating, chosen, details=context.details)


def _store_solution(model: Model, options: Mapping[str, Any], context: SolverContext) -> None:
    """Store a model that was solved, with its options and details."""
    assert context.store is not None
    tensors = {name: x.detach().cpu().numpy() for name, x in model.state_dict().items()}
    text = json.dumps({"options": dict(options), "details": context.details})
    context.store.save("solution", {**tensors, _DESCRIPTION: np.array(text)})


def _stored_solution(
    name: str, table: Interactions, context: SolverContext
) -> TrainingResult | None:
    """Return what `_store_solution` stored; None: there is nothing."""
    arrays = context.store.load("solution") if context.store else None
    if arrays is None:
        return None
    values = json.loads(str(arrays.pop(_DESCRIPTION)))
    model = model_entry(name).build(configure(name, values["options"]), table.domain())
    assign_tensors(model, {key: torch.from_numpy(x) for key, x in arrays.items()})
    model, details = model.to(context.device).eval(), values["details"]
    return TrainingResult(model, model, table.mean_rating, values["options"], details=details)


def _no_solution(name: str, problem: str) -> DivergenceError:
    """Return the error of a solver that finds no finite model."""
    penalties = [x for x in ("reg", "ridge", "shrinkage") if has_option(name, x)]
    way_out = f"raise {' or '.join(penalties)}, or check" if penalties else "check"
    return DivergenceError(
        f"{name!r} has no finite solution on this table ({problem}); {way_out} the ratings for "
        "outliers"
    )


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
