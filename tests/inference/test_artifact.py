from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from idcf import ColdUserError, Recommender
from idcf.config import plain, read
from idcf.data.history_reader import named
from idcf.data.interactions import Interactions, Vocab
from idcf.data.side_tables import Beside
from idcf.errors import ArtifactError
from idcf.inference import artifact
from idcf.inference.artifact import Artifact
from idcf.inference.manifest import Manifest, Wish
from idcf.models.registry import all_models
from idcf.testing.synthetic import checkerboard
from idcf.training.fit import deploy
from idcf.types import Users

torch.set_num_threads(1)
FILES = ["config.json", "weights.safetensors", "items.parquet", "card.md"]
INDUCTIVE = [
    name for name, row in all_models().items() if getattr(row.model_class, "inductive", False)
]


@cache
def world(implicit: bool = False) -> Interactions:
    return checkerboard(40, 24, np.random.default_rng(0), few=6, many=14, implicit=implicit)


@cache
def trained(name: str, implicit: bool = False) -> Artifact:
    table = world(implicit)
    options = {} if all_models()[name].solver else {"epochs": 2}
    titles = named(table.items, {"i0": "Zero", "i3": "Drei «3»"})
    wish = Wish(name, options, key_threshold=10, device="cpu")
    return deploy(wish, Beside(table), titles)


def newcomers(table: Interactions) -> Users:
    who = np.array([0, 1, 2, 5, -1])
    return Users(torch.from_numpy(who), table.history(who)).anonymous()


def as_json(found: Artifact) -> object:
    return artifact._strict(plain(found.manifest))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return artifact.save(trained("bias"), tmp_path / "model")


@pytest.mark.parametrize("name", INDUCTIVE)
def test_a_loaded_model_scores_the_same_to_the_last_bit(name: str, tmp_path: Path) -> None:
    for implicit in (False, True):
        if all_models()[name].ratings_only if implicit else all_models()[name].implicit_only:
            continue
        one, users = trained(name, implicit), newcomers(world(implicit))
        two = artifact.load(artifact.save(one, tmp_path / f"{implicit}"))
        one.model.eval()
        with torch.no_grad():
            before, after = one.model.rank(users), two.model.rank(users)
        assert torch.equal(before, after)
        assert before.isfinite().all()
        assert (two.items, two.titles) == (one.items, one.titles)
        assert as_json(two) == as_json(one)
        for a, b in zip(
            one.model.state_dict().values(), two.model.state_dict().values(), strict=True
        ):
            assert torch.equal(a.cpu(), b)


def test_the_folder_holds_what_it_should(folder: Path) -> None:
    assert sorted(x.name for x in folder.iterdir()) == sorted(FILES)
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == artifact.FORMAT
    assert config["data"]["rows"] == len(world())
    assert config["domain"]["n_items"] == 24
    assert {"idcf", "torch", "numpy", "python"} <= config["versions"].keys()
    card = (folder / "card.md").read_text()
    assert "bias" in card
    assert config["data"]["sha256"] in card


def test_infinite_options_are_written_as_json(tmp_path: Path) -> None:
    saved = artifact.save(trained("item-mean"), tmp_path / "model")
    text = (saved / "config.json").read_text()
    assert "Infinity" not in text
    assert artifact.load(saved).manifest.options["strength"] in (float("inf"), "inf")


@pytest.mark.parametrize("ids", [[3, 10, 7], ["3", "x", "é"], [2**40, -5, 0]])
def test_ids_keep_their_type(ids: list[object], tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    titles = pa.array([None, "b", None], pa.string())
    parquet.write_table(pa.table({"item_id": pa.array(ids), "title": titles}), path)
    found = artifact._read_items(path)
    assert found == (Vocab(ids), (None, "b", None))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        artifact.load(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for end in (0, 1, len(content) // 2, len(content) - 2):
        (folder / name).write_bytes(content[:end])
        with pytest.raises(ArtifactError, match=f"{name}.*truncated"):
            artifact.load(folder)


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_noticed(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    rng = np.random.default_rng(0)
    for place in rng.integers(len(content) - 1, size=40).tolist():  # the last byte is a newline
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        (folder / name).write_bytes(changed)
        with pytest.raises(ArtifactError):
            artifact.load(folder)
    (folder / name).write_bytes(content)
    artifact.load(folder)


@pytest.mark.parametrize("version", [2, 99, "1", None, 0, True])
def test_another_format_is_refused(folder: Path, version: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "format": version}))
    with pytest.raises(ArtifactError, match="format" if version is not True else "changed"):
        artifact.load(folder)


@pytest.mark.parametrize("text", ["[]", "3", "{}", "null", "[" * 100_000])
def test_a_strange_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"config\.json"):
        artifact.load(folder)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no saved model"):
        artifact.load(tmp_path / "nowhere")


def test_tensors_must_match_by_name_and_kind(folder: Path) -> None:
    found = artifact.load(folder)
    tensors = found.model.state_dict()
    with pytest.raises(ArtifactError, match="lacks the tensor 'item_bias'"):
        artifact.assign(found.model, {}, folder)
    with pytest.raises(ArtifactError, match="unknown to this version"):
        artifact.assign(found.model, {**tensors, "more": torch.ones(1)}, folder)
    with pytest.raises(ArtifactError, match="float64"):
        artifact.assign(found.model, {"item_bias": torch.ones(24, dtype=torch.float64)}, folder)


def test_replacing_leaves_the_new_one_and_no_rubbish(folder: Path) -> None:
    artifact.save(trained("popularity"), folder)
    assert artifact.load(folder).manifest.model == "popularity"
    assert [x.name for x in folder.parent.iterdir()] == ["model"]


def test_a_failed_save_leaves_the_old_one(folder: Path) -> None:
    good = trained("popularity")
    broken = replace(good, items=Vocab([object()]))  # no id that a file can hold
    with pytest.raises(pa.ArrowInvalid):
        artifact.save(broken, folder)
    assert artifact.load(folder).manifest.model == "bias"
    assert [x.name for x in folder.parent.iterdir()] == ["model"]


def test_without_a_swap_the_fallback_does_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idcf.files._swapped", lambda one, two: False)
    test_replacing_leaves_the_new_one_and_no_rubbish(folder)


def test_a_model_never_replaces_something_else(folder: Path, tmp_path: Path) -> None:
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"thesis\.txt"):
        artifact.save(trained("bias"), folder)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ArtifactError, match="is a file"):
        artifact.save(trained("bias"), tmp_path / "file")
    assert (folder / "thesis.txt").read_text() == "mine"


def test_what_was_saved_before_there_were_choices_and_features() -> None:
    values = plain(trained("bias").manifest)
    del values["user_features"], values["data"]["chosen"]
    found = read(Manifest, values)
    assert (found.user_features, found.data.chosen) == (None, "threshold")


def test_integer_ids_from_a_file_come_back_as_they_were(tmp_path: Path) -> None:
    path, table = tmp_path / "ratings.csv", world()
    frame = pd.DataFrame({"who": table.user, "what": 10 * table.item, "stars": table.rating})
    frame.to_csv(path, index=False)
    columns = {"user_id": "who", "item_id": "what", "rating": "stars"}
    made = Recommender("bias", device="cpu").fit(path, columns=columns, titles={20: "Twenty"})
    again = Recommender.load(made.save(tmp_path / "model"))
    assert repr(again) == repr(made) == "<Recommender bias, 24 items>"
    assert again.recommend({"20": 5}) == made.recommend({20: 5})
    assert all(isinstance(x.item_id, int) for x in again.recommend())
    assert {x.item_id: x.title for x in again.recommend(n=24)}[20] == "Twenty"
    with pytest.raises(ColdUserError, match="keeps nobody's history"):
        again.recommend(users=[1])
