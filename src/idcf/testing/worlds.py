"""Small datasets whose right answer is known, and models trained on them in about a second.

Models with a solver are trained as everywhere; models trained by gradient with the settings of this
file, as the presets are chosen for real datasets.
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
from idcf.models.idcf import IDCF
from idcf.models.registry import configure, model_entry
from idcf.rng import derive_seed, random_stream
from idcf.testing.synthetic import checkerboard
from idcf.training.loop import TrainConfig, fit_by_gradient
from idcf.training.objectives import (
    LossName,
    Objective,
    RidgePenalty,
    adaption_objective,
    prediction_objective,
)
from idcf.training.train import TrainingJob, TrainingResult, train
from idcf.types import Batch, Users

_TRAIN_CONFIG = TrainConfig(
    epochs=20, learning_rate=0.02, schedule="constant", batch_size=256, reg=0.01, bias_reg=1.0
)
_ADAPT_CONFIG = replace(_TRAIN_CONFIG, epochs=12, learning_rate=0.01)


@dataclass(frozen=True)
class SyntheticWorld:
    """A split of a small dataset, and the taste of every user in it.

    Parameters
    ----------
    split : Split
    shared_taste : bool
        True: all users like the even items. False: even users like even items, odd users odd ones.
    """

    split: Split
    shared_taste: bool

    def likes(self, user: Ints, item: Ints) -> Mask:
        """Return whether users like items; the two arrays are broadcast."""
        mask: Mask = item % 2 == user * (not self.shared_taste) % 2
        return mask


@cache
def synthetic_world(*, implicit: bool = False, shared_taste: bool = False) -> SyntheticWorld:
    """Return a world, that is a small split dataset, of 160 users and 40 items, cached.

    Parameters
    ----------
    implicit : bool
        Whether the world has implicit feedback instead of ratings.
    shared_taste : bool
        Whether all users (80 of them) like the same items: for models that learn no taste.

    Returns
    -------
    SyntheticWorld
    """
    rng = random_stream(0, "world")
    data = checkerboard(
        160, 40, rng, rows_per_light_user=12, rows_per_heavy_user=24, implicit=implicit
    )
    if shared_taste:
        even = data.where(data.user % 2 == 0)
        data = replace(even, users=Vocab(data.users.ids[::2]), user=even.user // 2)
    rows, test = hold_out_rows(data, 0.2, rng)
    return SyntheticWorld(split_by_threshold(rows, test, 14), shared_taste)


def users_with_rows(table: Interactions) -> Users:
    """Return the users of a table that have rows, with their histories."""
    user_rows = np.flatnonzero(table.user_counts())
    return Users(torch.from_numpy(user_rows), table.history(user_rows))


def untrained_model(
    name: str,
    table: Interactions,
    key_users: Users,
    *,
    backbone: Model | None = None,
    options: Mapping[str, Any] | None = None,
) -> Model:
    """Build a model with its `check_options`, without training it.

    Parameters
    ----------
    name : str
    table : Interactions
        The training rows; a model reads their domain.
    key_users : Users
        The key users, for a model with a backbone.
    backbone : Model, optional
        The model to wrap; an untrained one by default.
    options : mapping, optional
        Options over those of the entry.
    """
    entry = model_entry(name)
    config = configure(name, {**entry.check_options, **(options or {})})
    if not entry.backbone:
        return entry.build(config, table.domain())
    wrapped = backbone or untrained_model(entry.backbone, table, key_users)
    return entry.build_around(config, wrapped, key_users)


def training_objective(model: Model, table: Interactions, loss: LossName = "fit") -> Objective:
    """Return the objective that a model is trained on in a synthetic world (`train_in_world`).

    Parameters
    ----------
    model : Model
        A backbone gets the fit with a ridge penalty, `IDCF` the fit with a contrastive loss, any
        other model `loss`.
    table : Interactions
        The training rows, whose counts scale the penalty.
    loss : str
        Loss of a model that is neither, see `prediction_objective`.
    """
    if isinstance(model, Backbone):
        user_counts = torch.from_numpy(table.user_counts()).float()
        item_counts = torch.from_numpy(table.item_counts()).float()
        config = _TRAIN_CONFIG
        penalty = RidgePenalty(
            user_counts, item_counts, config.reg, config.row_reg, config.bias_reg
        )
        return prediction_objective(penalty=penalty)
    if isinstance(model, IDCF):
        return adaption_objective(0.1)
    return prediction_objective(loss)


def train_in_world(
    name: str,
    *,
    implicit: bool = False,
    shared_taste: bool = False,
    seed: int = 0,
    epochs: int | None = None,
) -> TrainingResult:
    """Train a model on the key users of a synthetic world; a model with a backbone, in two stages.

    Parameters
    ----------
    name : str
        The model: a name of the registry, or of an installed plugin.
    implicit, shared_taste : bool
        The world, as in `synthetic_world`.
    seed : int
    epochs : int, optional
        Epochs of each stage that is trained by gradient.

    Returns
    -------
    TrainingResult
    """
    entry = model_entry(name)
    split = synthetic_world(implicit=implicit, shared_taste=shared_taste).split
    if entry.solver:
        return train(name, TrainingJob(split, seed=seed), options=entry.check_options)
    table = split.train.for_users(split.key_users)
    config, backbone = _TRAIN_CONFIG, None
    if entry.backbone:
        config = _ADAPT_CONFIG
        backbone = train_in_world(
            entry.backbone, implicit=implicit, shared_taste=shared_taste, seed=seed, epochs=epochs
        ).model
    config = replace(config, epochs=epochs or config.epochs)
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, name))
        model = untrained_model(name, table, users_with_rows(table), backbone=backbone)
    if isinstance(model, BackboneWrapper) and not model.has_adaption_stage:
        return TrainingResult(model.eval(), backbone or model, table.mean_rating)

    def epoch(number: int) -> Iterator[Batch]:
        """Return the batches of an epoch."""
        return epoch_batches(model, table, config.batch_size, seed=seed, epoch=number)

    objective = training_objective(model, table, entry.check_loss)
    log = fit_by_gradient(model, epoch, objective, config, seed=seed)
    return TrainingResult(model, backbone or model, table.mean_rating, {}, {name: log})


@cache
def trained_in_world(
    name: str, *, implicit: bool = False, shared_taste: bool = False
) -> TrainingResult:
    """Return the result of `train_in_world`, cached: copy the model before changing it.

    Parameters
    ----------
    name : str
        The model.
    implicit, shared_taste : bool
        The world, as in `synthetic_world`.
    """
    return train_in_world(name, implicit=implicit, shared_taste=shared_taste)


def epoch_batches(
    model: Model, table: Interactions, batch_size: int, *, seed: int = 0, epoch: int = 0
) -> Iterator[Batch]:
    """Return the batches of one epoch: rows, or episodes for a model that reads histories."""
    rng, n_negatives = random_stream(seed, "epoch", epoch), 3 if table.implicit else 0
    if not model.reads_history:
        return batches.row_batches(
            table, None, batch_size=batch_size, rng=rng, n_negatives=n_negatives
        )
    lengths = (4, 16) if model.inductive else (1 << 30, 1 << 30)  # all rows but the targets
    return batches.episode_batches(
        table,
        batch_size=batch_size,
        history_lengths=lengths,
        targets_per_episode=4,
        rng=rng,
        n_negatives=n_negatives,
    )
