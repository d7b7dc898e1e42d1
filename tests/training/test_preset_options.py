"""How presets, rows, datasets and given options are merged into the config of a stage."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idcf.errors import ConfigError
from idcf.models.registry import all_models, model_entry
from idcf.training import presets
from idcf.training.presets import (
    has_preset_row,
    preset_names,
    read_presets,
    split_backbone_options,
    stage_config,
    stage_configs,
)

ROW = """
[clean.nnmf]
targets_per_episode = 2
[clean.nnmf.train]
epochs = 7
reg = 0.5
[clean.nnmf.few-shot.train]
reg = 0.6
[clean.nnmf.default]
targets_per_episode = 3
[clean.nnmf.default.few-shot]
targets_per_episode = 9
[clean.nnmf.dataset.ml-100k.train]
epochs = 8
"""
WRAPPED = [name for name, entry in all_models().items() if entry.backbone]


@pytest.fixture
def one_row(tmp_path, monkeypatch):
    """Replace all presets by one row of nnmf."""
    (tmp_path / "row.toml").write_text(ROW)
    table = read_presets(tmp_path)
    for name in ("_core_presets", "_all_presets"):
        monkeypatch.setattr(presets, name, lambda: table)


@pytest.mark.parametrize(
    ("dataset", "mode", "epochs", "reg", "targets"),
    [
        ("", "new", 7, 0.5, 3),
        ("another", "new", 7, 0.5, 3),
        ("ml-100k", "new", 8, 0.5, 2),  # in place of the part for other datasets
        ("", "few-shot", 7, 0.6, 9),
        ("ml-100k", "few-shot", 8, 0.6, 2),
    ],
)
def test_parts_refine_the_row_in_order(one_row, dataset, mode, epochs, reg, targets):
    config = stage_config("nnmf", dataset=dataset, query_user_mode=mode)
    assert (config.train.epochs, config.train.reg) == (epochs, reg)
    assert config.targets_per_episode == targets


def test_given_options_win_over_every_part(one_row):
    options = {"train.epochs": 1, "embedding_size": 3}
    config = stage_config("nnmf", dataset="ml-100k", options=options)
    assert (config.train.epochs, config.train.reg) == (1, 0.5)
    assert config.options == {"embedding_size": 3}


def test_a_wrong_value_of_a_row_names_model_and_option(tmp_path, monkeypatch):
    (tmp_path / "row.toml").write_text('[clean.nnmf]\nepisodes = "often"\n')
    table = read_presets(tmp_path)
    monkeypatch.setattr(presets, "_core_presets", lambda: table)
    with pytest.raises(ConfigError, match="preset of 'nnmf': option 'episodes' is 'often'"):
        stage_config("nnmf")


def test_reading_does_not_change_the_presets():
    before = repr(presets._all_presets())
    for name in ("nnmf", "idcf-nn", "idcf-gc"):
        for mode in ("new", "few-shot"):
            options = {"train.epochs": 1, "embedding_size": 2}
            stage_configs(name, options, preset="published", dataset="ml-1m", query_user_mode=mode)
    assert repr(presets._all_presets()) == before


@pytest.mark.parametrize("name", WRAPPED)
def test_options_go_to_the_model_that_has_them(name):
    entry = model_entry(name)
    backbone = model_entry(entry.backbone)
    wrapper_fields = {f.name for f in fields(entry.config_class)}
    options = {f.name: 1 for f in fields(backbone.config_class)} | {"train.epochs": 2, "typo": 3}
    options |= dict.fromkeys(wrapper_fields, 4)
    of_wrapper, of_backbone = split_backbone_options(name, options)
    assert of_wrapper | of_backbone == options
    assert not of_wrapper.keys() & of_backbone.keys()
    assert wrapper_fields <= of_wrapper.keys()
    assert {"train.epochs", "typo"} <= of_wrapper.keys()
    assert not of_backbone.keys() & set(backbone.defaults)  # these make the row what it is


@given(st.dictionaries(st.text(max_size=4), st.integers(), max_size=4))
def test_a_model_without_a_backbone_keeps_all_options(options):
    kept, nothing = split_backbone_options("als", options)
    assert (kept, nothing) == (options, {})
    assert kept is not options


def test_the_backbone_gets_the_options_of_the_row_and_those_given():
    configs = stage_configs("idcf-nn", {"embedding_size": 5})
    assert list(configs) == ["idcf-nn", "nnmf"]
    assert configs["nnmf"].options["embedding_size"] == 5
    assert "embedding_size" not in configs["idcf-nn"].options
    assert list(stage_configs("als")) == ["als"]


def test_names_and_rows_of_presets():
    assert set(preset_names()) == {"clean", "published"}
    assert has_preset_row("clean", "idcf-nn")
    assert not has_preset_row("clean", "ease")
    assert not has_preset_row("cleen", "idcf-nn")


def test_datasets_of_two_files_are_merged_and_one_set_twice_is_an_error(tmp_path):
    (tmp_path / "a.toml").write_text("[clean.pmf.dataset.ml-1m]\nvalidation = 0.2\n")
    (tmp_path / "b.toml").write_text("[clean.pmf.dataset.douban]\nvalidation = 0.3\n")
    rows = read_presets(tmp_path)["clean"]["pmf"]["dataset"]
    assert rows == {"ml-1m": {"validation": 0.2}, "douban": {"validation": 0.3}}
    (tmp_path / "b.toml").write_text("[clean.pmf.dataset.ml-1m]\nvalidation = 0.3\n")
    with pytest.raises(ConfigError, match=r"b\.toml, clean\.pmf: 'ml-1m' is set twice; remove one"):
        read_presets(tmp_path)


def test_no_folder_has_no_presets(tmp_path):
    assert read_presets() == read_presets(tmp_path) == {}
