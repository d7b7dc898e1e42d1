"""What was computed from weights, or from a graph, until they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Kept(Generic[T]):
    """One value, made again when the tensor it depends on was written to or moved.

    Where gradients are asked for nothing is kept: a value belongs to one backward pass. Fused
    optimisers write without a trace, so whoever computes for a training step calls `drop`.
    """

    def __init__(self) -> None:
        self._state: tuple[int, int] | None = None
        self._value: T | None = None

    def get(self, of: Tensor, make: Callable[[], T]) -> T:
        state = (of.data_ptr(), of._version)
        if torch.is_grad_enabled() and of.requires_grad:
            self.drop()
            return make()
        if self._value is None or self._state != state:
            self._state, self._value = state, make()
        return self._value

    def drop(self) -> None:
        self._state = self._value = None
