"""Dataclasses to and from plain values: an unknown key is an error that names the nearest one."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from idcf.errors import ConfigError, unknown

T = TypeVar("T")


def read(kind: type[T], values: Mapping[str, Any], what: str = "") -> T:
    """Build the dataclass `kind` from plain values. Wrong keys and wrong types are errors."""
    what = what or kind.__name__
    _check_keys(kind, values, what)
    try:
        found: T = _adapter(kind).validate_python(dict(values))  # type: ignore[arg-type]
        return found
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(x) for x in first["loc"]) or what
        raise ConfigError(
            f"{what}: option {where!r} is {first['input']!r}: {first['msg'].lower()}"
        ) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Slow to build and quick to use: files have thousands of lines."""
    return TypeAdapter(kind)


def _check_keys(kind: Any, values: Mapping[str, Any], what: str) -> None:
    hints = _hints(kind)
    for key, value in values.items():
        if key not in hints:
            raise ConfigError(f"{what}: {unknown('option', key, hints)}")
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            _check_keys(hints[key], value, f"{what}, {key!r}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    found = get_type_hints(kind)
    return {f.name: found[f.name] for f in dataclasses.fields(kind)}


def plain(config: Any) -> dict[str, Any]:
    """The values of a dataclass as JSON can hold them."""
    return dataclasses.asdict(config)


def load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def addressed(key: str, names: Container[str]) -> tuple[str, str]:
    """`idcf-nn.heads` is for one of the names, `heads` and `train.epochs` are for all: ""."""
    head, dot, rest = key.partition(".")
    # a name without a dot is an option: there is a model `bias`, and `bias` is one of idcf-nn's
    return (head, rest) if dot and head in names else ("", key)


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """`["heads=2", "attention=additive"]` as values: each right side is TOML, or else a string."""
    out: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"an override is written name=value, got {pair!r}")
        try:
            out[key.strip()] = tomllib.loads(f"x = {text}")["x"]
        except tomllib.TOMLDecodeError:
            out[key.strip()] = text.strip()
    return out
