"""Figures of the pages on scale are those of the committed rows."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from idcf.models.registry import MODELS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["results/scale.md", "howto/growing-up.md"]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `benchmarks/scale_page.py`."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scale_page")


@pytest.mark.parametrize("name", PAGES)
def test_the_parts_are_those_of_the_rows(page: ModuleType, name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert ROOT / "docs" / name in page.PAGES
    assert text.count("<!-- rows: ") == text.count("<!-- end -->") == len(page.PART.findall(text))
    if text != page.expected_page(text):
        pytest.fail(f"{name}: run python benchmarks/scale_page.py --write")


def test_a_figure_that_differs_from_the_rows_is_noticed(page: ModuleType) -> None:
    text = (ROOT / "docs" / PAGES[0]).read_text(encoding="utf-8")
    changed = text.replace("| yes |", "| no |", 1)
    assert changed != text
    assert page.expected_page(changed) == text


def test_rows_say_where_they_come_from(page: ModuleType) -> None:
    for row in page.all_rows():
        assert {"part", "machine", "load", "versions", "commit"} <= row.keys()
        assert "dirty" not in row["commit"]


def test_losses_change_no_bit(page: ModuleType) -> None:
    rows = page.rows_of("kills")
    assert sum(x["killed_workers"] + x["removed_nodes"] for x in rows) > 20
    assert all(x["is_equal"] for x in rows)


def test_the_slope_of_a_power_is_its_exponent(page: ModuleType) -> None:
    rows = [{"users": n, "processor_seconds": 3 * n**1.5} for n in (10, 100, 1000)]
    assert page.exponent(rows) == pytest.approx((1.5, 1.0))


def test_the_page_names_how_every_model_trains() -> None:
    text = (ROOT / "docs" / PAGES[1]).read_text(encoding="utf-8")
    by_passes, _, rest = text.partition("**By gradient**")
    assert all(f"`{name}`" in by_passes for name, x in MODELS.items() if x.sharded_solver)
    others = [name for name, x in MODELS.items() if not x.sharded_solver and "." not in name]
    assert all(f"`{name}`" in rest for name in others if MODELS[name].solver or name != "paper")
