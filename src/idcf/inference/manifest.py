"""Configuration of a training and description of its result: plain values, no tensors.

`Manifest` is the content of config.json, so that a changed field changes the artifact format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from idcf.data.features import FeatureEncoder
from idcf.data.interactions import Interactions
from idcf.data.split import Split
from idcf.models.base import UserData
from idcf.models.registry import resolve_model, user_data_of
from idcf.types import Domain, Ragged

_USER_DATA_TEXTS: dict[UserData, str] = {
    "sums": "Parameters of items and sums over users. No user ids, no vectors of single users and "
    "no histories are stored.",
    "vectors": "Vectors of items and of single training users ({n:,} key users), without user ids. "
    "No histories are stored.",
    "rows": "**Holds training rows.** The model reads the training data of its {n:,} key users, "
    "which are in it without user ids: protect the folder as the table itself.",
}


@dataclass(frozen=True, kw_only=True)
class DomainInfo:
    """What a model must know of the training data to be built: a `Domain` without raters."""

    n_users: int
    n_items: int
    mean: float  # of the ratings that the model was built with; 0 for implicit feedback
    levels: tuple[float, ...]  # rating values in ascending order; (1,) for implicit feedback
    implicit: bool  # whether the feedback is implicit
    std: float = 1.0  # standard deviation of the ratings; 1 for implicit feedback

    @classmethod
    def from_table(cls, table: Interactions, mean: float) -> Self:
        """Describe a table; `mean` is that of the ratings that the model is built with."""
        return cls(
            n_users=len(table.users),
            n_items=len(table.items),
            mean=mean,
            levels=(1.0,) if table.implicit else tuple(np.unique(table.rating).tolist()),
            implicit=table.implicit,
            std=1.0 if table.implicit or not len(table) else float(np.std(table.rating)),
        )

    def placeholder_domain(self) -> Domain:
        """Return a domain to build a model with whose tensors are assigned later."""
        raters = Ragged.empty(self.n_items)
        return Domain(
            max(self.n_users, 2), self.n_items, self.mean, self.levels, self.implicit, raters
        )


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Description of the table that a model was trained on."""

    sha256: str  # of the rows and ids of the table
    n_rows: int
    n_users: int
    n_key_users: int
    key_threshold: int  # rows that make a user a key user (the paper's δ)
    key_user_rule: str | int = "threshold"  # see `data.split.split_by_key_users`

    @classmethod
    def from_split(
        cls, split: Split, key_threshold: int, key_user_rule: str | int = "threshold"
    ) -> Self:
        """Describe the training table of a split; the checksum covers its rows and ids."""
        table = split.train
        return cls(
            sha256=table_sha256(table),
            n_rows=len(table),
            n_users=len(table.users),
            n_key_users=len(split.key_users),
            key_threshold=key_threshold,
            key_user_rule=key_user_rule,
        )


def table_sha256(table: Interactions) -> str:
    """Return a checksum of the rows and ids of a table."""
    digest = hashlib.sha256()
    for column in (table.user, table.item, table.rating):
        digest.update(np.ascontiguousarray(column).tobytes())
    for vocab in (table.users, table.items):
        digest.update(json.dumps(vocab.ids).encode())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class NewUserCurvePoint:
    """One point of a `NewUserCurve`: its metric for new users with histories of one length."""

    history_length: int
    value: float  # of `NewUserCurve.metric`
    low: float  # lower end of the 95 % interval over users
    high: float  # upper end of the interval
    baseline: float  # value of the baseline model


@dataclass(frozen=True, kw_only=True)
class NewUserCurve:
    """Quality for key users that a second model was trained without, by history length."""

    metric: str
    baseline: str  # name of the baseline model
    n_users: int  # held-out key users
    n_rows: int  # held-out interactions that were predicted
    points: tuple[NewUserCurvePoint, ...]  # one per history length
    cover90: float | None = None  # share of ratings in the 90 % intervals, longest histories


@dataclass(frozen=True)
class RecommenderConfig:
    """Configuration of a training, as given to `Recommender`."""

    model: str  # a name of the registry
    options: Mapping[str, Any] = field(default_factory=dict)
    key_threshold: int | None = None  # None: the default
    key_users: str | int = "threshold"
    preset: str = "clean"
    seed: int = 0
    device: str = "auto"
    card_metrics: bool = False  # train a second model to measure the quality for new users

    def with_default_options(self, defaults: Mapping[str, Any]) -> Self:
        """Return a copy with options added that are not set."""
        return replace(self, options={**defaults, **self.options})


@dataclass(frozen=True, kw_only=True)
class FitRecord:
    """Arguments of a fit that do not follow from the rest of a manifest: those by which
    `Recommender.forget` fits again. What a default became may depend on a user who is forgotten."""

    options: dict[str, Any]  # as given to `Recommender`
    key_threshold: int | None
    card_metrics: bool
    side_tables: tuple[str, ...]  # the arguments of `fit` that were tables
    weighted: bool  # the table had weights of clicks
    over_shards: bool  # an engine trained


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that is needed to build the model again, and where the model comes from."""

    model: str
    options: dict[str, Any]
    domain: DomainInfo
    training_data: TrainingData
    backbone: str | None = None  # None: the model wraps none
    backbone_options: dict[str, Any] = field(default_factory=dict)
    take_up_model: str | None = None  # None: lists are ordered by the scores of the model
    take_up_options: dict[str, Any] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)  # what solvers chose, by model
    choice_slope: float | None = None  # κ of `inference.if_shown`; None: not estimated
    preset: str = "clean"
    seed: int = 0
    versions: dict[str, str] = field(default_factory=dict)  # of libraries, by name
    user_encoder: FeatureEncoder | None = None  # of user features
    columns: dict[str, str] = field(default_factory=dict)  # name of a role's column in tables
    new_user_curve: NewUserCurve | None = None  # None: not measured
    fit: FitRecord | None = None  # None: the model is not, or not only, that of a fit

    @property
    def fitted_model(self) -> str:
        """Name of the model that was fitted: another one than `model` where that needs ratings."""
        return resolve_model(self.model, self.domain.implicit)

    @property
    def fitted_recency(self) -> float | None:
        """Recency that was best for held-out users, see `training.recency`; None: not fitted."""
        values = [x["recency"] for x in self.details.values() if "recency" in x]
        return float(values[0]) if values else None

    @property
    def user_data(self) -> UserData:
        """What the model holds of single training users; see `Model.user_data`."""
        return user_data_of(self.fitted_model, self.options, self.backbone)

    @property
    def user_data_text(self) -> str:
        """`user_data` in words, as the model card says it."""
        return _USER_DATA_TEXTS[self.user_data].format(n=self.training_data.n_key_users)

    def config(self, device: str) -> RecommenderConfig:
        """Return a configuration that trains such a model again."""
        data = self.training_data
        return RecommenderConfig(
            self.model,
            self.options,
            data.key_threshold,
            data.key_user_rule,
            self.preset,
            self.seed,
            device,
        )
