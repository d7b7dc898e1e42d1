"""A folder of named arrays, from which a training that was interrupted goes on."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idcf.files import atomic_path

CHECKPOINT_SECONDS = 10.0  # least time between two checkpoints
_MAX_SHARE = 0.05  # of the time that writing checkpoints may take


class ArrayStore:
    """A folder with files of arrays, each written atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, name: str) -> dict[str, NDArray[Any]] | None:
        """Return the arrays of a name, None if there are none or if the file is damaged."""
        try:
            with np.load(self._path(name), allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (FileNotFoundError, zipfile.BadZipFile, ValueError, OSError):
            return None

    def save(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays under a name, in place of earlier ones."""
        with atomic_path(self._path(name)) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def _path(self, name: str) -> Path:
        """Return the file of a name."""
        return self.folder / f"{name}.npz"


class StoredSteps:
    """The state of an iteration after its last stored step, if there is a store."""

    def __init__(self, store: ArrayStore | None, name: str) -> None:
        self.store, self.name = store, name
        self._due_at = time.monotonic() + CHECKPOINT_SECONDS

    def load(self) -> tuple[int, dict[str, NDArray[Any]]]:
        """Return the number of stored steps, and the state after them."""
        arrays = (self.store.load(self.name) if self.store else None) or {}
        return int(arrays.pop("step", np.int64(0))), arrays

    def is_due(self) -> bool:
        """Return whether some time has passed since a step was stored."""
        return self.store is not None and time.monotonic() >= self._due_at

    def save(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store the state after a step, in place of that after an earlier one."""
        if self.store:
            start = time.monotonic()
            self.store.save(self.name, {**arrays, "step": np.array(step)})
            end = time.monotonic()
            self._due_at = end + max(CHECKPOINT_SECONDS, (end - start) / _MAX_SHARE)
