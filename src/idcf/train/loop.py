"""The one gradient loop. Nothing in this file knows which model it trains.

Random numbers of an epoch depend on the seed and the epoch alone, so a run that was killed and
resumed ends where an uninterrupted one ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from tqdm import tqdm

from idcf.errors import ArtifactError
from idcf.models import Model
from idcf.nn.table import Table
from idcf.rng import derive
from idcf.train.objectives import Objective
from idcf.train.runtime import LOCAL, Runtime
from idcf.train.stopping import Log, read_checkpoint, write_checkpoint
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
) -> Log:
    """Train in place and leave the model at its best epoch, or at the last one where there is
    nothing to `validate` by. Lower is better. `epochs` overrides the number, not the schedule."""
    model.to(runtime.device)
    optimiser = _optimiser(model, config)
    step = torch.compile(objective, dynamic=True) if config.compile else objective
    log, best = _resume(model, optimiser, checkpoint)
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
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * _rate(config, number)
        loss = _epoch(model, epoch(number), step, optimiser, config, runtime, derive(seed, number))
        record = {"epoch": number, "loss": loss, "seconds": time.perf_counter() - began}
        model.eval()
        _swap(optimiser)
        if validate:
            record["valid"] = validate(model)
        if log.watch(record):
            best = _copy(model)
        _swap(optimiser)
        if runtime.rank == 0:
            _save(model, best, optimiser, log, checkpoint, journal)
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


def _optimiser(model: Model, config: TrainConfig) -> torch.optim.Adam:
    trained = [p for p in model.parameters() if p.requires_grad]
    if config.coupled_decay:
        return torch.optim.Adam(
            trained, config.learning_rate, weight_decay=config.coupled_decay, fused=True
        )
    tables = {
        id(p) for part in model.modules() if isinstance(part, Table) for p in part.parameters()
    }
    groups = [
        {
            "params": [p for p in trained if id(p) not in tables],
            "weight_decay": config.weight_decay,
        },
        {"params": [p for p in trained if id(p) in tables], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], config.learning_rate, fused=True)


def _epoch(
    model: Model,
    batches: Iterable[Batch],
    objective: Objective,
    optimiser: torch.optim.Optimizer,
    config: TrainConfig,
    runtime: Runtime,
    seed: int,
) -> float:
    """One pass; the mean loss of its batches."""
    model.train()
    device, half = runtime.device, config.precision == "bfloat16"
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    total, count, waiting = torch.zeros((), device=device), 0, 0
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                terms = objective(model, runtime.share(batch).to(device))
            loss = torch.stack(list(terms.values())).sum()
            (loss / config.accumulate).backward()  # type: ignore[no-untyped-call]
            total, count, waiting = total + loss.detach(), count + 1, waiting + 1
            if waiting == config.accumulate:
                _step(optimiser, parameters, runtime, config.ema)
                waiting = 0
        if waiting:
            _step(optimiser, parameters, runtime, config.ema)
    return float(runtime.total(total)) / max(count, 1)


def _step(
    optimiser: torch.optim.Optimizer, parameters: list[Tensor], runtime: Runtime, ema: float
) -> None:
    runtime.add_gradients(parameters)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    if not ema:
        return
    first = "average" not in optimiser.state[parameters[0]]
    if first:
        for p in parameters:  # kept with the optimiser's state, so checkpoints have it
            optimiser.state[p]["average"] = p.detach().clone()
    averages = [optimiser.state[p]["average"] for p in parameters]
    torch._foreach_lerp_(averages, [p.detach() for p in parameters], 1 - ema)


@torch.no_grad()
def _swap(optimiser: torch.optim.Optimizer) -> None:
    """Exchange the weights and their running averages, where there are any."""
    for p, state in optimiser.state.items():
        if "average" in state:
            now = p.clone()
            p.copy_(state["average"])
            state["average"].copy_(now)


def _rate(config: TrainConfig, epoch: int) -> float:
    if config.schedule == "exponential":
        return float(config.decay**epoch)
    if config.schedule == "cosine":
        return float(0.5 + 0.5 * torch.cos(torch.tensor(torch.pi * epoch / config.epochs)))
    return 1.0


def _copy(model: Model) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def _resume(
    model: Model, optimiser: torch.optim.Adam, path: Path | None
) -> tuple[Log, dict[str, Tensor]]:
    found = read_checkpoint(path) if path else None
    if found is None:
        return Log(), _copy(model)
    whole = optimiser.state_dict()
    whole["state"] = found.optimiser
    try:
        model.load_state_dict(found.model)
        optimiser.load_state_dict(whole)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError(
            f"{path} is a checkpoint of another model or data set; delete it to start afresh "
            f"({str(error).splitlines()[0]})"
        ) from None
    return found.log, {k: v.to(model.device) for k, v in found.best.items()}


def _save(
    model: Model,
    best: dict[str, Tensor],
    optimiser: torch.optim.Adam,
    log: Log,
    checkpoint: Path | None,
    journal: Path | None,
) -> None:
    if checkpoint:
        write_checkpoint(checkpoint, model.state_dict(), best, optimiser.state_dict(), log)
    if journal:
        journal.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(r) + "\n" for r in log.records)
        journal.write_text(lines, encoding="utf-8")  # whole, so a kill loses no line for good


def _quiet(progress: str | None, runtime: Runtime) -> bool | None:
    """Show a bar to a person at a terminal; None lets tqdm find out whether there is one."""
    return None if progress and runtime.rank == 0 else True
