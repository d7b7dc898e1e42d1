"""What the paper published (Wu et al., ICML 2021), for printing beside our numbers.

The numbers are in `idcf/paper/tables/*.toml`, and in no other place.
"""

from __future__ import annotations

from functools import cache

from idcf.evaluation.tables import Cell, Reference
from idcf.paper.table_spec import load_all

_SPLITS = {  # how our name of the paper's split begins, and its δ
    "douban": ("official", 30),
    "ml-100k": ("u1", 30),
    "ml-1m": ("random-10%", 30),
    "amazon-beauty": ("random-10-per-user", 20),
}  # not Amazon-Books: our copy is a quarter of its users on another split


def same_split(dataset: str, split: str) -> bool:
    """Was this measured on the paper's split, or on a draw of the same kind?"""
    start, delta = _SPLITS.get(dataset, ("", 0))
    return bool(start) and split.startswith(start) and split.endswith(f"delta={delta}")


@cache
def paper_numbers() -> Reference:
    """Return the paper's numbers, on its usual splits, to print beside ours."""
    blocks = [block for spec in load_all().values() for block in spec.paper if not block.split]
    numbers = {
        Cell(block.dataset, users, metric, model): value
        for block in blocks
        for users, metric, model, value in block.cells()
    }
    return Reference(numbers, same_split)
