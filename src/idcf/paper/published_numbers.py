"""The paper's numbers as a reference for the tables of `idcf evaluate`, the demo and its
figures."""

from __future__ import annotations

from functools import cache

from idcf.evaluation.tables import CellKey, ReferenceNumbers
from idcf.paper.table_spec import load_tables

_PAPER_SPLITS = {  # dataset -> how the name of the paper's split begins, and its δ
    "douban": ("official", 30),
    "ml-100k": ("u1", 30),
    "ml-1m": ("random-10%", 30),
    "amazon-beauty": ("random-10-per-user", 20),
}  # Amazon-Books is not listed: our copy has a quarter of the paper's users, on another split


def is_paper_split(dataset: str, split: str) -> bool:
    """Return whether a split is the paper's split of the dataset, or a random draw like it."""
    start, delta = _PAPER_SPLITS.get(dataset, ("", 0))
    return bool(start) and split.startswith(start) and split.endswith(f"delta={delta}")


@cache
def paper_numbers() -> ReferenceNumbers:
    """Return the numbers that the paper prints for its standard splits."""
    blocks = [block for spec in load_tables().values() for block in spec.paper if not block.split]
    numbers = {
        CellKey(block.dataset, users, metric, model): value
        for block in blocks
        for users, metric, model, value in block.cells()
    }
    return ReferenceNumbers(numbers, is_paper_split)
