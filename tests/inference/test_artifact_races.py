"""Loading a folder that is being replaced gives the old model or the new one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from threading import Thread

import pytest
import torch
from builders import board

from idcf.data.side_tables import EnrichedInteractions
from idcf.errors import ArtifactError
from idcf.inference import artifact
from idcf.inference.artifact import Artifact, load_artifact, save_artifact
from idcf.inference.manifest import RecommenderConfig
from idcf.training.train import fit_artifact

N_SAVES = 60


@cache
def trained(seed: int) -> Artifact:
    """Return a model of ratings that a seed draws."""
    table = board(40, 24, 6, 14, seed=seed)
    config = RecommenderConfig("bias", {}, key_threshold=10, device="cpu")
    return fit_artifact(config, EnrichedInteractions(table), [None] * 24)


def is_one_of(loaded: Artifact, models: list[Artifact]) -> bool:
    """Return whether manifest and weights are of the same model."""
    same = [x for x in models if x.manifest.domain.mean == loaded.manifest.domain.mean]
    tensors, (model,) = loaded.tensors(), same
    return all(torch.equal(x, tensors[name]) for name, x in model.tensors().items())


def test_the_models_differ_in_manifest_and_weights(tmp_path: Path) -> None:
    old, new = trained(0), trained(1)
    assert old.manifest.domain.mean != new.manifest.domain.mean
    assert not torch.equal(old.tensors()["item_bias"], new.tensors()["item_bias"])


@pytest.mark.parametrize("position", range(4))
def test_a_folder_that_is_replaced_between_two_reads_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    old, new = trained(0), trained(1)
    folder, read, reads = save_artifact(old, tmp_path / "model"), artifact._read_file, []

    def read_after_a_save(path: Path, max_bytes: int) -> bytes:
        if len(reads) == position:
            save_artifact(new, folder)
        reads.append(path)
        return read(path, max_bytes)

    monkeypatch.setattr(artifact, "_read_file", read_after_a_save)
    assert is_one_of(load_artifact(folder), [new])


def test_savers_and_loaders_at_once(tmp_path: Path) -> None:
    models = [trained(0), trained(1)]
    folder = save_artifact(models[0], tmp_path / "model")

    def save_often() -> None:
        for n in range(N_SAVES):
            save_artifact(models[n % 2], folder)

    saver, n_loads = Thread(target=save_often), 0
    saver.start()
    while saver.is_alive() or not n_loads:
        assert is_one_of(load_artifact(folder), models)
        n_loads += 1
    saver.join()


def test_a_damaged_folder_is_not_read_for_ever(tmp_path: Path) -> None:
    folder = save_artifact(trained(0), tmp_path / "model")
    (folder / "weights.safetensors").write_bytes(b"")
    with pytest.raises(ArtifactError, match="is truncated"):
        load_artifact(folder)
