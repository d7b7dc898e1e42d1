"""Models in MLflow: logged to a local store, loaded back and served by `mlflow models serve`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed; pip install 'idcf[mlflow]'")
pytest.importorskip("pandas")

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
from builders import board  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

import idcf.mlflow  # noqa: E402
from idcf import ArtifactError, ConfigError, Recommender  # noqa: E402

pytestmark = [  # raised in MLflow's code
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Operation with range is deprecated"),
    pytest.mark.filterwarnings("ignore:.*is inferred as AnyType"),
]
HISTORY = {"i2": 5.0, "i4": 4.0, "i3": 1.0}
ROWS = [{"history": [{"item_id": k, "rating": v} for k, v in HISTORY.items()]}, {"history": []}]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A tracking store in a folder, and no messages to MLflow's makers."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)  # artifacts are written below it
    previous = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    yield
    mlflow.set_tracking_uri(previous)


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    small = {"sweeps": 8, "burn_in": 4, "embedding_size": 4}
    return Recommender(key_threshold=12, device="cpu", **small).fit(
        board(60, 30, 6, 16), titles={f"i{n}": f"Film {n}" for n in range(30)}
    )


def listed(result: Any) -> list[list[tuple[str, float]]]:
    """Return ids and scores of the lists of a prediction."""
    return [[(x["item_id"], x["score"]) for x in items] for items in result["items"]]


def expected(lists: Any) -> list[list[tuple[str, float]]]:
    return [[(x.item_id, x.score) for x in items] for items in lists]


def test_a_logged_model_gives_the_same_lists(recommender: Recommender) -> None:
    with mlflow.start_run():
        info = idcf.mlflow.log_model(recommender, registered_model_name="films")
    for address in (info.model_uri, "models:/films/1"):
        loaded = mlflow.pyfunc.load_model(address)
        lists = recommender.recommend([HISTORY, {}])
        assert listed(loaded.predict(ROWS)) == expected(lists)
        shorter = recommender.recommend([HISTORY, {}], n=3, quality=1.0, diversity=0.5)
        params = {"n": 3, "quality": 1.0, "diversity": 0.5}
        assert listed(loaded.predict(ROWS, params=params)) == expected(shorter)
        again = idcf.mlflow.load_model(address)
        assert again.recommend(HISTORY) == recommender.recommend(HISTORY)
    first = loaded.predict(ROWS)["items"][0][0]
    assert first["title"] == lists[0][0].title
    assert first["probability"] == lists[0][0].probability


def test_the_folder_holds_data_and_no_code(recommender: Recommender, tmp_path: Path) -> None:
    idcf.mlflow.save_model(recommender, tmp_path / "saved")
    files = [x for x in (tmp_path / "saved").rglob("*") if x.is_file()]
    assert {x.suffix for x in files} <= {
        "", ".json", ".yaml", ".txt", ".md", ".parquet", ".safetensors",
    }  # fmt: skip
    requirements = (tmp_path / "saved" / "requirements.txt").read_text().splitlines()
    assert f"idcf=={idcf.__version__}" in requirements
    weights = next(x for x in files if x.suffix == ".safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ArtifactError, match="changed after it was written"):
        idcf.mlflow.load_model(str(tmp_path / "saved"))


def test_clicks_numbers_as_ids_and_times(tmp_path: Path) -> None:
    table = board(60, 30, 6, 16, implicit=True)
    clicks = pa.table({"user_id": table.user, "item_id": table.item.astype(np.int64)})
    recommender = Recommender("als", key_threshold=12, device="cpu").fit(clicks)
    idcf.mlflow.save_model(recommender, tmp_path / "clicks")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "clicks"))
    assert "'item_id'" not in str(loaded.metadata.get_params_schema())
    rows = [{"history": [{"item_id": 2}, {"item_id": 4}]}]
    assert listed(loaded.predict(rows)) == expected(recommender.recommend([[2, 4]]))
    times = [{"history": [{"item_id": 2, "timestamp": 3}, {"item_id": 4, "timestamp": 1.5}]}]
    assert listed(loaded.predict(times)) == listed(loaded.predict(rows))
    with pytest.raises(MlflowException, match="Failed to enforce schema"):
        loaded.predict([{"history": [{"item_id": "2"}]}])


def test_features_of_users(tmp_path: Path) -> None:
    table = board(60, 30, 6, 16)
    users = pa.table(
        {
            "user_id": [f"u{n}" for n in range(60)],
            "age": [20 + 40 * (n % 2) for n in range(60)],
            "town": ["north" if n % 2 else "south" for n in range(60)],
        }
    )
    small = {"sweeps": 8, "burn_in": 4, "embedding_size": 4}
    recommender = Recommender(key_threshold=12, device="cpu", **small).fit(table, users=users)
    idcf.mlflow.save_model(recommender, tmp_path / "features")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "features"))
    features = {"age": 60, "town": "north"}
    lists = loaded.predict([{"history": [], "features": features}])
    assert listed(lists) == expected(recommender.recommend([{}], features=[features]))
    assert lists["items"][0][0]["source"] == "features"
    partly = loaded.predict([{"history": [], "features": {"age": 60}}])
    assert listed(partly) == expected(recommender.recommend([{}], features=[{"age": 60}]))


def test_errors_are_the_sentences_of_the_library(
    recommender: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idcf.mlflow.save_model(recommender, tmp_path / "model")
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    with pytest.raises(MlflowException, match="item 'i2' has no rating"):
        loaded.predict([{"history": [{"item_id": "i2"}]}])
    with pytest.raises(ConfigError, match="not fitted"):
        idcf.mlflow.save_model(Recommender(), tmp_path / "none")
    monkeypatch.setattr("idcf.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"mlflow is not installed; pip install 'idcf\[mlflow\]'"):
        idcf.mlflow.log_model(recommender)


@pytest.fixture
def served(recommender: Recommender, tmp_path: Path) -> Iterator[str]:
    """Address of `mlflow models serve`, which runs until the test ends."""
    pytest.importorskip("fastapi", reason="needs 'idcf[serve]'")
    idcf.mlflow.save_model(recommender, tmp_path / "served")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(tmp_path / "served")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}  # it starts uvicorn by name
    log = (tmp_path / "log").open("w")
    server = subprocess.Popen(
        [*command, "--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)],
        stdout=log, stderr=log, env=env, start_new_session=True,
    )  # fmt: skip
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
    try:
        while not is_alive(address):
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()


def is_alive(address: str) -> bool:
    """Return whether a server answers."""
    try:
        with urllib.request.urlopen(f"{address}/ping", timeout=10):
            return True
    except OSError:
        return False


def test_mlflow_serves_a_model(served: str, recommender: Recommender) -> None:
    rows = [{"history": [{"item_id": k, "rating": int(v)} for k, v in HISTORY.items()]}]
    values = post(served, {"dataframe_records": rows, "params": {"n": 4}})
    items = values["predictions"][0]["items"]
    best = recommender.recommend(HISTORY, n=4)
    assert [(x["item_id"], x["title"], x["rank"]) for x in items] == [
        (x.item_id, x.title, x.rank) for x in best
    ]
    np.testing.assert_allclose([x["score"] for x in items], [x.score for x in best], rtol=1e-5)
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(served, {"dataframe_records": [{"history": [{"item_id": "i2"}]}]})
    assert caught.value.code == 400
    assert "item 'i2' has no rating" in json.load(caught.value)["message"]


def post(address: str, values: Any) -> Any:
    """Return the JSON that /invocations answers."""
    request = urllib.request.Request(
        f"{address}/invocations",
        json.dumps(values).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)
