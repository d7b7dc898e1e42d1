"""What the page keeps over a reload, says after a change and takes back, and how it is limited."""

from __future__ import annotations

import re

import pytest
from page_browser import NEEDS_CHROMIUM, open_page, wait_for_update
from playwright.sync_api import Browser, Page, Route, expect
from serve_world import fitted, served

pytestmark = NEEDS_CHROMIUM


def rate_first(page: Page, update: int) -> None:
    """Rate the first title of the list, and wait for the new list."""
    page.locator("#list > li").first.locator("label").nth(4).click()
    wait_for_update(page, update)


def rated(page: Page) -> list[str]:
    """Return the titles with a rating."""
    return page.locator("#ratings .title").all_inner_texts()


def test_a_reload_keeps_ratings_until_start_over(page: Page, address: str) -> None:
    page.goto("about:blank")
    page.goto(f"{address}#ratings=i2:5")
    wait_for_update(page, 1)
    rate_first(page, 2)
    page.locator("summary").click()
    page.get_by_role("slider", name="Diversity").fill("0.5")
    wait_for_update(page, 3)
    before, items = rated(page), page.locator("#list").inner_text()
    assert len(before) == 2
    page.reload()
    wait_for_update(page, 1)
    assert rated(page) == before
    assert page.locator("#list").inner_text() == items
    page.get_by_role("button", name="Start over").click()
    wait_for_update(page, 2)
    page.reload()
    wait_for_update(page, 1)
    assert rated(page) == []


def test_a_reload_keeps_skipped_titles(browser: Browser) -> None:
    with served(fitted("idcf-bayes")) as address:
        for page in open_page(browser, address):
            wait_for_update(page, 1)
            page.get_by_role("button", name="Skip", exact=True).click()
            wait_for_update(page, 2)
            question = page.locator("#question-item .title").inner_text()
            page.reload()
            wait_for_update(page, 1)
            expect(page.locator("#question-item .title")).to_have_text(question)


def test_ratings_of_another_scale_are_not_taken_over(page: Page) -> None:
    rate_first(page, 2)
    page.evaluate(
        """() => { const x = JSON.parse(sessionStorage.getItem("idcf-state"));
        sessionStorage.setItem("idcf-state", JSON.stringify({ ...x, scale: "[true,1,1]" })); }"""
    )
    page.reload()
    wait_for_update(page, 1)
    assert rated(page) == []


def test_a_link_holds_the_options(browser: Browser) -> None:
    with served(fitted("idcf-bayes")) as address:
        for page in open_page(browser, address, path="#ratings=i2:5,i3:1"):
            wait_for_update(page, 1)
            page.locator("summary").click()
            page.get_by_role("slider", name="Diversity").fill("0.8")
            page.get_by_label("Order of the list").fill("1")
            wait_for_update(page, 3)
            page.get_by_role("button", name="Share").click()
            link = page.locator("#share-link").input_value()
            assert link == f"{address}/#ratings=i2:5,i3:1&quality=1&diversity=0.8"
            shown = page.locator("#list .title").all_inner_texts()
        for other in open_page(browser, address, path=link.removeprefix(address)):
            wait_for_update(other, 1)
            assert other.locator("#list .title").all_inner_texts() == shown
            expect(other.locator("summary")).to_have_text("Options (1 in use)")
        path = "#ratings=i2:5&diversity=9&where.mood=sad"
        for other in open_page(browser, address, path=path):
            wait_for_update(other, 1)
            expect(other.locator("#link-notice")).to_contain_text("left out: diversity, mood.")


@pytest.mark.parametrize("replaces", ["Start over", "link", "link after a reload"])
def test_what_replaces_all_ratings_can_be_undone(page: Page, address: str, replaces: str) -> None:
    rate_first(page, 2)
    before, update = rated(page), 3
    if replaces == "Start over":
        page.get_by_role("button", name="Start over").click()
    elif replaces == "link":
        page.evaluate("location.hash = '#ratings=i2:5,i3:1'")
    else:
        page.goto("about:blank")
        page.goto(f"{address}#ratings=i2:5,i3:1")
        update = 1
    wait_for_update(page, update)
    assert rated(page) != before
    page.get_by_role("button", name="Undo").click()
    wait_for_update(page, update + 1)
    assert rated(page) == before
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()


@pytest.mark.parametrize("width", [320, 390])
def test_a_rating_is_told_and_undone_on_a_phone(browser: Browser, address: str, width: int) -> None:
    phone = {"viewport": {"width": width, "height": 640}, "has_touch": True, "is_mobile": True}
    for page in open_page(browser, address, reduced_motion="reduce", **phone):
        name = page.locator("#list .title").nth(4).inner_text().rsplit(" ", 1)[0]
        page.locator("#list > li").nth(4).locator("label").nth(3).tap()
        wait_for_update(page, 2)
        message = page.locator("#done")
        expect(message).to_be_in_viewport(ratio=1)
        expect(message).to_contain_text(f"{name} rated.")
        assert message.evaluate("x => getComputedStyle(x).animationName") == "none"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        message.get_by_role("button", name="Undo").tap()
        wait_for_update(page, 3)
        assert rated(page) == []
        page.get_by_role("button", name="Close the message").tap()
        expect(message).to_be_hidden()


def test_nothing_overlaps_in_the_rows_of_a_narrow_phone(browser: Browser) -> None:
    with served(fitted("idcf-bayes")) as address:
        for page in open_page(browser, address, viewport={"width": 320, "height": 640}):
            wait_for_update(page, 1)
            rate_first(page, 2)
            text = page.locator("#list .score").first.inner_text()
            assert re.search(r"\d of 5\b.*% likely next", text, re.DOTALL), text
            overlaps = page.locator("#list > li").evaluate_all(
                """rows => rows.flatMap((row) => {
                const boxes = [...row.querySelectorAll(
                  ".title, .score > :not(.visually-hidden), .stars, .rank")]
                  .map((x) => x.getBoundingClientRect()).filter((x) => x.width);
                return boxes.flatMap((a, k) => boxes.slice(k + 1).filter((b) => a.left < b.right - 1
                  && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
                }).length"""
            )
            assert overlaps == 0
            assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_clicks_are_skipped_not_denied(browser: Browser) -> None:
    with served(fitted("idcf-bayes", implicit=True)) as address:
        for page in open_page(browser, address):
            wait_for_update(page, 1)
            expect(page.locator("#question-name")).to_contain_text("Your like of it would help")
            expect(page.get_by_role("button", name="No", exact=True)).to_have_count(0)
            page.get_by_role("button", name="Skip", exact=True).click()
            wait_for_update(page, 2)
            assert rated(page) == []


def test_similar_titles_are_called_similar(page: Page) -> None:
    box, note = page.get_by_role("combobox"), page.locator("#matches .no-match")
    box.fill("fílm 8")
    expect(page.get_by_role("option", name="Film 8 1958")).to_be_visible()
    expect(note).to_have_count(0)
    box.fill("filmm")
    expect(note).to_have_text("No title contains “filmm”. Similar:")
    match = page.get_by_role("option", selected=True)
    name = match.inner_text()
    box.press("Enter")
    expect(page.locator("#selected .title")).to_have_text(name)


@pytest.mark.parametrize("refusals", [1, 2])
def test_too_many_requests_are_sent_once_more(
    browser: Browser, address: str, refusals: int
) -> None:
    sent: list[Route] = []

    def limit(route: Route) -> None:
        """Refuse the first requests."""
        sent.append(route)
        if len(sent) > refusals:
            route.continue_()
        else:
            route.fulfill(status=429, headers={"retry-after": "20"}, json={"detail": "limit"})

    for page in open_page(browser, address, fails=True):
        wait_for_update(page, 1)
        page.clock.install()
        page.route("**/v1/recommend", limit)
        row = page.locator("#list > li").nth(2)
        row.locator("label").nth(4).click()
        expect(row).to_contain_text("The server is busy; trying again")
        assert len(sent) == 1
        page.clock.run_for(20_000)
        if refusals == 1:
            wait_for_update(page, 2)
        else:
            expect(row.get_by_role("alert")).to_contain_text("Too many requests: limit.")
        assert len(sent) == 2


@pytest.mark.parametrize(
    ("touch", "words"), [(True, "press and hold the link to copy it"), (False, "Ctrl+C")]
)
def test_copy_without_a_clipboard(browser: Browser, address: str, touch: bool, words: str) -> None:
    for page in open_page(browser, address, path="#ratings=i2:5", has_touch=touch, is_mobile=touch):
        wait_for_update(page, 1)
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        page.get_by_role("button", name="Share").click()
        page.get_by_role("button", name="Copy").click()
        expect(page.locator("#share-box")).to_contain_text(words)


def test_requests_of_a_first_screen_and_of_a_rating(browser: Browser) -> None:
    sent: list[str] = []
    with served(fitted("idcf-bayes")) as address:
        for page in open_page(browser, address):
            wait_for_update(page, 1)
            page.on("request", lambda x: sent.append(x.url.rpartition("/")[2]))
            page.reload()
            wait_for_update(page, 1)
            assert sorted(x for x in sent if x in ("model", "recommend", "next-question")) == [
                *("model", "next-question", "recommend")
            ]
            sent.clear()
            rate_first(page, 2)
            assert sorted(sent) == [*["explain"] * 10, "next-question", "recommend"]
