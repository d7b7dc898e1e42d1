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
from idcf.training.array_store import ArrayStore
from idcf.training.checkpoint import remove_checkpoints

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
    monkeypatch.setattr("idcf.training.train.CHECKPOINT_SECONDS", 0.0)


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


class Killed(BaseException):
    """Stands for a kill: no handler of errors sees it."""


def save_and_stop(n_saves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process stop after some checkpoints of solvers."""
    save, names = ArrayStore.save, []

    def save_once(self: ArrayStore, name: str, arrays: Any) -> None:
        save(self, name, arrays)
        names.append(name)
        if len(names) == n_saves:
            raise Killed

    monkeypatch.setattr(ArrayStore, "save", save_once)


@pytest.mark.parametrize(
    ("name", "options", "n_saves"),
    [
        ("idcf-bayes", {"sweeps": 6, "burn_in": 2}, (1, 5)),
        ("idcf-bayes", {"sweeps": 6, "burn_in": 2, "blocks": 2, "noise_dof": 5}, (8, 1, 1)),
        ("als", {"epochs": 3, "embedding_size": 4}, (1, 2)),
        ("als", {}, (2, 3)),  # chooses options
        ("slim", {}, (2, 1)),
    ],
)
def test_a_solver_goes_on_to_the_same_model(
    name: str,
    options: dict[str, Any],
    n_saves: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("idcf.training.array_store.CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr("idcf.training.array_store._MAX_SHARE", 1e9)
    monkeypatch.setattr("idcf.training.solvers.slim._MAX_BLOCK_CELLS", 20_000)
    model = Recommender(name, key_threshold=12, device="cpu", **options)
    table = TABLE.as_implicit() if name == "slim" else TABLE
    whole = model.fit(table).artifact
    for n in n_saves:
        with monkeypatch.context() as patch:
            save_and_stop(n, patch)
            with pytest.raises(Killed):
                model.fit(table, resume=tmp_path)
    resumed = model.fit(table, resume=tmp_path).artifact
    assert resumed.manifest == whole.manifest
    for key, tensor in whole.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[key]), key
    with pytest.raises(ConfigError, match=r"of another training, with other .*seed"):
        Recommender(name, key_threshold=12, device="cpu", seed=5, **options).fit(
            table, resume=tmp_path
        )


def test_the_large_sampler_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idcf.training.solvers.bayes.LARGE_TABLE", 100)
    test_a_solver_goes_on_to_the_same_model(
        "idcf-bayes", {"sweeps": 20, "burn_in": 10}, (2, 5), tmp_path, monkeypatch
    )


def test_checkpoints_are_deleted_with_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    recommender(epochs=1).fit(TABLE, resume=folder)
    (folder / "mine").mkdir()
    remove_checkpoints(folder)
    assert [x.name for x in folder.iterdir()] == ["mine"]
    (folder / "mine").rmdir()
    recommender(epochs=1).fit(TABLE, resume=folder)
    remove_checkpoints(folder)
    assert not folder.exists()
