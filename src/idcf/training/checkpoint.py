"""The log of a training, and checkpoints to resume it from. Does not decide when to stop."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from idcf.errors import ArtifactError, ConfigError
from idcf.files import atomic_path, write_text

_IDENTITY = "training.json"

EpochRecord = dict[str, float]  # epoch, loss, seconds and, if there is validation data, valid


class EpochCallback(Protocol):
    """Called after each epoch with the stage ("search/pmf") and the epoch's record.

    See `idcf.training.trackers` for two implementations.
    """

    def __call__(self, stage: str, record: Mapping[str, float], /) -> None: ...


@dataclass
class TrainingLog:
    """One record per epoch; the model was left with the weights of `best_epoch`."""

    records: list[EpochRecord] = field(default_factory=list)
    best_epoch: int = -1  # index into `records`; -1 before the first one

    def column(self, name: str) -> list[float]:
        """Return one value of every record that has it."""
        return [r[name] for r in self.records if name in r]

    def add(self, record: EpochRecord) -> bool:
        """Add a record; return whether it is the best so far: the lowest `valid`, or the newest
        record if there is no validation."""
        self.records.append(record)
        is_best = (
            self.best_epoch < 0
            or "valid" not in record
            or _nan_to_inf(record["valid"]) < self._validation_of(self.best_epoch)
        )
        if is_best:
            self.best_epoch = len(self.records) - 1
        return is_best

    def best_validation(self) -> float:
        """Return the lowest `valid`; infinity without validation."""
        return self._validation_of(self.best_epoch) if self.records else math.inf

    def epochs_since_best(self) -> int:
        """Return the number of epochs after the best one."""
        return len(self.records) - 1 - self.best_epoch

    def _validation_of(self, epoch: int) -> float:
        """Return the validation error of an epoch; infinity if it has none."""
        return _nan_to_inf(self.records[epoch].get("valid", math.nan))


def _nan_to_inf(valid: float) -> float:
    """Return a validation error, infinity in place of NaN, so that it is never the best."""
    return math.inf if math.isnan(valid) else valid


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after an epoch."""

    model_state: dict[str, Tensor]  # the weights after the epoch
    best_state: dict[str, Tensor]  # the weights of the best epoch
    optimizer_state: dict[int, dict[str, Tensor]]  # by position of the weight, see `Optimizer`
    log: TrainingLog  # the epochs so far


def recorded_seconds(folder: Path | None) -> float:
    """Return the time of all epochs in the journals of a training's folder: what a training that is
    resumed has taken so far, without validation."""
    journals = sorted(folder.rglob("*.jsonl")) if folder else []
    return sum(
        float(json.loads(line)["seconds"])
        for journal in journals
        for line in journal.read_text(encoding="utf-8").splitlines()
    )


def write_checkpoint(
    path: Path,
    model_state: dict[str, Tensor],
    best_state: dict[str, Tensor],
    optimizer_state: Mapping[int, Mapping[str, Tensor]],
    log: TrainingLog,
) -> None:
    """Write a checkpoint atomically: after a crash the file is the old one or the new one."""
    tensors = {f"model.{k}": v for k, v in model_state.items()}
    tensors |= {f"best.{k}": v for k, v in best_state.items()}
    for number, state in optimizer_state.items():
        tensors |= {f"optimizer.{number}.{k}": v for k, v in state.items()}
    contiguous = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    with atomic_path(path) as fresh:
        save_file(contiguous, fresh, {"log": json.dumps(asdict(log))})


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Return the checkpoint at `path`, or None if there is no file.

    Raises `ArtifactError` if the file is damaged or was written by another version.
    """
    if not path.exists():
        return None
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
    try:
        with safe_open(path, "pt") as f:
            log = TrainingLog(**json.loads(f.metadata()["log"]))
            for name in f.keys():  # noqa: SIM118 - not a mapping
                part, _, key = name.partition(".")
                parts[part][key] = f.get_tensor(name)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{path} is no checkpoint of this version ({error}); delete it to start afresh"
        ) from None
    optimizer: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["optimizer"].items():
        number, _, key = name.partition(".")
        optimizer.setdefault(int(number), {})[key] = value
    return Checkpoint(parts["model"], parts["best"], optimizer, log)


def claim_folder(folder: Path, identity: Mapping[str, Any], *, writes: bool = True) -> None:
    """Note in a folder of checkpoints which training they are of, by values that are compared.

    Raises `ConfigError`, which names what differs, if the folder is of another training. Without
    `writes`, which all processes but one give, nothing is written.
    """
    path = folder / _IDENTITY
    values = {key: json.loads(json.dumps(x, default=str)) for key, x in identity.items()}
    if path.exists():
        try:
            known = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path} cannot be read ({error}); delete the folder") from None
        differing = sorted(
            key for key in values.keys() | known if values.get(key) != known.get(key)
        )
        if differing:
            raise ConfigError(
                f"{folder} holds checkpoints of another training, with other {_and(differing)}; "
                "resume with what it began with, or give another folder"
            )
    elif writes:
        write_text(path, json.dumps(values, indent=1) + "\n")


def remove_checkpoints(folder: Path) -> None:
    """Delete the checkpoints of a fit, and the folder if it holds nothing else."""
    if not folder.is_dir():
        return
    for stage in folder.iterdir():
        if (stage / _IDENTITY).is_file():
            shutil.rmtree(stage)
    if not any(folder.iterdir()):
        folder.rmdir()


def _and(names: Sequence[str]) -> str:
    """Return names as a phrase, such as "seed and options"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
