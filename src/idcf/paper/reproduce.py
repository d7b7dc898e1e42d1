"""Make the training runs that the paper's tables lack, and store their results.

Each result is stored as soon as its run ends, and a run under way writes checkpoints: after an
interruption, however hard, the same call goes on from the last ones.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from idcf import __version__
from idcf.data.datasets.catalog import Dataset
from idcf.data.split import Split
from idcf.errors import DataError
from idcf.evaluation import parallel
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.measure import default_metric_names
from idcf.evaluation.protocol import SplitRule, open_dataset, standard_split
from idcf.evaluation.results import RunKey
from idcf.evaluation.run import (
    OWN_SCORES,
    RunResult,
    make_evaluation_sets,
    train_and_evaluate,
)
from idcf.models.registry import all_models, model_entry
from idcf.paper import paired_differences, results_store, split_comparisons
from idcf.paper.results_store import RunFailure, StoredRow
from idcf.paper.run_plan import Run, is_done, plan_runs
from idcf.paper.table_spec import TableSpec, load_tables, table_metrics
from idcf.training.job import LOCAL_RUNTIME, Runtime
from idcf.training.train import TrainingJob

DatasetLoader = Callable[[str], Dataset]
CHECKPOINT_SECONDS = 15.0  # at most so much of a run is lost, and the epoch under way


@dataclass(frozen=True)
class ReproduceOutcome:
    """The runs that a call of `reproduce` completed, and those that it did not."""

    completed: Sequence[Run]  # with stored results
    failed: Mapping[str, str]  # `str(run)` -> the error
    n_remaining: int  # runs that were given and are not completed


class TableProgress(NamedTuple):
    """How many runs of a table are done, and which are missing."""

    name: str
    n_runs: int
    n_done: int
    missing: Sequence[str]  # the runs, with the reason why they were not made, if there is one

    def lines(self) -> list[str]:
        """Return a line for the table and one for each missing run."""
        total = f"{self.name}: {self.n_done} of {self.n_runs} runs done"
        return [total, *(f"  missing: {run}" for run in self.missing)]


def describe_progress(
    tables: Iterable[TableSpec], runs: Collection[Run], missing: Collection[Run]
) -> list[TableProgress]:
    """Return the progress of each table among the given runs; tables without such runs are left
    out, and a run that serves several tables counts in each."""
    missing_keys = {run.key() for run in missing}
    state = []
    for table in tables:
        of_table = [run for run in runs if run.serves(table)]
        if not of_table:
            continue
        descriptions = []
        for run in (x for x in of_table if x.key() in missing_keys):
            reason = table.not_run_reason(run.dataset, run.model, run.preset)
            descriptions.append(f"{run}{f' ({reason})' if reason else ''}")
        n_done = len(of_table) - len(descriptions)
        state.append(TableProgress(table.name, len(of_table), n_done, descriptions))
    return state


def missing_runs(runs: Iterable[Run], results: Path, *, longest_first: bool = False) -> list[Run]:
    """Return the runs without a stored result of their present settings, in the order of `runs`.
    `longest_first` sorts them by expected duration instead, which packs parallel workers best."""
    runs = list(runs)
    rows_by_run = _rows_by_run(runs, results)
    missing = [run for run in runs if not is_done(run, rows_by_run.get(run.key(), []))]
    if not longest_first:
        return missing
    seconds_by_run = {key: rows[0].seconds for key, rows in rows_by_run.items()}
    return sorted(missing, key=lambda run: -_expected_seconds(run, seconds_by_run))


def reproduce(
    runs: Sequence[Run],
    results: Path,
    *,
    runtime: Runtime = LOCAL_RUNTIME,
    n_jobs: int = 1,
    progress: bool = False,
    load_dataset: DatasetLoader | None = None,
) -> ReproduceOutcome:
    """Make runs and store their results; a failed run is recorded and the others go on. `n_jobs`
    runs are made at a time, each in its own process. `load_dataset` returns a dataset by its name;
    by default it is `protocol.open_dataset`."""
    tasks = _evaluation_tasks(
        runs, results, runtime, progress and n_jobs == 1, load_dataset or open_dataset
    )
    runs_by_name = {str(run): run for run in runs}
    completed: list[Run] = []
    failed: dict[str, str] = {}
    for name, outcome in parallel.run_as_completed(
        train_and_evaluate, tasks, n_jobs=n_jobs, progress=progress
    ):
        run = runs_by_name[name]
        if isinstance(outcome, Exception):
            failed[name] = f"{type(outcome).__name__}: {outcome}".splitlines()[0]
            print(f"failed: {name}: {failed[name]}", file=sys.stderr)
            failure = RunFailure(*run.key(), failed[name])
            results_store.append_lines(results, run.dataset, [failure])
        else:
            _store_run(run, outcome, results, runtime)
            shutil.rmtree(_checkpoint_folder(run, results), ignore_errors=True)
            completed.append(run)
    for dataset in dict.fromkeys(run.dataset for run in runs):
        compact_results(results, dataset)
    return ReproduceOutcome(completed, failed, len(runs) - len(completed))


def merge_results(source: Path, results: Path) -> tuple[int, int]:
    """Copy another folder's results over those of equal key, then compact; return the numbers of
    new or changed lines and of skipped runs: outdated in `source`, current in `results`."""
    runs = plan_runs(load_tables().values())
    rows_by_run = _rows_by_run(runs, results)
    source_rows_by_run = _rows_by_run(runs, source)
    outdated = {
        run.key()
        for run in runs
        if run.key() in source_rows_by_run
        and not is_done(run, source_rows_by_run[run.key()])
        and is_done(run, rows_by_run.get(run.key(), []))
    }
    n_new = results_store.merge_lines(source, results, outdated)
    for dataset in sorted({run.dataset for run in runs}):
        compact_results(results, dataset)
    return n_new, len(outdated)


def compact_results(results: Path, dataset: str) -> None:
    """Drop replaced rows and the failures of completed runs, and update the differences."""
    rows = results_store.latest_rows(results, dataset)
    results_store.rewrite_lines(results, StoredRow, dataset, rows)
    completed = {row.run_key() for row in rows}
    failures = results_store.read_lines(results, RunFailure, dataset).values()
    results_store.rewrite_lines(
        results, RunFailure, dataset, [f for f in failures if f.key() not in completed]
    )
    paired_differences.update_differences(results, dataset)
    split_comparisons.update_differences(results, dataset)


def _evaluation_tasks(
    runs: Sequence[Run],
    results: Path,
    runtime: Runtime,
    progress: bool,
    load_dataset: DatasetLoader,
) -> dict[str, tuple[Any, ...]]:
    """Return run name -> the arguments of `train_and_evaluate`, in the order of the runs. Runs of
    one split share the split and its evaluation sets."""
    datasets = {name: load_dataset(name) for name in dict.fromkeys(run.dataset for run in runs)}

    @cache
    def split_for(name: str, rule: SplitRule) -> tuple[Split, str]:
        return standard_split(datasets[name], **asdict(rule))

    @cache
    def evaluation_set(name: str, rule: SplitRule, group: str) -> EvaluationSet:
        return make_evaluation_sets(split_for(name, rule)[0], [group])[group]

    tasks: dict[str, tuple[Any, ...]] = {}
    for run in runs:
        name, rule = run.dataset, run.split_rule
        split, split_name = split_for(name, rule)
        if split_name != run.split:
            raise DataError(
                f"{name} gives the split {split_name!r} where the table needs {run.split!r}: the "
                "files are of another edition; see `idcf data describe`"
            )
        run_key = RunKey(name, run.split, run.model, run.preset, run.seed)
        job = TrainingJob(
            split,
            run.users,
            run.preset,
            name,
            run.seed,
            runtime,
            folder=_checkpoint_folder(run, results),
            checkpoint_seconds=CHECKPOINT_SECONDS,
            progress=progress,
        )
        run_sets = {group: evaluation_set(name, rule, group) for group in run.groups()}
        options: dict[str, Any] = {}  # the preset decides all
        # the tables compare what each model predicts: lists go by its scores alone (quality 1)
        measurement = OWN_SCORES._replace(
            names=_measured_metrics(split), rank_catalog=run.ranks_catalog()
        )
        tasks[str(run)] = (run_key, job, options, run_sets, False, measurement)
    return tasks


def _checkpoint_folder(run: Run, results: Path) -> Path:
    """Return the folder with the checkpoints of a run in its present settings."""
    name = re.sub(r"[^\w.-]+", "-", f"{run} {run.fingerprint()}")
    return results / ".checkpoints" / name


def _measured_metrics(split: Split) -> tuple[str, ...]:
    """Return the metrics of a run: the defaults, and both gains of NDCG where there are ratings."""
    implicit = split.train.implicit
    names = default_metric_names(implicit, split.protocol)
    return names if implicit else (*names, "ndcg-linear")


def _store_run(run: Run, run_result: RunResult, results: Path, runtime: Runtime) -> None:
    """Store per-user values, then the rows: a run counts as done once its rows are stored."""
    device = runtime.device
    description: dict[str, Any] = {
        "of": len(run_result.rows),
        "options": run.fingerprint(),
        "version": __version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    rows = [StoredRow(**asdict(row), **description) for row in run_result.rows]
    metrics = table_metrics(run.dataset)
    for group in run.groups():
        per_user = {
            metric: values
            for (measured_group, metric), values in run_result.per_user.items()
            if measured_group == group and metric in metrics
        }
        if per_user and run.model != "random":
            results_store.save_per_user(results, rows[0], group, per_user)
    results_store.append_lines(results, run.dataset, rows)


def _rows_by_run(runs: Iterable[Run], results: Path) -> dict[tuple[Any, ...], list[StoredRow]]:
    """Return run key -> its stored rows, for the datasets of some runs."""
    rows_by_run: dict[tuple[Any, ...], list[StoredRow]] = {}
    for dataset in {run.dataset for run in runs}:
        for row in results_store.latest_rows(results, dataset):
            rows_by_run.setdefault(row.run_key(), []).append(row)
    return rows_by_run


def _expected_seconds(run: Run, seconds_by_run: Mapping[tuple[Any, ...], float]) -> float:
    """Return the longest recorded time of a run's model and preset on its dataset; else a guess by
    how the model is fitted, or 0 if it is not registered."""
    timed = [
        seconds
        for (dataset, _, model, preset, *_), seconds in seconds_by_run.items()
        if (dataset, model, preset) == (run.dataset, run.model, run.preset)
    ]
    if timed or run.model not in all_models():
        return max(timed, default=0.0)
    entry = model_entry(run.model)
    return 60.0 if entry.solver else 600.0 if entry.backbone else 300.0
