"""One thread a process, and a small file of ratings that looks like a person's own."""

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
    """As people keep it: string ids, a header."""
    head = "user_id,item_id" if table.implicit else "user_id,item_id,rating"
    lines = [head]
    for user, item, rating in zip(table.user, table.item, table.rating, strict=True):
        known = f"{table.users.ids[user]},{table.items.ids[item]}"
        lines.append(known if table.implicit else f"{known},{rating:g}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def ratings_file(tmp_path: Path) -> Callable[..., Path]:
    """Checkerboard worlds: even users love even items; a third of the users has few rows."""

    def make(name: str = "mine.csv", *, implicit: bool = False, seed: int = 0) -> Path:
        rng = np.random.default_rng(seed)
        few, many = (16, 24) if implicit else (9, 24)
        table = checkerboard(60, 80, rng, few=few, many=many, implicit=implicit)
        return write_csv(table, tmp_path / name)

    return make
