"""What the checks share: a trained model with some users, and how answers are compared."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Interactions, Ints
from idcf.models.base import Model
from idcf.models.registry import model_entry
from idcf.testing.worlds import World, fitted, world
from idcf.training.train import Trained
from idcf.types import History, Users, pick

_CLOSE = 1e-5


def plain(name: str) -> bool:
    """Without an interaction term, with one between random items, or without features to know
    people by, there is no taste to learn: such rows get the plainer world.

    So does F-EAE: the two halves of a checkerboard can change places without anybody noticing, so
    a model that knows neither rows nor columns by number gives both the same code.
    """
    found = model_entry(name)
    if found.backbone:
        return plain(found.backbone)
    return found.learns_item_quality_only


def home(name: str, implicit: bool) -> World:
    return world(implicit=implicit, alike=plain(name))


def table_of(name: str, implicit: bool) -> Interactions:
    """What was trained on."""
    split = home(name, implicit).split
    return split.train.of(split.key_users)


def trained_in(name: str, implicit: bool) -> Trained:
    return fitted(name, implicit=implicit, alike=plain(name))


def known(name: str, implicit: bool, n: int = 6) -> tuple[Trained, Users]:
    """The trained model and some key users."""
    split = home(name, implicit).split
    who = split.key_users[:n]
    return trained_in(name, implicit), Users(torch.from_numpy(who), split.train.history(who))


def rank(model: Model, users: Users) -> Tensor:
    with torch.no_grad():
        return model.rank(users)


def same(got: Tensor, wanted: Tensor, what: str, *, exact: bool = False) -> None:
    gap = float((got - wanted).abs().max())
    bound = 0.0 if exact else _CLOSE * max(1.0, float(wanted.abs().max()))
    assert gap <= bound, f"{what}: scores differ by {gap:.2e}"


def take(users: Users, rows: list[int]) -> Users:
    index = torch.tensor(rows)
    return Users(users.ids[index], pick(users.history, index))


def nobody(n: int) -> Users:
    return Users(torch.full((n,), -1), History.empty(n))


def with_nobody(history: History, n: int) -> History:
    """n more users, who did nothing."""
    end = history.offsets[-1:].expand(n)
    return history._replace(offsets=torch.cat([history.offsets, end]))


def auc(place: World, model: Model, who: Ints) -> float:
    """How often an item that a user likes stands above one that they do not."""
    users = Users(torch.from_numpy(who), place.split.train.history(who))
    scores = rank(model, users.anonymous() if model.inductive else users).numpy()
    liked = place.likes(who[:, None], np.arange(scores.shape[1])[None])
    each = [
        np.mean((s[x][:, None] > s[~x]) + 0.5 * (s[x][:, None] == s[~x]))
        for s, x in zip(scores, liked, strict=True)
    ]
    return float(np.mean(each))
