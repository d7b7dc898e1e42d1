"""Watchers hear of every epoch, of every stage, once; for TensorBoard and MLflow as they are."""

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
from idcf.testing import world
from idcf.testing.synthetic import checkerboard
from idcf.training.trackers import MLflow, TensorBoard, together
from idcf.training.train import Job, train

MLFLOW = "ignore::sqlalchemy.exc.SADeprecationWarning"  # of its own code
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


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of runs, one for all tests: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'runs.db'}"


@pytest.mark.filterwarnings(MLFLOW)
def test_a_run_of_mlflow(address: str) -> None:
    with MLflow(address, options={"heads": 2}) as watcher:
        for epoch, loss in enumerate((0.5, 0.25)):
            watcher("final/pmf", {"epoch": epoch, "loss": loss, "seconds": 1.0})
    client = MlflowClient(tracking_uri=address)
    run = client.get_run(watcher.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"heads": "2"}
    assert run.data.metrics == {"final/pmf/loss": 0.25, "final/pmf/seconds": 1.0}
    history = client.get_metric_history(watcher.run_id, "final/pmf/loss")
    assert [(x.step, x.value) for x in history] == [(0, 0.5), (1, 0.25)]
    with pytest.raises(RuntimeError), MLflow(address) as second:
        raise RuntimeError
    again = client.get_run(second.run_id).info
    assert (again.status, again.experiment_id) == ("FAILED", run.info.experiment_id)


def test_an_address_that_mlflow_does_not_take() -> None:
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


def test_what_is_solved_cannot_be_watched(tmp_path: Path) -> None:
    table = checkerboard(60, 30, np.random.default_rng(0), few=6, many=16)
    with pytest.raises(ConfigError, match="'als' is solved"):
        Recommender("als", device="cpu").fit(table, watcher=lambda stage, record: None)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        TensorBoard(tmp_path / "file")
    assert together([]) is None


@pytest.mark.filterwarnings(MLFLOW)
def test_the_command(ratings_file: Callable[..., Path], tmp_path: Path, address: str) -> None:
    words = ["train", str(ratings_file()), "--out", str(tmp_path / "m"), "--model", "idcf-dot"]
    words += ["--set", "epochs=2", "--device", "cpu", "--tensorboard", str(tmp_path / "curves")]
    done = CliRunner().invoke(app, [*words, "--mlflow", address], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert list((tmp_path / "curves").glob("events.*"))
    client = MlflowClient(tracking_uri=address)
    home = client.get_experiment_by_name("idcf")
    assert home is not None
    run = client.search_runs([home.experiment_id], order_by=["start_time DESC"])[0]
    assert run.info.status == "FINISHED"
    assert run.data.params["epochs"] == "2"
    assert "final/idcf-dot/loss" in run.data.metrics
