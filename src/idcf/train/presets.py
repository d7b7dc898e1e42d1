"""What a preset chooses: options of the model and of its training, by model and data set.

The files in `settings/` are the table. `clean` is the default; `published` follows the
choices of the published code where they differ from the paper or from good practice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from idcf.config import load_toml, read
from idcf.errors import ConfigError, unknown
from idcf.models import MODELS, entry
from idcf.train.loop import TrainConfig

PRESETS = ("clean", "published")
OWN = "own"  # the row for data that has no name here
FEW = "few-shot"  # what is different where query users are trained on
_FOLDER = Path(__file__).with_name("settings")


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
    row = table[preset].get(entry(name).like or name, {})
    found: dict[str, Any] = {}
    named = dataset if dataset in row and dataset not in {*_FIELDS, FEW} else OWN
    parts = [(of, of.get(FEW, {}) if users == FEW else {}) for of in (row, row.get(named, {}))]
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
    if base := entry(name).backbone:
        found[base] = setting(base, **where, options={**found[name].backbone, **theirs})
    return found


def divide(name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of a wrapper, and those that only its backbone knows (`embedding_size`)."""
    found = entry(name)
    if not found.backbone:
        return dict(options), {}
    own = {f.name for f in fields(found.config)}
    base = entry(found.backbone)
    known = {f.name for f in fields(base.config)} - own - set(base.defaults)
    theirs = {k: v for k, v in options.items() if k in known}
    return {k: v for k, v in options.items() if k not in known}, theirs


def has_row(preset: str, name: str) -> bool:
    """Does the table say anything of this model? `clean` may rely on the defaults."""
    return name in _table().get(preset, {})


_FIELDS = {f.name for f in fields(Setting)}


@cache
def _table(folder: Path = _FOLDER) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for path in sorted(folder.glob("*.toml")):
        for preset, rows in load_toml(path).items():
            known = table.setdefault(preset, {})
            for name, row in rows.items():
                if name not in MODELS:
                    raise ConfigError(f"{path.name}, {preset}: {unknown('model', name, MODELS)}")
                if twice := known.setdefault(name, {}).keys() & row.keys():
                    raise ConfigError(f"{path.name}, {preset}.{name}: {min(twice)!r} is set twice")
                known[name].update(row)
    return table
