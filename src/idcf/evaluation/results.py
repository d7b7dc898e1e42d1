"""One number of one system, with all that is needed to read it: a row of results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from idcf.errors import ConfigError

LOWER = frozenset({"rmse", "mae", "nll"})  # metrics of which less is better
NOMINAL = {"cover90": 0.9}  # and those that should meet a number
FLOORS = ("random", "item-mean", "popularity")  # printed first, whatever was asked for


@dataclass(frozen=True)
class Row:
    """`low`..`high` is the 95 % interval over users; `seconds` is what training took."""

    dataset: str
    split: str
    model: str
    preset: str
    users: str
    metric: str
    value: float
    low: float
    high: float
    n_users: int
    n_ratings: int
    seed: int
    seconds: float


def write_json(rows: Iterable[Row], path: Path) -> None:
    """A JSON list, whole or not at all."""
    check_writable(path)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.part")
    fresh.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def check_writable(path: Path) -> None:
    """Say now, not after an hour of training, that a file cannot be written."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); choose another") from None
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{path.parent} is not writable; choose another place for {path.name}")
