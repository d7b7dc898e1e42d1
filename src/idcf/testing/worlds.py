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
from idcf.data.synthetic import checkerboard
from idcf.models import IDCF, Backbone, Model, Wrapper, configure, entry
from idcf.models.idcf import IDCFConfig
from idcf.models.ngcf import NGCF
from idcf.models.pinsage import PinSage
from idcf.rng import derive, stream
from idcf.train.loop import TrainConfig, fit
from idcf.train.objectives import Objective, Ridge, accuracy, adapt, factorise
from idcf.train.recipes import Job, Trained, train
from idcf.types import Batch, Users

_CONFIG = TrainConfig(
    epochs=20, learning_rate=0.02, schedule="constant", batch_size=256, reg=0.01, bias_reg=1.0
)
_ADAPT = replace(_CONFIG, epochs=12, learning_rate=0.01)
_OPTIONS: Mapping[str, Mapping[str, Any]] = {  # what suits a world this small
    "item-knn": {"reg": 1.0, "neighbours": 20},
    "ease": {"reg": 50.0, "strength": 20.0},
    "als": {"reg": 1.0, "embedding_size": 4},
    "fism": {"embedding_size": 8},
    "mult-vae": {"embedding_size": 8, "hidden": 16, "beta": 0.05, "anneal": 20},
    "bomic": {"reg": 0.4, "user_reg": 0.3, "rank": 8},
    # there are no features here, and a weight that nothing reaches is an error
    "nimc": {"embedding_size": 8, "user_features": False, "item_features": False},
    "pmf": {"embedding_size": 8},
    "nnmf": {"embedding_size": 8, "hidden": (16,)},
    "nnmf-original": {"embedding_size": 8, "plain_size": 4, "hidden": (16,)},
    "gcmc": {"embedding_size": 8, "hidden": (16,)},
    "f-eae": {"channels": 16, "code": 8, "dropout": 0.1},
    "gcmc-softmax": {"hidden": 20, "embedding_size": 8, "node_dropout": 0.1, "dropout": 0.1},
    "igmc": {"layers": 3, "size": 8, "train_cap": 15, "hidden": 16, "dropout": 0.0},
    "nnmf-rd": {"embedding_size": 8, "hidden": (16,)},
    "trans-user": {"steps": 8},  # log loss may have no minimum to arrive at
    "trans-user-ridge": {"reg": 1.0, "bias_reg": 1.0},
    "ngcf": {"embedding_size": 8, "layers": 2},
    "pinsage": {"embedding_size": 16, "neighbours": 8},
}
_ORDERED = (NGCF, PinSage)  # made to put items in order: towers without a mean
_SAMPLE = {"sample": 24}  # fewer than the key users, so that training draws


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
    found = entry(name)
    usual = _OPTIONS.get(name, _SAMPLE if found.config is IDCFConfig else {})
    config = configure(name, {**usual, **(options or {})})
    if not found.backbone:
        return found.build(config, table.domain())
    return found.build(config, backbone or blank(found.backbone, table, keys), keys)


def objective_of(model: Model, table: Interactions) -> Objective:
    """What the named kind of model is descended on here."""
    if isinstance(model, Backbone):
        users, items = (torch.from_numpy(n).float() for n in (table.counts(), table.item_counts()))
        return factorise(Ridge(users, items, _CONFIG.reg, _CONFIG.row_reg, _CONFIG.bias_reg))
    if isinstance(model, IDCF):
        return adapt(0.1)
    return accuracy("bpr" if isinstance(model, _ORDERED) else "fit")


def learn(
    name: str,
    *,
    implicit: bool = False,
    alike: bool = False,
    seed: int = 0,
    epochs: int | None = None,
) -> Trained:
    """Train the named model on the key users of a world; both stages where it has two."""
    found, split = entry(name), world(implicit=implicit, alike=alike).split
    if found.solver:
        return train(name, Job(split, seed=seed), options=_OPTIONS.get(name))
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

    log = fit(model, epoch, objective_of(model, table), config, seed=seed)
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
