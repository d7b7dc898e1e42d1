"""Runs that are made once, kept at once, taken up again, merged and drawn."""

from __future__ import annotations

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
from tables_world import FAST, copy, fast, small

from idcf.data.datasets.catalog import SOURCES
from idcf.errors import ConfigError, DataError
from idcf.evaluation import parallel, run
from idcf.evaluation.groups import PROBE_ROWS
from idcf.evaluation.protocol import Cut, split_name, standard_split
from idcf.paper import pages, results_store
from idcf.paper import reproduce as work
from idcf.paper.results_store import Failure, Pair, Record
from idcf.paper.run_plan import fingerprint, runs_of
from idcf.paper.table_spec import find, load_all
from idcf.training.train import Job, train

ROOT = Path(__file__).parents[2]


def test_a_training_serves_all_its_groups_and_tables() -> None:
    runs = runs_of(load_all().values(), datasets=["ml-1m"], models=["bias"])
    usual = [r for r in runs if r.split.endswith("delta=30")]
    assert [(r.users, r.seed) for r in usual] == [
        *(("few-shot", n) for n in range(3)),
        *(("new", n) for n in range(3)),
    ]
    assert usual[0].groups() == ["all", "few-shot", "probe"]
    assert usual[-1].groups() == ["new", "probe-new"]
    drawn = next(r for r in runs if "gamma" in r.split and r.users == "new")
    assert drawn.groups() == ["new"]  # the light ones are not all new there


def test_rows_are_done_once(made: Path) -> None:
    rows = results_store.records(made, "ml-100k")
    assert {r.users for r in rows} == {"all", "few-shot", "new"}
    assert all(r.version and r.device == "cpu" and r.options for r in rows)
    for table in ("table2", "table4"):
        assert work.missing(fast(table), made) == []
    assert len(work.missing(fast(seeds=3), made)) == 3  # one more seed each; chance has one
    text = (made / "ml-100k.jsonl").read_text()
    assert len(text.splitlines()) == len(rows)


def test_a_row_is_what_evaluate_gives(made: Path) -> None:
    data = small("ml-100k")
    rows = run.evaluate(run.Plan(data, ["bias"], ["new", "all"]))
    kept = {
        (r.model, r.users, r.metric): r
        for r in results_store.records(made, "ml-100k")
        if not r.seed
    }
    for row in rows:
        there = kept[row.model, row.users, row.metric]
        assert there.split == row.split
        assert there.value == pytest.approx(row.value, abs=1e-6)


def test_other_settings_are_run_again(made: Path) -> None:
    [*_, last] = fast()
    other = last._replace(options=(("strength", 3.0),))
    assert other.fingerprint() != last.fingerprint()
    assert work.missing([last], made) == []
    assert work.missing([other], made) == [other]
    assert fingerprint("random", "clean", "ml-100k", "new", {}) == "none"
    ways = [(p, who) for p in ("clean", "published") for who in ("new", "few-shot")]
    new, few, *old = (fingerprint("idcf-gc", p, "ml-100k", who, {}) for p, who in ways)
    assert (few, len({new, *old})) == (new, 3)  # under `clean` nothing differs


def test_a_newer_run_replaces_the_older(made: Path, tmp_path: Path) -> None:
    results = copy(made, tmp_path)
    [*_, last] = fast()
    other = last._replace(options=(("strength", 3.0),))
    work.reproduce([other], results, opened=small)
    assert work.missing([other], results) == []
    assert work.missing([last], results) == [last]
    assert len(results_store.records(results, "ml-100k")) == len(
        results_store.records(made, "ml-100k")
    )


def test_a_line_cut_short_is_survived_and_said(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = copy(made, tmp_path)
    path = results / "ml-100k.jsonl"
    whole = path.read_bytes()
    for cut in (1, 40, len(whole.splitlines()[-1]) + 1):  # the newline, half a line, a line
        path.write_bytes(whole[:-cut])
        assert len(work.missing([*fast("table2"), *fast("table4")], results)) == 1
        told = capsys.readouterr().err
        assert ("cut short" in told) is (cut != len(whole.splitlines()[-1]) + 1)
    path.write_bytes(whole[:-40])
    [lost] = work.missing([*fast("table2"), *fast("table4")], results)
    work.reproduce([lost], results, opened=small)
    capsys.readouterr()
    assert work.missing([*fast("table2"), *fast("table4")], results) == []
    assert "cut short" not in capsys.readouterr().err


def test_a_damaged_line_is_an_error(made: Path, tmp_path: Path) -> None:
    results = copy(made, tmp_path)
    path = results / "ml-100k.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:20], *lines[2:]]) + "\n")
    with pytest.raises(DataError, match=r"ml-100k.jsonl, line 2: .*mend or delete"):
        results_store.records(results, "ml-100k")


def test_a_failure_is_put_down_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train_or_not(name: str, job: Job, **more: Any) -> Any:
        if name == "item-mean":
            raise ConfigError("it would not")
        return train(name, job, **more)

    monkeypatch.setattr(run, "train", train_or_not)
    found = work.reproduce(fast(seeds=1), tmp_path, opened=small)
    assert list(found.failed.values()) == ["ConfigError: it would not"]
    assert [r.model for r in found.made] == ["random", "popularity", "bias"]
    assert found.left == 1
    assert "failed: ml-100k delta=30: item-mean (clean)" in capsys.readouterr().err
    [line] = results_store.read(tmp_path, Failure, "ml-100k").values()
    assert line.reason == "ConfigError: it would not"
    assert "failed: ConfigError: it would not" in pages.render(tmp_path)["table4.md"]
    monkeypatch.undo()
    work.reproduce(work.missing(fast(seeds=1), tmp_path), tmp_path, opened=small)
    assert results_store.read(tmp_path, Failure, "ml-100k") == {}
    assert not (tmp_path / "ml-100k.failed.jsonl").exists()


def test_several_processes_write_the_rows_of_one(made: Path, tmp_path: Path) -> None:
    work.reproduce(fast(), tmp_path, jobs=2, opened=small)

    def values(results: Path) -> set[tuple[Any, ...]]:
        return {
            (*r.key(), r.value)
            for r in results_store.records(results, "ml-100k")
            if r.users == "new"
        }

    assert values(tmp_path) == values(made)


def test_the_longest_start_first(made: Path) -> None:
    runs = runs_of([find("table4")], datasets=["ml-100k"], seeds=1)
    order = [r.model for r in work.missing(runs, made, longest_first=True)]
    assert order[0].startswith("idcf-n")
    plain = [r.model for r in work.missing(runs, made)]
    assert plain == [r.model for r in runs if r.model not in FAST]


def test_a_helper_that_dies_takes_no_other_run_with_it() -> None:
    found = dict(parallel.finished(die_or_live, {"a": (7,), "b": (0,)}, jobs=2))
    assert isinstance(found.pop("a"), ConfigError)
    assert found == {"b": 0}


def die_or_live(code: int) -> int:
    if code:
        os._exit(code)
    return code


_SLOW = """
import sys, time
sys.path.insert(0, {here!r})
from pathlib import Path
import torch
torch.set_num_threads(1)
from idcf.evaluation import run
from idcf.paper import reproduce as work
from tables_world import fast
from tables_world import FAST, copy, fast, small
train = run.train
def slow(*args, **more):
    time.sleep(0.2)
    return train(*args, **more)
run.train = slow
work.reproduce(work.missing(fast(seeds=9), Path({results!r})), Path({results!r}), opened=small)
"""


def test_a_kill_at_any_moment_costs_one_run(tmp_path: Path) -> None:
    code = _SLOW.format(here=str(Path(__file__).parent), results=str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", code])
    path = tmp_path / "ml-100k.jsonl"
    until = time.monotonic() + 120
    while time.monotonic() < until and not (path.exists() and path.read_bytes().count(b"\n") > 12):
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    left = work.missing(fast(seeds=9), tmp_path)
    assert 0 < len(left) < 28
    found = work.reproduce(left, tmp_path, opened=small)
    assert len(found.made) == len(left)
    assert work.missing(fast(seeds=9), tmp_path) == []


def test_rows_from_elsewhere_are_merged_once(made: Path, tmp_path: Path) -> None:
    there, here = copy(made, tmp_path / "there"), tmp_path / "here"
    (there / "other-study.jsonl").write_text('{"dataset": "ml-1m"}\n')
    fresh = results_store.merge(there, here)
    assert fresh == len(results_store.records(made, "ml-100k")) + len(
        results_store.read(made, Pair, "ml-100k")
    )
    assert results_store.merge(there, here) == 0
    assert not (here / "other-study.jsonl").exists()
    assert results_store.records(here, "ml-100k") == results_store.records(made, "ml-100k")
    assert len(list(here.rglob("*.npz"))) == len(list(made.rglob("*.npz")))
    [first, *rest] = results_store.records(there, "ml-100k")
    results_store.rewrite(
        there, Record, "ml-100k", [new := replace(first, value=0.25), *rest[::-1]]
    )
    assert results_store.merge(there, here) == 1
    assert results_store.records(here, "ml-100k") == [
        *rest,
        new,
    ]  # what has not changed stays in place
    with pytest.raises(DataError, match="no folder of results"):
        results_store.merge(tmp_path / "nowhere", here)


def test_settings_of_the_past_are_left_where_they_are(made: Path, tmp_path: Path) -> None:
    there, here = copy(made, tmp_path / "there"), copy(made, tmp_path / "here")
    [*_, last] = fast()
    work.reproduce([last._replace(options=(("strength", 3.0),))], there, opened=small)
    for folder in (there, here):  # as in a clone: differences cannot be drawn again
        shutil.rmtree(folder / ".per-user")
    drawn, other = (results_store.read(x, Pair, "ml-100k") for x in (here, there))
    assert work.merge(there, here)[1] == 1
    assert results_store.read(here, Pair, "ml-100k") == drawn != other
    assert set(results_store.records(here, "ml-100k")) == set(
        results_store.records(made, "ml-100k")
    )
    assert work.merge(here, there)[1] == 0  # the other way round today's take their place
    assert work.missing([last], there) == []


def test_random_key_users_have_their_split() -> None:
    data = small("ml-1m")
    split, how = standard_split(data, gamma=0.75)
    assert how == "random-10%-seed0, gamma=0.75" == split_name(SOURCES["ml-1m"], Cut(gamma=0.75))
    assert 20 < len(split.key_users) < 48
    again, _ = standard_split(data, gamma=0.75)
    assert np.array_equal(split.key_users, again.key_users)
    light = split.train.counts() < PROBE_ROWS
    probe = run.exams_of(split, ["probe"])["probe"]
    assert set(probe.users) <= set(np.flatnonzero(light))
    with pytest.raises(DataError, match="ask for the group 'probe'"):
        run.exams_of(split, ["probe-new"])
    with pytest.raises(DataError, match="another edition"):
        work.reproduce([fast()[0]._replace(split="u2, delta=30")], Path(), opened=small)


def test_wrong_words_are_told() -> None:
    with pytest.raises(ConfigError, match="no system of the table named 'bais'; did you mean"):
        runs_of([find("table4")], models=["bais"])
    with pytest.raises(ConfigError, match="no dataset of the table named 'amazon-books'"):
        runs_of([find("table4")], datasets=["amazon-books"])
