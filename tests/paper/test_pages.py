"""The pages that are rendered from stored results, and the verbs `reproduce` and `report`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tables_world import copy_results, small_dataset
from typer.testing import CliRunner

from idcf.cli import app
from idcf.errors import DataError
from idcf.evaluation.protocol import SplitRule
from idcf.paper import pages, reproduce, results_store
from idcf.paper.results_store import StoredRow
from idcf.paper.table_spec import refusal_reason

ROOT = Path(__file__).parents[2]


def test_a_refusal_names_its_reason() -> None:
    rule, random_rule = SplitRule(), SplitRule(gamma=0.5)
    assert refusal_reason("no-such-system", "ml-1m", "new", rule) == "not built"
    assert refusal_reason("pmf", "ml-1m", "new", rule) == "inductive only"
    assert refusal_reason("pmf", "ml-1m", "few-shot", rule) == ""
    assert refusal_reason("bias", "amazon-books", "new", rule) == "refused: needs ratings"
    assert refusal_reason("idcf-bayes", "amazon-books", "new", rule) == ""
    assert refusal_reason("bias", "ml-1m", "probe-new", random_rule) == "some are key users"


def test_pages_show_numbers_or_why_there_are_none(stored_results: Path, tmp_path: Path) -> None:
    rendered = pages.render_pages(stored_results)
    assert rendered == pages.render_pages(stored_results)
    page = rendered["table4.md"]
    section = next(x for x in page.split("\n## ") if x.startswith("ml-100k") and "rmse" in x[:99])
    lines = {x.split(" | ")[0].strip("| "): x for x in section.splitlines() if x[:1] == "|"}
    assert lines["item-mean"].count("**") == 2
    assert "best simple" in lines["item-mean"]
    assert "(2 of 3 seeds)" in lines["bias"]
    assert "orders only" in lines["popularity"]
    assert "| 1.078 | not run | not run |" in lines["idcf-nn"]
    assert "| not run: 65 of 80 epochs made, see the results page |" in lines["igmc"]
    assert "**1.011**" in lines["idcf-gc"]
    assert "not in the paper" in lines["als"]
    assert "not reported" in rendered["table2.md"]
    assert "inductive only" in rendered["table3.md"]
    assert "refused: needs ratings" in rendered["table7.md"]
    assert "some are key users" in rendered["table6.md"]
    [summary] = [x for x in page.split("\n## ") if x.startswith("At a glance")]
    assert "| idcf-nn | - (0.749) | - (1.078) | - (0.994) |" in summary
    assert "| idcf-nn | new | - (0.9945) | - (0.9942) |" in rendered["table6.md"]
    html = rendered["index.html"]
    assert html.count("<h1>") == 1
    assert "<script" not in html
    assert "http" not in html
    pages.write_pages(tmp_path, rendered)
    assert pages.outdated_pages(tmp_path, rendered) == []
    (tmp_path / "table4.md").write_text("other text")
    assert pages.outdated_pages(tmp_path, rendered) == ["table4.md"]


def test_numbers_of_changed_settings_are_marked(stored_results: Path, tmp_path: Path) -> None:
    results = copy_results(stored_results, tmp_path)
    rows = [replace(r, options="old") for r in results_store.latest_rows(results, "ml-100k")]
    results_store.rewrite_lines(results, StoredRow, "ml-100k", rows)
    assert "] †" in pages.render_pages(results)["table4.md"]
    assert "] †" not in pages.render_pages(stored_results)["table4.md"]


def test_the_committed_pages_are_what_the_results_render_to() -> None:
    rendered = pages.render_pages(ROOT / "experiments/results")
    assert pages.outdated_pages(ROOT / "docs/results", rendered) == [], "run `idcf report`"


def invoke(*arguments: str) -> Any:
    """Run the command line and return its result."""
    return CliRunner().invoke(app, list(arguments))


def test_ctrl_c_is_not_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "reproduce", interrupt)
    result = invoke("reproduce", "table4", "--models", "bias", "--results", str(tmp_path))
    assert result.exit_code == 130
    assert "the same command continues" in result.output


def test_the_verbs_on_the_command_line(
    stored_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "open_dataset", small_dataset)
    options = ["--datasets", "ml-100k", "--models", "bias", "--results", str(tmp_path)]
    dry = invoke("reproduce", "table4", *options, "--dry-run", "--json")
    assert len(json.loads(dry.stdout)["missing"]) == 3
    run = invoke("reproduce", "table4", *options, "--seeds", "1", "--device", "cpu")
    assert run.exit_code == 0, run.output
    assert "1 runs completed, 0 failed" in run.stdout
    merged = invoke("reproduce", "table4", *options, "--merge", str(stored_results), "--json")
    assert json.loads(merged.stdout)["n_merged_rows"] > 10
    pages_folder = str(tmp_path / "pages")
    report = ["report", "--results", str(tmp_path), "--out", pages_folder]
    assert "10 pages written" in invoke(*report).stdout
    current = invoke(*report, "--check")
    assert (current.exit_code, "10 pages are up to date" in current.stdout) == (0, True)
    (tmp_path / "pages" / "table2.md").unlink()
    outdated = invoke(*report, "--check")
    assert (outdated.exit_code, "table2.md is out of date" in outdated.stdout) == (1, True)


def test_a_missing_folder_of_results_is_an_error(tmp_path: Path) -> None:
    result = invoke("report", "--results", str(tmp_path / "x"), "--out", "y")
    assert isinstance(result.exception, DataError)
    assert "is not a folder of results" in str(result.exception)


def test_a_page_has_a_headline_and_links_to_its_parts(stored_results: Path) -> None:
    page = pages.render_pages(stored_results)["table4.md"]
    assert re.search(r"\n\*\*Under clean settings, `[\w-]+` has the best number in \d+ of", page)
    links = re.findall(r"^- \[(.*)\]\(#(.*)\)$", page, re.MULTILINE)
    assert [title for title, _ in links] == re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert pages.format_contents(["ml-1m, new users (a, b): rmse ↓"]) == [
        "- [ml-1m, new users (a, b): rmse ↓](#ml-1m-new-users-a-b-rmse-)"
    ]
