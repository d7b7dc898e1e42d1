"""One process or several under `torchrun`: what each computes, and how they agree.

Every process makes the same batches and works on its share of each. Losses are sums over the
share divided by the size of the whole batch, so adding up gradients gives exactly what one
process with the whole batch would get.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from idcf.errors import ConfigError
from idcf.types import Batch, Users, pick


@dataclass(frozen=True)
class Runtime:
    device: torch.device
    rank: int = 0
    world: int = 1

    def share(self, batch: Batch) -> Batch:
        """This process's users and their rows."""
        if self.world == 1:
            return batch
        n = len(batch.users)
        low, high = n * self.rank // self.world, n * (self.rank + 1) // self.world
        mine = (batch.owner >= low) & (batch.owner < high)
        who = torch.arange(low, high)
        users = Users(batch.users.ids[who], pick(batch.users.history, who))
        return Batch(
            users,
            batch.owner[mine] - low,
            batch.items[mine],
            batch.labels[mine],
            len(batch.items),
            n,
        )

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        if self.world == 1:
            return
        for p in parameters:
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in order; gradients find their way back."""
        if self.world == 1:
            return rows
        found: Tensor = _Gather.apply(rows, self.rank, self.world)  # type: ignore[no-untyped-call]
        return found

    def total(self, value: Tensor) -> Tensor:
        if self.world > 1:
            dist.all_reduce(value)
        return value


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, rank: int, world: int) -> Tensor:
        sizes = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world)]
        dist.all_gather(sizes, torch.tensor([len(rows)], device=rows.device))
        counts = [int(s) for s in sizes]
        room = rows.new_zeros(max(counts), *rows.shape[1:])
        room[: len(rows)] = rows
        parts = [torch.empty_like(room) for _ in range(world)]
        dist.all_gather(parts, room)
        ctx.start, ctx.count = sum(counts[:rank]), counts[rank]
        return torch.cat([p[:n] for p, n in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        total = grads[0].contiguous()
        dist.all_reduce(total)
        return total[ctx.start : ctx.start + ctx.count], None, None


LOCAL = Runtime(torch.device("cpu"))


def start(device: str = "auto") -> Runtime:
    """The runtime of this process; reads what `torchrun` put into the environment."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device must be auto, cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for, but no GPU is visible; use --device auto")
    cuda = device != "cpu" and torch.cuda.is_available()
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return Runtime(torch.device("cuda", local) if cuda else torch.device("cpu"), rank, world)
