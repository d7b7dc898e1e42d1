"""Adam over a model's trained weights, and their running average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from idcf.models.base import Model
from idcf.models.layers.embedding import EmbeddingTable
from idcf.training.job import Runtime

if TYPE_CHECKING:
    from idcf.training.options import TrainConfig

WeightState = dict[str, Tensor]


class Optimizer:
    """Adam with one weight decay for networks and another for embedding tables.

    With `coupled_decay`, that share of a weight is added to its gradient (Adam). Without,
    `weight_decay` shrinks the weights of networks after the step (AdamW), and tables are
    regularized by the objective's penalty only.
    """

    def __init__(self, model: Model, config: TrainConfig) -> None:
        in_tables = {
            id(p)
            for part in model.modules()
            if isinstance(part, EmbeddingTable)
            for p in part.parameters()
        }
        trained = [p for p in model.parameters() if p.requires_grad]
        networks = [p for p in trained if id(p) not in in_tables]
        tables = [p for p in trained if id(p) in in_tables]
        coupled = config.coupled_decay
        groups: list[dict[str, Any]] = [
            {"params": networks, "weight_decay": coupled or config.weight_decay},
            {"params": tables, "weight_decay": coupled},
        ]
        kind = torch.optim.Adam if coupled else torch.optim.AdamW
        self.adam: torch.optim.Optimizer = kind(groups, lr=config.learning_rate, fused=True)
        self.weights: list[nn.Parameter] = [*networks, *tables]
        self.ema = config.ema
        self.averages: dict[int, Tensor] = {}  # by position in `weights`

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of every weight."""
        for group in self.adam.param_groups:
            group["lr"] = learning_rate

    @torch.no_grad()
    def step(self, runtime: Runtime, n_accumulated: int = 1) -> None:
        """Update the weights by the mean gradient of `n_accumulated` batches, then clear it."""
        runtime.sum_gradients(self.weights)
        if n_accumulated > 1:
            for p in self.weights:
                if p.grad is not None:
                    p.grad.div_(n_accumulated)
        self.adam.step()
        self.adam.zero_grad()
        if self.ema:
            for position, p in enumerate(self.weights):
                average = self.averages.setdefault(position, p.detach().clone())
                average.lerp_(p, 1 - self.ema)

    @torch.no_grad()
    def swap_averages(self) -> None:
        """Exchange the weights with their running averages, if there are any."""
        for position, average in self.averages.items():
            p = self.weights[position]
            current = p.clone()
            p.copy_(average)
            average.copy_(current)

    def state(self) -> dict[int, WeightState]:
        """Return the tensors that a checkpoint holds, by position of the weight."""
        tensors: dict[int, WeightState] = {}
        for position, p in enumerate(self.weights):
            tensors[position] = {**self.adam.state[p]}
            if position in self.averages:
                tensors[position]["average"] = self.averages[position]
        return tensors

    def load_state(self, tensors: Mapping[int, WeightState]) -> None:
        """Restore tensors that `state` returned; raise ValueError if other weights had them."""
        if tensors and len(tensors) != len(self.weights):
            raise ValueError(
                f"{len(tensors)} weights were saved, the model trains {len(self.weights)}"
            )
        for position, p in enumerate(self.weights):
            state = dict(tensors.get(position, {}))
            for key, value in state.items():
                if key != "step" and value.shape != p.shape:
                    raise ValueError(
                        f"{key} has shape {tuple(value.shape)}, its weight has {tuple(p.shape)}"
                    )
                state[key] = value.to(p.device)
            if "average" in state:
                self.averages[position] = state.pop("average")
            if state:
                self.adam.state[p] = state
