"""Saved models that are consistent but wrong: every error is an ArtifactError that says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from builders import board
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from safetensors.torch import load_file, save_file

from idcf.config import dataclass_to_dict
from idcf.data.side_tables import add_side_tables
from idcf.errors import ArtifactError
from idcf.inference import artifact
from idcf.inference.artifact import (
    Artifact,
    build_model,
    load_artifact,
    make_contiguous,
    save_artifact,
)
from idcf.inference.manifest import RecommenderConfig
from idcf.training.train import fit_artifact

TABLE = board(40, 24, 6, 14)
NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=4),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3),
    max_leaves=8,
)

IDS = [str(n) for n in range(24)]


@cache
def trained(name: str = "bias") -> Artifact:
    options: dict[str, Any] = {"epochs": 1} if name.startswith("idcf") else {}
    options = {"sweeps": 8, "burn_in": 2, "rank": 2} if name == "idcf-bayes" else options
    config = RecommenderConfig(name, options, key_threshold=10, device="cpu")
    return fit_artifact(config, add_side_tables(TABLE, None, None), (None,) * 23 + ("Last",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_artifact(trained(), tmp_path / "model")


def forge(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change config.json and bring its checksums and its digest up to date."""
    values = json.loads((folder / "config.json").read_text())
    values.pop("digest")
    for name in values["files"]:
        values["files"][name] = artifact._file_checksum(folder / name)
    change(values)
    values["digest"] = artifact._digest(values)
    (folder / "config.json").write_text(json.dumps(values))


def forged_error(folder: Path, change: Callable[[dict[str, Any]], Any]) -> str:
    """Return the message of loading a folder whose config.json was forged."""
    forge(folder, change)
    with pytest.raises(ArtifactError) as caught:
        load_artifact(folder)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_the_order_of_keys_and_the_layout_do_not_matter(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    turned = dict(reversed(values.items()))
    (folder / "config.json").write_text(json.dumps(turned, indent=None))
    assert load_artifact(folder).manifest.domain == trained().manifest.domain


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("model",), "bais", "no model named 'bais'; did you mean 'bias'"),
        (("model",), 3, "option 'model' is 3"),
        (("options", "shrinkag"), 1.0, "did you mean 'shrinkage'"),
        (("options", "shrinkage"), "much", "option 'shrinkage' is 'much'"),
        (("domain", "n_items"), "many", "option 'domain.n_items' is 'many'"),
        (("domain", "n_itmes"), 4, "no option named 'n_itmes'; did you mean 'n_items'"),
        (("domain", "n_items"), 25, "24 items, but the model has 25"),
        (("surprise",), 1, "no option named 'surprise'"),
        (("training_data",), [], "option 'training_data' is []"),
    ],
)
def test_a_forged_value_is_named(
    folder: Path, path: tuple[str, ...], value: Any, message: str
) -> None:
    def change(values: dict[str, Any]) -> None:
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = value

    assert message in forged_error(folder, change)


def test_a_missing_field_is_named(folder: Path) -> None:
    assert "'domain'" in forged_error(folder, lambda values: values.pop("domain"))


@pytest.mark.parametrize("name", ["format", "files"])
def test_a_config_without_its_frame_is_not_of_a_model(folder: Path, name: str) -> None:
    values = json.loads((folder / "config.json").read_text())
    del values[name]
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match=rf"config\.json is truncated or not .*{name}"):
        load_artifact(folder)


@pytest.mark.parametrize(
    "files",
    [[], None, 3, {}, {"weights.safetensors": 3}, {"weights.safetensors": {"bytes": "many"}}],
)
def test_a_forged_list_of_files_is_refused(folder: Path, files: Any) -> None:
    forged_error(folder, lambda values: values.update(files=files))


def test_deep_nesting_is_refused(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    for depth in (300, 450, 600, 900, 5000):
        text = json.dumps({**values, "options": 0})
        deep = text.replace('"options": 0', '"options": ' + "[" * depth + "]" * depth)
        (folder / "config.json").write_text(deep)
        with pytest.raises(ArtifactError, match=r"config\.json"):
            load_artifact(folder)


def test_weights_of_another_kind_are_refused(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes(b"no tensors at all")
    assert "cannot be read" in forged_error(folder, lambda values: None)


def test_a_tensor_of_another_shape_names_both(folder: Path) -> None:
    weights = folder / "weights.safetensors"
    tensors = load_file(weights)
    save_file({k: v[:, None] for k, v in tensors.items()}, weights)
    message = forged_error(folder, lambda values: None)
    assert "'item_bias' has the shape (24, 1), but the model of config.json has (24,)" in message


def test_a_catalogue_that_the_files_do_not_hold_is_refused_before_it_is_allocated(
    folder: Path,
) -> None:
    def enlarge(values: dict[str, Any]) -> None:
        values["domain"]["n_items"] = 10**12  # no machine could allocate it

    assert "24 items, but the model has 1000000000000" in forged_error(folder, enlarge)
    ids = pa.array(range(1000))
    titles = pa.array([None] * 1000, pa.string())
    parquet.write_table(pa.table({"item_id": ids, "title": titles}), folder / "items.parquet")
    message = forged_error(folder, lambda values: values["domain"].update(n_items=1000))
    assert "'item_bias' has the shape (24,), but the model of config.json has (1000,)" in message


def test_a_config_of_any_size_is_not_read(folder: Path) -> None:
    with (folder / "config.json").open("r+b") as file:
        file.truncate(artifact._MAX_CONFIG_BYTES + 1)
    with pytest.raises(ArtifactError, match="is larger than"):
        load_artifact(folder)


def test_items_that_unpack_to_too_much_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "_MAX_ITEMS_BYTES", 100)
    with pytest.raises(ArtifactError, match="unpacks to"):
        load_artifact(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_neither_saved_nor_loaded(
    folder: Path, tmp_path: Path, value: float
) -> None:
    broken = deepcopy(trained())
    broken.model.item_bias[3] = value
    with pytest.raises(ArtifactError, match="tensor 'item_bias' is not finite"):
        save_artifact(broken, tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
    with pytest.raises(ArtifactError, match="tensor 'item_bias' is not finite"):
        replace(broken, titles=broken.titles)  # what `partial_fit_items` does
    weights = folder / "weights.safetensors"
    save_file({"item_bias": broken.model.item_bias}, weights)
    assert "tensor 'item_bias' is not finite" in forged_error(folder, lambda values: None)


def test_finite_weights_with_scores_that_are_not_are_refused(tmp_path: Path) -> None:
    folder = save_artifact(trained("als"), tmp_path / "model")
    weights = folder / "weights.safetensors"
    tensors = load_file(weights)
    save_file({k: torch.full_like(x, 3e38) for k, x in tensors.items()}, weights)
    message = forged_error(folder, lambda values: None)
    assert "not finite" in message or "scores no new user" in message


def test_numbers_whose_sums_are_not_finite_are_refused(folder: Path) -> None:
    weights = folder / "weights.safetensors"
    tensors = load_file(weights)
    tensors["item_bias"][2] = 1e30
    save_file(tensors, weights)
    assert "'item_bias' holds numbers beyond 1e+25" in forged_error(folder, lambda values: None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x["domain"].update(levels=[]), "it knows no rating"),
        (lambda x: x.update(take_up_model="idcf-dot"), "'idcf-dot' cannot say how likely"),
        (lambda x: x.update(preset="\ud800"), "UnicodeEncodeError"),
        (lambda x: x.update(seed="x" * 10_000), "option 'seed' is 'xxx"),
        (lambda x: x.update(model="x" * 10_000), "no model named 'xxx"),
    ],
)
def test_values_that_nothing_can_use_are_refused_in_a_line(
    folder: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    error = forged_error(folder, change)
    assert message in error
    assert len(error) < 1500


def test_a_mean_that_is_not_finite_is_refused(folder: Path) -> None:
    message = forged_error(folder, lambda values: values["domain"].update(mean="nan"))
    assert "its ratings are not finite" in message


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item_id": [*IDS[1:], "1"], "title": [None] * 24}, "1 duplicate ids"),
        ({"item_id": [*IDS[1:], None], "title": [None] * 24}, "1 items have no id"),
        ({"item_id": ["a", "b"], "title": [None, None]}, "2 items, but the model has 24"),
        ({"item": IDS, "title": [None] * 24}, "item_id"),
        ({"item_id": IDS}, "title"),
    ],
)
def test_items_that_do_not_fit_are_refused(
    folder: Path, columns: dict[str, Any], message: str
) -> None:
    parquet.write_table(pa.table(columns), folder / "items.parquet")
    assert message in forged_error(folder, lambda values: None)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("item_id", [0.5 + n for n in range(24)]),
        ("item_id", [float("nan")] * 24),
        ("item_id", [[n] for n in range(24)]),
        ("title", [b"\xff"] * 24),
        ("title", [["a"]] * 24),
        ("genre", ["drama"] * 24),
    ],
)
def test_columns_of_items_that_nothing_can_read_are_refused(
    folder: Path, name: str, values: list[Any]
) -> None:
    columns: dict[str, Any] = {"item_id": IDS, "title": [None] * 24, name: values}
    parquet.write_table(pa.table(columns), folder / "items.parquet")
    assert f"column {name!r} cannot hold values" in forged_error(folder, lambda values: None)


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        ("item-knn", "item_weights.offsets", 2**62),
        ("item-knn", "item_weights.offsets", -1),
        ("item-knn", "item_weights.columns", 24),
        ("idcf-bayes", "neighbor_items", 24),
        ("idcf-bayes", "cohort_items", -2),
        ("idcf-bayes", "take_up_model.item_weights.columns", -1),
        ("idcf-gc", "backbone.raters", 10**6),
        ("idcf-gc", "backbone.starts", -5),
    ],
)
def test_rows_that_do_not_exist_are_refused_before_native_code_reads_them(
    tmp_path: Path, model: str, name: str, value: int
) -> None:
    folder = save_artifact(trained(model), tmp_path / "model", allow_training_rows=True)
    tensors = load_file(folder / "weights.safetensors")
    tensors[name].view(-1)[1] = value
    save_file(tensors, folder / "weights.safetensors")
    assert f"the tensor {name.rpartition('.')[2]!r}" in forged_error(folder, lambda values: None)


def test_items_that_are_no_table_are_refused(folder: Path) -> None:
    (folder / "items.parquet").write_bytes(b"PAR1 nothing PAR1")
    assert "items.parquet" in forged_error(folder, lambda values: None)


def test_a_backbone_that_cannot_be_wrapped_is_refused(tmp_path: Path) -> None:
    folder = save_artifact(trained("idcf-dot"), tmp_path / "model")
    message = forged_error(
        folder, lambda values: values.update(backbone="bias", backbone_options={})
    )
    assert "'bias' cannot be the backbone of 'idcf-dot'" in message


def test_titles_and_items_come_back(folder: Path) -> None:
    loaded = load_artifact(str(folder))
    assert loaded.titles[-1] == "Last"
    assert loaded.titles[0] is None
    assert loaded.items == TABLE.items
    assert not loaded.model.training


def test_two_saves_of_a_model_are_equal_byte_by_byte(tmp_path: Path) -> None:
    folders = [save_artifact(trained(), tmp_path / name) for name in ("a", "b")]
    for name in ("config.json", "weights.safetensors", "items.parquet", "card.md"):
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second, name


def test_loading_and_building_draw_no_random_numbers(folder: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load_artifact(folder)
    build_model(trained("idcf-dot").manifest)
    assert torch.equal(torch.rand(2), expected)


def test_loaded_tensors_do_not_depend_on_the_file(folder: Path) -> None:
    model = load_artifact(folder).model
    before = {k: v.clone() for k, v in model.state_dict().items()}
    weights = folder / "weights.safetensors"
    with weights.open("r+b") as file:
        file.seek(-40, 2)
        file.write(b"\xff" * 40)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_contiguous_tensors_have_the_values_and_are_no_longer_trained() -> None:
    model = build_model(trained("idcf-dot").manifest)
    name, value = next((k, v) for k, v in model.state_dict().items() if v.ndim == 2)
    strided = torch.randn(*reversed(value.shape)).T
    artifact.assign_tensors(model, {**model.state_dict(), name: strided})
    assert not model.state_dict()[name].is_contiguous()
    assert make_contiguous(model) is model
    assert model.state_dict()[name].is_contiguous()
    assert torch.equal(model.state_dict()[name], strided)
    assert not any(p.requires_grad for p in model.parameters())


def test_assigned_lengths_may_differ_from_those_of_the_built_model() -> None:
    model = build_model(trained().manifest)
    artifact.assign_tensors(model, {"item_bias": torch.arange(3.0)})
    assert model.state_dict()["item_bias"].tolist() == [0, 1, 2]


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4))
def test_the_digest_does_not_depend_on_the_order_of_keys(values: dict[str, Any]) -> None:
    turned = dict(reversed(values.items()))
    assert artifact._digest(values) == artifact._digest(turned)
    written = json.loads(json.dumps(artifact._to_json_value(values), allow_nan=False))
    assert artifact._digest(written) == artifact._digest(values)  # after a round trip as well


@given(st.dictionaries(st.text(max_size=3), st.integers(), min_size=1), st.data())
def test_the_digest_notices_every_change(values: dict[str, int], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(values)))
    assert artifact._digest({**values, key: values[key] + 1}) != artifact._digest(values)
    rest = {k: v for k, v in values.items() if k != key}
    assert artifact._digest(rest) != artifact._digest(values)


def test_numbers_that_json_lacks_are_written_as_text() -> None:
    values = {"a": float("inf"), "b": [float("-inf"), 1.5], "c": (float("nan"),), 3: True}
    assert artifact._to_json_value(values) == {
        "a": "inf",
        "b": ["-inf", 1.5],
        "c": ["nan"],
        "3": True,
    }


def test_the_checksum_is_that_of_the_file(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert artifact._file_checksum(empty) == {
        "bytes": 0,
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    }


def test_the_config_is_readable_and_complete(folder: Path) -> None:
    text = (folder / "config.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    values = json.loads(text)
    assert values["format"] == artifact.FORMAT
    assert set(values["files"]) == {"weights.safetensors", "items.parquet", "card.md"}
    manifest = artifact._to_json_value(dataclass_to_dict(trained().manifest))
    assert values.keys() == {"format", "files", "digest", *manifest}
