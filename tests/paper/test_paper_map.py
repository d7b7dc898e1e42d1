"""Everything that docs/results/paper-map.md names exists, and nothing of the paper is missing."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from idcf.paper.figure_catalog import FIGURES
from idcf.paper.systems import SYSTEMS
from idcf.paper.table_spec import load_tables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/results/paper-map.md").read_text(encoding="utf-8")
CELLS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| item ")
]


def references(cell: str) -> list[str]:
    """Return what a cell names in backticks."""
    return re.findall(r"`([^`]+)`", cell)


@cache
def functions_of(path: str) -> frozenset[str]:
    """Return the names of the functions of a test file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(x.name for x in ast.walk(tree) if isinstance(x, ast.FunctionDef))


def exists(reference: str) -> bool:
    """Return whether a file, a test "file::name" or an object "module:name" exists."""
    if "::" in reference:
        path, name = reference.split("::")
        return (ROOT / path).is_file() and name in functions_of(path)
    if ":" not in reference:
        return (ROOT / reference).is_file()
    module, name = reference.split(":")
    try:
        value = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("cells", CELLS, ids=lambda cells: cells[0][:40])
def test_what_a_line_names_exists(cells: list[str]) -> None:
    item, code, test, rows = cells
    assert references(code), f"{item}: no code is named"
    assert references(test), f"{item}: no test is named"
    assert references(rows) or rows == "-", f"{item}: no rows are named"
    named = [*references(code), *references(test), *references(rows)]
    missing = [x for x in named if not exists(x)]
    assert not missing, f"{item}: {', '.join(missing)} does not exist"


def test_no_table_figure_or_system_is_missing() -> None:
    named = {name for item, *_ in CELLS for name in references(item)}
    of_the_paper = {system for table in load_tables().values() for block in table.paper
                    for system in block.systems}  # fmt: skip
    missing = {*load_tables(), *FIGURES, *SYSTEMS, *of_the_paper} - named
    assert not missing, f"docs/results/paper-map.md lacks {', '.join(sorted(missing))}"


@pytest.mark.parametrize(
    "reference",
    [
        "src/idcf/no_such_file.py",
        "tests/paper/test_paper_map.py::test_no_such_test",
        "tests/paper/no_such_file.py::test_x",
        "idcf.models.idcf:NoSuchClass",
        "idcf.models.idcf:IDCF.no_such_method",
        "idcf.no_such_module:x",
    ],
)
def test_what_does_not_exist_is_noticed(reference: str) -> None:
    assert not exists(reference)
