"""One thread for every test process, and a small file of ratings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from idcf.data.interactions import Interactions
from idcf.testing.synthetic import checkerboard

torch.set_num_threads(1)


def write_csv(table: Interactions, path: Path) -> Path:
    """Write a table as a CSV file with a header and string ids."""
    header = "user_id,item_id" if table.implicit else "user_id,item_id,rating"
    lines = [header]
    for user, item, rating in zip(table.user, table.item, table.rating, strict=True):
        pair = f"{table.users.ids[user]},{table.items.ids[item]}"
        lines.append(pair if table.implicit else f"{pair},{rating:g}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def ratings_file(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a checkerboard, in which a third of the users has few rows."""

    def make(name: str = "ratings.csv", *, implicit: bool = False, seed: int = 0) -> Path:
        rng = np.random.default_rng(seed)
        table = checkerboard(
            60,
            80,
            rng,
            rows_per_light_user=16 if implicit else 9,
            rows_per_heavy_user=24,
            implicit=implicit,
        )
        return write_csv(table, tmp_path / name)

    return make
