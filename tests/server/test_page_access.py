"""Whether everybody can use the web page: contrast, names, and the rules of axe-core."""

from __future__ import annotations

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_browser import NEEDS_CHROMIUM, open_page, search, wait_for_update
from playwright.sync_api import Browser, Page, expect
from serve_world import fitted, served

pytestmark = NEEDS_CHROMIUM
COLORS = """x => {
  let box = x;
  while (getComputedStyle(box).backgroundColor === "rgba(0, 0, 0, 0)") box = box.parentElement;
  return [getComputedStyle(x).color, getComputedStyle(box).backgroundColor];
}"""  # of an element, and of what is behind it


def luminance(color: str) -> float:
    """Return the relative luminance of a color such as rgb(1, 2, 3), as WCAG defines it."""
    parts = [int(x) / 255 for x in re.findall(r"\d+", color)[:3]]
    r, g, b = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(page: Page, selector: str) -> float:
    """Return the contrast of an element to what is behind it."""
    low, high = sorted(map(luminance, page.locator(selector).first.evaluate(COLORS)))
    return (high + 0.05) / (low + 0.05)


def problems(page: Page) -> list[tuple[Any, ...]]:
    """Return what axe-core finds: the rule, and the elements."""
    found = Axe().run(page).response["violations"]
    return [(x["id"], [y["html"] for y in x["nodes"]]) for x in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("implicit", [False, True], ids=["ratings", "likes"])
def test_contrast_and_axe(browser: Browser, scheme: str, implicit: bool) -> None:
    options: dict[str, Any] = {"color_scheme": scheme, "fails": True, "reduced_motion": "reduce"}
    with served(fitted("idcf-bayes", implicit=implicit)) as address:
        for page in open_page(browser, address, **options):
            assert problems(page) == []
            page.locator("#list").locator("label, .like").first.click()
            wait_for_update(page, 2)
            page.mouse.move(0, 0)
            page.locator("summary").click()
            page.get_by_role("button", name="Share").click()
            assert problems(page) == []
            search(page, "film")
            assert problems(page) == []
            page.keyboard.press("Escape")
            page.route("**/v1/recommend", lambda route: route.abort("connectionrefused"))
            page.locator("#list > li").first.locator("label, .like").last.click()
            expect(page.get_by_role("alert")).to_be_visible()
            page.mouse.move(0, 0)
            assert problems(page) == []
            for text in (".title", ".year", ".hint", "summary", ".mark", "[role=alert]"):
                assert contrast(page, text) >= 4.5, text
            if not implicit:  # empty stars, on the page and on a card, and chosen ones
                empty = "label:not(:has(:checked)):not(:has(~ label :checked))"
                assert contrast(page, f"#list {empty}") >= 3
                assert contrast(page, f"#question-item {empty}") >= 3
                assert contrast(page, "#ratings label:has(:checked)") >= 3
                fill = page.locator(f"#list {empty} svg").first.evaluate(
                    "x => [getComputedStyle(x).fill, getComputedStyle(x).stroke]"
                )
                assert fill[0] == "none"  # an outline in the color that was measured
                assert fill[1] == page.locator(f"#list {empty}").first.evaluate(COLORS)[0]


def test_every_control_has_a_name_and_a_role(browser: Browser) -> None:
    with served(fitted("idcf-bayes")) as address:
        for page in open_page(browser, address, path="#ratings=i2:5"):
            wait_for_update(page, 1)
            page.locator("summary").click()
            page.get_by_role("button", name="Share").click()
            main = page.get_by_role("main")
            for role, name in (
                ("combobox", "Search for a title"),
                ("button", "Share"),
                ("button", "Start over"),
                ("textbox", "A link that holds your ratings"),
                ("button", "Copy"),
                ("button", "Remove Film 2"),
                ("radiogroup", "Rate Film 2"),
                ("slider", re.compile("^Order of the list, from")),
                ("region", "Your ratings"),
                ("region", "For you"),
                ("button", "Show more"),
            ):
                locator = main.get_by_role(role, name=name).first  # type: ignore[arg-type]
                expect(locator).to_be_visible()
            controls = main.locator("button, input, select, summary")
            sizes = controls.evaluate_all(
                """all => all.filter((x) => x.checkVisibility() && x.type !== "radio"
                && x.type !== "range").map((x) => [x.textContent || x.id, x.offsetHeight])"""
            )
            assert all(height >= 24 for _, height in sizes), sizes  # WCAG 2.5.8


def test_without_scripts_or_styles_in_the_page(page: Page) -> None:
    """The Content-Security-Policy allows none, and the page needs none."""
    assert (
        page.locator("script:not([src]), style, [style], [onclick]").evaluate_all(
            "all => all.filter((x) => !x.closest('.scale')).map((x) => x.outerHTML)"
        )
        == []
    )
