"""Epoch callbacks: one call per epoch and stage; curves in TensorBoard and MLflow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from idcf import ConfigError, Recommender
from idcf.cli import app
from idcf.testing import synthetic_world
from idcf.testing.synthetic import checkerboard
from idcf.training.trackers import MLflow, TensorBoard, combine_callbacks
from idcf.training.train import TrainingJob, train

MLFLOW = "ignore::sqlalchemy.exc.SADeprecationWarning"  # raised in its code
OPTIONS: dict[str, Any] = {"key_threshold": 10, "device": "cpu", "epochs": 2}


def test_every_epoch_of_every_stage_is_reported_once(tmp_path: Path) -> None:
    calls: list[tuple[str, dict[str, float]]] = []

    def record_call(stage: str, record: Mapping[str, float]) -> None:
        calls.append((stage, dict(record)))

    job = TrainingJob(synthetic_world().split, folder=tmp_path, callback=record_call)
    options = {"train.epochs": 2, "train.patience": 0}
    trained = train("idcf-dot", job, options=options)
    stages = list(dict.fromkeys(stage for stage, _ in calls))
    tries = [x for x in stages if x.startswith("try-")]  # of learning rates, for the backbone
    assert tries == [f"try-{n}/search/pmf" for n in range(len(tries))]
    assert stages[len(tries) :] == ["search/idcf-dot", "final/pmf", "final/idcf-dot"]
    records = {stage: [record for name, record in calls if name == stage] for stage in stages}
    assert records["search/idcf-dot"] == trained.logs["idcf-dot"].records
    assert trained.logs["pmf"].records in [records[x] for x in tries]
    n_calls = len(calls)
    train("idcf-dot", job, options=options)  # resumed after its last epoch
    assert len(calls) == n_calls


def test_curves_of_tensorboard(tmp_path: Path) -> None:
    table = checkerboard(
        60, 30, np.random.default_rng(0), rows_per_light_user=6, rows_per_heavy_user=16
    )
    with TensorBoard(tmp_path / "curves") as callback:
        Recommender("idcf-dot", **OPTIONS).fit(table, callback=callback)
    events = EventAccumulator(str(tmp_path / "curves"))
    events.Reload()
    names = set(events.Tags()["scalars"])
    assert {"search/idcf-dot/loss", "search/idcf-dot/valid", "final/pmf/loss"} <= names
    assert not any(x.endswith("/epoch") for x in names)
    loss = events.Scalars("search/idcf-dot/loss")
    assert [x.step for x in loss] == [0, 1]
    assert loss[1].value < loss[0].value


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of one store for all tests: creating its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'runs.db'}"


@pytest.mark.filterwarnings(MLFLOW)
def test_a_run_of_mlflow(address: str) -> None:
    with MLflow(address, options={"heads": 2}) as callback:
        for epoch, loss in enumerate((0.5, 0.25)):
            callback("final/pmf", {"epoch": epoch, "loss": loss, "seconds": 1.0})
    client = MlflowClient(tracking_uri=address)
    run = client.get_run(callback.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"heads": "2"}
    assert run.data.metrics == {"final/pmf/loss": 0.25, "final/pmf/seconds": 1.0}
    history = client.get_metric_history(callback.run_id, "final/pmf/loss")
    assert [(x.step, x.value) for x in history] == [(0, 0.5), (1, 0.25)]
    with pytest.raises(RuntimeError), MLflow(address) as second:
        raise RuntimeError
    failed = client.get_run(second.run_id).info
    assert (failed.status, failed.experiment_id) == ("FAILED", run.info.experiment_id)


def test_an_address_that_mlflow_refuses() -> None:
    with pytest.raises(ConfigError, match="does not take the address 'nonsense://x'"):
        MLflow("nonsense://x")


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mlflow", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"mlflow is not installed; pip install 'idcf\[mlflow\]'"):
        MLflow()
    with pytest.raises(ConfigError, match=r"pip install 'idcf\[tensorboard\]'"):
        TensorBoard(tmp_path)


def test_a_solved_model_takes_no_callback(tmp_path: Path) -> None:
    table = checkerboard(
        60, 30, np.random.default_rng(0), rows_per_light_user=6, rows_per_heavy_user=16
    )
    with pytest.raises(ConfigError, match="'als' is solved"):
        Recommender("als", device="cpu").fit(table, callback=lambda stage, record: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        TensorBoard(tmp_path / "file")
    assert combine_callbacks([]) is None


@pytest.mark.filterwarnings(MLFLOW)
def test_the_train_command_writes_to_both(
    ratings_file: Callable[..., Path], tmp_path: Path, address: str
) -> None:
    arguments = ["train", str(ratings_file()), "--out", str(tmp_path / "m"), "--model", "idcf-dot"]
    arguments += [
        "--option",
        "epochs=2",
        "--device",
        "cpu",
        "--tensorboard",
        str(tmp_path / "curves"),
    ]
    result = CliRunner().invoke(app, [*arguments, "--mlflow", address], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "curves").glob("events.*"))
    client = MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("idcf")
    assert experiment is not None
    run = client.search_runs([experiment.experiment_id], order_by=["start_time DESC"])[0]
    assert run.info.status == "FINISHED"
    assert run.data.params["epochs"] == "2"
    assert "final/idcf-dot/loss" in run.data.metrics
