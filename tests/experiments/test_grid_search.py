"""The search over a fixed grid: what is tried, on whom, and what the summary says."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest
from builders import board
from scipy import stats as scipy_stats

from idcf.data.datasets.catalog import Dataset
from idcf.evaluation.tune import SEARCH_SPACES
from idcf.models.registry import configure, model_entry
from idcf.training.presets import stage_configs

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "search"
DATA = Dataset("ratings.csv", board(60, 80, 9, 24), None, None, {}, 14)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `experiments/search/grid_search.py`, on a small dataset."""
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("grid_search")
    monkeypatch.setattr(module, "open_dataset", lambda name, progress: DATA)
    return module


@pytest.mark.parametrize("model", ["idcf-bayes", "idcf-odds", "idcf-dot", "idcf-nn", "idcf-gc"])
def test_the_options_of_the_grid_exist(search: ModuleType, model: str) -> None:
    first, *others = search.grid_of(model)
    assert first == {}
    assert len(others) >= 8
    for options in others:
        stages = stage_configs(model, options, preset="clean", dataset="ml-100k")
        configure(model, stages[model].options)
    assert model_entry(model)
    assert model in SEARCH_SPACES or model == "idcf-odds"


def test_a_trial_is_made_once(search: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = search.run_trial("bias", "ratings.csv", {"shrinkage": 2.0}, 0, "cpu")
    assert trial["options"] == {"shrinkage": 2.0}
    assert trial["on"] == "held-out key users"
    assert 0 < trial["n_users"] < 20
    assert search.run_trial("bias", "ratings.csv", {"shrinkage": 2.0}, 0, "cpu") | {
        "seconds": 0
    } == trial | {"seconds": 0}
    grid = [{}, {"shrinkage": 2.0}]
    assert search.missing_trials([trial], grid, 2) == [({}, 0), ({}, 1), ({"shrinkage": 2.0}, 1)]
    assert search.missing_trials([], [{}], 1) == [({}, 0)]


def test_differences_to_the_preset_are_paired_by_seed(search: ModuleType) -> None:
    losses = {
        (): [1.0, 1.2, 1.1],
        (("rank", 2),): [0.9, 1.15, 1.0],
        (("rank", 4),): [1.5],
        (("rank", 9),): [],
    }
    trials = [
        {"options": dict(options), "seed": seed, "valid": loss}
        for options, values in losses.items()
        for seed, loss in enumerate(values)
    ]
    best, preset, other = search.summarize(trials)
    differences = [-0.1, -0.05, -0.1]
    half = scipy_stats.t.ppf(0.975, 2) * scipy_stats.tstd(differences) / 3**0.5
    assert best == ("rank 2", pytest.approx(3.05 / 3), *map(pytest.approx, (-0.25 / 3, half)), 3)
    assert preset == ("preset", pytest.approx(1.1), 0.0, 0.0, 3)
    assert other[:3] == ("rank 4", 1.5, 0.5)
    assert math.isnan(other[3])


def test_the_readme_says_what_the_traces_say(search: ModuleType) -> None:
    def text(value: float, sign: str = "") -> str:
        return f"{value:{sign}.4f}".replace("0.", ".", 1).replace("-", "−")

    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    tables = [
        [x.strip() for x in line.split("|")[1:-1]] for line in lines if line.startswith("| `")
    ]
    assert tables
    for model, dataset, n_seeds, preset, best, worst in tables:
        path = FOLDER / f"{model.strip('`')}-{dataset}.jsonl"
        trials = list(search.summarize(search.read_trials(path)))
        assert preset == text(next(x[1] for x in trials if x[0] == "preset"))
        others = [x for x in trials if x[0] != "preset"]
        assert n_seeds == str(max(x[4] for x in others))
        for cell, (name, _, difference, half_width, _) in ((best, others[0]), (worst, others[-1])):
            option, value = name.rsplit(" ", 1)
            expected = f"`{option}` {value}: {text(difference, '+')} ± {text(half_width)}"
            assert cell == expected
