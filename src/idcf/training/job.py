"""Records of a training (job, result, stage result) and the choice among candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from idcf.data.interactions import Interactions
from idcf.data.split import Split
from idcf.models.base import Model
from idcf.models.registry import model_entry
from idcf.training.checkpoint import EpochCallback, TrainingLog
from idcf.training.distributed import LOCAL_RUNTIME, Runtime
from idcf.training.presets import StageConfig

QueryUserMode = Literal["new", "few-shot"]


@dataclass(frozen=True)
class TrainingJob:
    """The arguments that all stages of one training share.

    With `query_user_mode="new"` no row of a query user is trained on. With "few-shot" their
    training rows are used, and IDCF adapts on them (the paper's interpolation).
    """

    split: Split
    query_user_mode: QueryUserMode = "new"
    preset: str = "clean"
    dataset: str = ""  # chooses the preset's row
    seed: int = 0
    runtime: Runtime = LOCAL_RUNTIME  # the device and the processes to train on
    folder: Path | None = None  # for checkpoints and journals
    progress: bool = False  # whether to show progress bars
    callback: EpochCallback | None = None  # called after each epoch
    stage_prefix: str = ""  # begins the stage's name in calls of `callback`

    def training_table(self) -> Interactions:
        """Return the rows that may be trained on."""
        split = self.split
        if self.query_user_mode == "new":
            return split.train.for_users(split.key_users)
        return split.train


@dataclass(frozen=True)
class TrainingResult:
    """A trained model, and the options and logs of its stages."""

    model: Model  # scores query users and, if it is inductive, new users
    key_user_model: Model  # scores key users: the backbone, or `model` itself
    mean_rating: float  # `Domain.mean` that the model, or its backbone, was built with
    options: Mapping[str, Any] = field(default_factory=dict)  # those the model was built with
    logs: Mapping[str, TrainingLog] = field(default_factory=dict)  # by model name
    backbone_options: Mapping[str, Any] = field(default_factory=dict)  # empty without a backbone


class StageResult(NamedTuple):
    """One stage trained by gradient."""

    config: StageConfig
    model: Model
    log: TrainingLog
    mean_rating: float  # `Domain.mean` that the model, or its backbone, was built with

    @property
    def n_epochs(self) -> int:
        """The number of epochs up to the best one."""
        return self.log.best_epoch + 1


def best_result(results: Sequence[StageResult]) -> StageResult:
    """Return the result with the lowest validation error, the first of equals."""
    return min(results, key=lambda result: result.log.best_validation())


def expand_grid(name: str, options: Mapping[str, Any], implicit: bool) -> list[dict[str, Any]]:
    """Return `options` with every combination of the model's grid over options not given."""
    grid = {k: v for k, v in model_entry(name).grid_for(implicit).items() if k not in options}
    return [{**options, **dict(zip(grid, x, strict=True))} for x in product(*grid.values())]
