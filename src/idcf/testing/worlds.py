"""Small datasets whose right answer is known, and models trained on them in about a second.

Models trained by gradient get the settings of this file: presets are chosen for real datasets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from idcf.data import batches
from idcf.data.interactions import Interactions, Ints, Mask, Vocab
from idcf.data.split import Split, hold_out_rows, split_by_threshold
from idcf.models.base import Backbone, BackboneWrapper, Model
from idcf.models.registry import configure, model_entry
from idcf.rng import random_stream
from idcf.testing.synthetic import checkerboard
from idcf.training.gradient import fit_standalone
from idcf.training.objectives import (
    Objective,
    RidgePenalty,
    adaption_objective,
    prediction_objective,
)
from idcf.training.options import LossName, TrainConfig
from idcf.training.presets import StageConfig
from idcf.training.train import TrainingJob, TrainingResult, train
from idcf.training.two_stage import train_two_stage
from idcf.types import Batch, Users

_STAGE = StageConfig(
    train=TrainConfig(
        epochs=20, learning_rate=0.02, schedule="constant", reg=0.01, bias_reg=1.0, negatives=3
    ),
    history_lengths=(4, 16),
    targets_per_episode=4,
    validation=0.0,
    start_from_biases=False,
)
_ADAPTION = replace(_STAGE.train, epochs=12, learning_rate=0.01, contrast=0.1)


@dataclass(frozen=True)
class SyntheticWorld:
    """A split of a small dataset, and the taste of every user in it."""

    split: Split
    shared_taste: bool  # all users like the even items; else odd users like the odd ones

    def likes(self, user: Ints, item: Ints) -> Mask:
        """Return whether users like items; the two arrays are broadcast."""
        mask: Mask = item % 2 == user * (not self.shared_taste) % 2
        return mask


@cache
def synthetic_world(
    *, implicit: bool = False, shared_taste: bool = False, features: bool = False
) -> SyntheticWorld:
    """Return a world, that is a small split dataset, of 160 users and 40 items, cached. With
    `shared_taste` all users (80 of them) like the same items: for models that learn no taste. With
    `features` users and items have two each: the first is ±1 and says what they like or are."""
    rng = random_stream(0, "world")
    data = checkerboard(
        160, 40, rng, rows_per_light_user=12, rows_per_heavy_user=24, implicit=implicit
    )
    if shared_taste:
        even = data.where(data.user % 2 == 0)
        data = replace(even, users=Vocab(data.users.ids[::2]), user=even.user // 2)
    if features:
        data = _with_features(data)
    rows, test = hold_out_rows(data, 0.2, rng)
    return SyntheticWorld(split_by_threshold(rows, test, 14), shared_taste)


def _with_features(data: Interactions) -> Interactions:
    """Return the table with the parity of users and items, and noise, as their features."""
    rng = random_stream(0, "world features")
    users, items = (
        np.stack([1.0 - np.arange(n) % 2 * 2, rng.normal(size=n)], 1).astype(np.float32)
        for n in (len(data.users), len(data.items))
    )
    return replace(
        data,
        user_features=users,
        item_features=items,
        user_feature_widths=(1, 1),
        item_feature_widths=(1, 1),
    )


def users_with_rows(table: Interactions) -> Users:
    """Return the users of a table that have rows, with their histories and features."""
    return table.build_users(np.flatnonzero(table.user_counts()))


def untrained_model(
    name: str, table: Interactions, key_users: Users, *, options: Mapping[str, Any] | None = None
) -> Model:
    """Build a model with its `check_options`, and `options` over them, without training it. It
    reads the domain of the training rows `table`; a model with a backbone wraps an untrained one
    and reads the key users."""
    entry = model_entry(name)
    config = configure(name, {**entry.check_options, **(options or {})})
    if not entry.backbone:
        return entry.build(config, table.domain())
    backbone = untrained_model(entry.backbone, table, key_users)
    return entry.build_around(config, backbone, key_users)


def training_objective(model: Model, table: Interactions, loss: LossName = "fit") -> Objective:
    """Return the objective that a model is trained on in a synthetic world: the fit with a ridge
    penalty for a backbone, the fit with a contrastive loss for `IDCF`, else `loss`."""
    if isinstance(model, Backbone):
        users, items = (
            torch.from_numpy(x).float() for x in (table.user_counts(), table.item_counts())
        )
        config = _STAGE.train
        penalty = RidgePenalty(users, items, config.reg, config.row_reg, config.bias_reg)
        return prediction_objective(penalty=penalty)
    if isinstance(model, BackboneWrapper):
        return adaption_objective(_ADAPTION.contrast)
    return prediction_objective(loss)


def train_in_world(
    name: str,
    *,
    implicit: bool = False,
    shared_taste: bool = False,
    seed: int = 0,
    epochs: int | None = None,
) -> TrainingResult:
    """Train a model on the key users of the `synthetic_world`; a model with a backbone, in two
    stages. `epochs` replaces the number of epochs of each stage that is trained by gradient."""
    features = model_entry(name).learns_from_features
    split = synthetic_world(implicit=implicit, shared_taste=shared_taste, features=features).split
    return train_on_small_split(name, split, seed=seed, epochs=epochs)


def train_on_small_split(
    name: str,
    split: Split,
    *,
    seed: int = 0,
    epochs: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Train a model on the key users of a small split, as `train_in_world` does; `options` are over
    its `check_options`."""
    entry, job = model_entry(name), TrainingJob(split, seed=seed)
    if entry.solver:
        return train(name, job, options={**entry.check_options, **(options or {})})
    with torch.random.fork_rng(), torch.enable_grad():  # a test may call this under no_grad
        if entry.backbone:
            stage = _stage_config(name, _ADAPTION, epochs, options)
            backbone_stage = _stage_config(entry.backbone, _STAGE.train, epochs)
            return train_two_stage(name, entry.backbone, job, stage, backbone_stage)
        stage = _stage_config(name, _STAGE.train, epochs, options)
        result = fit_standalone(name, job, stage, job.training_table())
    model, logs = result.model, {name: result.log}
    return TrainingResult(model, model, result.mean_rating, stage.options, logs)


def _stage_config(
    name: str,
    config: TrainConfig,
    epochs: int | None,
    options: Mapping[str, Any] | None = None,
) -> StageConfig:
    """Return the options of one stage, with another number of epochs if it is given."""
    entry = model_entry(name)
    config = replace(config, epochs=epochs or config.epochs, loss=entry.check_loss)
    return replace(_STAGE, options={**entry.check_options, **(options or {})}, train=config)


@cache
def trained_in_world(
    name: str, *, implicit: bool = False, shared_taste: bool = False
) -> TrainingResult:
    """Return the result of `train_in_world`, cached: copy the model before changing it."""
    return train_in_world(name, implicit=implicit, shared_taste=shared_taste)


def epoch_batches(
    model: Model, table: Interactions, batch_size: int, *, seed: int = 0, epoch: int = 0
) -> Iterator[Batch]:
    """Return the batches of one epoch: rows, or episodes for a model that reads histories."""
    rng = random_stream(seed, "epoch", epoch)
    n_negatives = _STAGE.train.negatives if table.implicit else 0
    if not model.reads_history:
        return batches.row_batches(
            table, None, batch_size=batch_size, rng=rng, n_negatives=n_negatives
        )
    all_rows = (1 << 30, 1 << 30)  # but the targets
    lengths = _STAGE.history_lengths if model.inductive else all_rows
    return batches.episode_batches(
        table,
        batch_size=batch_size,
        history_lengths=lengths,
        targets_per_episode=_STAGE.targets_per_episode,
        rng=rng,
        n_negatives=n_negatives,
    )
