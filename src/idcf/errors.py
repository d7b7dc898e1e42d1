"""Exceptions that this package raises on purpose.

* IdcfError
  · DataError        the interactions given cannot be used
  · ConfigError      a name or an option does not exist, or has the wrong type
  · ColdUserError    the model cannot score a user it was not trained on
  · DivergenceError  a training ended in numbers that are not finite
  · ArtifactError    a saved model is missing, damaged, or of another format
  · OverloadedError  the request queue is full
  · EngineError      workers died or cannot be had, or a sum is too large to be exact
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from numbers import Integral


class IdcfError(Exception):
    """Base class of all exceptions that this package raises on purpose."""


class DataError(IdcfError, ValueError):
    """The interactions given cannot be used."""


class ConfigError(IdcfError, ValueError):
    """A name or an option does not exist, or has the wrong type."""


class ColdUserError(IdcfError, LookupError):
    """The model cannot score a user it was not trained on."""


class DivergenceError(IdcfError, ArithmeticError):
    """A training ended in numbers that are not finite."""


class ArtifactError(IdcfError, ValueError):
    """A saved model is missing, damaged, or of another format."""


class OverloadedError(IdcfError, RuntimeError):
    """The request queue is full; the caller should try again in a moment."""


class EngineError(IdcfError, RuntimeError):
    """Workers died or cannot be had, or a sum is too large to be exact."""


def unknown_name_message(kind: str, name: str, known_names: Iterable[str]) -> str:
    """Error text for an unknown name of a kind, such as "model", with the nearest known name."""
    names = sorted(known_names)
    matches = get_close_matches(name[:100], names, n=1)
    hint = f"did you mean {matches[0]!r}? " if matches else ""
    return f"no {kind} named {name!r:.100}; {hint}known: {', '.join(names)}"


def require_extra(extra: str, *packages: str) -> None:
    """Raise ConfigError unless the packages of an extra, such as "serve", are installed."""
    for package in packages:
        if find_spec(package) is None:
            raise ConfigError(f"{package} is not installed; pip install 'idcf[{extra}]'")


def require_positive_count(n: object) -> None:
    """Raise ConfigError unless `n` is an integer of at least 1."""
    if not isinstance(n, Integral) or int(n) < 1:
        raise ConfigError(f"n must be a whole number from 1, got {n!r}")
