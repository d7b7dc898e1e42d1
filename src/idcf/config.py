"""Configuration: dataclasses from and to plain values, TOML files and `name=value` overrides.

An unknown key raises an error that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from idcf.errors import ConfigError, unknown_name_message

T = TypeVar("T")


def dataclass_from_dict(kind: type[T], values: Mapping[str, Any], label: str = "") -> T:
    """Build a dataclass, nested ones too, from values as JSON or TOML gives them.

    Raises ConfigError, which begins with `label` (by default the class name), if a key does not
    exist or a value has the wrong type.
    """
    label = label or kind.__name__
    _check_keys(kind, values, label)
    try:
        config: T = _type_adapter(kind).validate_python(dict(values))  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(str(x) for x in first["loc"]) or label
        raise ConfigError(
            f"{label}: option {option!r} is {first['input']!r}: {first['msg'].lower()}"
        ) from None
    return config


@cache
def _type_adapter(kind: Any) -> TypeAdapter[Any]:
    """The validator of a dataclass, cached because it is slow to build."""
    return TypeAdapter(kind)


def _check_keys(kind: Any, values: Mapping[str, Any], label: str) -> None:
    """Raise ConfigError for a key that is no field of the dataclass, in nested mappings too."""
    hints = _field_types(kind)
    for key, value in values.items():
        if key not in hints:
            raise ConfigError(f"{label}: {unknown_name_message('option', key, hints)}")
        if dataclasses.is_dataclass(hints[key]) and isinstance(value, Mapping):
            _check_keys(hints[key], value, f"{label}, {key!r}")


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass, by name."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def dataclass_to_dict(config: Any) -> dict[str, Any]:
    """Field values of a dataclass, nested dataclasses as dicts, ready for JSON."""
    return dataclasses.asdict(config)


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise ConfigError if it is missing or invalid."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def split_option_key(key: str, names: Container[str]) -> tuple[str, str]:
    """Split an option key into the model it is for and the option.

    With "idcf-nn" among `names`, `"idcf-nn.heads"` gives `("idcf-nn", "heads")`. A key for all
    models has an empty first part: `"train.epochs"` gives `("", "train.epochs")`.
    """
    model, dot, option = key.partition(".")
    # a key without a dot is an option even if a model has that name: `bias` is an option of idcf-nn
    return (model, option) if dot and model in names else ("", key)


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """Parse `name=value` arguments of the command line, such as `["heads=2", "act=relu"]`.

    A value that is not valid TOML is a string. Raises ConfigError if a pair has no name or no `=`.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"an override is written name=value, got {pair!r}")
        try:
            options[key.strip()] = tomllib.loads(f"x = {text}")["x"]
        except tomllib.TOMLDecodeError:
            options[key.strip()] = text.strip()
    return options
