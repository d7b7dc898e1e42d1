"""Run what a table still lacks, and keep every result the moment it is there.

Stop it at any time: the same command goes on where it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from idcf import __version__
from idcf.data.datasets.catalog import Dataset
from idcf.errors import DataError
from idcf.evaluation import parallel
from idcf.evaluation.measure import Exam
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.evaluation.results import Row
from idcf.evaluation.run import Examined, examine, exams_of
from idcf.models.registry import all_models, model_entry
from idcf.paper import paired_differences, results_store
from idcf.paper.results_store import Failure, Record
from idcf.paper.run_plan import Run, done, runs_of
from idcf.paper.table_spec import load_all
from idcf.training.distributed import LOCAL, Runtime
from idcf.training.train import Job

_GUESS = {"solved": 60.0, "descended": 300.0, "wrapped": 600.0}  # seconds, until it is known
Open = Callable[[str], Dataset]  # how a data set is come by


@dataclass(frozen=True)
class Outcome:
    """What a call did."""

    made: Sequence[Run]
    failed: Mapping[str, str]  # run -> why
    left: int  # runs that were asked for and are not done


def missing(runs: Iterable[Run], results: Path, *, longest_first: bool = False) -> list[Run]:
    """Those of the runs that are not in the files."""
    runs, rows = list(runs), _by_run(runs, results)
    lacking = [run for run in runs if not done(run, rows.get(run.key(), []))]
    if not longest_first:
        return lacking
    seconds = {key: of[0].seconds for key, of in rows.items()}
    return sorted(lacking, key=lambda run: -_expected(run, seconds))


def reproduce(
    runs: Sequence[Run],
    results: Path,
    *,
    runtime: Runtime = LOCAL,
    jobs: int = 1,
    progress: bool = False,
    opened: Open | None = None,
) -> Outcome:
    """Make these runs. One that fails is put down with its reason, and the others go on."""
    tasks = _tasks(runs, runtime, progress and jobs == 1, opened or open_dataset)
    by_name = {str(run): run for run in runs}
    made: list[Run] = []
    failed: dict[str, str] = {}
    for name, found in parallel.finished(examine, tasks, jobs=jobs, progress=progress):
        run = by_name[name]
        if isinstance(found, Exception):
            failed[name] = f"{type(found).__name__}: {found}".splitlines()[0]
            _say(f"failed: {name}: {failed[name]}")
            results_store.append(
                results, run.dataset, [Failure(**run.plain(), reason=failed[name])]
            )
        else:
            _keep(run, found, results, runtime)
            made.append(run)
    for dataset in dict.fromkeys(run.dataset for run in runs):
        settle(results, dataset)
    return Outcome(made, failed, len(runs) - len(made))


def merge(source: Path, results: Path) -> tuple[int, int]:
    """Take in the rows of another folder: how many are new, and how many runs were left there.

    These are the ones that were made under settings of the past and are done here under those of
    today: a folder that began as a copy of this one has them.
    """
    results_store.require(source)
    runs = runs_of(load_all().values())
    here, there = _by_run(runs, results), _by_run(runs, source)
    past = {
        run.key()
        for run in runs
        if run.key() in there
        and not done(run, there[run.key()])
        and done(run, here.get(run.key(), []))
    }
    fresh = results_store.merge(source, results, past)
    for name in sorted({run.dataset for run in runs}):
        settle(results, name)
    return fresh, len(past)


def settle(results: Path, dataset: str) -> None:
    """What follows from the rows: no failures of what is done, no rows twice, differences."""
    rows = results_store.records(results, dataset)
    results_store.rewrite(results, Record, dataset, rows)
    there = {r.run() for r in rows}
    failures = results_store.read(results, Failure, dataset).values()
    results_store.rewrite(results, Failure, dataset, [f for f in failures if f.key() not in there])
    paired_differences.update(results, dataset)


def _tasks(
    runs: Sequence[Run], runtime: Runtime, progress: bool, opened: Open
) -> dict[str, tuple[Any, ...]]:
    """What `examine` is called with, in the order of the runs; splits and examinations are made
    once and shared."""
    found: dict[str, tuple[Any, ...]] = {}
    splits: dict[Any, Any] = {}
    exams: dict[Any, Exam] = {}
    for name in dict.fromkeys(run.dataset for run in runs):
        data = opened(name)
        for run in (r for r in runs if r.dataset == name):
            place = (name, run.cut)
            if place not in splits:
                cut = asdict(run.cut)
                splits[place], how = standard_split(data, **cut)
                _same(how, run)
            split = splits[place]
            for group in run.groups():
                if (place, group) not in exams:
                    exams[place, group] = exams_of(split, [group])[group]
            stamp = Row(name, run.split, run.model, run.preset, "", "", 0, 0, 0, 0, 0, run.seed, 0)
            job = Job(split, run.users, run.preset, name, run.seed, runtime, progress=progress)
            asked = {group: exams[place, group] for group in run.groups()}
            found[str(run)] = (stamp, job, dict(run.options), asked, False, run.lists())
    return {str(run): found[str(run)] for run in runs}


def _same(how: str, run: Run) -> None:
    if how != run.split:
        raise DataError(
            f"{run.dataset} gives the split {how!r} where the table wants {run.split!r}: the "
            "files are of another edition; see `idcf data describe`"
        )


def _keep(run: Run, found: Examined, results: Path, runtime: Runtime) -> None:
    """First what each user adds, then the rows: rows say that a run is done."""
    wanted = {
        m for spec in load_all().values() if run.dataset in spec.datasets for m in spec.metrics
    }
    more: dict[str, Any] = {
        "of": len(found.rows),
        "options": run.fingerprint(),
        "version": __version__,
        "device": device_name(runtime.device),
    }
    lines = [Record(**asdict(row), **more) for row in found.rows]
    for group in run.groups():
        each = {m: of for (g, m), of in found.each.items() if g == group and m in wanted}
        if each and run.model != "random":
            results_store.save_each(results, lines[0], group, each)
    results_store.append(results, run.dataset, lines)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _by_run(runs: Iterable[Run], results: Path) -> dict[tuple[Any, ...], list[Record]]:
    found: dict[tuple[Any, ...], list[Record]] = {}
    for dataset in dict.fromkeys(run.dataset for run in runs):
        for r in results_store.records(results, dataset):
            found.setdefault(r.run(), []).append(r)
    return found


def _expected(run: Run, seconds: Mapping[tuple[Any, ...], float]) -> float:
    """How long it took on another split or with another seed; a guess where nobody knows."""
    alike = [
        s
        for (dataset, _, model, preset, *_), s in seconds.items()
        if (dataset, model, preset) == (run.dataset, run.model, run.preset)
    ]
    if alike or run.model not in all_models():
        return max(alike, default=0.0)
    found = model_entry(run.model)
    kind = "solved" if found.solver else "wrapped" if found.backbone else "descended"
    return _GUESS[kind]


def _say(text: str) -> None:
    print(text, file=sys.stderr)
