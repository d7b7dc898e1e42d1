"""The pages that are drawn from rows, and the two verbs on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tables_world import copy, small
from typer.testing import CliRunner

from idcf.cli import app
from idcf.errors import DataError
from idcf.evaluation.protocol import Cut
from idcf.paper import pages, results_store
from idcf.paper import reproduce as work
from idcf.paper.results_store import Record
from idcf.paper.table_spec import refusal

ROOT = Path(__file__).parents[2]


def test_why_there_is_no_number() -> None:
    assert refusal("no-such-system", "ml-1m", "new", Cut()) == "not built"
    assert refusal("pmf", "ml-1m", "new", Cut()) == "inductive only"
    assert refusal("pmf", "ml-1m", "few-shot", Cut()) == ""
    assert refusal("bias", "amazon-books", "new", Cut()) == "refused: needs ratings"
    assert refusal("idcf-bayes", "amazon-books", "new", Cut()) == ""
    assert refusal("bias", "ml-1m", "probe-new", Cut(gamma=0.5)) == "some are key users"


def test_pages_say_what_there_is_and_why_not(made: Path, tmp_path: Path) -> None:
    found = pages.render(made)
    assert found == pages.render(made)
    four = found["table4.md"]
    section = next(x for x in four.split("\n## ") if x.startswith("ml-100k") and "rmse" in x[:99])
    lines = {x.split(" | ")[0].strip("| "): x for x in section.splitlines() if x[:1] == "|"}
    assert lines["item-mean"].count("**") == 2
    assert "best simple" in lines["item-mean"]
    assert "(2 of 3 seeds)" in lines["bias"]
    assert "orders only" in lines["popularity"]
    assert "| 1.078 | not run | not run |" in lines["idcf-nn"]
    assert "| not run: hours a seed |" in lines["igmc"]
    assert "**1.011**" in lines["idcf-gc"]
    assert "not in the paper" in lines["als"]
    assert "not reported" in found["table2.md"]
    assert "inductive only" in found["table3.md"]
    assert "refused: needs ratings" in found["table7.md"]
    assert "some are key users" in found["table6.md"]
    [glance] = [x for x in four.split("\n## ") if x.startswith("At a glance")]
    assert "| idcf-nn | - (0.749) | - (1.078) | - (0.994) |" in glance
    assert "| idcf-nn | new | - (0.9945) | - (0.9942) |" in found["table6.md"]
    html = found["index.html"]
    assert html.count("<h1>") == 1
    assert "<script" not in html
    assert "http" not in html
    pages.write(tmp_path, found)
    assert pages.outdated(tmp_path, found) == []
    (tmp_path / "table4.md").write_text("else")
    assert pages.outdated(tmp_path, found) == ["table4.md"]


def test_settings_that_changed_are_marked(made: Path, tmp_path: Path) -> None:
    results = copy(made, tmp_path)
    rows = [replace(r, options="old") for r in results_store.records(results, "ml-100k")]
    results_store.rewrite(results, Record, "ml-100k", rows)
    assert "] †" in pages.render(results)["table4.md"]
    assert "] †" not in pages.render(made)["table4.md"]


def test_the_committed_pages_are_what_the_rows_say() -> None:
    found = pages.render(ROOT / "experiments/results")
    assert pages.outdated(ROOT / "docs/results", found) == [], "run `idcf report`"


def test_ctrl_c_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*words: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "reproduce", stop)
    done = cli("reproduce", "table4", "--models", "bias", "--results", str(tmp_path))
    assert done.exit_code == 130
    assert "the same command goes on" in done.output


def cli(*words: str) -> Any:
    return CliRunner().invoke(app, [str(w) for w in words])


def test_on_the_command_line(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "open_dataset", small)
    where = ["--dataset", "ml-100k", "--models", "bias", "--results", str(tmp_path)]
    dry = cli("reproduce", "table4", *where, "--dry-run", "--json")
    assert len(json.loads(dry.stdout)["missing"]) == 3
    done = cli("reproduce", "table4", *where, "--seeds", "1", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "1 runs made, 0 failed" in done.stdout
    more = cli("reproduce", "table4", *where, "--merge", str(made), "--json")
    assert json.loads(more.stdout)["merged"] > 10
    drawn = cli("report", "--results", str(tmp_path), "--out", str(tmp_path / "pages"))
    assert "6 pages written" in drawn.stdout
    same = cli("report", "--results", str(tmp_path), "--out", str(tmp_path / "pages"), "--check")
    assert (same.exit_code, "6 pages are current" in same.stdout) == (0, True)
    (tmp_path / "pages" / "table2.md").unlink()
    other = cli("report", "--results", str(tmp_path), "--out", str(tmp_path / "pages"), "--check")
    assert (other.exit_code, "table2.md is not what" in other.stdout) == (1, True)


def test_a_folder_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["report", "--results", str(tmp_path / "x"), "--out", "y"])
    assert isinstance(found.exception, DataError)
    assert "is no folder of results" in str(found.exception)
