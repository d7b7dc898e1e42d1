"""Stored results of fast models, made once per test session."""

from __future__ import annotations

from pathlib import Path

import pytest
from tables_world import fast_runs, small_dataset

from idcf.paper.reproduce import reproduce


@pytest.fixture(scope="session")
def stored_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results for tables 2 and 4 on a small ML-100K; copy it before writing to it."""
    results = tmp_path_factory.mktemp("results")
    runs = [*fast_runs("table2"), *fast_runs("table4")]
    assert not reproduce(runs, results, load_dataset=small_dataset).failed
    return results
