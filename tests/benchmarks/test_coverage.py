"""The benchmark of interval coverage: its scales, its small tables, and its committed rows."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from golden_values import movielens_folder

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
DOCUMENT = FOLDER.parent / "docs" / "concepts" / "calibration.md"


@pytest.fixture
def coverage(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `benchmarks/coverage.py`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("coverage")


@pytest.mark.parametrize(
    ("scale", "low", "high", "step"), [("1 to 10", 1, 10, 1), ("half stars", 0.5, 5, 0.5)]
)
def test_other_scales_are_monotone_but_for_noise(coverage, scale, low, high, step) -> None:
    rng = np.random.default_rng(0)
    stars = np.repeat(np.arange(1, 6), 400).astype(np.float32)
    ratings = coverage.rescale(stars, scale, rng)
    assert set(np.unique(ratings)) <= set(np.arange(low, high + step, step).tolist())
    means = ratings.reshape(5, 400).mean(1)
    assert (np.diff(means) > step).all()
    assert ratings.reshape(5, 400).std(1).min() > 0


@pytest.mark.skipif(movielens_folder() is None, reason="IDCF_DATA has no ml-100k")
def test_a_small_table_has_new_users_below_its_threshold(coverage) -> None:
    table = coverage.SMALL_TABLES[0]
    split = coverage.small_split(table)
    counts = split.train.user_counts()
    assert (counts[split.key_users] >= table.threshold).all()
    assert (counts[split.query_users] < table.threshold).all()
    n_users = len(np.unique(np.concatenate([split.train.user, split.test.user])))
    assert 0.9 * table.users < n_users <= table.users
    again = coverage.small_split(table)
    np.testing.assert_array_equal(split.test.rating, again.test.rating)


def committed_rows() -> list[dict[str, object]]:
    """Read the rows of the report."""
    text = (FOLDER / "reports" / "coverage.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_there_are_twenty_small_tables_of_many_kinds(coverage) -> None:
    tables = coverage.SMALL_TABLES
    assert len({*tables}) == 20
    assert {x.threshold for x in tables} == {5, 10, 20, 30}
    assert {x.users for x in tables} >= {200, 2000}
    assert {x.scale for x in tables} == {"stars", "half stars", "1 to 10"}


def test_the_page_has_the_committed_figures_of_the_datasets() -> None:
    rows = {(x["table"], x["group"]): x["share"] for x in committed_rows() if x["seed"] == 0}
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, table in (("ML-100K", "ml-100k"), ("Douban", "douban")):
        shares = [f"{float(str(rows[table, group])):.1%}" for group in ("new", "few-shot", "all")]
        assert f"| {name} | {' | '.join(x.replace('%', ' %') for x in shares)} |" in text
