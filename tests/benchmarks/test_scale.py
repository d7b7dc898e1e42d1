"""The benchmark of scale on a small world: rows of a fit, and the files that commands read."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from pyarrow import parquet

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `benchmarks/scale.py`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("scale")


def test_a_fit_is_measured_and_described(scale: ModuleType, tmp_path: Path) -> None:
    world = scale.world_folder(tmp_path, 1500)
    row = scale.fit_once("popularity", world, "local", 2)
    assert (row["users"], row["workers"], row["worker_peak_gib"]) == (1500, 1, None)
    assert row["bytes_of_pass"]["ItemCounts"] == 4 * row["items"]
    assert 0.1 < row["driver_peak_gib"] < 16
    assert 0 < row["ndcg@20"] < 1
    scale.append_row(tmp_path / "rows.jsonl", {"part": "growth", **row})
    (written,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert {"machine", "load", "versions", "commit"} <= written.keys()
    assert {"python", "numpy", "torch"} <= written["versions"].keys()


def test_files_of_histories_hold_the_rows_of_the_world(scale: ModuleType, tmp_path: Path) -> None:
    table = scale.ShardedTable.open(scale.world_folder(tmp_path, 1500))
    path = scale.history_files(table, tmp_path / "histories")
    rows = parquet.read_table(path)
    assert rows.num_rows == table.n_rows
    assert (np.diff(rows["user_id"].to_numpy()) >= 0).all()
    scale.write_shuffled(table, tmp_path / "shuffled.parquet")
    shuffled = parquet.read_table(tmp_path / "shuffled.parquet")
    assert shuffled["user_id"] != rows["user_id"]
    order = [("user_id", "ascending"), ("item_id", "ascending")]
    assert shuffled.sort_by(order).equals(rows.sort_by(order))
