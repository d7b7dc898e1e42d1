"""What every solver is given beside its options and its table."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from idcf.types import History


class Work(NamedTuple):
    seed: int = 0
    device: torch.device = torch.device("cpu")
    progress: str | None = None  # the name on the bar; None: no bar
    known: bool = False  # will people be asked about whose rows are in the table?


def turn(users: History, n_items: int) -> tuple[History, Tensor]:
    """The same entries grouped by item, and where each of them stood."""
    order = torch.argsort(users.items, stable=True)
    offsets = torch.zeros(n_items + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(users.items, minlength=n_items), 0, out=offsets[1:])
    return History(users.owner()[order], users.values[order], offsets), order
