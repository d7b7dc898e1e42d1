"""`idcf data`: known counts of small files, in text and JSON, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import board, write_file
from calls import call, call_with_error

from idcf.cli.data import _count_ratings, _format_summary, summarize_dataset
from idcf.data.columns import DataWarning
from idcf.data.datasets.catalog import Dataset

RATINGS = "user_id,item_id,rating,timestamp\na,x,5,1\na,y,3,2\na,z,3,3\nb,x,1,4\n"
KNOWN = {
    **{"n_users": 2, "n_items": 3, "n_rows": 4, "density": 4 / 6, "feedback": "explicit"},
    **{"has_timestamps": True, "rating_counts": {"1": 1, "3": 2, "5": 1}},
    **{"n_users_with_one_row": 1, "n_items_with_one_row": 2},
    **{"n_users_without_rows": 0, "n_items_without_rows": 0},
    "history_lengths": {"min": 1, "10%": 1, "25%": 1, "50%": 1, "75%": 1, "90%": 1, "max": 3},
    **{"split": None, "key_threshold": 2, "n_key_users": 1, "n_query_users": 1, "note": ""},
}


def test_describe_counts_a_small_file(tmp_path: Path) -> None:
    path = str(write_file(tmp_path, "r.csv", RATINGS))
    summary = json.loads(call("data", "describe", path, "--key-threshold", "2", "--json"))
    assert summary.pop("name")
    assert summary == KNOWN
    lines = call("data", "describe", path, "--key-threshold", "2").splitlines()
    assert lines[0].endswith(": explicit feedback, with timestamps")
    assert lines[1] == "  2 users x 3 items, 4 rows, density 66.667%"
    assert [x.count("#") for x in lines[2:5]] == [20, 40, 20]
    assert lines[5] == "  with one row: 1 users, 2 items; without rows: 0 users, 0 items"
    assert lines[-1] == "  key users (at least 2 rows): 1; query users: 1"


def test_implicit_feedback_has_no_rating_counts(tmp_path: Path) -> None:
    path = str(write_file(tmp_path, "r.csv", RATINGS))
    summary = json.loads(call("data", "describe", path, "--implicit", "--json"))
    assert (summary["feedback"], summary["rating_counts"]) == ("implicit", {})
    assert "#" not in call("data", "describe", path, "--implicit")


def test_other_column_names(tmp_path: Path) -> None:
    path = str(write_file(tmp_path, "r.csv", RATINGS.replace("user_id", "{who}")))
    output = call("data", "describe", path, "--column", "user_id={who}")
    assert "2 users x 3 items" in output


def test_an_official_split_and_braces_in_a_note() -> None:
    table = board(12, 10, 3, 6)
    test_rows, train_rows = table.where(np.arange(5)), table.where(np.arange(5, len(table)))
    dataset = Dataset("x", table, train_rows, test_rows, {}, 4, note="see {this}")
    summary = summarize_dataset(dataset, 4)
    assert summary["split"] == {"n_train_rows": len(table) - 5, "n_test_rows": 5}
    assert "official split: " in _format_summary(summary)
    assert _format_summary(summary).endswith("\n  note: see {this}")
    assert summary["n_key_users"] == int((train_rows.user_counts() >= 4).sum())
    empty = replace(dataset, test=table.where(np.arange(0)))
    assert summarize_dataset(empty, 4)["split"]["n_test_rows"] == 0


def test_many_different_ratings_are_counted_in_ten_ranges() -> None:
    table = board(30, 20, 4, 9)
    values = np.linspace(0, 1, len(table), dtype=np.float32)
    counts = _count_ratings(replace(table, rating=values))
    assert len(counts) == 10
    assert sum(counts.values()) == len(table)
    assert next(iter(counts)) == "0..0.1"
    few = np.resize(np.arange(20, dtype=np.float32), len(table))
    assert list(_count_ratings(replace(table, rating=few))) == [str(n) for n in range(20)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "none.csv"], "none.csv"),
        (["describe", "ml-100"], "no dataset named 'ml-100'; did you mean 'ml-100k'"),
        (["describe", "FILE", "--column", "user=x"], "user"),
        (["describe", "FILE", "--column", "user_id=uid"], "uid"),
        (["describe", "FILE", "--column", "user_id"], "an override is written name=value"),
        (["describe", "FILE", "--key-threshold", "0"], "--key-threshold"),
        (["describe"], "DATASET"),
        (["fetch", "ml-10m"], "did you mean 'ml-1m'"),
        (["fetch"], "DATASET"),
        (["lst"], "lst"),
    ],
)
def test_data_errors(
    arguments: list[str],
    message: str,
    ratings_file: Callable[..., Path],
    monkeypatch: Any,
    capsys: Any,
) -> None:
    path = str(ratings_file())
    arguments = [path if x == "FILE" else x for x in arguments]
    code, output = call_with_error(monkeypatch, capsys, "data", *arguments)
    assert code == 2
    assert message in output


def test_fetch_prints_the_folder_of_a_dataset_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDCF_DATA", str(tmp_path))
    folder = tmp_path / "ml-100k"
    folder.mkdir()
    for name in ("u.data", "u1.base", "u1.test", "u.item", "u.user"):
        write_file(folder, name, "1\t1\t5\t1\n")
    assert call("data", "fetch", "ml-100k") == f"{folder}\n"
    assert json.loads(call("data", "fetch", "ml-100k", "--json")) == {
        "name": "ml-100k",
        "folder": str(folder),
    }
    rows = {x["name"]: x for x in json.loads(call("data", "list", "--json"))}
    assert rows["ml-100k"]["folder"] == str(folder)
    assert str(folder) in call("data", "list")


def test_rows_with_gaps_are_dropped_on_request(tmp_path: Path) -> None:
    path = write_file(tmp_path, "x.csv", "userId,item_id,rating\na,x,1\n,x,2\nb,y,\nb,x,4\n")
    with pytest.warns(DataWarning) as notes:
        summary = json.loads(call("data", "describe", str(path), "--drop-missing", "--json"))
    assert summary["n_rows"] == 2
    assert [str(x.message).partition(": ")[2] for x in notes] == [
        "columns read by their usual names: 'userId' as user_id",
        "2 rows dropped: 1 without user_id, 1 without rating",
    ]
