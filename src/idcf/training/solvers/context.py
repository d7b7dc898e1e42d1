"""What every solver is given beside its options and its table."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Work(NamedTuple):
    seed: int = 0
    device: torch.device = torch.device("cpu")
    progress: str | None = None  # the name on the bar; None: no bar
    known: bool = False  # will people be asked about whose rows are in the table?
