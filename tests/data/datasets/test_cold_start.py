"""The cold-start split of MovieLens-1M: which rows are trained on, and the nested supports."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from builders import board, id_rows, table_from_columns

from idcf.data.datasets.catalog import load_dataset
from idcf.data.datasets.cold_start import SUPPORT_SIZES, split_cold_users, support_tasks
from idcf.errors import DataError
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.run import make_evaluation_sets

REAL = os.environ.get("IDCF_DATA", "")
real = pytest.mark.skipif(
    not (REAL and Path(REAL).is_dir()), reason="IDCF_DATA names no folder of real datasets"
)


def write_split(folder: Path, **lists: object) -> Path:
    path = folder / "melu_split.json"
    path.write_text(json.dumps({"cold_users": [2], "cold_items": [30], "merged_items": {}} | lists))
    return path


def test_cold_users_and_cold_items_are_not_trained_on(tmp_path: Path) -> None:
    user, item = np.array([1, 1, 2, 2, 3]), np.array([10, 30, 10, 30, 20])
    table = table_from_columns(user, item, np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    split = split_cold_users(table, write_split(tmp_path))
    assert [row[:3] for row in id_rows(split.train)] == [(1, 10, 1.0), (3, 20, 5.0)]
    assert [row[:3] for row in id_rows(split.test)] == [(2, 10, 3.0)]


def test_merged_items_share_a_row(tmp_path: Path) -> None:
    table = table_from_columns(np.array([1, 1, 3]), np.array([10, 20, 20]), np.ones(3))
    split = split_cold_users(table, write_split(tmp_path, merged_items={"20": 10}))
    assert split.train.items.ids == (10,)
    assert [row[1] for row in id_rows(split.train)] == [10, 10, 10]


@pytest.mark.parametrize("text", ["no json", "[1]", '{"cold_users": [1]}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "melu_split.json"
    path.write_text(text)
    with pytest.raises(DataError, match="not a cold-start split"):
        split_cold_users(board(6, 9, 2, 4), path)


def test_supports_are_nested_and_targets_are_the_same() -> None:
    table = board(40, 150, 12, 60)  # users with 10 to 14 rows, and with 58 to 62
    tasks = support_tasks(table)
    counts = table.user_counts()
    eligible = np.flatnonzero((counts >= 13) & (counts <= 100))
    assert len(eligible) < len(table.users)
    previous: set[object] = set()
    for group, n in SUPPORT_SIZES.items():
        history, targets = tasks[group].history_table, tasks[group].target_table
        assert id_rows(targets) == id_rows(tasks["cold-0"].target_table)
        assert (targets.user_counts()[eligible] == 10).all()
        assert len(targets) == 10 * len(eligible)
        expected = np.minimum(counts[eligible] - 10, n)
        np.testing.assert_array_equal(history.user_counts()[eligible], expected)
        rows = set(id_rows(history))
        assert previous <= rows
        assert not rows & set(id_rows(targets))
        previous = rows


@real
@pytest.mark.accuracy
def test_the_real_split_has_the_counts_of_melu() -> None:
    split, name = standard_split(load_dataset("ml-1m-cold"))
    assert name == "official, delta=1"
    assert (len(split.key_users), len(split.query_users)) == (4832, 1208)
    assert (len(split.train), len(split.test)) == (640_448, 163_702)
    assert len(np.unique(split.test.item)) == 2757
    assert len(split.train.items) == 3704
    assert len(split.train.user_counts()[split.query_users].nonzero()[0]) == 0
    sets = make_evaluation_sets(split, ["new", *SUPPORT_SIZES])
    assert [len(x.test_rows) for x in sets.values()] == [163_702] + [6_680] * 6
    assert {len(x.users) for x in sets.values()} == {1208, 668}
    support = [len(x.history_table) - 640_448 for x in sets.values()]
    assert support == [0, 0, 668, 1336, 3315, 6352, 30_478 - 6_680]
    assert split.train.user_feature_widths == (2, 7, 21, 10)
    assert sum(split.train.item_feature_widths) == split.train.item_features.shape[1]
