"""Everything this package raises on purpose.

* IdcfError
  · DataError      the interactions given cannot be used
  · ConfigError    a name or an option does not exist, or has the wrong type
  · ColdUserError  the model cannot score a user it was not trained on
  · ArtifactError  a saved model is missing, damaged, or of another format
  · Overloaded     more was asked at once than can be answered soon
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral


class IdcfError(Exception):
    """Base of every deliberate error in the package."""


class DataError(IdcfError, ValueError):
    """The interactions given cannot be used."""


class ConfigError(IdcfError, ValueError):
    """A name or an option does not exist, or has the wrong type."""


class ColdUserError(IdcfError, LookupError):
    """The model cannot score a user it was not trained on."""


class ArtifactError(IdcfError, ValueError):
    """A saved model is missing, damaged, or of another format."""


class Overloaded(IdcfError, RuntimeError):
    """More was asked at once than can be answered soon; try again in a moment."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The text for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"no {kind} named {name!r}; {hint}known: {', '.join(names)}"


def require_count(n: object) -> None:
    if not isinstance(n, Integral) or int(n) < 1:
        raise ConfigError(f"n must be a whole number from 1, got {n!r}")
