"""Saving and loading: bit-identical scores, and errors that name the damaged file."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from builders import board
from pyarrow import parquet

from idcf import ColdUserError, Recommender
from idcf.config import dataclass_from_dict, dataclass_to_dict
from idcf.data.interactions import Interactions, Vocab, titles_by_row
from idcf.data.side_tables import EnrichedInteractions
from idcf.errors import ArtifactError
from idcf.inference import artifact
from idcf.inference.artifact import Artifact, load_artifact, save_artifact
from idcf.inference.manifest import Manifest, RecommenderConfig
from idcf.models.registry import all_models
from idcf.training.train import fit_artifact
from idcf.types import Users

FILES = ["config.json", "weights.safetensors", "items.parquet", "card.md"]
INDUCTIVE = [name for name, row in all_models().items() if row.inductive]


def interactions(implicit: bool = False) -> Interactions:
    return board(40, 24, 6, 14, implicit=implicit)


@cache
def trained(name: str, implicit: bool = False) -> Artifact:
    table = interactions(implicit)
    options = {} if all_models()[name].solver else {"epochs": 2}
    titles = titles_by_row(table.items, {"i0": "Zero", "i3": "Drei «3»"})
    config = RecommenderConfig(name, options, key_threshold=10, device="cpu")
    return fit_artifact(config, EnrichedInteractions(table), titles)


def new_users(table: Interactions) -> Users:
    """Return four users of a table and one without a history, without their ids."""
    rows = np.array([0, 1, 2, 5, -1])
    return Users(torch.from_numpy(rows), table.history(rows)).anonymous()


def manifest_values(saved: Artifact) -> object:
    """Return the manifest as config.json holds it."""
    return artifact._to_json_value(dataclass_to_dict(saved.manifest))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_artifact(trained("bias"), tmp_path / "model")


@pytest.mark.parametrize("name", INDUCTIVE)
def test_a_loaded_model_scores_the_same_to_the_last_bit(name: str, tmp_path: Path) -> None:
    for implicit in (False, True):
        if all_models()[name].ratings_only if implicit else all_models()[name].implicit_only:
            continue
        original, users = trained(name, implicit), new_users(interactions(implicit))
        loaded = load_artifact(
            save_artifact(original, tmp_path / f"{implicit}", allow_training_rows=True)
        )
        original.model.eval()
        with torch.no_grad():
            before = original.model.score_catalog(users)
            after = loaded.model.score_catalog(users)
        assert torch.equal(before, after)
        assert before.isfinite().all()
        assert (loaded.items, loaded.titles) == (original.items, original.titles)
        assert manifest_values(loaded) == manifest_values(original)
        tensors = original.model.state_dict().values(), loaded.model.state_dict().values()
        for saved, loaded_tensor in zip(*tensors, strict=True):
            assert torch.equal(saved.cpu(), loaded_tensor)


def test_the_files_of_the_folder(folder: Path) -> None:
    assert sorted(x.name for x in folder.iterdir()) == sorted(FILES)
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == artifact.FORMAT
    assert config["training_data"]["n_rows"] == len(interactions())
    assert config["domain"]["n_items"] == 24
    assert {"idcf", "torch", "numpy", "python"} <= config["versions"].keys()
    card = (folder / "card.md").read_text()
    assert "bias" in card
    assert config["training_data"]["sha256"] in card


def test_infinite_options_are_written_as_json(tmp_path: Path) -> None:
    saved = save_artifact(trained("item-mean"), tmp_path / "model")
    text = (saved / "config.json").read_text()
    assert "Infinity" not in text
    assert load_artifact(saved).manifest.options["shrinkage"] in (float("inf"), "inf")


@pytest.mark.parametrize("ids", [[3, 10, 7], ["3", "x", "é"], [2**40, -5, 0]])
def test_ids_keep_their_type(ids: list[object], tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    titles = pa.array([None, "b", None], pa.string())
    parquet.write_table(pa.table({"item_id": pa.array(ids), "title": titles}), path)
    assert artifact._read_items(path, path.read_bytes(), 3) == (Vocab(ids), (None, "b", None), None)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        load_artifact(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for end in (0, 1, len(content) // 2, len(content) - 2):
        (folder / name).write_bytes(content[:end])
        with pytest.raises(ArtifactError, match=f"{name}.*truncated"):
            load_artifact(folder)


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_noticed(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    rng = np.random.default_rng(0)
    for position in rng.integers(len(content) - 1, size=40).tolist():  # the last is a newline
        changed = bytearray(content)
        changed[position] ^= 1 << int(rng.integers(8))
        (folder / name).write_bytes(changed)
        with pytest.raises(ArtifactError):
            load_artifact(folder)
    (folder / name).write_bytes(content)
    load_artifact(folder)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (3, r"format 3 is older than 7, which idcf .* reads; train again"),
        (8, r"format 8 is newer than 7, which idcf .* reads; upgrade idcf"),
        (99, "format 99 is newer than 7"),
        *((x, "is not a format of idcf") for x in ("1", None, 0, True)),
    ],
)
def test_another_format_is_refused(folder: Path, version: object, message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "format": version}))
    with pytest.raises(ArtifactError, match=message):
        load_artifact(folder)


@pytest.mark.parametrize("text", ["[]", "3", "{}", "null", "[" * 100_000])
def test_a_config_of_another_kind_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"config\.json"):
        load_artifact(folder)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no saved model"):
        load_artifact(tmp_path / "nowhere")


def test_tensors_must_match_by_name_and_kind(folder: Path) -> None:
    model = load_artifact(folder).model
    tensors = model.state_dict()
    with pytest.raises(ArtifactError, match="lacks the tensor 'item_bias'"):
        artifact.assign_tensors(model, {}, folder)
    with pytest.raises(ArtifactError, match="unknown to this version"):
        artifact.assign_tensors(model, {**tensors, "extra": torch.ones(1)}, folder)
    doubles = {"item_bias": torch.ones(24, dtype=torch.float64)}
    with pytest.raises(ArtifactError, match="float64"):
        artifact.assign_tensors(model, doubles, folder)


def test_replacing_leaves_the_new_model_and_no_other_file(folder: Path) -> None:
    save_artifact(trained("popularity"), folder)
    assert load_artifact(folder).manifest.model == "popularity"
    assert [x.name for x in folder.parent.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_old_model(folder: Path) -> None:
    good = trained("popularity")
    broken = replace(good, items=Vocab([object()]))  # no id that a file can hold
    with pytest.raises(pa.ArrowInvalid):
        save_artifact(broken, folder)
    assert load_artifact(folder).manifest.model == "bias"
    assert [x.name for x in folder.parent.iterdir()] == ["model"]


def test_the_fallback_without_an_atomic_swap(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idcf.files._try_atomic_swap", lambda fresh, target: False)
    test_replacing_leaves_the_new_model_and_no_other_file(folder)


def test_a_model_never_replaces_other_files(folder: Path, tmp_path: Path) -> None:
    (folder / "thesis.txt").write_text("text")
    with pytest.raises(ArtifactError, match=r"thesis\.txt"):
        save_artifact(trained("bias"), folder)
    (tmp_path / "file").write_text("text")
    with pytest.raises(ArtifactError, match="is a file"):
        save_artifact(trained("bias"), tmp_path / "file")
    assert (folder / "thesis.txt").read_text() == "text"


def test_manifest_fields_with_defaults_may_be_missing() -> None:
    values = dataclass_to_dict(trained("bias").manifest)
    del values["user_encoder"], values["training_data"]["key_user_rule"]
    manifest = dataclass_from_dict(Manifest, values)
    assert (manifest.user_encoder, manifest.training_data.key_user_rule) == (None, "threshold")


def test_integer_ids_from_a_file_come_back_as_they_were(tmp_path: Path) -> None:
    path, table = tmp_path / "ratings.csv", interactions()
    frame = pd.DataFrame({"uid": table.user, "iid": 10 * table.item, "stars": table.rating})
    frame.to_csv(path, index=False)
    columns = {"user_id": "uid", "item_id": "iid", "rating": "stars"}
    recommender = Recommender("bias", device="cpu").fit(
        path, columns=columns, titles={20: "Twenty"}
    )
    loaded = Recommender.load(recommender.save(tmp_path / "model"))
    assert (
        repr(loaded)
        == repr(recommender)
        == ("<Recommender bias: 22 key users, 453 rows of ratings, 24 items>")
    )
    assert loaded.recommend({"20": 5}) == recommender.recommend({20: 5})
    assert all(isinstance(x.item_id, int) for x in loaded.recommend())
    assert {x.item_id: x.title for x in loaded.recommend(n=24)}[20] == "Twenty"
    with pytest.raises(ColdUserError, match="does not store training histories"):
        loaded.recommend(users=[1])


def test_all_files_have_the_same_mode(folder: Path) -> None:
    assert len({(folder / name).stat().st_mode for name in FILES}) == 1


def test_the_compiler_of_torch_is_not_imported_to_load_a_model(tmp_path: Path) -> None:
    table = board(60, 40, 9, 20)
    for name in ("als", "idcf-bayes"):
        model = Recommender(name, key_threshold=12, device="cpu")
        model.fit(table).save(tmp_path / name)
    code = (
        "import sys; from idcf import Recommender\n"
        "for folder in sys.argv[1:]: Recommender.load(folder)\n"
        "assert 'torch._dynamo' not in sys.modules  # takes seconds\n"
    )
    folders = [str(tmp_path / name) for name in ("als", "idcf-bayes")]
    subprocess.run([sys.executable, "-c", code, *folders], check=True)
