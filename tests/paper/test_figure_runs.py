"""Points of studies: which are missing, how they are measured and stored, and what fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from idcf.errors import ConfigError, DataError
from idcf.paper import figure_runs
from idcf.paper.figure_catalog import FIGURES, find_figure
from idcf.paper.figure_runs import (
    measure_points,
    merge_rows,
    missing_points,
    plan_points,
    read_rows,
    rows_path,
    store_rows,
)
from idcf.paper.studies.study import SYNTHETIC, Study, has_point, point_label, settings_of


def squares_points(dataset: str, n_seeds: int) -> list[dict[str, Any]]:
    return [{"dataset": dataset, "x": x, "seed": s} for x in (1, 2, 3) for s in range(n_seeds)]


def measure_square(point: Any, dataset: Any, runtime: Any) -> list[dict[str, Any]]:
    assert dataset is None
    if point["x"] == 2:
        raise DataError("two is refused")
    return [{"part": n, "square": point["x"] ** 2 / 3} for n in range(2)]


STUDY = Study("squares", (SYNTHETIC,), squares_points, measure_square)


def test_what_is_stored_is_not_measured_again(tmp_path: Path) -> None:
    points = plan_points(STUDY)
    assert missing_points(STUDY, points, tmp_path) == points
    outcome = measure_points(STUDY, points, tmp_path)
    assert outcome.completed == ["synthetic, x=1, seed=0", "synthetic, x=3, seed=0"]
    assert outcome.failed == {"synthetic, x=2, seed=0": "DataError: two is refused"}
    assert missing_points(STUDY, points, tmp_path) == [points[1]]
    rows = read_rows(tmp_path, STUDY)
    assert [row["square"] for row in rows] == [0.333333] * 2 + [3.0] * 2
    assert {"version", "device", "total_seconds", "settings"} <= rows[0].keys()
    more_seeds = plan_points(STUDY, n_seeds=2)
    assert len(missing_points(STUDY, more_seeds, tmp_path)) == 4


def test_a_point_replaces_its_own_rows_only(tmp_path: Path) -> None:
    points = plan_points(STUDY)
    measure_points(STUDY, points, tmp_path)
    store_rows(tmp_path, STUDY, points[0], [{**points[0], "square": 7.0, "settings": "none"}])
    rows = read_rows(tmp_path, STUDY)
    assert [row["square"] for row in rows if has_point(row, points[0])] == [7.0]
    assert len([row for row in rows if has_point(row, points[2])]) == 2


def test_rows_of_other_settings_are_missing(tmp_path: Path) -> None:
    study = replace(FIGURES["figure-sparsity"].study, name="sparse")
    point = plan_points(study, models=["nnmf"])[0]
    assert settings_of(point) != settings_of({**point, "model": "gcmc"})
    store_rows(tmp_path, study, point, [{**point, "settings": settings_of(point)}])
    assert missing_points(study, [point], tmp_path) == []
    store_rows(tmp_path, study, point, [{**point, "settings": "old"}])
    assert missing_points(study, [point], tmp_path) == [point]


def test_points_can_be_chosen() -> None:
    study = FIGURES["figure-sparsity"].study
    points = plan_points(study, datasets=["ml-100k"], models=["gcmc"], n_seeds=2)
    assert {(p["dataset"], p["model"]) for p in points} == {("ml-100k", "gcmc")}
    assert {p["seed"] for p in points} == {0, 1}
    assert plan_points(study, presets=["published"]) == []
    assert point_label(points[0]).startswith("ml-100k, share=0.5, model=gcmc, preset=clean")


def test_results_of_another_folder_are_merged(tmp_path: Path) -> None:
    source, results = tmp_path / "a", tmp_path / "b"
    measure_points(STUDY, plan_points(STUDY, n_seeds=2), source)
    first = plan_points(STUDY)[0]
    store_rows(results, STUDY, first, [{**first, "square": 0.0, "settings": "old"}])
    assert merge_rows(STUDY, source, results) == 8
    assert merge_rows(STUDY, source, results) == 0
    by_key = {json.dumps(row, sort_keys=True) for row in read_rows(results, STUDY)}
    assert by_key == {json.dumps(row, sort_keys=True) for row in read_rows(source, STUDY)}


def test_an_invalid_line_is_named(tmp_path: Path) -> None:
    measure_points(STUDY, plan_points(STUDY)[:1], tmp_path)
    with rows_path(tmp_path, STUDY).open("a") as file:
        file.write("{broken\n")
    with pytest.raises(DataError, match=r"squares.jsonl, line 3: .*fix or delete"):
        read_rows(tmp_path, STUDY)


def test_names_of_figures() -> None:
    assert all(name.startswith("figure-") for name in FIGURES)
    with pytest.raises(ConfigError, match="figure-sparsity"):
        find_figure("figure-sparsty")
    names = [figure.study.name for figure in FIGURES.values()]
    studies = {id(figure.study) for figure in FIGURES.values()}
    assert len(set(names)) == len(studies), "two studies share a file of rows"


def test_datasets_are_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(figure_runs, "open_dataset", lambda name, progress: calls.append(name))
    figure_runs.open_quietly.cache_clear()
    for _ in range(2):
        figure_runs.open_quietly("x")
    figure_runs.open_quietly.cache_clear()
    assert calls == ["x"]
