"""One training: its arguments, its result, and the device and processes that it runs on.

Under `torchrun` every process makes the same batches and computes on its share of each. A loss is a
sum over the share divided by the size of the whole batch, so that the sum of the gradients over
processes is the gradient of one process with the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from idcf.data.interactions import Interactions, Ints
from idcf.data.split import Split
from idcf.models.base import Model, resolve_device
from idcf.training.checkpoint import EpochCallback, TrainingLog
from idcf.types import Batch, Users, select_histories

QueryUserMode = Literal["new", "few-shot"]


@dataclass(frozen=True)
class Runtime:
    """The device of this process, and its rank among the `world_size` processes of one training."""

    device: torch.device
    rank: int = 0  # 0..world_size-1
    world_size: int = 1  # number of processes

    def local_batch(self, batch: Batch) -> Batch:
        """Return this process's share of a batch: some of its users, with their rows."""
        if self.world_size == 1:
            return batch
        n_users = len(batch.users)
        low = n_users * self.rank // self.world_size
        high = n_users * (self.rank + 1) // self.world_size
        rows = (batch.owner >= low) & (batch.owner < high)
        positions = torch.arange(low, high)
        features = batch.users.features
        users = Users(
            batch.users.ids[positions],
            select_histories(batch.users.history, positions),
            None if features is None else features[positions],
        )
        return Batch(
            users,
            batch.owner[rows] - low,
            batch.items[rows],
            batch.labels[rows],
            len(batch.items),
            n_users,
        )

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace every gradient by its sum over the processes."""
        if self.world_size == 1:
            return
        for p in parameters:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes in the order of their ranks; differentiable."""
        if self.world_size == 1:
            return rows
        gathered: Tensor = _GatherRows.apply(rows, self.rank, self.world_size)  # type: ignore[no-untyped-call]
        return gathered

    def sum_over_processes(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes; the tensor itself is overwritten."""
        if self.world_size > 1:
            dist.all_reduce(value)
        return value


class _GatherRows(torch.autograd.Function):
    """Concatenates the rows of all processes, which may differ in number."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, rank: int, world_size: int) -> Tensor:
        """Return the rows of all processes, in the order of their ranks."""
        sizes = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world_size)]
        dist.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
        counts = [int(s) for s in sizes]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])  # all_gather needs equal shapes
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(world_size)]
        dist.all_gather(parts, padded)
        ctx.start, ctx.count = sum(counts[:rank]), counts[rank]
        return torch.cat([p[:n] for p, n in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of this process's rows, summed over the processes."""
        total = grads[0].contiguous()
        dist.all_reduce(total)
        return total[ctx.start : ctx.start + ctx.count], None, None


LOCAL_RUNTIME = Runtime(torch.device("cpu"))


def start_runtime(device: str = "auto") -> Runtime:
    """Return the runtime of this process, and join the process group of `torchrun`, if any.

    `device` is a name for `resolve_device`; rank and world size are those that `torchrun` sets.
    """
    cuda = resolve_device(device).type == "cuda"
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world_size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    return Runtime(chosen, rank, world_size)


@dataclass(frozen=True)
class TrainingJob:
    """The arguments that all stages of one training share.

    With `query_user_mode="new"` no row of a query user is trained on. With "few-shot" their
    training rows are used, and IDCF adapts on them (the paper's interpolation).
    """

    split: Split
    query_user_mode: QueryUserMode = "new"
    preset: str = "clean"
    dataset: str = ""  # chooses the preset's row
    seed: int = 0
    runtime: Runtime = LOCAL_RUNTIME  # the device and the processes to train on
    folder: Path | None = None  # for checkpoints and journals
    checkpoint_seconds: float = 0.0  # least time between two checkpoints of a stage
    progress: bool = False  # whether to show progress bars
    callback: EpochCallback | None = None  # called after each epoch
    stage_prefix: str = ""  # begins the stage's name in calls of `callback`

    def training_table(self) -> Interactions:
        """Return the rows that may be trained on."""
        split = self.split
        if self.query_user_mode == "new":
            return split.train.for_users(split.key_users)
        return split.train

    def new_user_lengths(self) -> Ints:
        """Return the numbers of training rows of the query users, of those who have any."""
        counts = self.split.train.user_counts()[self.split.query_users]
        return counts[counts > 0]


@dataclass(frozen=True)
class TrainingResult:
    """A trained model, and the options and logs of its stages."""

    model: Model  # scores query users and, if it is inductive, new users
    key_user_model: Model  # scores key users: the backbone, or `model` itself
    mean_rating: float  # `Domain.mean` that the model, or its backbone, was built with
    options: Mapping[str, Any] = field(default_factory=dict)  # those the model was built with
    logs: Mapping[str, TrainingLog] = field(default_factory=dict)  # by model name
    backbone_options: Mapping[str, Any] = field(default_factory=dict)  # empty without a backbone
    details: Mapping[str, Any] = field(default_factory=dict)  # see `SolverContext.details`
