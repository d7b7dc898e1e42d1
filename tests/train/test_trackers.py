"""Watchers hear of every epoch, of every stage, once; TensorBoard for real, MLflow by its calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from idcf import ConfigError, Recommender
from idcf.cli import app
from idcf.data.synthetic import checkerboard
from idcf.testing import world
from idcf.train.recipes import Job, train
from idcf.train.trackers import MLflow, TensorBoard, together

OPTIONS: dict[str, Any] = {"key_threshold": 10, "device": "cpu", "epochs": 2}


def test_every_epoch_of_every_stage_is_heard_once(tmp_path: Path) -> None:
    heard: list[tuple[str, dict[str, float]]] = []

    def watch(stage: str, record: Mapping[str, float]) -> None:
        heard.append((stage, dict(record)))

    job = Job(world().split, folder=tmp_path, watcher=watch)
    options = {"train.epochs": 2, "train.patience": 0}
    trained = train("idcf-dot", job, options=options)
    stages = list(dict.fromkeys(stage for stage, _ in heard))
    tries = [x for x in stages if x.startswith("try-")]  # of learning rates, for the backbone
    assert tries == [f"try-{n}/search/pmf" for n in range(len(tries))]
    assert stages[len(tries) :] == ["search/idcf-dot", "final/pmf", "final/idcf-dot"]
    told = {stage: [record for where, record in heard if where == stage] for stage in stages}
    assert told["search/idcf-dot"] == trained.logs["idcf-dot"].records
    assert trained.logs["pmf"].records in [told[x] for x in tries]
    first = len(heard)
    train("idcf-dot", job, options=options)  # resumed where all is done
    assert len(heard) == first


def test_curves_of_tensorboard(tmp_path: Path) -> None:
    table = checkerboard(60, 30, np.random.default_rng(0), few=6, many=16)
    with TensorBoard(tmp_path / "curves") as watcher:
        Recommender("idcf-dot", **OPTIONS).fit(table, watcher=watcher)
    read = EventAccumulator(str(tmp_path / "curves"))
    read.Reload()
    names = set(read.Tags()["scalars"])
    assert {"search/idcf-dot/loss", "search/idcf-dot/valid", "final/pmf/loss"} <= names
    assert not any(x.endswith("/epoch") for x in names)
    loss = read.Scalars("search/idcf-dot/loss")
    assert [x.step for x in loss] == [0, 1]
    assert loss[1].value < loss[0].value


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """As much of MLflow as is used, with the signatures of its documentation."""
    calls: list[tuple[Any, ...]] = []

    class MlflowClient:
        def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None):
            calls.append(("client", tracking_uri))

        def get_experiment_by_name(self, name: str) -> Any:
            return SimpleNamespace(experiment_id="7") if name == "known" else None

        def create_experiment(self, name: str, artifact_location: Any = None, tags: Any = None):
            calls.append(("experiment", name))
            return "8"

        def create_run(
            self, experiment_id: str, start_time: Any = None, tags: Any = None, run_name: Any = None
        ) -> Any:
            calls.append(("run", experiment_id))
            return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

        def log_param(self, run_id: str, key: str, value: Any, synchronous: Any = None) -> None:
            calls.append(("param", run_id, key, value))

        def log_metric(
            self, run_id: str, key: str, value: float, timestamp: Any = None, step: Any = None
        ) -> None:
            calls.append(("metric", run_id, key, value, step))

        def set_terminated(self, run_id: str, status: Any = None, end_time: Any = None) -> None:
            calls.append(("end", run_id, status))

    fake = ModuleType("mlflow")
    fake.MlflowClient = MlflowClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return calls


def test_a_run_of_mlflow(mlflow: list[tuple[Any, ...]]) -> None:
    with MLflow("file:runs", options={"heads": 2}) as watcher:
        watcher("final/pmf", {"epoch": 3, "loss": 0.5, "seconds": 1.0})
    assert mlflow == [
        ("client", "file:runs"),
        ("experiment", "idcf"),
        ("run", "8"),
        ("param", "r1", "heads", 2),
        ("metric", "r1", "final/pmf/loss", 0.5, 3),
        ("metric", "r1", "final/pmf/seconds", 1.0, 3),
        ("end", "r1", "FINISHED"),
    ]
    del mlflow[:]
    with pytest.raises(RuntimeError), MLflow(experiment="known"):
        raise RuntimeError
    assert mlflow == [("client", None), ("run", "7"), ("end", "r1", "FAILED")]


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mlflow", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"mlflow is not installed; pip install 'idcf\[mlflow\]'"):
        MLflow()
    with pytest.raises(ConfigError, match=r"pip install 'idcf\[tensorboard\]'"):
        TensorBoard(tmp_path)


def test_what_is_solved_cannot_be_watched(tmp_path: Path) -> None:
    table = checkerboard(60, 30, np.random.default_rng(0), few=6, many=16)
    with pytest.raises(ConfigError, match="'als' is solved"):
        Recommender("als", device="cpu").fit(table, watcher=lambda stage, record: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        TensorBoard(tmp_path / "file")
    assert together([]) is None


def test_the_command(
    ratings_file: Callable[..., Path], tmp_path: Path, mlflow: list[tuple[Any, ...]]
) -> None:
    words = ["train", str(ratings_file()), "--out", str(tmp_path / "m"), "--model", "idcf-dot"]
    words += ["--set", "epochs=2", "--device", "cpu", "--tensorboard", str(tmp_path / "curves")]
    done = CliRunner().invoke(app, [*words, "--mlflow", "file:x"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert list((tmp_path / "curves").glob("events.*"))
    assert ("param", "r1", "epochs", 2) in mlflow
    assert ("end", "r1", "FINISHED") in mlflow
    assert any(x[:3] == ("metric", "r1", "final/idcf-dot/loss") for x in mlflow)
