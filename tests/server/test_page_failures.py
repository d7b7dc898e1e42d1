"""What the web page shows while the server is down, busy or slow, or refuses a request."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from page_browser import NEEDS_CHROMIUM, open_page, wait_for_update
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect
from serve_world import fitted, served

pytestmark = NEEDS_CHROMIUM
Answer = Callable[[Route], None]


def refusal(status: int, detail: str) -> Answer:
    """Answer with an error of the server."""
    headers = {"retry-after": "0.01"} if status == 503 else {}
    return lambda route: route.fulfill(status=status, headers=headers, json={"detail": detail})


FAILURES: dict[str, tuple[Answer, str]] = {
    "down": (lambda route: route.abort("connectionrefused"), "Check that it is running"),
    "busy": (refusal(503, "busy"), "The server is busy. Wait a moment, then try again."),
    "too large": (refusal(413, "long"), "Remove some titles, then try again."),
    "refused": (refusal(422, "rating: 9 is not on the scale"), "rating: 9 is not on the scale"),
    "failed": (refusal(500, "log id 7"), "failed with status 500 (log id 7). Try again"),
    "no JSON": (lambda route: route.fulfill(body="<p>proxy</p>"), "Check the address"),
}


def checked(row: Locator) -> Locator:
    """Return the chosen stars of a row."""
    return row.locator("input:checked")


@pytest.mark.parametrize("failure", FAILURES)
def test_a_rating_that_fails_is_taken_back_and_can_be_tried_again(
    browser: Browser, address: str, failure: str
) -> None:
    answer, words = FAILURES[failure]
    for page in open_page(browser, address, fails=True):
        page.locator("#list li").first.locator("label").nth(4).click()
        wait_for_update(page, 2)
        rated, shown = page.locator("#ratings").inner_text(), page.locator("#list").inner_text()
        page.route("**/v1/recommend", answer)
        row = page.locator("#list > li").nth(3)
        row.locator("label").nth(4).click()
        expect(row.get_by_role("alert")).to_contain_text(words)
        expect(row.get_by_role("alert")).to_contain_text("Your change was taken back.")
        expect(checked(row)).to_have_count(0)
        assert page.locator("#ratings").inner_text() == rated
        row.get_by_role("button", name="Try again").focus()
        page.unroute("**/v1/recommend")
        page.keyboard.press("Enter")
        wait_for_update(page, 4)
        expect(page.locator("#ratings > li")).to_have_count(2)
        expect(page.get_by_role("alert")).to_have_count(0)
        assert page.locator("#list").inner_text() != shown


def test_the_server_stops(browser: Browser) -> None:
    with ExitStack() as server:
        address = server.enter_context(served(fitted("idcf-bayes")))
        for page in open_page(browser, address, fails=True):
            page.locator("#question-item label").nth(4).click()
            wait_for_update(page, 2)
            server.close()
            question = page.locator("#question")
            question.locator("label").nth(1).click()
            expect(question.get_by_role("alert")).to_contain_text("The server cannot be reached.")
            expect(checked(question)).to_have_count(0)
            page.get_by_role("combobox", name="Search for a title").fill("film")
            search = page.locator(".search")
            expect(search.get_by_role("alert")).to_contain_text("The server cannot be reached.")
            search.get_by_role("button", name="Try again").click()
            expect(search.get_by_role("alert")).to_be_visible()
            page.get_by_role("button", name="Start over").click()
            expect(page.locator("#ratings-notice").get_by_role("alert")).to_be_visible()
            expect(page.locator("#ratings > li")).to_have_count(1)
            page.locator("summary").click()
            slider = page.get_by_role("slider", name="Diversity")
            slider.fill("0.5")
            expect(page.locator("#list-notice").get_by_role("alert")).to_be_visible()
            expect(slider).to_have_value("0")
            page.get_by_role("button", name="Show more").click()
            expect(page.locator("#more-notice").get_by_role("alert")).to_be_visible()


def test_a_busy_server_is_asked_again(browser: Browser, address: str) -> None:
    """The first response is 503 with Retry-After; the page waits and tries again."""
    rejected: list[Route] = []

    def busy(route: Route) -> None:
        """Refuse the first request."""
        if rejected:
            route.continue_()
        else:
            rejected.append(route)
            route.fulfill(status=503, headers={"retry-after": "20"}, json={"detail": "busy"})

    for page in open_page(browser, address, fails=True):
        page.clock.install()
        page.route("**/v1/recommend", busy)
        row = page.locator("#list > li").nth(2)
        row.locator("label").nth(4).click()
        expect(row).to_contain_text("The server is busy; trying again")
        page.clock.run_for(20_000)
        wait_for_update(page, 2)
        assert len(rejected) == 1


def test_a_slow_answer(page: Page) -> None:
    held: list[Route] = []
    page.clock.install()
    page.route("**/v1/recommend", lambda route: held.append(route))
    row = page.locator("#list > li").nth(2)
    with page.expect_request("**/v1/recommend"):
        row.locator("label").nth(4).click()
    expect(row.locator(".notice")).to_have_count(0)
    page.clock.run_for(1000)
    expect(row).to_contain_text("Waiting for the server")
    page.clock.run_for(30_000)
    expect(row.get_by_role("alert")).to_contain_text("did not answer within 30 seconds")
    expect(checked(row)).to_have_count(0)
    page.unroute("**/v1/recommend")
    row.get_by_role("button", name="Try again").click()
    wait_for_update(page, 3)
    expect(page.locator("#ratings > li")).to_have_count(1)


def test_a_list_without_reasons_or_question_says_so(browser: Browser) -> None:
    with served(fitted("idcf-bayes")) as address:
        for page in open_page(browser, address, fails=True):
            for update, path in enumerate(("explain", "next-question"), 2):
                page.route(f"**/v1/{path}", refusal(500, "log id 8"))
                page.locator("#list > li").first.locator("label").nth(4).click()
                alert = page.locator("#list-notice").get_by_role("alert")
                expect(alert).to_contain_text("the next question or the reasons are missing")
                wait_for_update(page, update + (update - 2))
                expect(page.locator("#ratings > li")).to_have_count(update - 1)
                page.unroute(f"**/v1/{path}")
                page.get_by_role("button", name="Try again").click()
                wait_for_update(page, 2 * update - 1)
                expect(alert).to_have_count(0)


def test_the_page_starts_when_the_server_comes_back(browser: Browser, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.route("**/v1/model", refusal(500, "log id 9"))
    page.goto(address)
    expect(page.get_by_role("alert")).to_contain_text("failed with status 500")
    expect(page.get_by_role("combobox")).to_be_disabled()
    page.unroute("**/v1/model")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#list li")).to_have_count(10)
    expect(page.get_by_role("combobox")).to_be_enabled()
    context.close()


def test_arrow_keys_on_stars_send_one_rating(page: Page) -> None:
    page.locator("#list label").nth(0).click()
    wait_for_update(page, 2)
    sent: list[Any] = []

    def note(request: Request) -> None:
        """Keep the histories that the page sends."""
        if request.url.endswith("/v1/recommend"):
            sent.append(request.post_data_json["history"])

    page.on("request", note)
    page.clock.install()
    page.locator("#ratings").get_by_role("radio", name="1 star", exact=True).focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#ratings").get_by_role("radio", name="4 stars")).to_be_checked()
    assert sent == []
    page.clock.run_for(700)  # the keys have come to rest
    wait_for_update(page, 3)
    assert [x[0]["rating"] for x in sent] == [4]
    expect(page.locator("#ratings").get_by_role("radio", name="4 stars")).to_be_focused()
    for key, rating, update in (("Enter", 3, 4), ("Tab", 2, 5)):
        page.keyboard.press("ArrowLeft")
        page.keyboard.press(key)
        page.clock.run_for(1)
        wait_for_update(page, update)
        assert sent[-1][0]["rating"] == rating
    expect(page.get_by_role("button", name=re.compile("^Remove"))).to_be_focused()
