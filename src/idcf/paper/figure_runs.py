"""Measure the points that the paper's figures lack, and store their rows.

The rows of a study are `figures/<study>.jsonl` in the folder of results. A point that is measured
again replaces its rows, and rows are on disk as soon as their point is measured.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from idcf import __version__
from idcf.data.datasets.catalog import Dataset
from idcf.errors import DataError
from idcf.evaluation import parallel
from idcf.evaluation.protocol import open_dataset
from idcf.files import write_text
from idcf.paper.studies.study import (
    SYNTHETIC,
    FigureRow,
    Point,
    Study,
    has_point,
    point_label,
    settings_of,
)
from idcf.training.job import LOCAL_RUNTIME, Runtime

FOLDER = "figures"  # in the folder of results
DatasetLoader = Callable[[str], Dataset]


@dataclass(frozen=True)
class StudyOutcome:
    """The points that a call of `measure_points` measured, and those that failed."""

    completed: Sequence[str]  # labels of points
    failed: Mapping[str, str]  # label -> the error


def rows_path(results: Path, study: Study) -> Path:
    """Return the path of a study's file of rows."""
    return results / FOLDER / f"{study.name}.jsonl"


def read_rows(results: Path, study: Study) -> list[FigureRow]:
    """Read the rows of a study; none without a file. DataError names an invalid line."""
    path = rows_path(results, study)
    rows: list[FigureRow] = []
    if not path.exists():
        return rows
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(json.loads(text))
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: {error}; fix or delete the line") from None
    return rows


def plan_points(
    study: Study,
    *,
    datasets: Collection[str] = (),
    models: Collection[str] = (),
    presets: Collection[str] = (),
    n_seeds: int | None = None,
) -> list[Point]:
    """List the points of a study on its default datasets, or on others. Empty collections keep
    every model and preset."""
    chosen = study.datasets if not datasets or study.datasets == (SYNTHETIC,) else datasets
    return [
        point
        for dataset in chosen
        for point in study.points(dataset, n_seeds or 1)
        if (not models or point.get("model") in models)
        and (not presets or point.get("preset") in presets)
    ]


def missing_points(study: Study, points: Iterable[Point], results: Path) -> list[Point]:
    """Return the points without stored rows of their present settings."""
    rows = read_rows(results, study)
    return [
        point
        for point in points
        if not any(has_point(row, point) and row["settings"] == settings_of(point) for row in rows)
    ]


def measure_points(
    study: Study,
    points: Sequence[Point],
    results: Path,
    *,
    runtime: Runtime = LOCAL_RUNTIME,
    n_jobs: int = 1,
    progress: bool = False,
    load_dataset: DatasetLoader | None = None,
) -> StudyOutcome:
    """Measure points and store their rows; the others go on if one fails. `n_jobs` are measured at
    a time, unless the study measures time. `load_dataset` is `protocol.open_dataset` by default."""
    load = load_dataset or open_quietly
    points_by_label = {point_label(point): point for point in points}
    tasks = {label: (study, point, load, runtime) for label, point in points_by_label.items()}
    completed: list[str] = []
    failed: dict[str, str] = {}
    for label, outcome in parallel.run_as_completed(
        measure_point, tasks, n_jobs=1 if study.measures_time else n_jobs, progress=progress
    ):
        if isinstance(outcome, Exception):
            failed[label] = f"{type(outcome).__name__}: {outcome}".splitlines()[0]
            print(f"failed: {study.name}, {label}: {failed[label]}", file=sys.stderr)
        else:
            store_rows(results, study, points_by_label[label], outcome)
            completed.append(label)
    return StudyOutcome(completed, failed)


def measure_point(
    study: Study, point: Point, load_dataset: DatasetLoader, runtime: Runtime
) -> list[FigureRow]:
    """Return the rows of one point, with what is needed to read them."""
    name = point["dataset"]
    dataset = None if name == SYNTHETIC else load_dataset(name)
    began, device = time.perf_counter(), runtime.device
    rows = study.measure(point, dataset, runtime)
    common: dict[str, Any] = {
        "settings": settings_of(point),
        "version": __version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "total_seconds": round(time.perf_counter() - began, 1),
    }
    return [{**point, **row, **common} for row in rows]


def store_rows(results: Path, study: Study, point: Point, rows: Sequence[FigureRow]) -> None:
    """Replace the rows of a point in the file of its study, atomically."""
    others = [row for row in read_rows(results, study) if not has_point(row, point)]
    _write_rows(rows_path(results, study), [*others, *rows])


def merge_rows(study: Study, source: Path, results: Path) -> int:
    """Copy the points of another folder of results over equal ones; return how many rows are
    new."""
    rows, added = read_rows(results, study), read_rows(source, study)
    points = [
        point
        for dataset in dict.fromkeys(row["dataset"] for row in added)
        for point in study.points(dataset, 1 + max(row.get("seed", 0) for row in added))
    ]
    n_new = 0
    for point in points:
        new = [row for row in added if has_point(row, point)]
        if new and new != [row for row in rows if has_point(row, point)]:
            store_rows(results, study, point, new)
            n_new += len(new)
    return n_new


@cache
def open_quietly(name: str) -> Dataset:
    """Open a dataset once per process, without a progress bar."""
    return open_dataset(name, progress=False)


def _write_rows(path: Path, rows: Iterable[FigureRow]) -> None:
    """Write a file of rows, with floats rounded to six digits, far below their noise."""
    write_text(path, "".join(json.dumps(_rounded(row)) + "\n" for row in rows))


def _rounded(value: Any) -> Any:
    """Return a JSON value with its floats rounded to six significant digits."""
    if isinstance(value, dict):
        return {key: _rounded(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_rounded(x) for x in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
