"""Solvers: functions (config, table, context) -> model, for models not trained by gradient.

`ModelEntry.solver` names the solver of a model; `idcf.training.train` calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from idcf.data.interactions import Ints
from idcf.training.array_store import ArrayStore


@dataclass(frozen=True)
class SolverContext:
    """The arguments that every solver takes besides the model's config and the table."""

    seed: int = 0
    device: torch.device = field(default=torch.device("cpu"))  # of the fitted model
    progress_label: str | None = None  # label of the progress bar; None: no bar
    query_users_in_table: bool = False  # the table holds rows of the users to be scored
    new_user_lengths: Ints | None = None  # numbers of rows of users who are not trained on
    table_rows: int = 0  # of the key users that the table is a sample of; 0: the table is all
    store: ArrayStore | None = None  # for steps, from which an interrupted fit goes on
    details: dict[str, Any] = field(default_factory=dict)  # what the solver chose, for the manifest
