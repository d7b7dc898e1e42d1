"""One thread for every test process, no time limits of Hypothesis, and a small file of ratings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders import board, write_csv
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("idcf", deadline=None)  # a busy machine is not a failure
settings.load_profile("idcf")


@pytest.fixture
def ratings_file(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a checkerboard, in which a third of the users has few rows."""

    def make(name: str = "ratings.csv", *, implicit: bool = False, seed: int = 0) -> Path:
        table = board(60, 80, 16 if implicit else 9, 24, implicit=implicit, seed=seed)
        return write_csv(table, tmp_path / name)

    return make
