"""CONTRIBUTING.md as written: its example is a model that keeps the contract."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import idcf.testing
from idcf.models.registry import MODELS, ModelEntry
from idcf.testing import worlds

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILE, ROW, TEST = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The file is written and imported, the row stands in the table, for as long as a test."""
    path = tmp_path / "nsvd.py"
    path.write_text(FILE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("nsvd_example", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "nsvd_example", module)
    spec.loader.exec_module(module)
    [(name, row)] = eval(f"{{{ROW}}}", {**vars(module), "ModelEntry": ModelEntry}).items()
    monkeypatch.setitem(MODELS, name, row)
    yield name
    worlds.fitted.cache_clear()


def test_the_example_passes_the_battery(example: str) -> None:
    scope: dict[str, Any] = {"pytest": pytest, "idcf": idcf}
    exec(TEST, scope)
    [mark] = scope[f"test_{example}"].pytestmark
    checks = list(mark.args[1])
    assert len(checks) > 20
    for check in checks:
        scope[f"test_{example}"](check)


def test_it_is_as_short_as_is_said() -> None:
    assert len([line for line in TEST.splitlines() if line]) == 3
    assert len(ROW.splitlines()) == 1
    assert "· nsvd ·" in TEXT


def test_linked_files_exist() -> None:
    for path in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / path).exists(), path
