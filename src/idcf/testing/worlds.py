"""Small worlds with a known answer, and every model of the table trained in them in a second.

Training here does not go through the presets, which are chosen for real data sets.
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
from idcf.data.split import Split, by_threshold, hold_out
from idcf.models.base import Backbone, Model, Wrapper
from idcf.models.idcf import IDCF
from idcf.models.registry import configure, model_entry
from idcf.rng import derive, stream
from idcf.testing.synthetic import checkerboard
from idcf.training.loop import TrainConfig, fit
from idcf.training.objectives import Loss, Objective, Ridge, accuracy, adapt, factorise
from idcf.training.train import Job, Trained, train
from idcf.types import Batch, Users

_CONFIG = TrainConfig(
    epochs=20, learning_rate=0.02, schedule="constant", batch_size=256, reg=0.01, bias_reg=1.0
)
_ADAPT = replace(_CONFIG, epochs=12, learning_rate=0.01)


@dataclass(frozen=True)
class World:
    """A split, and who likes what in it."""

    split: Split
    alike: bool  # everybody likes the even items; otherwise even users the even, odd the odd

    def likes(self, user: Ints, item: Ints) -> Mask:
        mask: Mask = item % 2 == user * (not self.alike) % 2
        return mask


@cache
def world(*, implicit: bool = False, alike: bool = False) -> World:
    """A checkerboard, or with `alike` the half of one: for models that know no taste."""
    rng = stream(0, "world")
    data = checkerboard(160, 40, rng, few=12, many=24, implicit=implicit)
    if alike:
        even = data.where(data.user % 2 == 0)
        data = replace(even, users=Vocab(data.users.ids[::2]), user=even.user // 2)
    rows, test = hold_out(data, 0.2, rng)
    return World(by_threshold(rows, test, 14), alike)


def keys_of(table: Interactions) -> Users:
    """Everybody who has a row."""
    who = np.flatnonzero(table.counts())
    return Users(torch.from_numpy(who), table.history(who))


def blank(
    name: str,
    table: Interactions,
    keys: Users,
    *,
    backbone: Model | None = None,
    options: Mapping[str, Any] | None = None,
) -> Model:
    """The named model, untrained; one that wraps is put round `backbone`, or an untrained one."""
    found = model_entry(name)
    config = configure(name, {**found.check_options, **(options or {})})
    if not found.backbone:
        return found.model_class(config, table.domain())
    return found.model_class(config, backbone or blank(found.backbone, table, keys), keys)


def objective_of(model: Model, table: Interactions, loss: Loss = "fit") -> Objective:
    """What the named kind of model is descended on here."""
    if isinstance(model, Backbone):
        users, items = (torch.from_numpy(n).float() for n in (table.counts(), table.item_counts()))
        return factorise(Ridge(users, items, _CONFIG.reg, _CONFIG.row_reg, _CONFIG.bias_reg))
    if isinstance(model, IDCF):
        return adapt(0.1)
    return accuracy(loss)


def learn(
    name: str,
    *,
    implicit: bool = False,
    alike: bool = False,
    seed: int = 0,
    epochs: int | None = None,
) -> Trained:
    """Train the named model on the key users of a world; both stages where it has two."""
    found, split = model_entry(name), world(implicit=implicit, alike=alike).split
    if found.solver:
        return train(name, Job(split, seed=seed), options=found.check_options)
    table = split.train.of(split.key_users)
    config, backbone = _CONFIG, None
    if found.backbone:
        config = _ADAPT
        backbone = learn(
            found.backbone, implicit=implicit, alike=alike, seed=seed, epochs=epochs
        ).model
    config = replace(config, epochs=epochs or config.epochs)
    with torch.random.fork_rng():
        torch.manual_seed(derive(seed, name))
        model = blank(name, table, keys_of(table), backbone=backbone)
    if isinstance(model, Wrapper) and not model.adapts:
        return Trained(model.eval(), backbone or model)

    def epoch(number: int) -> Iterator[Batch]:
        return some_batches(model, table, config.batch_size, seed=seed, number=number)

    log = fit(model, epoch, objective_of(model, table, found.check_loss), config, seed=seed)
    return Trained(model, backbone or model, {}, {name: log})


@cache
def fitted(name: str, *, implicit: bool = False, alike: bool = False) -> Trained:
    """As `learn`, once. Whoever wants to change the model takes a copy."""
    return learn(name, implicit=implicit, alike=alike)


def some_batches(
    model: Model, table: Interactions, size: int, *, seed: int = 0, number: int = 0
) -> Iterator[Batch]:
    """One epoch of what a model of this kind is trained on."""
    rng, more = stream(seed, "epoch", number), 3 if table.implicit else 0
    if not model.reads_history:
        return batches.rows(table, None, size=size, rng=rng, negatives=more)
    lengths = (4, 16) if model.inductive else (1 << 30, 1 << 30)  # all that is not asked for
    return batches.episodes(table, size=size, lengths=lengths, targets=4, rng=rng, negatives=more)
