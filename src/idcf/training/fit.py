"""Train on a whole table and return an artifact: the work of `Recommender.fit`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idcf.config import dataclass_to_dict
from idcf.data.interactions import Interactions
from idcf.data.side_tables import EnrichedInteractions
from idcf.data.split import Split, split_by_key_users
from idcf.errors import ConfigError, DataError
from idcf.inference.artifact import Artifact, library_versions, make_contiguous
from idcf.inference.manifest import DomainInfo, Manifest, RecommenderConfig, TrainingData
from idcf.models.registry import configure, model_entry, resolve_model
from idcf.training.checkpoint import EpochCallback
from idcf.training.distributed import start_runtime
from idcf.training.loop import TrainConfig
from idcf.training.new_user_curve import measure_new_user_curve
from idcf.training.train import TrainingJob, train

DEFAULT_KEY_THRESHOLD = 30  # the paper's δ for MovieLens
MIN_KEY_USERS = 3  # one for validation, and two for a variance


def fit_artifact(
    config: RecommenderConfig,
    data: EnrichedInteractions,
    titles: Sequence[str | None],
    *,
    progress: bool = False,
    callback: EpochCallback | None = None,
) -> Artifact:
    """Train a model on the key users of a table.

    Parameters
    ----------
    config
        The model, its options, and the choice of key users.
    data
        The interactions, with the features of users and items if there are any.
    titles
        The title of each item, or None.
    progress
        Show a progress bar if the output is a terminal.
    callback
        Called after each epoch of gradient training.

    Returns
    -------
    Artifact
        The trained model with its manifest and the catalogue.

    Raises
    ------
    ConfigError
        If an option does not exist, or `callback` is given for a model that has no epochs.
    DataError
        If the table has too few key users.
    """
    name, table = config.model, data.interactions
    split, threshold = _split_key_users(table, config.key_threshold, config.key_users, config.seed)
    resolved = resolve_model(name, table.implicit)
    entry = model_entry(resolved)
    if callback and entry.solver:
        raise ConfigError(
            f"{name!r} is solved, not trained by epochs: leave out the callback or tracker"
        )
    job = TrainingJob(
        split,
        preset=config.preset,
        seed=config.seed,
        runtime=start_runtime(config.device),
        progress=progress,
        callback=callback,
    )
    options = _route_train_options(resolved, config.options)
    result = train(resolved, job, options=options)
    backbone_options = {}
    if entry.backbone:
        backbone_options = dataclass_to_dict(configure(entry.backbone, result.backbone_options))
    curve = measure_new_user_curve(resolved, job, options) if config.card_metrics else None
    manifest = Manifest(
        model=name,
        options=dataclass_to_dict(configure(resolved, result.options)),
        backbone=entry.backbone,
        backbone_options=backbone_options,
        domain=DomainInfo.from_table(table, result.mean_rating),
        training_data=TrainingData.from_split(split, threshold, config.key_users),
        preset=config.preset,
        seed=config.seed,
        versions=library_versions(),
        user_encoder=data.user_encoder,
        new_user_curve=curve,
    )
    return Artifact(manifest, make_contiguous(result.model), table.items, tuple(titles))


def _split_key_users(
    table: Interactions, key_threshold: int | None, key_users: str | int, seed: int
) -> tuple[Split, int]:
    """Return the split and the threshold of key users.

    The default threshold is 30 rows, or the median of the users' numbers of rows if that is less.
    """
    if key_threshold is None:
        counts = table.user_counts()
        key_threshold = max(1, min(DEFAULT_KEY_THRESHOLD, int(np.median(counts[counts > 0]))))
    no_test_rows = table.where(np.zeros(len(table), bool))
    split = split_by_key_users(table, no_test_rows, key_threshold, key_users, seed)
    if len(split.key_users) < MIN_KEY_USERS:
        rule = "" if key_users == "threshold" else f" and are chosen by key_users={key_users!r}"
        raise DataError(
            f"only {len(split.key_users)} of {len(table.users)} users have {key_threshold} rows or "
            f"more{rule}; at least {MIN_KEY_USERS} key users are needed: lower key_threshold "
            "or give more data"
        )
    return split, key_threshold


def _route_train_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with the prefix `train.` on those that the model does not have."""
    entry = model_entry(name)
    if entry.solver:
        return dict(options)
    model_fields = {f.name for f in dataclasses.fields(entry.config_class)}
    train_fields = {f.name for f in dataclasses.fields(TrainConfig)} - model_fields
    return {f"train.{k}" if k in train_fields else k: v for k, v in options.items()}
