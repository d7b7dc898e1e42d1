"""The experiments on cells that differ from the paper, on small data."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from builders import board

from idcf.data.datasets.catalog import Dataset
from idcf.models.layers.heads import ProductsHead

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
DATA = Dataset("ratings.csv", board(60, 80, 9, 24), None, None, {}, 14)


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module of the folder `experiments`, on a small dataset."""
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module(name)
    monkeypatch.setattr(module, "open_dataset", lambda name, progress: DATA)
    return module


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `experiments/differing_cells.py`."""
    return load("differing_cells", monkeypatch)


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `experiments/epoch_curve.py`."""
    return load("epoch_curve", monkeypatch)


def test_a_trial_has_a_row_for_each_group_and_is_found_again(
    cells: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = cells.Study(("ratings.csv",), ("bias",), "few-shot", ({}, {"shrinkage": 9.0}), "clean")
    monkeypatch.setitem(cells.STUDIES, "small", replace(study, groups=("few-shot", "all")))
    trials = list(cells.trials_of("small", 1))
    assert [t.options for t in trials] == [{}, {"shrinkage": 9.0}]
    rows = [cells.run_trial(t, "cpu") for t in trials]
    assert [r["users"] for r in rows[0]] == ["few-shot", "all"]
    assert rows[0][0]["rmse"] != rows[1][0]["rmse"]
    stored = json.loads(json.dumps(rows[1][0]))
    assert trials[1].fields().items() <= stored.items()
    assert not trials[0].fields().items() <= stored.items()


def test_users_below_each_threshold(cells: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    study = cells.Study(("ratings.csv",), ("bias",), "few-shot", preset="clean", by_threshold=True)
    monkeypatch.setitem(cells.STUDIES, "small", replace(study, draws=(1, 2)))
    monkeypatch.setattr(cells, "THRESHOLDS", (12, 100))
    first, second = (cells.run_trial(t, "cpu") for t in cells.trials_of("small", 1))
    assert [r["users"] for r in first] == ["fewer than 12", "fewer than 100"]
    assert first[0]["n_ratings"] < first[1]["n_ratings"] == len(DATA.interactions) // 10
    assert first[1]["rmse"] != second[1]["rmse"]  # another draw of the test rows


def test_the_head_with_tanh(cells: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells.heads, "nn", cells._WithTanh())
    layers = [type(x) for x in ProductsHead(2, (3,)).net]
    assert layers == [torch.nn.Linear, torch.nn.Tanh, torch.nn.Linear]


def test_item_biases_from_zero(cells: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = board(20, 9, 3, 5, implicit=True).domain()
    monkeypatch.setattr(cells.fism, "item_log_popularity", cells._zero_biases)
    model = cells.fism.FISM(cells.fism.FISMConfig(), domain)
    assert not model.embed_items(torch.arange(9)).bias.any()


def test_ndcg_of_orders_without_a_model(cells: ModuleType) -> None:
    values = {
        (r["dataset"], r.get("draw"), r["order"]): r["ndcg"] for r in cells.worst_order_rows()
    }
    for dataset in ("douban", "ml-100k", "ml-1m"):
        assert values[dataset, None, "worst"] < values[dataset, None, "random"] < 1
    assert len({values["ml-1m", n, "worst"] for n in (None, 1, 2, 3, 4, 5)}) > 1


def test_a_curve_has_every_epoch_and_the_chosen_one(curves: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    for model, users in (("fism", "new"), ("idcf-nn", "few-shot")):
        options = {"train.epochs": 3}
        curve = curves.Curve("ratings.csv", model, users, 0, options=options)
        chosen = curves.record_curve(curve, path)
        rows = [json.loads(x) for x in path.read_text().splitlines()]
        rows = [r for r in rows if r["users"] == users]
        assert [r.get("epoch") for r in rows] == [1, 2, 3, None]
        assert rows[-1]["chosen"] == chosen == 1 + int(np.argmin([r["valid"] for r in rows[:-1]]))
        assert all(0 < r["rmse"] < 5 for r in rows[:-1])
