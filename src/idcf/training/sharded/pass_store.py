"""Results of finished passes in a folder, so that a training that was interrupted goes on there."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idcf.errors import ConfigError
from idcf.files import atomic_path, write_text

_DESCRIPTION = "training.json"


class PassStore:
    """A folder with the results of one training, which `description` tells from others."""

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        self.folder = folder
        text = json.dumps(description, sort_keys=True, indent=1, default=str)
        path = folder / _DESCRIPTION
        if path.exists():
            self._require_equal(json.loads(path.read_text("utf-8")), json.loads(text))
        elif folder.exists() and any(folder.iterdir()):
            raise ConfigError(
                f"{folder} holds no interrupted training; give an empty or a new folder to resume"
            )
        else:
            write_text(path, text)

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

    def clear(self) -> None:
        """Delete the results: the training is finished."""
        for path in (*self.folder.glob("*.npz"), self.folder / _DESCRIPTION):
            path.unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _path(self, name: str) -> Path:
        """Return the file of a name."""
        return self.folder / f"{name}.npz"

    def _require_equal(self, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Raise ConfigError if the folder belongs to another training."""
        for key in sorted({*stored, *given}):
            if stored.get(key) != given.get(key):
                raise ConfigError(
                    f"{self.folder} holds a training with {key} {stored.get(key)!r}, not "
                    f"{given.get(key)!r}; give another folder to resume, or the same arguments"
                )
