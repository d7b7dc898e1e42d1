"""Presets: options of models and of their training, by model and dataset.

The TOML files in this folder hold `clean`, the default preset. Installed packages add presets, and
rows for their models, through the entry-point group `idcf.presets`: the path of a folder of such
files. `idcf.paper` adds `published`, the options of the paper's public code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from idcf.config import Count, Lengths, Share, dataclass_from_dict, load_toml
from idcf.errors import ConfigError, unknown_name_message
from idcf.models.plugins import MODELS_GROUP, PRESETS_GROUP, load_plugins
from idcf.models.registry import MODELS, all_models, configure, model_entry
from idcf.training.options import TrainConfig

DEFAULT_KEY = "default"  # the part of a row for datasets that the row does not name
DATASET_KEY = "dataset"  # the part of a row that holds a table for each named dataset
FEW_SHOT = "few-shot"  # the part that applies if rows of query users are trained on
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class StageConfig:
    """How one model is built and trained; the keys of a preset's row are these fields."""

    options: Mapping[str, Any] = field(default_factory=dict)  # of the model
    train: TrainConfig = field(default_factory=TrainConfig)  # of the training
    history_lengths: Lengths = (1, 29)  # shortest and longest, in a training episode
    validation_history_lengths: Lengths = (4, 29)  # of held-out users
    targets_per_episode: Count = 8  # rows of a user that an episode predicts
    max_target_share: Share = 1.0  # of a user's rows that an episode may predict
    episodes: bool = True  # False: random rows, with the user's whole history as input
    validation: Share = 0.1  # share of the key users, or of the rows, that is held out
    validate_on: Literal["users", "rows"] = "users"  # what adaption to new users holds out
    refit_on_all: bool = True  # after the search, train again with the held-out rows
    start_from_biases: bool = True  # initialize a backbone with ridge biases
    center_users: bool = False  # train on ratings less their users' biases
    alternatives: tuple[Mapping[str, Any], ...] = ()  # training options to try on held-out rows
    backbone: Mapping[str, Any] = field(default_factory=dict)  # options for the wrapped backbone
    train_on_all_users: bool = False  # few-shot: adapt on the rows of key users as well
    graph_includes_query_users: bool = False  # build a graph model on query users' rows as well


def stage_config(
    name: str,
    *,
    preset: str = "clean",
    dataset: str = "",
    query_user_mode: str = "new",
    options: Mapping[str, Any] | None = None,
) -> StageConfig:
    """Return the options of one stage: those of the model's row, refined by the dataset's part (the
    row's `default` if it does not name the dataset), then by `options`.

    Either part may be refined for few-shot users. Without a row the stage has the defaults. Raises
    `ConfigError` for an unknown model, preset or option, or a value of the wrong type.
    """
    row = _preset_row(preset, model_entry(name).presets_of or name)
    refined = row.get(DATASET_KEY, {}).get(dataset, row.get(DEFAULT_KEY, {}))
    values: dict[str, Any] = {}
    for part in (row, refined):
        _update_stage(values, part)
        if query_user_mode == FEW_SHOT:
            _update_stage(values, part.get(FEW_SHOT, {}))
    for key, value in (options or {}).items():
        train_key = key.removeprefix("train.")
        if train_key and train_key != key:
            _update_stage(values, {"train": {train_key: value}})
        else:
            _update_stage(values, {"options": {key: value}})
    train = dataclass_from_dict(TrainConfig, values.pop("train", {}), f"training of {name!r}")
    return dataclass_from_dict(StageConfig, {**values, "train": train}, f"preset of {name!r}")


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError if an option of a model, or of its training, is out of its range.

    Called before a table is read: names that the model lacks are passed over, because the table
    decides which model a name stands for.
    """
    stages = [name, *filter(None, [model_entry(name).backbone])]
    for stage in stages:
        fields_of_model = {f.name for f in fields(model_entry(stage).config_class)}
        configure(stage, {key: x for key, x in options.items() if key in fields_of_model})
    if model_entry(name).solver is None:
        plain = {key.removeprefix("train."): x for key, x in options.items()}
        known = {f.name for f in fields(TrainConfig)}
        trained = {key: x for key, x in plain.items() if key in known}
        dataclass_from_dict(TrainConfig, trained, f"training of {name!r}")


def _preset_row(preset: str, model: str) -> Mapping[str, Any]:
    """Return the row of a model; plugins are read only for their own models and presets."""
    presets = _core_presets()
    if model not in MODELS or preset not in presets:
        presets = _all_presets()
    if preset not in presets:
        raise ConfigError(unknown_name_message("preset", preset, presets))
    row: Mapping[str, Any] = presets[preset].get(model, {})
    return row


def _update_stage(values: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Overwrite stage fields with those of a row's part; tables are merged key by key."""
    for key, value in part.items():
        if key in _STAGE_FIELDS:
            is_table = isinstance(value, dict)
            values[key] = {**values.get(key, {}), **value} if is_table else value


def stage_configs(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    preset: str = "clean",
    dataset: str = "",
    query_user_mode: str = "new",
) -> dict[str, StageConfig]:
    """Return the stage config of a model and, if it wraps a backbone, that of the backbone.

    `options` may hold options of both; see `stage_config` for the other parameters.
    """
    wrapper_options, backbone_options = split_backbone_options(name, options or {})
    row = {"preset": preset, "dataset": dataset, "query_user_mode": query_user_mode}
    configs = {name: stage_config(name, **row, options=wrapper_options)}
    if backbone := model_entry(name).backbone:
        backbone_options = {**configs[name].backbone, **backbone_options}
        configs[backbone] = stage_config(backbone, **row, options=backbone_options)
    return configs


def split_backbone_options(
    name: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a model, and those that only its backbone has (`embedding_size`)."""
    entry = model_entry(name)
    if not entry.backbone:
        return dict(options), {}
    backbone = model_entry(entry.backbone)
    wrapper_fields = {f.name for f in fields(entry.config_class)}
    backbone_fields = {f.name for f in fields(backbone.config_class)}
    backbone_only = backbone_fields - wrapper_fields - set(backbone.defaults)
    return (
        {k: v for k, v in options.items() if k not in backbone_only},
        {k: v for k, v in options.items() if k in backbone_only},
    )


def has_preset_row(preset: str, model: str) -> bool:
    """Return whether a preset has a row for a model, or for the model whose presets it shares;
    without one, `clean` uses the defaults."""
    rows = _all_presets().get(preset, {})
    return model in rows or (model_entry(model).presets_of or model) in rows


_STAGE_FIELDS = {f.name for f in fields(StageConfig)}


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, those of installed packages included."""
    return tuple(_all_presets())


@cache
def _core_presets() -> dict[str, Any]:
    """Return preset -> model -> row of this package alone."""
    return read_presets(_FOLDER)


@cache
def _all_presets() -> dict[str, Any]:
    """Return preset -> model -> row of this package and of installed plugins."""
    plugins = [folder for _, folder in load_plugins(PRESETS_GROUP).values]
    return read_presets(_FOLDER, *plugins)


def read_presets(*folders: Path) -> dict[str, Any]:
    """Return preset -> model -> row, merged from the TOML files of the folders."""
    table: dict[str, Any] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.toml")):
            for preset, rows in load_toml(path).items():
                merged = table.setdefault(preset, {})
                for name, row in rows.items():
                    if name not in MODELS and name not in all_models():
                        if load_plugins(MODELS_GROUP).problems:
                            continue  # perhaps a model of a package that cannot be imported
                        message = unknown_name_message("model", name, all_models())
                        raise ConfigError(f"{path.name}, {preset}: {message}")
                    _merge_row(merged.setdefault(name, {}), row, f"{path.name}, {preset}.{name}")
    return table


def _merge_row(row: dict[str, Any], extra: Mapping[str, Any], location: str) -> None:
    """Add keys to a row; raise `ConfigError` if one is set already."""
    for key, value in extra.items():
        if key == DATASET_KEY:
            _merge_row(row.setdefault(DATASET_KEY, {}), value, location)
        elif key in row:
            raise ConfigError(f"{location}: {key!r} is set twice; remove one of the two")
        else:
            row[key] = value
