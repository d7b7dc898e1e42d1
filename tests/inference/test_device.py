"""Devices by name, and a clear error without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import board
from bulk_cases import write_histories
from pyarrow import parquet

from idcf import ConfigError, Recommender
from idcf.inference.bulk import BulkWork
from idcf.inference.bulk_folder import convert_folder
from idcf.models.base import resolve_device
from idcf.training.engine import LocalEngine


@pytest.mark.parametrize("has_gpu", [False, True])
def test_names_of_devices(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto") == torch.device("cuda" if has_gpu else "cpu")
    if has_gpu:
        assert resolve_device("cuda") == torch.device("cuda")
    with pytest.raises(ConfigError, match="device must be auto, cpu or cuda, got 'tpu'"):
        resolve_device("tpu")


def test_cuda_without_a_gpu_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recommender = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=True)
    folder = recommender.save(tmp_path / "model")
    message = "device 'cuda' was given, but no GPU is visible; use 'auto' or 'cpu'"
    with pytest.raises(ConfigError, match=message):
        Recommender.load(folder, device="cuda")
    with pytest.raises(ConfigError, match=message):
        Recommender.from_artifact(recommender.artifact, device="cuda")
    assert Recommender.load(folder, device="auto").predictor.ranker.model.device.type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("max_scores", [1 << 22, 1 << 11])  # one block of users, and many
@pytest.mark.parametrize(
    ("name", "model_options"),
    [
        ("als", {"embedding_size": 4}),
        ("idcf-bayes", {"sweeps": 16, "burn_in": 8, "embedding_size": 4}),
    ],
)
@pytest.mark.parametrize(
    "list_options",
    [
        None,
        {"n": 5, "return_std": True},
        {"n": 5, "return_std": True, "diversity": 0.5, "exclude": ["i3"]},
        {"n": 5, "return_std": True, "damping": 0.3, "quality": 0.7, "candidates": ["i1", "i2"]},
    ],
)
def test_many_users_on_a_gpu(
    max_scores: int,
    name: str,
    model_options: dict[str, Any],
    list_options: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("idcf.inference.topk._MAX_SCORES_PER_BLOCK", max_scores)
    recommender = Recommender(name, device="cpu", key_threshold=15, **model_options)
    folder = recommender.fit(board(60, 80, 9, 24)).save(tmp_path / "model")
    if name == "als" and list_options:
        list_options = {k: x for k, x in list_options.items() if k not in ("damping", "quality")}
    histories, tables = write_histories(tmp_path / "histories", 2), []
    for device in ("cpu", "cuda"):
        work = BulkWork.of_model(folder, device, list_options)
        convert_folder(work, histories, tmp_path / device, LocalEngine())
        tables.append(parquet.read_table(tmp_path / device))
    on_cpu, on_gpu = tables
    assert on_gpu.schema == on_cpu.schema
    assert on_gpu["user_id"].equals(on_cpu["user_id"])
    column = "embedding" if list_options is None else "score"
    assert on_gpu[column].null_count == on_cpu[column].null_count
    values = [x[column].combine_chunks() for x in tables]
    if list_options is None:
        values = [x.flatten() for x in values]
    np.testing.assert_allclose(values[1].to_numpy(), values[0].to_numpy(), rtol=2e-3, atol=2e-3)
