"""When to stop, and what to keep of a run: the best weights, the log, and a checkpoint."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from idcf.errors import ArtifactError


class Watcher(Protocol):
    """Hears of every epoch as it ends: `record` is the line of the journal, `stage` says of which
    training. See `train.trackers`."""

    def __call__(self, stage: str, record: Mapping[str, float], /) -> None: ...


@dataclass
class Log:
    """One record an epoch; `best` is the epoch whose weights were kept."""

    records: list[dict[str, float]] = field(default_factory=list)
    best: int = -1

    def column(self, name: str) -> list[float]:
        return [r[name] for r in self.records if name in r]

    def watch(self, record: dict[str, float]) -> bool:
        """Add a record; True where it is the best so far: the lowest `valid`, else the newest."""
        self.records.append(record)
        newest = self.best < 0 or "valid" not in record
        if newest or _order(record["valid"]) < _order(self.records[self.best]["valid"]):
            self.best = len(self.records) - 1
            return True
        return False

    def lowest(self) -> float:
        """The best `valid`; infinite where nothing was validated."""
        return _order(self.records[self.best].get("valid", math.nan)) if self.records else math.inf

    def stale(self) -> int:
        """Epochs since the best one."""
        return len(self.records) - 1 - self.best


def _order(valid: float) -> float:
    return math.inf if math.isnan(valid) else valid


def write_checkpoint(
    path: Path,
    model: dict[str, Tensor],
    best: dict[str, Tensor],
    optimizer: Mapping[int, Mapping[str, Tensor]],
    log: Log,
) -> None:
    """One file, replaced in one step: whoever is killed leaves the old one or the new one."""
    tensors = {f"model.{k}": v for k, v in model.items()}
    tensors |= {f"best.{k}": v for k, v in best.items()}
    for number, state in optimizer.items():
        tensors |= {f"optimizer.{number}.{k}": v for k, v in state.items()}
    meta = {"log": json.dumps(asdict(log))}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".part")
    save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, fresh, meta)
    with fresh.open("rb") as f:
        os.fsync(f.fileno())
    fresh.replace(path)


@dataclass(frozen=True)
class Checkpoint:
    model: dict[str, Tensor]
    best: dict[str, Tensor]
    optimizer: dict[int, dict[str, Tensor]]
    log: Log


def read_checkpoint(path: Path) -> Checkpoint | None:
    """What was written last, or None where nothing was."""
    if not path.exists():
        return None
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
    try:
        with safe_open(path, "pt") as f:
            log = Log(**json.loads(f.metadata()["log"]))
            for name in f.keys():  # noqa: SIM118 - not a mapping
                part, _, rest = name.partition(".")
                parts[part][rest] = f.get_tensor(name)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{path} is no checkpoint of this version ({error}); delete it to start afresh"
        ) from None
    optimizer: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["optimizer"].items():
        number, _, key = name.partition(".")
        optimizer.setdefault(int(number), {})[key] = value
    return Checkpoint(parts["model"], parts["best"], optimizer, log)
