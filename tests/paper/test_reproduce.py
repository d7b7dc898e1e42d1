"""Runs of the tables: planned, made, stored at once, resumed and merged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tables_world import FAST_MODELS, copy_results, fast_runs, make_outdated, small_dataset
from typer.testing import CliRunner

from idcf.cli import app
from idcf.data.datasets.catalog import DATASET_SOURCES
from idcf.errors import ConfigError, DataError
from idcf.evaluation import parallel, run
from idcf.evaluation.groups import PROBE_ROWS
from idcf.evaluation.protocol import SplitRule, split_name, standard_split
from idcf.paper import pages, results_store
from idcf.paper.reproduce import merge_results, missing_runs, reproduce
from idcf.paper.results_store import PairedDifference, RunFailure, StoredRow
from idcf.paper.run_plan import plan_runs, settings_fingerprint
from idcf.paper.table_spec import find_table, load_tables
from idcf.training.train import TrainingJob, train


def test_a_training_serves_all_its_groups_and_tables() -> None:
    runs = plan_runs(load_tables().values(), datasets=["ml-1m"], models=["bias"])
    standard = [r for r in runs if r.split == "random-10%-seed0, delta=30"]
    assert [(r.users, r.seed) for r in standard] == [
        *(("few-shot", n) for n in range(3)),
        *(("new", n) for n in range(3)),
    ]
    assert standard[0].groups() == ["all", "few-shot", "probe"]
    assert standard[-1].groups() == ["new", "probe-new"]
    random_keys = next(r for r in runs if "gamma" in r.split and r.users == "new")
    assert random_keys.groups() == ["new"]  # some users of `probe-new` are key users there


def test_stored_runs_are_not_missing(stored_results: Path) -> None:
    rows = results_store.latest_rows(stored_results, "ml-100k")
    assert {r.users for r in rows} == {"all", "few-shot", "new"}
    assert all(r.version and r.device == "cpu" and r.options for r in rows)
    for table in ("table2", "table4"):
        assert missing_runs(fast_runs(table), stored_results) == []
    # one more seed of each model but `random`, which has only one
    assert len(missing_runs(fast_runs(n_seeds=3), stored_results)) == 3
    text = (stored_results / "ml-100k.jsonl").read_text()
    assert len(text.splitlines()) == len(rows)


def test_a_stored_row_equals_that_of_evaluate(stored_results: Path) -> None:
    dataset = small_dataset("ml-100k")
    rows = run.evaluate(run.EvaluationPlan(dataset, ["bias"], ["new", "all"]))
    stored = {
        (r.model, r.users, r.metric): r
        for r in results_store.latest_rows(stored_results, "ml-100k")
        if not r.seed
    }
    for row in rows:
        stored_row = stored[row.model, row.users, row.metric]
        assert stored_row.split == row.split
        assert stored_row.value == pytest.approx(row.value, abs=1e-6)


def test_fingerprints_tell_settings_apart() -> None:
    assert settings_fingerprint("random", "clean", "ml-100k", "new") == "none"
    clean_new, clean_few, *published = (
        settings_fingerprint("idcf-gc", preset, "ml-100k", mode)
        for preset in ("clean", "published")
        for mode in ("new", "few-shot")
    )
    assert clean_few == clean_new  # `clean` has no other settings for few-shot users
    assert len({clean_new, *published}) == 3


def test_a_run_of_other_settings_is_made_again(stored_results: Path, tmp_path: Path) -> None:
    results = copy_results(stored_results, tmp_path)
    [*_, last] = fast_runs()
    make_outdated(results, last)
    assert missing_runs(fast_runs(), results) == [last]
    reproduce([last], results, load_dataset=small_dataset)
    assert missing_runs(fast_runs(), results) == []
    n_rows = len(results_store.latest_rows(stored_results, "ml-100k"))
    assert len(results_store.latest_rows(results, "ml-100k")) == n_rows
    assert len((results / "ml-100k.jsonl").read_text().splitlines()) == n_rows


def test_an_incomplete_last_line_is_skipped_with_a_note(
    stored_results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, runs = copy_results(stored_results, tmp_path), fast_runs("table2") + fast_runs()
    path = results / "ml-100k.jsonl"
    data = path.read_bytes()
    line_length = len(data.splitlines()[-1]) + 1
    for n_lost in (1, 40, line_length):  # the newline, part of a line, a whole line
        path.write_bytes(data[:-n_lost])
        assert len(missing_runs(runs, results)) == 1
        assert ("cut short" in capsys.readouterr().err) is (n_lost != line_length)
    path.write_bytes(data[:-40])
    [lost_run] = missing_runs(runs, results)
    reproduce([lost_run], results, load_dataset=small_dataset)
    capsys.readouterr()
    assert missing_runs(runs, results) == []
    assert "cut short" not in capsys.readouterr().err


def test_a_damaged_line_is_an_error(stored_results: Path, tmp_path: Path) -> None:
    results = copy_results(stored_results, tmp_path)
    path = results / "ml-100k.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:20], *lines[2:]]) + "\n")
    with pytest.raises(DataError, match=r"ml-100k.jsonl, line 2: .*fix or delete"):
        results_store.latest_rows(results, "ml-100k")


def test_a_failure_is_recorded_and_the_other_runs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train_or_fail(name: str, job: TrainingJob, **options: Any) -> Any:
        if name == "item-mean":
            raise ConfigError("a test error")
        return train(name, job, **options)

    monkeypatch.setattr(run, "train", train_or_fail)
    outcome = reproduce(fast_runs(n_seeds=1), tmp_path, load_dataset=small_dataset)
    assert list(outcome.failed.values()) == ["ConfigError: a test error"]
    assert [r.model for r in outcome.completed] == ["random", "popularity", "bias"]
    assert outcome.n_remaining == 1
    assert "failed: ml-100k delta=30: item-mean (clean)" in capsys.readouterr().err
    [line] = results_store.read_lines(tmp_path, RunFailure, "ml-100k").values()
    assert line.reason == "ConfigError: a test error"
    assert "failed: ConfigError: a test error" in pages.render_pages(tmp_path)["table4.md"]
    monkeypatch.undo()
    runs = missing_runs(fast_runs(n_seeds=1), tmp_path)
    reproduce(runs, tmp_path, load_dataset=small_dataset)
    assert results_store.read_lines(tmp_path, RunFailure, "ml-100k") == {}
    assert not (tmp_path / "ml-100k.failed.jsonl").exists()


def test_several_processes_give_the_rows_of_one(stored_results: Path, tmp_path: Path) -> None:
    reproduce(fast_runs(), tmp_path, n_jobs=2, load_dataset=small_dataset)

    def values(results: Path) -> set[tuple[Any, ...]]:
        rows = results_store.latest_rows(results, "ml-100k")
        return {(*r.key(), r.value) for r in rows if r.users == "new"}

    assert values(tmp_path) == values(stored_results)


def test_the_longest_runs_start_first(stored_results: Path) -> None:
    runs = plan_runs([find_table("table4")], datasets=["ml-100k"], n_seeds=1)
    order = [r.model for r in missing_runs(runs, stored_results, longest_first=True)]
    assert order[0] == "idcf-dot"
    table_order = [r.model for r in missing_runs(runs, stored_results)]
    assert table_order == [r.model for r in runs if r.model not in FAST_MODELS]


def test_a_crashed_worker_fails_only_its_own_run() -> None:
    outcomes = dict(parallel.run_as_completed(exit_or_return, {"a": (7,), "b": (0,)}, n_jobs=2))
    assert isinstance(outcomes.pop("a"), ConfigError)
    assert outcomes == {"b": 0}


def exit_or_return(code: int) -> int:
    """End the process unless the code is 0."""
    if code:
        os._exit(code)
    return code


_SLOW_REPRODUCE = """
import sys, time
sys.path.insert(0, {folder!r})
from pathlib import Path
import torch
torch.set_num_threads(1)
from idcf.evaluation import run
from idcf.paper.reproduce import missing_runs, reproduce
from tables_world import fast_runs, small_dataset
train = run.train
def slow_train(*args, **options):
    time.sleep(0.2)
    return train(*args, **options)
run.train = slow_train
results = Path({results!r})
reproduce(missing_runs(fast_runs(n_seeds=9), results), results, load_dataset=small_dataset)
"""


def test_a_kill_loses_at_most_the_current_run(tmp_path: Path) -> None:
    code = _SLOW_REPRODUCE.format(folder=str(Path(__file__).parent), results=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code])
    path = tmp_path / "ml-100k.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") > 12:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    missing = missing_runs(fast_runs(n_seeds=9), tmp_path)
    assert 0 < len(missing) < 28
    outcome = reproduce(missing, tmp_path, load_dataset=small_dataset)
    assert len(outcome.completed) == len(missing)
    assert missing_runs(fast_runs(n_seeds=9), tmp_path) == []


_LONG_RUN = {"datasets": ["ml-100k"], "models": ["nnmf"], "presets": ["published"], "n_seeds": 1}
_KILLED_REPRODUCE = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
import torch
torch.set_num_threads(1)
from idcf.paper import reproduce
from idcf.paper.run_plan import plan_runs
from idcf.paper.table_spec import find_table
from tables_world import small_dataset
reproduce.CHECKPOINT_SECONDS = 0.0
runs = plan_runs([find_table("table2")], **{plan!r})
reproduce.reproduce(runs, Path({results!r}), load_dataset=small_dataset)
"""


def test_a_run_goes_on_from_its_last_epoch_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)  # as in the child: sums depend on it
    folder, results = str(Path(__file__).parent), tmp_path / "killed"
    code = _KILLED_REPRODUCE.format(folder=folder, plan=_LONG_RUN, results=str(results))
    process = subprocess.Popen([sys.executable, "-c", code])

    def epoch_seconds() -> list[float]:
        return [
            json.loads(line)["seconds"]
            for path in (results / ".checkpoints").rglob("*.jsonl")
            for line in path.read_text().splitlines()
        ]

    while process.poll() is None and len(epoch_seconds()) < 6:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it was killed"
    before_kill = epoch_seconds()
    assert len(before_kill) >= 6
    [run_of_table] = plan_runs([find_table("table2")], **_LONG_RUN)  # type: ignore[arg-type]
    assert missing_runs([run_of_table], results) == [run_of_table]
    trained = []
    monkeypatch.setattr(run, "train", lambda *a, **k: trained.append(train(*a, **k)) or trained[-1])
    for target in (results, tmp_path / "whole"):
        reproduce([run_of_table], target, load_dataset=small_dataset)
        assert missing_runs([run_of_table], target) == []
        assert not list(target.glob(".checkpoints/*"))
    resumed, whole = (result.logs["nnmf"].column("seconds") for result in trained)
    n = min(len(before_kill), len(resumed))
    assert resumed[:n] == before_kill[:n]  # the epochs themselves, not others like them
    assert whole[:n] != before_kill[:n]
    values, expected = (
        {row.key(): row.value for row in results_store.latest_rows(target, "ml-100k")}
        for target in (results, tmp_path / "whole")
    )
    assert values == expected
    [row, *_] = results_store.latest_rows(results, "ml-100k")
    assert row.seconds > sum(before_kill)  # the time before the kill counts


def test_differences_are_made_if_a_kill_came_after_the_last_run(
    stored_results: Path, tmp_path: Path
) -> None:
    results = copy_results(stored_results, tmp_path)
    differences = results_store.results_path(results, PairedDifference, "ml-100k")
    expected = differences.read_bytes()
    differences.unlink()
    models = ("--models", ",".join(FAST_MODELS), "--seeds", "2")
    command = ["reproduce", "table2", "--datasets", "ml-100k", *models, "--results", str(results)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert differences.read_bytes() == expected


def test_rows_of_another_folder_are_merged_once(stored_results: Path, tmp_path: Path) -> None:
    source, results = copy_results(stored_results, tmp_path / "source"), tmp_path / "results"
    (source / "other-study.jsonl").write_text('{"dataset": "ml-1m"}\n')
    rows = results_store.latest_rows(stored_results, "ml-100k")
    differences = results_store.read_lines(stored_results, PairedDifference, "ml-100k")
    assert results_store.merge_lines(source, results) == len(rows) + len(differences)
    assert results_store.merge_lines(source, results) == 0
    assert not (results / "other-study.jsonl").exists()
    assert results_store.latest_rows(results, "ml-100k") == rows
    assert len(list(results.rglob("*.npz"))) == len(list(stored_results.rglob("*.npz")))
    [first, *others] = results_store.latest_rows(source, "ml-100k")
    changed = replace(first, value=0.25)
    results_store.rewrite_lines(source, StoredRow, "ml-100k", [changed, *others[::-1]])
    assert results_store.merge_lines(source, results) == 1
    # unchanged rows keep their order
    assert results_store.latest_rows(results, "ml-100k") == [*others, changed]
    with pytest.raises(DataError, match="not a folder of results"):
        results_store.merge_lines(tmp_path / "nowhere", results)


def test_runs_of_outdated_settings_are_not_merged(stored_results: Path, tmp_path: Path) -> None:
    outdated = copy_results(stored_results, tmp_path / "outdated")
    current = copy_results(stored_results, tmp_path / "current")
    [*_, last] = fast_runs()
    make_outdated(outdated, last)
    for folder in (outdated, current):  # as in a clone: differences cannot be computed again
        shutil.rmtree(folder / ".per-user")
    differences = results_store.read_lines(current, PairedDifference, "ml-100k")
    assert differences != results_store.read_lines(outdated, PairedDifference, "ml-100k")
    assert merge_results(outdated, current)[1] == 1
    assert results_store.read_lines(current, PairedDifference, "ml-100k") == differences
    rows = set(results_store.latest_rows(stored_results, "ml-100k"))
    assert set(results_store.latest_rows(current, "ml-100k")) == rows
    assert merge_results(current, outdated)[1] == 0  # current rows replace outdated ones
    assert missing_runs([last], outdated) == []


def test_random_key_users_make_another_split() -> None:
    dataset = small_dataset("ml-1m")
    split, name = standard_split(dataset, gamma=0.75)
    assert name == split_name(DATASET_SOURCES["ml-1m"], SplitRule(gamma=0.75))
    assert name == "random-10%-seed0, gamma=0.75"
    assert 20 < len(split.key_users) < 48
    same_split, _ = standard_split(dataset, gamma=0.75)
    assert np.array_equal(split.key_users, same_split.key_users)
    is_light = split.train.user_counts() < PROBE_ROWS
    probe = run.make_evaluation_sets(split, ["probe"])["probe"]
    assert set(probe.users) <= set(np.flatnonzero(is_light))
    with pytest.raises(DataError, match="'probe'"):
        run.make_evaluation_sets(split, ["probe-new"])


def test_files_of_another_edition_are_an_error() -> None:
    wrong_split = fast_runs()[0]._replace(split="u2, delta=30")
    with pytest.raises(DataError, match="another edition"):
        reproduce([wrong_split], Path(), load_dataset=small_dataset)


def test_unknown_names_are_errors() -> None:
    with pytest.raises(ConfigError, match="no system of the table named 'bais'; did you mean"):
        plan_runs([find_table("table4")], models=["bais"])
    with pytest.raises(ConfigError, match="no dataset of the table named 'amazon-books'"):
        plan_runs([find_table("table4")], datasets=["amazon-books"])
