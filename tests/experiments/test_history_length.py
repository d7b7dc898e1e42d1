"""The study of history lengths: what is shown, and which trainings are missing."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from builders import board

from idcf.data.datasets.catalog import Dataset
from idcf.evaluation.protocol import standard_split

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
DATA = Dataset("ratings.csv", board(60, 80, 9, 24), None, None, {}, 14)


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `experiments/history_length.py`, on a small dataset."""
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("history_length")
    monkeypatch.setattr(module, "open_dataset", lambda name, progress: DATA)
    return module


def test_longer_histories_hold_the_shorter_ones(study: ModuleType) -> None:
    split, _ = standard_split(DATA)
    whole = study.shown_histories(split, None, 0)
    counts = whole.user_counts()
    previous: set[tuple[int, int]] = set()
    for length in (0, 1, 2, 5, 1000):
        shown = study.shown_histories(split, length, 0)
        np.testing.assert_array_equal(shown.user_counts(), np.minimum(counts, length))
        rows = set(zip(shown.user.tolist(), shown.item.tolist(), strict=True))
        assert previous <= rows
        previous = rows
    assert len(previous) == len(whole)


def test_rows_of_a_model_by_the_ratings_shown(study: ModuleType, tmp_path: Path) -> None:
    rows = study.measure("ratings.csv", "bias", 1)
    assert [r["ratings_shown"] for r in rows] == [0, 1, 2, 3, 5, 10, 20, "all"]
    assert {(r["model"], r["seed"], r["users"]) for r in rows} == {("bias", 1, "new")}
    assert rows[-1]["rmse"] == rows[-2]["rmse"]  # nobody has more than 20
    path = tmp_path / "rows.jsonl"
    assert study.missing_runs(study.read_rows(path), 2) == [
        ("idcf-bayes", 0), ("idcf-bayes", 1), ("bias", 0), ("bias", 1)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert study.missing_runs(study.read_rows(path), 2) == [
        ("idcf-bayes", 0), ("idcf-bayes", 1), ("bias", 0)
    ]  # fmt: skip
