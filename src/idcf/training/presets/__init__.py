"""What a preset chooses: options of the model and of its training, by model and data set.

The TOML files in this folder hold `clean`, the default. Installed packages add presets and rows
for their own models through the entry-point group `idcf.presets`: the path of a folder of such
files. `idcf.paper` adds `published`, the choices of the paper's public code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Any

from idcf.config import load_toml, read
from idcf.errors import ConfigError, unknown
from idcf.models.registry import all_models, model_entry
from idcf.training.loop import TrainConfig

ENTRY_POINT_GROUP = "idcf.presets"
DEFAULT = "default"  # the part of a row for datasets that the row does not name
DATASET = "dataset"  # the part of a row that holds a table for each named dataset
FEW = "few-shot"  # what is different where query users are trained on
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Setting:
    """How one model is built and trained. `lengths` are the histories of a training episode,
    `newcomers` those that held-out people come with."""

    options: Mapping[str, Any] = field(default_factory=dict)
    train: TrainConfig = field(default_factory=TrainConfig)
    lengths: tuple[int, int] = (1, 29)
    newcomers: tuple[int, int] = (4, 29)
    targets: int = 8  # rows asked of a user per episode
    share: float = 1.0  # of a user's rows, at most: who has few is left something to be known by
    episodes: bool = True  # False: random rows with the whole history, the target in it
    validation: float = 0.1  # share of the key users, or of the rows, that is held out
    refit: bool = True  # once the held-out people have said how long, train with them as well
    start_from_biases: bool = True
    level: bool = False  # train on ratings less their raters' biases: what an average person gives
    alternatives: tuple[Mapping[str, Any], ...] = ()  # training options held-out rows may prefer
    backbone: Mapping[str, Any] = field(default_factory=dict)  # what it wants of the one it wraps
    everybody: bool = False  # for few-shot users: train the relation on key users' rows as well
    whole_graph: bool = False  # True: query users' ratings are in the training graph


def setting(
    name: str,
    *,
    preset: str = "clean",
    dataset: str = "",
    users: str = "new",
    options: Mapping[str, Any] | None = None,
) -> Setting:
    """The row of the table for this model, refined by the data set's own, then by `options`.
    Either may hold a part for few-shot users.

    Options are those of the model, or `train.*` ones for its training.
    """
    table = _table()
    if preset not in table:
        raise ConfigError(unknown("preset", preset, table))
    row = table[preset].get(model_entry(name).presets_of or name, {})
    found: dict[str, Any] = {}
    refined = row.get(DATASET, {}).get(dataset, row.get(DEFAULT, {}))
    parts = [(of, of.get(FEW, {}) if users == FEW else {}) for of in (row, refined)]
    for part in chain.from_iterable(parts):
        for key, value in part.items():
            if key in _FIELDS:
                joined = {**found.get(key, {}), **value} if isinstance(value, dict) else value
                found[key] = joined
    for key, value in (options or {}).items():
        head, _, rest = key.partition(".")
        part = "train" if head == "train" and rest else "options"
        found[part] = {**found.get(part, {}), (rest if part == "train" else key): value}
    train = read(TrainConfig, found.pop("train", {}), f"training of {name!r}")
    return read(Setting, {**found, "train": train}, f"setting of {name!r}")


def stages(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    preset: str = "clean",
    dataset: str = "",
    users: str = "new",
) -> dict[str, Setting]:
    """The setting of a model and, where it is wrapped round one, of its backbone."""
    mine, theirs = divide(name, options or {})
    where = {"preset": preset, "dataset": dataset, "users": users}
    found = {name: setting(name, **where, options=mine)}
    if base := model_entry(name).backbone:
        found[base] = setting(base, **where, options={**found[name].backbone, **theirs})
    return found


def divide(name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of a wrapper, and those that only its backbone knows (`embedding_size`)."""
    found = model_entry(name)
    if not found.backbone:
        return dict(options), {}
    own = {f.name for f in fields(found.config_class)}
    base = model_entry(found.backbone)
    known = {f.name for f in fields(base.config_class)} - own - set(base.defaults)
    theirs = {k: v for k, v in options.items() if k in known}
    return {k: v for k, v in options.items() if k not in known}, theirs


def has_row(preset: str, name: str) -> bool:
    """Does the table say anything of this model? `clean` may rely on the defaults."""
    return name in _table().get(preset, {})


_FIELDS = {f.name for f in fields(Setting)}


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, those of installed packages included."""
    return tuple(_table())


@cache
def _table() -> dict[str, Any]:
    """Return the presets of this package and of installed plugins."""
    plugins = [Path(point.load()) for point in entry_points(group=ENTRY_POINT_GROUP)]
    return read_presets(_FOLDER, *plugins)


def read_presets(*folders: Path) -> dict[str, Any]:
    """Return preset -> model -> row, merged from the TOML files of the folders."""
    table: dict[str, Any] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.toml")):
            for preset, rows in load_toml(path).items():
                merged = table.setdefault(preset, {})
                for name, row in rows.items():
                    if name not in all_models():
                        names = all_models()
                        raise ConfigError(f"{path.name}, {preset}: {unknown('model', name, names)}")
                    _merge(merged.setdefault(name, {}), row, f"{path.name}, {preset}.{name}")
    return table


def _merge(row: dict[str, Any], more: Mapping[str, Any], where: str) -> None:
    """Add settings to a row; one that is set in two files is an error."""
    for key, value in more.items():
        if key == DATASET:
            _merge(row.setdefault(DATASET, {}), value, where)
        elif key in row:
            raise ConfigError(f"{where}: {key!r} is set twice")
        else:
            row[key] = value
