"""The gradient loop: epochs, validation, checkpoints, early stopping. It knows no model.

The random numbers of an epoch depend on the seed and the number of the epoch only, so that a
training that was interrupted and resumed ends with the weights of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import reduce
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor
from tqdm import tqdm

from idcf.data.progress import progress_bar
from idcf.errors import ArtifactError, DivergenceError
from idcf.files import write_text
from idcf.models.base import Model
from idcf.rng import derive_seed
from idcf.training.checkpoint import EpochRecord, TrainingLog, read_checkpoint, write_checkpoint
from idcf.training.job import LOCAL_RUNTIME, Runtime
from idcf.training.objectives import Objective
from idcf.training.optimizer import Optimizer
from idcf.training.options import TrainConfig
from idcf.types import Batch


def fit_by_gradient(
    model: Model,
    epoch_batches: Callable[[int], Iterable[Batch]],
    objective: Objective,
    config: TrainConfig,
    *,
    validate: Callable[[Model], float] | None = None,
    n_epochs: int | None = None,
    runtime: Runtime = LOCAL_RUNTIME,
    seed: int = 0,
    checkpoint_path: Path | None = None,
    checkpoint_seconds: float = 0.0,
    journal_path: Path | None = None,
    progress_label: str | None = None,
    callback: Callable[[EpochRecord], None] | None = None,
    name: str = "the model",
) -> TrainingLog:
    """Train a model in place; it ends with the weights of its best epoch.

    The epoch is best by `validate`, the validation error (lower is better), or the last one without
    it. `n_epochs` replaces `config.epochs` but leaves the learning-rate schedule. The checkpoint is
    written after the last epoch, and after any other if `checkpoint_seconds` have passed since it
    was written, and resumed from if it exists; with it the journal is written, a line of JSON per
    epoch; `callback` is called with each record, in the process of rank 0. Raises `ArtifactError`
    if the checkpoint is damaged, or belongs to another model or dataset, and `DivergenceError`,
    which says `name`, when the loss or a weight is not finite.
    """
    model.to(runtime.device)
    optimizer = Optimizer(model, config)
    loss_terms = torch.compile(objective, dynamic=True) if config.compile else objective
    log, best_state = _resume_checkpoint(model, optimizer, checkpoint_path)
    last = config.epochs if n_epochs is None else n_epochs
    saved_at = time.monotonic()
    with _progress_bar(progress_label, len(log.records), last, runtime) as bar:
        while len(log.records) < last and not _should_stop(log, config):
            epoch, started = len(log.records), time.perf_counter()
            optimizer.set_learning_rate(config.learning_rate * _schedule_factor(config, epoch))
            batches, epoch_seed = epoch_batches(epoch), derive_seed(seed, epoch)
            loss = _train_epoch(model, batches, loss_terms, optimizer, config, runtime, epoch_seed)
            if not math.isfinite(loss):
                raise _divergence(name, f"its loss is {loss}", epoch, config)
            record = {"epoch": epoch, "loss": loss, "seconds": time.perf_counter() - started}
            model.eval()
            optimizer.swap_averages()
            if validate:
                record["valid"] = validate(model)
            if log.add(record):
                best_state = _copy_state(model)
            optimizer.swap_averages()
            is_last = len(log.records) >= last or _should_stop(log, config)
            is_due = is_last or time.monotonic() - saved_at >= checkpoint_seconds
            if runtime.rank == 0:
                if is_due:
                    _save_progress(model, best_state, optimizer, log, checkpoint_path, journal_path)
                    saved_at = time.monotonic()
                if callback:
                    callback(record)
            bar.set_postfix({k: f"{v:.4f}" for k, v in record.items() if k in ("loss", "valid")})
            bar.update()
    model.load_state_dict(best_state)
    model.eval()
    if tensor := model.nonfinite_tensor():
        raise _divergence(name, f"its weights {tensor!r} are not finite", log.best_epoch, config)
    return log


def _divergence(name: str, problem: str, epoch: int, config: TrainConfig) -> DivergenceError:
    """Return the error of a training that cannot go on after an epoch."""
    return DivergenceError(
        f"training of {name!r} diverged in epoch {epoch + 1}: {problem}; lower learning_rate "
        f"(it is {config.learning_rate:g}), or check the ratings for outliers"
    )


def _should_stop(log: TrainingLog, config: TrainConfig) -> bool:
    """Return whether there was no improvement for `patience` epochs."""
    return bool(config.patience and log.records and log.epochs_since_best() >= config.patience)


def _train_epoch(
    model: Model,
    batches: Iterable[Batch],
    objective: Objective,
    optimizer: Optimizer,
    config: TrainConfig,
    runtime: Runtime,
    seed: int,
) -> float:
    """Run one epoch and return the mean loss of its batches."""
    model.train()
    device = runtime.device
    half = config.precision == "bfloat16"
    total = torch.zeros((), device=device)
    n_batches, n_accumulated = 0, 0
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16) if half else nullcontext():
                terms = objective(model, runtime.local_batch(batch).to(device))
            loss = reduce(torch.add, terms.values())
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
            n_batches += 1
            n_accumulated += 1
            if n_accumulated == config.accumulate:
                optimizer.step(runtime, config.accumulate)
                n_accumulated = 0
        if n_accumulated:
            optimizer.step(runtime, config.accumulate)
    return float(runtime.sum_over_processes(total)) / max(n_batches, 1)


def _schedule_factor(config: TrainConfig, epoch: int) -> float:
    """Return the factor of the learning rate in an epoch."""
    if config.schedule == "exponential":
        return float(config.decay**epoch)
    if config.schedule == "cosine":
        return float(0.5 + 0.5 * torch.cos(torch.tensor(torch.pi * epoch / config.epochs)))
    return 1.0


def _copy_state(model: Model) -> dict[str, Tensor]:
    """Return a copy of the model's weights and buffers."""
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def _resume_checkpoint(
    model: Model, optimizer: Optimizer, checkpoint_path: Path | None
) -> tuple[TrainingLog, dict[str, Tensor]]:
    """Load a checkpoint, if there is one; return its log and the weights of the best epoch."""
    checkpoint = read_checkpoint(checkpoint_path) if checkpoint_path else None
    if checkpoint is None:
        return TrainingLog(), _copy_state(model)
    try:
        model.load_state_dict(checkpoint.model_state)
        optimizer.load_state(checkpoint.optimizer_state)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError(
            f"{checkpoint_path} is a checkpoint of another model or dataset; delete it to start "
            f"afresh ({str(error).splitlines()[0]})"
        ) from None
    return checkpoint.log, {k: v.to(model.device) for k, v in checkpoint.best_state.items()}


def _save_progress(
    model: Model,
    best_state: dict[str, Tensor],
    optimizer: Optimizer,
    log: TrainingLog,
    checkpoint_path: Path | None,
    journal_path: Path | None,
) -> None:
    """Write the checkpoint and the journal, if they are wanted."""
    if checkpoint_path:
        write_checkpoint(checkpoint_path, model.state_dict(), best_state, optimizer.state(), log)
    if journal_path:  # written whole: a line lost in a crash is there after the next epoch
        write_text(journal_path, "".join(json.dumps(r) + "\n" for r in log.records))


def _progress_bar(
    progress_label: str | None, initial: int, total: int, runtime: Runtime
) -> tqdm[NoReturn]:
    """Return a bar that is shown in the process of rank 0 if there is a label."""
    label = progress_label if runtime.rank == 0 else None
    return progress_bar(label, total=total, initial=initial)
