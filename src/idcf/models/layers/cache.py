"""A cache of one value that is derived from a tensor, such as a weight or a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class TensorCache(Generic[T]):
    """One value, computed again when its source tensor was written to or moved.

    While gradients are recorded for the source nothing is cached, since a value then belongs to
    one backward pass. Fused optimizers write without raising a tensor's version: code that
    computes a value for a training step must call `clear`.
    """

    def __init__(self) -> None:
        self._state: tuple[int, int] | None = None
        self._value: T | None = None

    def get(self, source: Tensor, compute: Callable[[], T]) -> T:
        """Return the cached value, or `compute()` if `source` has changed since."""
        state = (source.data_ptr(), source._version)
        if torch.is_grad_enabled() and source.requires_grad:
            self.clear()
            return compute()
        if self._value is None or self._state != state:
            self._state, self._value = state, compute()
        return self._value

    def clear(self) -> None:
        """Forget the value."""
        self._state = self._value = None
