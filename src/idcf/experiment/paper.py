"""What the paper published (Wu et al., ICML 2021), for printing beside our numbers.

The numbers are in `experiments/table*.toml`, and in no other place.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from idcf.experiment.spec import load_all

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
def numbers() -> Mapping[tuple[str, str, str, str], float]:
    """(dataset, users, metric, model) -> value, on the paper's usual split."""
    blocks = [block for spec in load_all().values() for block in spec.paper if not block.split]
    return {
        (block.dataset, users, metric, model): value
        for block in blocks
        for users, metric, model, value in block.cells()
    }


def published(dataset: str, users: str, metric: str, model: str) -> float | None:
    return numbers().get((dataset, users, metric, model))


def systems(dataset: str, users: str, metric: str) -> dict[str, float]:
    """Every system of the paper that has this number."""
    return {
        key[3]: value for key, value in numbers().items() if key[:3] == (dataset, users, metric)
    }
