"""Differences between each system and the best simple baseline, paired over users."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from idcf.evaluation.results import LOWER_IS_BETTER, SIMPLE_BASELINES
from idcf.metrics import Interval, mean_of_seeds, paired_difference
from idcf.metrics.stats import Statistic
from idcf.paper import results_store
from idcf.paper.results_store import PairedDifference, StoredRow
from idcf.paper.table_spec import load_tables, table_metrics
from idcf.rng import random_stream

SIMPLE_SYSTEMS = (*SIMPLE_BASELINES, "demographic-ridge")
MAX_ROUNDING = 1e-5  # between a difference of rows and one of values per user, which are rounded
RowsBySystem = dict[tuple[str, str], list[StoredRow]]  # (model, preset) -> one row per seed


def rows_by_column(rows: Iterable[StoredRow]) -> dict[tuple[str, str, str], RowsBySystem]:
    """Group rows by (split, user group, metric), then by system."""
    columns: dict[tuple[str, str, str], RowsBySystem] = {}
    for row in rows:
        systems = columns.setdefault((row.split, row.users, row.metric), {})
        systems.setdefault((row.model, row.preset), []).append(row)
    return columns


def best_baseline(rows_by_system: RowsBySystem, metric: str) -> str | None:
    """Return the simple baseline with the best mean over seeds, or None if there is none. It is
    chosen on the test rows themselves, which favors it against other systems."""
    means = {
        model: fmean(row.value for row in rows)
        for (model, preset), rows in rows_by_system.items()
        if model in SIMPLE_SYSTEMS and preset == "clean"
    }
    best = min if metric in LOWER_IS_BETTER else max
    return best(means, key=lambda model: means[model], default=None)


def update_differences(results: Path, dataset: str) -> int:
    """Compute and store the differences of a dataset that are missing or outdated; return how many.
    A difference needs the per-user values of both runs. It replaces a current one only if it is
    computed from more seeds."""
    lines = results_store.read_lines(results, PairedDifference, dataset)
    metrics = table_metrics(dataset)
    splits = {
        name
        for table in load_tables().values()
        if dataset in table.datasets and not table.reference  # those are compared over all splits
        for name in table.split_names(dataset)
    }
    n_new = 0
    columns = rows_by_column(results_store.latest_rows(results, dataset))
    for (split, users, metric), systems in columns.items():
        is_shown = metric in metrics and split in splits
        baseline = best_baseline(systems, metric) if is_shown else None
        if baseline is None:
            continue
        baseline_rows = {row.seed: row for row in systems[baseline, "clean"]}
        for system, rows in systems.items():
            pairs = [(row, baseline_rows[row.seed]) for row in rows if row.seed in baseline_rows]
            if not pairs or system in ((baseline, "clean"), ("random", "clean")):
                continue
            stored = lines.get((dataset, split, *system, users, metric))
            if stored and not (stored.baseline == baseline and is_current(stored, systems)):
                stored = None
            if stored and stored.seeds == len(pairs):
                continue
            line = _paired_difference(results, pairs, baseline)
            if line and (stored is None or line.seeds > stored.seeds):
                lines[line.key()] = line
                n_new += 1
    results_store.rewrite_lines(
        results, PairedDifference, dataset, sorted(lines.values(), key=PairedDifference.key)
    )
    return n_new


def is_current(difference: PairedDifference, rows_by_system: RowsBySystem) -> bool:
    """Return whether a difference was computed from the runs that the tables now show. Runs of
    equal settings may have been made again by other code: then the values differ."""
    system = (difference.model, difference.preset)
    rows, baseline_rows = (
        {row.seed: row for row in rows_by_system.get(key, ())}
        for key in (system, (difference.baseline, "clean"))
    )
    pairs = [(row, baseline_rows[seed]) for seed, row in rows.items() if seed in baseline_rows]
    current = {f"{row.options}/{other.options}" for row, other in pairs}
    used = {*difference.options.split("+")}
    if difference.seeds != len(pairs):
        return used <= current
    value = fmean(row.value - other.value for row, other in pairs) if pairs else 0.0
    return used == current and abs(value - difference.difference) < MAX_ROUNDING


def _paired_difference(
    results: Path, row_pairs: list[tuple[StoredRow, StoredRow]], baseline: str
) -> PairedDifference | None:
    """Pair system and baseline within each seed, and average over the seeds that have per-user
    values; None if none has."""
    differences: list[Interval] = []
    fingerprints: set[str] = set()
    first = row_pairs[0][0]
    statistic: Statistic = "rmse" if first.metric == "rmse" else "mean-ratio"
    for row, baseline_row in row_pairs:
        values = results_store.load_per_user(results, row)
        baseline_values = results_store.load_per_user(results, baseline_row)
        if values is None or baseline_values is None:
            continue
        rng = random_stream(0, "bootstrap")
        differences.append(paired_difference(values, baseline_values, statistic=statistic, rng=rng))
        fingerprints.add(f"{row.options}/{baseline_row.options}")
    if not differences:
        return None
    column = (first.dataset, first.split, first.model, first.preset, first.users, first.metric)
    return PairedDifference(
        *column,
        baseline,
        *mean_of_seeds(differences),
        n_users=first.n_users,
        seeds=len(differences),
        options="+".join(sorted(fingerprints)),
    )
