"""Small datasets under the names of the real ones, on which the tables' code runs unchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from idcf.data.datasets.catalog import DATASET_SOURCES, Dataset
from idcf.data.datasets.cold_start import support_tasks
from idcf.data.interactions import Interactions
from idcf.data.split import hold_out_last_rows, hold_out_rows
from idcf.paper import results_store
from idcf.paper.results_store import PairedDifference, StoredRow
from idcf.paper.run_plan import Run, plan_runs
from idcf.paper.table_spec import find_table
from idcf.testing.synthetic import checkerboard

FAST_MODELS = ["random", "item-mean", "popularity", "bias"]


def fast_runs(table: str = "table4", dataset: str = "ml-100k", n_seeds: int = 2) -> list[Run]:
    """Return the runs of a table that take no time."""
    return plan_runs([find_table(table)], datasets=[dataset], models=FAST_MODELS, n_seeds=n_seeds)


def copy_results(source: Path, target: Path) -> Path:
    """Copy a folder of results, so that a test may change it."""
    for path in source.rglob("*"):
        if path.is_file():
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())
    return target


def make_outdated(results: Path, run: Run) -> None:
    """Change the stored results of a run, as if it had been made with other settings."""
    rows = [
        replace(row, options="old") if row.run_key() == run.key() else row
        for row in results_store.latest_rows(results, run.dataset)
    ]
    results_store.rewrite_lines(results, StoredRow, run.dataset, rows)
    differences = [
        replace(line, options="old/old") if run.key()[:-1] in line.run_keys() else line
        for line in results_store.read_lines(results, PairedDifference, run.dataset).values()
    ]
    results_store.rewrite_lines(results, PairedDifference, run.dataset, differences)


def small_dataset(name: str) -> Dataset:
    """Return synthetic data with the feedback, features and split of the dataset of this name."""
    source, rng = DATASET_SOURCES[name], np.random.default_rng(0)
    n_light, n_heavy = (26, 70) if source.implicit else (14, 42)
    table = checkerboard(
        48,
        90,
        rng,
        rows_per_light_user=n_light,
        rows_per_heavy_user=n_heavy,
        implicit=source.implicit,
    )
    features = {
        side: rng.integers(0, 2, (n, 3)).astype(np.float32)
        for side, n in (("user_features", 48), ("item_features", 90))
    }
    table = replace(table, **features)  # type: ignore[arg-type]
    if name == "ml-1m-cold":  # a third of the users has no training row
        is_cold = table.user % 3 == 0
        train, test = table.where(~is_cold), table.where(is_cold)
        return Dataset(
            name, table, train, test, {}, source.key_threshold, tasks=support_tasks(test)
        )
    has_split = source.expected_counts[0].train
    train, test = _official_split(table, rng) if has_split else (None, None)
    return Dataset(name, table, train, test, {}, source.key_threshold)


def _official_split(
    table: Interactions, rng: np.random.Generator
) -> tuple[Interactions, Interactions]:
    return hold_out_last_rows(table, 8) if table.implicit else hold_out_rows(table, 0.1, rng)
