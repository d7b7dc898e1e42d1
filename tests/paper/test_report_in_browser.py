"""The HTML reports in a real browser: nothing is cut off, light and dark, wide and narrow."""

from __future__ import annotations

from pathlib import Path

import matplotlib.figure
import pytest
from axe_playwright_python.sync_playwright import Axe
from page_browser import NEEDS_CHROMIUM
from page_browser import browser as browser  # a fixture
from playwright.sync_api import Browser, expect

from idcf.evaluation.tables import ResultTable
from idcf.paper.figures import to_png
from idcf.paper.html_report import Section, render_html

pytestmark = NEEDS_CHROMIUM
INDEX = Path(__file__).parents[2] / "docs" / "results" / "index.html"
COLUMNS = tuple(f"metric@{n} ↑" for n in range(9))
LINE = ("idcf-bayes", *["0.123 [0.120, 0.126]*"] * 9)
TABLE = ResultTable("quality", ("a note",), ("model", *COLUMNS), (LINE,), (LINE, LINE))


def report(folder: Path) -> str:
    """Write a report with every kind of section, and return its address."""
    picture = to_png(matplotlib.figure.Figure(figsize=(12, 3)))
    sections = [
        Section("Numbers", "Text with `code`.", table=TABLE),
        Section("A part", table=TABLE, level=3),
        Section("A figure", "Its caption.", picture),
        Section("Films", items=["x" * 200, "y"]),
    ]
    path = folder / "report.html"
    html = render_html("T", "lead", sections, "footer", "careful", "`idcf-bayes` is best.")
    path.write_text(html, encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_off(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 844},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto(report(tmp_path))
    page.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for box in page.locator(".wide").all():
        box.focus()  # keys scroll it
        box.evaluate("x => x.scrollTo({left: 1e6})")
        edges = box.evaluate(
            """x => [x, x.querySelector("tr").lastElementChild].map(
            (y) => y.getBoundingClientRect().right)"""
        )
        assert edges[1] <= edges[0] <= width, "the last column can be scrolled into sight"
        first = box.locator("td").first.evaluate("x => x.getBoundingClientRect().left")
        assert first >= 0, "the names of the rows stay"
    is_dark = (
        page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(250, 250, 250)"
    )
    assert is_dark == (scheme == "dark")
    assert [(x["id"], x["nodes"]) for x in Axe().run(page).response["violations"]] == []
    page.get_by_role("navigation", name="Contents").get_by_role("link", name="Films").click()
    expect(page.get_by_role("heading", name="Films")).to_be_in_viewport()
    context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_results_page_does_not_overflow(browser: Browser, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto(INDEX.as_uri())
    expect(page.locator(".headline")).to_contain_text("best number in")
    assert page.evaluate("document.documentElement.scrollHeight") < 20_000, "parts are folded"
    page.evaluate("document.querySelectorAll('details').forEach((x) => { x.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
