"""Results of the quick systems, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tables_world import fast, small

from idcf.paper.reproduce import reproduce


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables 2 and 4 on a small ML-100K. Not to be written to: take a copy."""
    results = tmp_path_factory.mktemp("made")
    assert not reproduce([*fast("table2"), *fast("table4")], results, opened=small).failed
    return results
