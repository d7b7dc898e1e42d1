"""Adam, and the running average of the weights.

A network is many small tensors and an optimiser pays for each: the weights of all networks are
therefore laid into one vector, their gradients into another, and one kernel moves them. Tables
stay as they are: they are large, and their gradients are made whole in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from idcf.models.base import Model
from idcf.models.layers.embedding import Table
from idcf.training.distributed import Runtime

if TYPE_CHECKING:
    from idcf.training.loop import TrainConfig


class Descent:
    """The optimiser of one model. `close` gives the weights memory of their own again."""

    def __init__(self, model: Model, config: TrainConfig) -> None:
        tables = {
            id(p) for part in model.modules() if isinstance(part, Table) for p in part.parameters()
        }
        trained = [p for p in model.parameters() if p.requires_grad]
        self._parts = [p for p in trained if id(p) not in tables]
        networks = [_flat(self._parts)] if self._parts else []
        rest = [p for p in trained if id(p) in tables]
        coupled = config.coupled_decay
        self._kind = torch._fused_adam_ if coupled else torch._fused_adamw_
        self.ema = config.ema
        self.groups = [(networks, coupled or config.weight_decay), (rest, coupled)]
        self.weights: list[nn.Parameter] = [*networks, *rest]
        self.state = [_fresh(p) for p in self.weights]
        self.rate = config.learning_rate

    @torch.no_grad()
    def step(self, runtime: Runtime, parts: int = 1) -> None:
        """Move by the gradients that `parts` batches left, each a part of one."""
        runtime.add_gradients(self.weights)
        if parts > 1:
            torch._foreach_div_([p.grad for p in self.weights if p.grad is not None], parts)
        at = 0
        for weights, decay in self.groups:
            self._move(weights, self.state[at : at + len(weights)], decay)
            at += len(weights)
        if self.ema:
            averages = [x.setdefault("average", p.clone()) for p, x in self._pairs()]
            torch._foreach_lerp_(averages, [*self.weights], 1 - self.ema)

    def _move(
        self, weights: Sequence[nn.Parameter], state: Sequence[dict[str, Tensor]], decay: float
    ) -> None:
        """The kernel of torch's own: its class spends longer on a small step than it does."""
        moved = [(p, p.grad, x) for p, x in zip(weights, state, strict=True) if p.grad is not None]
        if not moved:
            return
        steps = [x["step"] for _, _, x in moved]
        torch._foreach_add_(steps, 1)
        self._kind(
            [p for p, _, _ in moved],
            [g for _, g, _ in moved],
            [x["exp_avg"] for _, _, x in moved],
            [x["exp_avg_sq"] for _, _, x in moved],
            [],
            steps,
            lr=self.rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
        for p, gradient, _ in moved:
            if self._parts and p is self.weights[0]:
                gradient.zero_()  # the networks' gradients are views of it
            else:
                p.grad = None

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights and their running averages, where there are any."""
        for p, state in self._pairs():
            if "average" in state:
                now = p.clone()
                p.copy_(state["average"])
                state["average"].copy_(now)

    def load(self, found: dict[int, dict[str, Tensor]]) -> None:
        """What was saved of `state`; ValueError where it belongs to other weights."""
        if [*found] and len(found) != len(self.state):
            raise ValueError(f"{len(found)} tensors were saved, {len(self.state)} are trained")
        for number, (p, state) in enumerate(self._pairs()):
            for key, value in found.get(number, {}).items():
                if key != "step" and value.shape != p.shape:
                    raise ValueError(f"{key} of {tuple(value.shape)} for {tuple(p.shape)}")
                state[key] = value.to(p.device)

    def close(self) -> None:
        for p in self._parts:
            p.data, p.grad = p.data.clone(), None

    def _pairs(self) -> list[tuple[nn.Parameter, dict[str, Tensor]]]:
        return [*zip(self.weights, self.state, strict=True)]


def _fresh(p: Tensor) -> dict[str, Tensor]:
    moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    return {"step": torch.zeros((), device=p.device), **moments}


def _flat(parts: Sequence[nn.Parameter]) -> nn.Parameter:
    """One vector whose memory is that of all these weights, and its gradient likewise."""
    whole = nn.Parameter(torch.cat([p.detach().flatten() for p in parts]))
    whole.grad = torch.zeros_like(whole)
    sizes = [p.numel() for p in parts]
    for p, x, g in zip(
        parts, whole.data.split_with_sizes(sizes), whole.grad.split_with_sizes(sizes), strict=True
    ):
        p.data, p.grad = x.view_as(p), g.view_as(p)
    return whole
