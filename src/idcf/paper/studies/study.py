"""A study: a list of points, each of which is measured by itself and gives rows of JSON.

This module neither runs studies (`figure_runs`) nor draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from idcf.data.datasets.catalog import DATASET_SOURCES, Dataset
from idcf.errors import DataError
from idcf.paper.run_plan import settings_fingerprint
from idcf.training.job import Runtime

FigureRow = dict[str, Any]  # one line of experiments/results/figures/<study>.jsonl
Point = Mapping[str, Any]  # what identifies a measurement: JSON scalars, "dataset" among them
Measure = Callable[[Point, Dataset | None, Runtime], list[FigureRow]]
SYNTHETIC = "synthetic"  # the dataset of studies that make their data


@dataclass(frozen=True)
class Study:
    """The points of a study and how one of them is measured.

    Attributes
    ----------
    name
        The stem of its file of rows.
    datasets
        The datasets that it is made on by default; others can be chosen.
    points
        A function of a dataset's name and the number of seeds that returns the points.
    measure
        A function (point, dataset, runtime) -> rows. It is a function of a module, so that it can
        run in another process. The dataset is None for `SYNTHETIC`.
    measures_time
        The points are measured one after another, with nothing else running.
    """

    name: str
    datasets: tuple[str, ...]
    points: Callable[[str, int], Sequence[Point]]
    measure: Measure
    measures_time: bool = False


def settings_of(point: Point) -> str:
    """Return the fingerprint of the settings of a point's model; "none" if it names no preset, or
    the dataset is not a public one."""
    if "preset" not in point or point["dataset"] not in DATASET_SOURCES:
        return "none"
    return settings_fingerprint(point["model"], point["preset"], point["dataset"], point["users"])


def has_point(row: FigureRow, point: Point) -> bool:
    """Return whether a row was measured at a point."""
    return all(row.get(key) == value for key, value in point.items())


def point_label(point: Point) -> str:
    """Return a one-line description of a point: "ml-1m, share=0.5, model=gcmc, seed=0"."""
    rest = [f"{key}={value}" for key, value in point.items() if key != "dataset"]
    return ", ".join([str(point["dataset"]), *rest])


def select(rows: Iterable[FigureRow], **values: Any) -> list[FigureRow]:
    """Return the rows that have these values."""
    return [row for row in rows if has_point(row, values)]


def require_dataset(dataset: Dataset | None, point: Point) -> Dataset:
    """Return the dataset of a point; raise DataError if the study was given none."""
    if dataset is None:
        raise DataError(f"the point {point_label(point)!r} needs a dataset, and none was loaded")
    return dataset
