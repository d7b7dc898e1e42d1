"""The folder of results: what is written is read, later lines win, and broken lines are named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.errors import DataError
from idcf.metrics import PerUserMetric
from idcf.paper import results_store
from idcf.paper.results_store import PairedDifference, RunFailure, StoredRow

ROW = StoredRow(
    dataset="ml-100k",
    split="u1, delta=30",
    model="bias",
    preset="clean",
    users="new",
    metric="rmse",
    value=1.0,
    low=0.9,
    high=1.1,
    seed=0,
    n_users=10,
    n_ratings=50,
    seconds=2.5,
    of=2,
    options="abc",
    version="0",
    device="cpu",
)
DIFFERENCE = PairedDifference(
    "ml-100k", ROW.split, "als", "clean", "new", "rmse", "bias", -0.1, -0.2, 0.0, 10, 2, "a/b"
)
FAILURE = RunFailure("ml-100k", ROW.split, "als", "clean", "new", 0, "ConfigError: no")
numbers = st.floats(-1e6, 1e6)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["rmse", "ndcg", "auc"]), st.integers(0, 3), numbers)))
def test_the_latest_line_of_each_key_is_read(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, int, float]]
) -> None:
    results = tmp_path_factory.mktemp("results")
    rows = [replace(ROW, metric=m, seed=seed, value=value) for m, seed, value in cells]
    for row in rows:
        results_store.append_lines(results, "ml-100k", [row])
    latest = {row.key(): row for row in rows}
    stored = results_store.read_lines(results, StoredRow, "ml-100k")
    assert stored.keys() == latest.keys()
    assert all(stored[k].value == pytest.approx(v.value, abs=1e-6) for k, v in latest.items())
    last_written = list(dict.fromkeys(row.key() for row in reversed(rows)))[::-1]
    assert list(stored) == last_written


def test_rows_with_and_without_a_commit_share_a_file(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, seed=1, commit="0123abc")]
    for order in (rows, rows[::-1]):
        results_store.rewrite_lines(tmp_path, StoredRow, "ml-100k", order)
        assert list(results_store.read_lines(tmp_path, StoredRow, "ml-100k").values()) == order
        lines = (tmp_path / "ml-100k.jsonl").read_text().splitlines()
        assert [json.loads(x).get("commit") for x in lines] == [x.commit for x in order]
        (tmp_path / "copy").mkdir(exist_ok=True)
        assert results_store.merge_lines(tmp_path, tmp_path / "copy") == (2 * (order is rows))


def test_the_quality_of_lists_is_stored_where_there_is_one(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, metric="recall@20", quality=0.4)]
    results_store.rewrite_lines(tmp_path / "a", StoredRow, "ml-100k", rows)
    assert list(results_store.read_lines(tmp_path / "a", StoredRow, "ml-100k").values()) == rows
    lines = (tmp_path / "a" / "ml-100k.jsonl").read_text().splitlines()
    assert [json.loads(x).get("quality") for x in lines] == [None, 0.4]
    (tmp_path / "b").mkdir()
    for order in (rows, rows[::-1]):  # either line may be the first of the file
        results_store.rewrite_lines(tmp_path / "a", StoredRow, "ml-100k", order)
        assert results_store.merge_lines(tmp_path / "a", tmp_path / "b") == (
            2 if order is rows else 0
        )


@pytest.mark.parametrize("line", [ROW, DIFFERENCE, FAILURE])
def test_each_kind_of_line_has_its_own_file(tmp_path: Path, line: StoredRow) -> None:
    results_store.rewrite_lines(tmp_path, type(line), "ml-100k", [line])
    assert results_store.read_lines(tmp_path, type(line), "ml-100k") == {line.key(): line}
    [path] = tmp_path.iterdir()
    values = {k: v for k, v in asdict(line).items() if k not in ("quality", "commit")}
    assert json.loads(path.read_text()) == values
    results_store.rewrite_lines(tmp_path, type(line), "ml-100k", [])
    assert list(tmp_path.iterdir()) == []
    results_store.rewrite_lines(tmp_path, type(line), "ml-100k", [])  # nothing to delete
    assert results_store.read_lines(tmp_path, type(line), "ml-100k") == {}


def test_numbers_are_stored_with_six_digits_and_an_equal_file_is_not_written(
    tmp_path: Path,
) -> None:
    results_store.rewrite_lines(tmp_path, StoredRow, "ml-100k", [replace(ROW, value=1 / 3)])
    [path] = tmp_path.iterdir()
    assert json.loads(path.read_text())["value"] == 0.333333
    inode = path.stat().st_ino
    results_store.rewrite_lines(tmp_path, StoredRow, "ml-100k", [replace(ROW, value=1 / 3)])
    assert path.stat().st_ino == inode


def test_nothing_to_append_makes_no_file(tmp_path: Path) -> None:
    results_store.append_lines(tmp_path / "results", "ml-100k", [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("n_lost", [1, 2, 30])
def test_a_line_that_was_cut_short_is_replaced(tmp_path: Path, n_lost: int) -> None:
    other = replace(ROW, seed=1)
    results_store.append_lines(tmp_path, "ml-100k", [ROW, replace(ROW, seed=2)])
    path = tmp_path / "ml-100k.jsonl"
    path.write_bytes(path.read_bytes()[:-n_lost])
    results_store.append_lines(tmp_path, "ml-100k", [other])
    assert [*results_store.read_lines(tmp_path, StoredRow, "ml-100k").values()] == [ROW, other]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": "one"}, "'seed' is 'one'"),
        ({"sed": 1}, "no option named 'sed'; did you mean 'seed'"),
    ],
)
def test_a_line_of_other_fields_is_an_error(
    tmp_path: Path, values: dict[str, object], message: str
) -> None:
    lines = [asdict(ROW), {**asdict(ROW), **values}]
    path = tmp_path / "ml-100k.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match=f"line 2: .*{message}.*fix or delete the line"):
        results_store.read_lines(tmp_path, StoredRow, "ml-100k")


def test_rows_of_a_run_that_was_made_again_are_dropped(tmp_path: Path) -> None:
    """The new run has other settings and one metric less."""
    old = [ROW, replace(ROW, metric="ndcg")]
    other_run = replace(ROW, seed=1)
    new = replace(ROW, of=1, options="def")
    results_store.append_lines(tmp_path, "ml-100k", [*old, other_run, new])
    assert results_store.latest_rows(tmp_path, "ml-100k") == [other_run, new]


def test_user_groups_of_one_training_share_its_key() -> None:
    few, probe = replace(ROW, users="few-shot"), replace(ROW, users="probe")
    assert few.run_key() == probe.run_key() != ROW.run_key()
    assert few.key() != probe.key()
    assert ROW.run_keys() == {ROW.run_key()}
    assert DIFFERENCE.run_keys() == {
        ("ml-100k", ROW.split, model, "clean", "new") for model in ("als", "bias")
    }


def test_values_per_user_survive_the_file(tmp_path: Path) -> None:
    values = PerUserMetric(np.array([3, 70_000]), np.array([1.5, 0.25]), np.array([2.0, 1.0]))
    assert results_store.load_per_user(tmp_path, ROW) is None
    results_store.save_per_user(tmp_path, ROW, "new", {"rmse": values})
    loaded = results_store.load_per_user(tmp_path, ROW)
    assert loaded is not None
    for stored, expected in zip(
        (loaded.users, loaded.total, loaded.weight),
        (values.users, values.total, values.weight),
        strict=True,
    ):
        np.testing.assert_array_equal(stored, expected)
        assert stored.dtype == expected.dtype
    # neither another metric, group, seed nor other settings
    for row in (
        replace(ROW, metric="ndcg"),
        replace(ROW, users="all"),
        replace(ROW, seed=1),
        replace(ROW, options="def"),
    ):
        assert results_store.load_per_user(tmp_path, row) is None


def test_lines_of_skipped_runs_are_not_merged(tmp_path: Path) -> None:
    source, results = tmp_path / "source", tmp_path / "results"
    other = replace(ROW, model="als")
    results_store.rewrite_lines(source, StoredRow, "ml-100k", [ROW, other])
    results_store.rewrite_lines(source, PairedDifference, "ml-100k", [DIFFERENCE])
    assert results_store.merge_lines(source, results, {other.run_key()}) == 1
    assert results_store.latest_rows(results, "ml-100k") == [ROW]
    assert results_store.read_lines(results, PairedDifference, "ml-100k") == {}
    assert results_store.merge_lines(source, results) == 2
