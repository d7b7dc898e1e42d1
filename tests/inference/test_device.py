"""Devices by name, and a clear error without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from idcf import ConfigError, Recommender
from idcf.models.base import resolve_device


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
