"""Small worlds under the names of real data sets, so that the tables' own path runs on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from idcf.data.datasets.catalog import SOURCES, Dataset
from idcf.data.interactions import Interactions
from idcf.data.split import hold_out, last_n
from idcf.paper.run_plan import Run, runs_of
from idcf.paper.table_spec import find
from idcf.testing.synthetic import checkerboard

FAST = ["random", "item-mean", "popularity", "bias"]


def fast(table: str = "table4", dataset: str = "ml-100k", seeds: int = 2) -> list[Run]:
    """Runs that take no time."""
    return runs_of([find(table)], datasets=[dataset], models=FAST, seeds=seeds)


def copy(source: Path, place: Path) -> Path:
    """A folder of results that a test may spoil."""
    for path in source.rglob("*"):
        if path.is_file():
            (place / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (place / path.relative_to(source)).write_bytes(path.read_bytes())
    return place


def small(name: str) -> Dataset:
    """Of the same kind as the data set of this name, with features, and split as it is."""
    source, rng = SOURCES[name], np.random.default_rng(0)
    few, many = (26, 70) if source.implicit else (14, 42)
    table = checkerboard(48, 90, rng, few=few, many=many, implicit=source.implicit)
    features = {
        side: rng.integers(0, 2, (n, 3)).astype(np.float32)
        for side, n in (("user_features", 48), ("item_features", 90))
    }
    table = replace(table, **features)  # type: ignore[arg-type]
    train, test = _official(table, rng) if source.counts[0].train else (None, None)
    return Dataset(name, table, train, test, {}, source.threshold)


def _official(table: Interactions, rng: np.random.Generator) -> tuple[Interactions, Interactions]:
    return last_n(table, 8) if table.implicit else hold_out(table, 0.1, rng)
