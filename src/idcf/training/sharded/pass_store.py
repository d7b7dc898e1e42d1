"""Results of finished passes in a folder, so that a training that was interrupted goes on there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idcf.errors import ConfigError
from idcf.files import write_text
from idcf.training.array_store import ArrayStore

_DESCRIPTION = "training.json"


class PassStore(ArrayStore):
    """A folder with the results of one training, which `description` tells from others."""

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        super().__init__(folder)
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

    def clear(self) -> None:
        """Delete the results: the training is finished."""
        for path in (*self.folder.glob("*.npz"), self.folder / _DESCRIPTION):
            path.unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _require_equal(self, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Raise ConfigError if the folder belongs to another training."""
        for key in sorted({*stored, *given}):
            if stored.get(key) != given.get(key):
                raise ConfigError(
                    f"{self.folder} holds a training with {key} {stored.get(key)!r}, not "
                    f"{given.get(key)!r}; give another folder to resume, or the same arguments"
                )
