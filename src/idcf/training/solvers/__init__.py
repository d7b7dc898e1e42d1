"""Solvers: functions (config, table, context) -> model, for models not trained by gradient.

`ModelEntry.solver` names the solver of a model; `idcf.training.train` calls it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class SolverContext(NamedTuple):
    """The arguments that every solver takes besides the model's config and the table."""

    seed: int = 0
    device: torch.device = torch.device("cpu")  # of the fitted model
    progress_label: str | None = None  # label of the progress bar; None: no bar
    query_users_in_table: bool = False  # the table holds rows of the users to be scored
