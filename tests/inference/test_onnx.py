"""ONNX files say what the models say; an independent runtime reads them."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from idcf import ConfigError, Recommender
from idcf.cli import app
from idcf.inference.onnx import dense, solve
from idcf.models.registry import all_models
from idcf.testing.synthetic import checkerboard

torch.set_num_threads(1)
ITEMS = 30
PEOPLE = [{"i2": 5.0, "i4": 5.0, "i3": 1.0}, {}, {"i7": 4.0}, {f"i{n}": 3.0 for n in range(20)}]
MISSING = [x for x in ("onnx", "onnxscript", "onnxruntime") if not importlib.util.find_spec(x)]
ONNX = pytest.mark.skipif(
    bool(MISSING),
    reason=f"not installed: {', '.join(MISSING)}; pip install 'idcf[onnx]' onnxruntime",
)
CASES = [(n, i) for n in ("als", "idcf-dot", "idcf-nn") for i in (False, True)]
CASES.append(("idcf-bayes", False))


@cache
def fitted(name: str, implicit: bool, **options: Any) -> Recommender:
    table = checkerboard(90, ITEMS, np.random.default_rng(0), few=6, many=16, implicit=implicit)
    small = {"embedding_size": 4} if all_models()[name].solver and name != "ease" else {"epochs": 3}
    small = {} if name == "ease" else small
    small |= {"blocks": 2, "rank": 6, "sweeps": 20, "burn_in": 5} if name == "idcf-bayes" else {}
    return Recommender(name, key_threshold=10, device="cpu", **small, **options).fit(table)


def told(implicit: bool, ids: Any) -> dict[str, Any]:
    """What a runtime is fed; what is not rated is never read."""
    rng = np.random.default_rng(0)
    ratings = rng.normal(0, 9, (len(PEOPLE), ITEMS)).astype(np.float32)
    rated = np.zeros((len(PEOPLE), ITEMS), np.float32)
    for row, history in enumerate(PEOPLE):
        for x, value in history.items():
            column = ids.index(x)
            ratings[row, column], rated[row, column] = value, 1.0
    return {"rated": rated} | ({} if implicit else {"ratings": ratings})


@pytest.mark.parametrize(("name", "implicit"), CASES)
def test_dense_histories_give_what_ragged_ones_give(name: str, implicit: bool) -> None:
    made = fitted(name, implicit)
    ids = made.desk.ids
    feed = {k: torch.from_numpy(v) for k, v in told(implicit, ids).items()}
    vector, scores = dense(made._fitted().model)(**feed)
    for row, history in enumerate(PEOPLE):
        np.testing.assert_allclose(scores[row], made.predict(history, ids), atol=1e-4)
        np.testing.assert_allclose(vector[row], made.embed(history), atol=1e-4)


@pytest.mark.parametrize("options", [{"query": "ratings"}, {"bias": "own"}, {"pooling": "mean"}])
def test_dense_histories_know_the_options(options: dict[str, Any]) -> None:
    made = fitted("idcf-dot", False, **options)
    feed = {k: torch.from_numpy(v) for k, v in told(False, made.desk.ids).items()}
    scores = dense(made._fitted().model)(**feed)[1]
    for row, history in enumerate(PEOPLE):
        np.testing.assert_allclose(scores[row], made.predict(history, made.desk.ids), atol=1e-4)


@ONNX
@pytest.mark.parametrize(("name", "implicit"), CASES)
def test_another_runtime_says_the_same(name: str, implicit: bool, tmp_path: Path) -> None:
    import onnxruntime

    made = fitted(name, implicit)
    path = made.export_onnx(tmp_path / "new" / "model.onnx")
    assert [x.name for x in path.parent.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(path)
    about = session.get_modelmeta().custom_metadata_map
    ids = json.loads(about["item_ids"])
    assert about["model"] == name
    assert ids == list(made.desk.ids)
    feed = told(implicit, ids)
    for people in (slice(0, 1), slice(0, 4)):
        some = {k: v[people] for k, v in feed.items()}
        vector, scores = session.run(["vector", "scores"], some)
        for row, history in enumerate(PEOPLE[people]):
            np.testing.assert_allclose(scores[row], made.predict(history, ids), atol=1e-4)
            np.testing.assert_allclose(vector[row], made.embed(history), atol=1e-4)


@ONNX
def test_the_command(tmp_path: Path) -> None:
    folder, file = fitted("als", True).save(tmp_path / "model"), tmp_path / "als.onnx"
    words = ["export", str(folder), "--onnx", str(file), "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["file"], said["items"], said["bytes"]) == (str(file), ITEMS, file.stat().st_size)


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="ItemItem has no ONNX form; idcf-dot"):
        dense(fitted("ease", False)._fitted().model)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"'onnx' is needed: pip install 'idcf\[onnx\]'"):
        fitted("als", True).export_onnx(tmp_path / "x.onnx")


def test_elimination_solves() -> None:
    draw = torch.Generator().manual_seed(0)
    half = torch.randn(5, 3, 12, 12, generator=draw)
    left = half @ half.mT + 0.1 * torch.eye(12)
    right = torch.randn(5, 3, 12, generator=draw)
    exact = torch.linalg.solve(left.double(), right.double()).float()
    torch.testing.assert_close(solve(left, right), exact, rtol=2e-3, atol=2e-3)
