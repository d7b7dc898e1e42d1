"""Configuration: dataclasses from and to plain values, TOML files and `name=value` overrides.

An unknown key raises an error that names the nearest known one. The range of a number is part of
its type, such as `Share`, and checked when a dataclass is built from values.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from idcf.errors import ConfigError, unknown_name_message

T = TypeVar("T")


def _in_order(lengths: tuple[int, int]) -> tuple[int, int]:
    """Return a range of lengths; ValueError: its end comes before its start."""
    if lengths[0] > lengths[1]:
        raise ValueError("the first length must not be above the second")
    return lengths


# the types of options that are numbers; no range holds NaN
Count = Annotated[int, Field(ge=1, le=1_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=1_000_000)]
BatchSize = Annotated[int, Field(ge=1, le=1_000_000_000)]  # the largest: all rows at once
Length = Annotated[int, Field(ge=0, le=1_000_000_000)]  # the largest: of any history
Size = Annotated[int, Field(ge=1, le=10_000)]  # of a vector or a layer
SizeOrZero = Annotated[int, Field(ge=0, le=10_000)]  # 0: biases alone
Sizes = Annotated[tuple[Size, ...], Field(max_length=16)]  # of the layers of a network
Depth = Annotated[int, Field(ge=1, le=64)]  # layers, heads, blocks
Lengths = Annotated[tuple[Length, Length], AfterValidator(_in_order)]  # shortest, longest
Weight = Annotated[float, Field(ge=0, le=1e9)]  # of a penalty or a term; 0 leaves it out
Ridge = Annotated[float, Field(gt=0, le=1e9)]  # a penalty that an equation needs to be solvable
DegreesOfFreedom = Annotated[float, Field(gt=0)]  # infinite: a normal distribution
PseudoCount = Annotated[float, Field(ge=0)]  # infinite: nothing but the prior counts
Scale = Annotated[float, Field(ge=1e-6, le=1e3)]  # a unit, or a standard deviation
Rate = Annotated[float, Field(ge=1e-12, le=10)]  # of learning
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, le=0.999999)]  # of a running average
Dropout = Annotated[float, Field(ge=0, le=0.99)]  # share that is left out; not all of it


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
        raise ConfigError(f"{label}: {_describe(kind, label, error)}") from None
    return config


def _describe(kind: type[Any], label: str, error: ValidationError) -> str:
    """Return the first problem in words: the option, its value, and what it must be."""
    first = error.errors()[0]
    place = [str(x) for x in first["loc"]]
    hints = get_type_hints(kind, include_extras=True)
    limits = range_text(hints.get(place[0])) if place else ""
    is_outside = bool({"gt", "ge", "le"} & (first.get("ctx") or {}).keys())
    problem = first["msg"].lower()
    if limits and (is_outside or first["type"] == "int_parsing_size"):
        problem = f"it must be {limits}"
    elif first["type"] == "missing" and len(place) > 1:  # a tuple is too short
        place = place[:-1]
        problem = "a value is missing" + (f"; each must be {limits}" if limits else "")
    option = ".".join(place) or label
    return f"option {option!r} is {first['input']!r:.200}: {problem}"


def range_text(kind: Any) -> str:
    """Return the range of a type in words, such as "from 0 to 1"; an empty text without one."""
    if get_origin(kind) is not Annotated:
        return next(filter(None, map(range_text, get_args(kind))), "")
    inner, *metadata = get_args(kind)
    marks = [mark for x in metadata for mark in getattr(x, "metadata", ())]
    words = {"gt": "above", "ge": "from", "le": "to"}
    limits = [
        f"{word} {getattr(x, key):.10g}"
        for key, word in words.items()
        for x in marks
        if hasattr(x, key)
    ]
    return " ".join(limits) or range_text(inner)


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
