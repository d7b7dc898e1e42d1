"""What installed packages publish under the entry-point groups of this library.

A package that cannot be imported is passed over with one warning, so that models of others work.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

MODELS_GROUP = "idcf.models"
PRESETS_GROUP = "idcf.presets"


class Plugins(NamedTuple):
    """The entry points of a group: those that could be read, and a message for each other one."""

    values: tuple[tuple[EntryPoint, Any], ...]
    problems: tuple[str, ...]


_READERS: dict[str, Callable[[Any], Any]] = {MODELS_GROUP: dict, PRESETS_GROUP: Path}


@cache
def load_plugins(group: str) -> Plugins:
    """Return what packages publish under a group; warns once of each that cannot be imported."""
    values, problems = [], []
    for point in entry_points(group=group):
        try:
            values.append((point, _READERS[group](point.load())))
        except Exception as error:  # whatever a package of others raises
            package = point.dist.name if point.dist else point.value
            problem = (
                f"the entry point {point.name!r} of the package {package!r} in the group {group!r} "
                f"cannot be read: {type(error).__name__}: {error!s:.200}"
            )
            problems.append(problem)
            warnings.warn(
                f"{problem}; repair or uninstall the package", RuntimeWarning, stacklevel=2
            )
    return Plugins(tuple(values), tuple(problems))
