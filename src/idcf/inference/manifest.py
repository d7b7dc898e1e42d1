"""What is asked of a training, and all that describes what came of it: plain values, no tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from idcf.data.features import Encoding
from idcf.data.interactions import Interactions
from idcf.data.split import Split
from idcf.models.base import Model
from idcf.types import Domain, History


@dataclass(frozen=True, kw_only=True)
class World:
    """A `Domain` without the people in it."""

    n_users: int
    n_items: int
    mean: float
    levels: tuple[float, ...]
    implicit: bool

    @classmethod
    def of(cls, table: Interactions, model: Model) -> Self:
        """The mean is the model's own: it may have seen a part of the table only."""
        means = (getattr(part, "mean", None) for part in model.modules())
        return cls(
            n_users=len(table.users),
            n_items=len(table.items),
            mean=next((x for x in means if isinstance(x, float)), 0.0),
            levels=(1.0,) if table.implicit else tuple(np.unique(table.rating).tolist()),
            implicit=table.implicit,
        )

    def domain(self) -> Domain:
        """Room for a model whose tensors will come from a file."""
        raters = History.empty(self.n_items)
        return Domain(
            max(self.n_users, 2), self.n_items, self.mean, self.levels, self.implicit, raters
        )


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The table that was trained on."""

    sha256: str
    rows: int
    users: int
    key_users: int
    key_threshold: int
    chosen: str | int = "threshold"  # which of those at the threshold: see `data.split.among`

    @classmethod
    def of(cls, split: Split, threshold: int, chosen: str | int = "threshold") -> Self:
        table = split.train
        digest = hashlib.sha256()
        for column in (table.user, table.item, table.rating):
            digest.update(np.ascontiguousarray(column).tobytes())
        for vocab in (table.users, table.items):
            digest.update(json.dumps(vocab.ids).encode())
        return cls(
            sha256=digest.hexdigest(),
            rows=len(table),
            users=len(table.users),
            key_users=len(split.key_users),
            key_threshold=threshold,
            chosen=chosen,
        )


@dataclass(frozen=True, kw_only=True)
class Point:
    """What people get of whom so many interactions are shown."""

    shown: int
    value: float
    low: float  # of the 95 % interval over people
    high: float
    plain: float  # what the simplest model gets


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How well a twin of the model, trained without some key users, answered for those."""

    metric: str
    plain: str  # the name of the simplest model
    people: int
    rows: int  # that they were asked about
    curve: tuple[Point, ...]
    cover90: float | None = None  # ratings inside the 90 % intervals, at the longest histories


@dataclass(frozen=True)
class Wish:
    """What is asked of a training; the manifest says what came of it."""

    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    key_threshold: int | None = None
    key_users: str | int = "threshold"
    preset: str = "clean"
    seed: int = 0
    device: str = "auto"
    measure: bool = False  # a second training tells how well newcomers will be served

    def plus(self, usual: Mapping[str, Any]) -> Self:
        """With options that hold unless they were said otherwise."""
        return replace(self, options={**usual, **self.options})


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that must be known to build the model again, and where it came from."""

    model: str
    options: dict[str, Any]
    domain: World
    data: Origin
    backbone: str | None = None
    backbone_options: dict[str, Any] = field(default_factory=dict)
    preset: str = "clean"
    seed: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    user_features: Encoding | None = None  # how a newcomer's own are read
    measured: Measured | None = None
