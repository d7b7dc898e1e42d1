"""The one gradient loop. Nothing in this file knows which model it trains.

Random numbers of an epoch depend on the seed and the epoch alone, so a run that was killed and
resumed ends where an uninterrupted one ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from tqdm import tqdm

from idcf.errors import ArtifactError
from idcf.models.base import Model
from idcf.rng import derive
from idcf.training.checkpoint import Log, read_checkpoint, write_checkpoint
from idcf.training.distributed import LOCAL, Runtime
from idcf.training.objectives import Loss, Objective
from idcf.training.optimizer import Optimizer
from idcf.types import Batch


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is descended. `batch_size` counts rating rows per process and step."""

    epochs: int = 30
    learning_rate: float = 0.005
    schedule: Literal["constant", "exponential", "cosine"] = "exponential"
    decay: float = 0.95  # of the exponential schedule, per epoch
    weight_decay: float = 0.0  # of the networks; tables have `reg`
    coupled_decay: float = 0.0  # added to every gradient, tables too, as the published code does
    ema: float = 0.0  # what is validated and kept is this running average of the weights
    batch_size: int = 256
    accumulate: int = 1
    patience: int = 5  # epochs without improvement; 0 never stops early
    reg: float = 0.05  # on vectors, per rating
    row_reg: float = 0.0  # on vectors, per row
    bias_reg: float = 3.0  # on biases, per row
    penalty: Literal["squared", "norm"] = "squared"
    contrast: float = 0.0
    loss: Loss = "fit"  # of models that are not wrapped round a backbone
    negatives: int = 5  # per positive, for implicit feedback
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False


def fit(
    model: Model,
    epoch: Callable[[int], Iterable[Batch]],
    objective: Objective,
    config: TrainConfig,
    *,
    validate: Callable[[Model], float] | None = None,
    epochs: int | None = None,
    runtime: Runtime = LOCAL,
    seed: int = 0,
    checkpoint: Path | None = None,
    journal: Path | None = None,
    progress: str | None = None,
    watcher: Callable[[dict[str, float]], None] | None = None,
) -> Log:
    """Train in place and leave the model at its best epoch, or at the last one where there is
    nothing to `validate` by. Lower is better. `epochs` overrides the number, not the schedule."""
    model.to(runtime.device)
    optimizer = Optimizer(model, config)
    step = torch.compile(objective, dynamic=True) if config.compile else objective
    log, best = _resume(model, optimizer, checkpoint)
    last = config.epochs if epochs is None else epochs
    done = _spent(log, config)
    bar = tqdm(
        total=last,
        initial=len(log.records),
        desc=progress,
        disable=_quiet(progress, runtime),
    )
    for number in range(len(log.records), 0 if done else last):
        began = time.perf_counter()
        optimizer.set_learning_rate(config.learning_rate * _rate(config, number))
        loss = _epoch(model, epoch(number), step, optimizer, config, runtime, derive(seed, number))
        record = {"epoch": number, "loss": loss, "seconds": time.perf_counter() - began}
        model.eval()
        optimizer.swap_averages()
        if validate:
            record["valid"] = validate(model)
        if log.watch(record):
            best = _copy(model)
        optimizer.swap_averages()
        if runtime.rank == 0:
            _save(model, best, optimizer, log, checkpoint, journal)
            if watcher:
                watcher(record)
        bar.set_postfix({k: f"{v:.4f}" for k, v in record.items() if k in ("loss", "valid")})
        bar.update()
        if _spent(log, config):
            break
    bar.close()
    model.load_state_dict(best)
    model.eval()
    return log


def _spent(log: Log, config: TrainConfig) -> bool:
    return bool(config.patience and log.records and log.stale() >= config.patience)


def _epoch(
    model: Model,
    batches: Iterable[Batch],
    objective: Objective,
    optimizer: Optimizer,
    config: TrainConfig,
    runtime: Runtime,
    seed: int,
) -> float:
    """One pass; the mean loss of its batches."""
    model.train()
    device, parts = runtime.device, config.accumulate
    half = config.precision == "bfloat16"
    total, count, waiting = torch.zeros((), device=device), 0, 0
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
                terms = objective(model, runtime.share(batch).to(device))
            loss = reduce(torch.add, terms.values())
            loss.backward()  # type: ignore[no-untyped-call]
            total, count, waiting = total + loss.detach(), count + 1, waiting + 1
            if waiting == parts:
                optimizer.step(runtime, parts)
                waiting = 0
        if waiting:
            optimizer.step(runtime, parts)
    return float(runtime.total(total)) / max(count, 1)


def _rate(config: TrainConfig, epoch: int) -> float:
    if config.schedule == "exponential":
        return float(config.decay**epoch)
    if config.schedule == "cosine":
        return float(0.5 + 0.5 * torch.cos(torch.tensor(torch.pi * epoch / config.epochs)))
    return 1.0


def _copy(model: Model) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def _resume(model: Model, optimizer: Optimizer, path: Path | None) -> tuple[Log, dict[str, Tensor]]:
    found = read_checkpoint(path) if path else None
    if found is None:
        return Log(), _copy(model)
    try:
        model.load_state_dict(found.model)
        optimizer.load_state(found.optimizer)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError(
            f"{path} is a checkpoint of another model or data set; delete it to start afresh "
            f"({str(error).splitlines()[0]})"
        ) from None
    return found.log, {k: v.to(model.device) for k, v in found.best.items()}


def _save(
    model: Model,
    best: dict[str, Tensor],
    optimizer: Optimizer,
    log: Log,
    checkpoint: Path | None,
    journal: Path | None,
) -> None:
    if checkpoint:
        write_checkpoint(checkpoint, model.state_dict(), best, optimizer.state(), log)
    if journal:
        journal.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(r) + "\n" for r in log.records)
        journal.write_text(lines, encoding="utf-8")  # whole, so a kill loses no line for good


def _quiet(progress: str | None, runtime: Runtime) -> bool | None:
    """Show a bar to a person at a terminal; None lets tqdm find out whether there is one."""
    return None if progress and runtime.rank == 0 else True
