"""ONNX files give the scores of the models, in an independent runtime."""

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
from idcf.inference import onnx
from idcf.inference.onnx import solve, to_dense_model
from idcf.models.registry import all_models
from idcf.testing.synthetic import checkerboard

ITEMS = 30
HISTORIES = [{"i2": 5.0, "i4": 5.0, "i3": 1.0}, {}, {"i7": 4.0}, {f"i{n}": 3.0 for n in range(20)}]
MISSING = [x for x in ("onnx", "onnxscript", "onnxruntime") if not importlib.util.find_spec(x)]
needs_onnx = pytest.mark.skipif(
    bool(MISSING),
    reason=f"not installed: {', '.join(MISSING)}; pip install 'idcf[onnx]' onnxruntime",
)
CASES = [(n, i) for n in ("als", "idcf-dot", "idcf-nn") for i in (False, True)]
CASES.append(("idcf-bayes", False))
CLICKS_WITHOUT_VECTORS = ("idcf-takeup", "ease", "item-knn", "slim")


@cache
def fitted(name: str, implicit: bool, **options: Any) -> Recommender:
    table = checkerboard(
        90,
        ITEMS,
        np.random.default_rng(0),
        rows_per_light_user=6,
        rows_per_heavy_user=16,
        implicit=implicit,
    )
    small = {"embedding_size": 4} if all_models()[name].solver and name != "ease" else {"epochs": 3}
    small = {} if name in CLICKS_WITHOUT_VECTORS else small
    small |= {"blocks": 2, "rank": 6, "sweeps": 20, "burn_in": 5} if name == "idcf-bayes" else {}
    return Recommender(name, key_threshold=10, device="cpu", **small, **options).fit(table)


def history_of(history: dict[str, float], implicit: bool) -> Any:
    """Return a history as a model of this kind of feedback reads it."""
    return list(history) if implicit else history


def dense_inputs(implicit: bool, ids: Any) -> dict[str, Any]:
    """Return the inputs of a runtime; ratings of items outside a history are random."""
    rng = np.random.default_rng(0)
    ratings = rng.normal(0, 9, (len(HISTORIES), ITEMS)).astype(np.float32)
    rated = np.zeros((len(HISTORIES), ITEMS), np.float32)
    for row, history in enumerate(HISTORIES):
        for x, value in history.items():
            column = ids.index(x)
            ratings[row, column], rated[row, column] = value, 1.0
    return {"rated": rated} | ({} if implicit else {"ratings": ratings})


@pytest.mark.parametrize(("name", "implicit"), CASES)
def test_dense_histories_give_the_scores_of_ragged_ones(name: str, implicit: bool) -> None:
    recommender = fitted(name, implicit)
    ids = recommender.predictor.item_ids
    feed = {k: torch.from_numpy(v) for k, v in dense_inputs(implicit, ids).items()}
    vector, scores = to_dense_model(recommender.artifact.model)(**feed)
    for row, history in enumerate(HISTORIES):
        known = history_of(history, implicit)
        np.testing.assert_allclose(scores[row], recommender.predict(known, ids), atol=1e-4)
        np.testing.assert_allclose(vector[row], recommender.embed(known), atol=1e-4)


@pytest.mark.parametrize("name", CLICKS_WITHOUT_VECTORS)
def test_dense_histories_of_models_without_vectors(name: str) -> None:
    recommender = fitted(name, True)
    ids = recommender.predictor.item_ids
    rated = torch.from_numpy(dense_inputs(True, ids)["rated"])
    scores = to_dense_model(recommender.artifact.model)(rated)
    for row, history in enumerate(HISTORIES):
        np.testing.assert_allclose(scores[row], recommender.predict(list(history), ids), atol=1e-4)


def test_a_matrix_of_weights_must_fit_into_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "_MAX_DENSE_ITEMS", ITEMS - 1)
    for name in ("idcf-takeup", "ease"):
        with pytest.raises(ConfigError, match="30 items are more than 29; fit 'als'"):
            to_dense_model(fitted(name, True).artifact.model)


@pytest.mark.parametrize("options", [{"query": "ratings"}, {"bias": "own"}, {"pooling": "mean"}])
def test_dense_histories_with_options(options: dict[str, Any]) -> None:
    recommender = fitted("idcf-dot", False, **options)
    feed = {
        k: torch.from_numpy(v)
        for k, v in dense_inputs(False, recommender.predictor.item_ids).items()
    }
    scores = to_dense_model(recommender.artifact.model)(**feed)[1]
    for row, history in enumerate(HISTORIES):
        np.testing.assert_allclose(
            scores[row], recommender.predict(history, recommender.predictor.item_ids), atol=1e-4
        )


def test_dense_histories_of_als_with_popularity() -> None:
    recommender = fitted("als", True, popularity_weight=0.5)
    ids = recommender.predictor.item_ids
    feed = {k: torch.from_numpy(v) for k, v in dense_inputs(True, ids).items()}
    scores = to_dense_model(recommender.artifact.model)(**feed)[1]
    for row, history in enumerate(HISTORIES):
        np.testing.assert_allclose(scores[row], recommender.predict(list(history), ids), atol=1e-4)


@needs_onnx
@pytest.mark.parametrize("name", ["idcf-takeup", "ease"])
def test_another_runtime_gives_the_same_scores_of_clicks(name: str, tmp_path: Path) -> None:
    import onnxruntime

    recommender = fitted(name, True)
    session = onnxruntime.InferenceSession(recommender.export_onnx(tmp_path / "model.onnx"))
    assert [x.name for x in session.get_outputs()] == ["scores"]
    ids = list(recommender.predictor.item_ids)
    (scores,) = session.run(None, dense_inputs(True, ids))
    for row, history in enumerate(HISTORIES):
        np.testing.assert_allclose(scores[row], recommender.predict(list(history), ids), atol=1e-4)


@needs_onnx
@pytest.mark.parametrize(("name", "implicit"), CASES)
def test_another_runtime_gives_the_same_scores(name: str, implicit: bool, tmp_path: Path) -> None:
    import onnxruntime

    recommender = fitted(name, implicit)
    path = recommender.export_onnx(tmp_path / "new" / "model.onnx")
    assert [x.name for x in path.parent.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(path)
    metadata = session.get_modelmeta().custom_metadata_map
    ids = json.loads(metadata["item_ids"])
    assert metadata["model"] == name
    assert ids == list(recommender.predictor.item_ids)
    feed = dense_inputs(implicit, ids)
    for rows in (slice(0, 1), slice(0, 4)):
        part = {k: v[rows] for k, v in feed.items()}
        vector, scores = session.run(["vector", "scores"], part)
        for row, history in enumerate(HISTORIES[rows]):
            known = history_of(history, implicit)
            np.testing.assert_allclose(scores[row], recommender.predict(known, ids), atol=1e-4)
            np.testing.assert_allclose(vector[row], recommender.embed(known), atol=1e-4)


@needs_onnx
def test_the_command(tmp_path: Path) -> None:
    folder, file = fitted("als", True).save(tmp_path / "model"), tmp_path / "als.onnx"
    arguments = ["export", str(folder), "--onnx", str(file), "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["file"] == str(file)
    assert report["n_bytes"] == file.stat().st_size


def test_models_without_an_onnx_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match="ItemItemModel on ratings has no ONNX form; idcf-bayes, als"
    ):
        to_dense_model(fitted("ease", False).artifact.model)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"onnx is not installed; pip install 'idcf\[onnx\]'"):
        fitted("als", True).export_onnx(tmp_path / "x.onnx")


def test_elimination_solves() -> None:
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(5, 3, 12, 12, generator=generator)
    matrix = half @ half.mT + 0.1 * torch.eye(12)
    rhs = torch.randn(5, 3, 12, generator=generator)
    exact = torch.linalg.solve(matrix.double(), rhs.double()).float()
    torch.testing.assert_close(solve(matrix, rhs), exact, rtol=2e-3, atol=2e-3)
