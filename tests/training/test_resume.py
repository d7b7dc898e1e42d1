"""A fit that was interrupted goes on from its checkpoints, which must be of the same training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import board

from idcf import Recommender
from idcf.errors import ConfigError

TABLE = board(60, 40, 9, 20)


class Interrupted(Exception):
    """Stands for a kill: the training ends in the middle of a stage."""


def recommender(**options: Any) -> Recommender:
    return Recommender(
        "idcf-nn", key_threshold=12, device="cpu", **{"epochs": 4, "seed": 1, **options}
    )


def interrupt_after(n_calls: int) -> Any:
    calls: list[str] = []

    def callback(stage: str, record: Mapping[str, float]) -> None:
        calls.append(stage)
        if len(calls) == n_calls:
            raise Interrupted

    return callback


@pytest.fixture(autouse=True)
def checkpoint_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idcf.training.train._CHECKPOINT_SECONDS", 0.0)


def test_the_resumed_fit_has_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = recommender().fit(TABLE)
    for n_calls in (2, 3):
        with pytest.raises(Interrupted):
            recommender().fit(TABLE, resume=tmp_path, callback=interrupt_after(n_calls))
    assert list(tmp_path.rglob("*.checkpoint"))
    resumed = recommender().fit(TABLE, resume=tmp_path)
    for name, tensor in whole.artifact.tensors().items():
        assert torch.equal(tensor, resumed.artifact.tensors()[name]), name


@pytest.mark.parametrize(
    ("options", "table", "what"),
    [
        ({"seed": 2}, TABLE, "seed"),
        ({"learning_rate": 0.02}, TABLE, "options"),
        ({}, board(60, 40, 9, 20, seed=3), "data"),
    ],
)
def test_checkpoints_of_another_training_are_refused(
    tmp_path: Path, options: dict[str, Any], table: Any, what: str
) -> None:
    with pytest.raises(Interrupted):
        recommender().fit(TABLE, resume=tmp_path, callback=interrupt_after(1))
    with pytest.raises(ConfigError, match=f"of another training, with other .*{what}"):
        recommender(**options).fit(table, resume=tmp_path)


def test_a_solved_model_has_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave out resume"):
        Recommender("als", key_threshold=12, device="cpu").fit(TABLE, resume=tmp_path)
