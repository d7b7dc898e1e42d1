"""The link that holds ratings or likes in its fragment."""

from __future__ import annotations

import pytest
from page_browser import NEEDS_CHROMIUM, open_page, wait_for_update
from playwright.sync_api import Browser, Page, expect
from serve_world import fitted, served

pytestmark = NEEDS_CHROMIUM


def shown(page: Page) -> list[str]:
    """Return the item ids of the list."""
    items: list[str] = page.locator("#list > li").evaluate_all("x => x.map((y) => y.dataset.item)")
    return items


def shared_link(page: Page) -> str:
    """Open the box with the link, and return the link."""
    page.get_by_role("button", name="Share").click()
    return page.get_by_role("textbox", name="A link that holds your").input_value()


def test_a_link_holds_the_ratings_and_the_server_does_not_see_them(
    browser: Browser, address: str
) -> None:
    for page in open_page(browser, address):
        for update, star in ((2, 4), (3, 0)):
            page.locator("#list > li").first.locator("label").nth(star).click()
            wait_for_update(page, update)
        link, before = shared_link(page), shown(page)
        assert link.startswith(f"{address}/#ratings=i")
        rated = page.locator("#ratings .title").all_inner_texts()
        page.locator("#list > li").first.locator("label").nth(2).click()
        wait_for_update(page, 4)
        expect(page.locator("#share-box")).to_be_hidden()  # the link would be out of date
    addresses: list[str] = []
    for other in open_page(browser, address):
        other.on("request", lambda request: addresses.append(request.url))
        other.goto("about:blank")
        other.goto(link)
        wait_for_update(other, 1)
        assert shown(other) == before
        assert other.locator("#ratings .title").all_inner_texts() == rated
        assert other.url == f"{address}/"  # the address would be out of date after a change
        assert not any("ratings=" in x.split("#")[0] for x in addresses)


def test_a_link_in_an_open_page(page: Page, address: str) -> None:
    page.evaluate("location.hash = '#ratings=i2:5,i3:1'")
    wait_for_update(page, 2)
    assert shown(page) == [x.item_id for x in fitted().recommend({"i2": 5.0, "i3": 1.0})]


@pytest.mark.parametrize(
    ("fragment", "words"),
    [
        ("#ratings=i2:9", "the rating “9” in it is not a number from 1 to 5"),
        ("#ratings=i2:x", "the rating “x” in it is not a number"),
        ("#ratings=i2", "“i2” in it cannot be read"),
        ("#ratings=", "cannot be read"),
        ("#ratings=%E0%A4%A:5", "cannot be read"),
        ("#ratings=i2:5:5", "cannot be read"),
        ("#ratings=i2:5,i2:4", "it holds a title twice"),
        ("#ratings=" + ",".join(f"i{n}:5" for n in range(501)), "at most 500 are allowed"),
        ("#ratings=nope:5", "this server knows none of its titles"),
        ("#likes=i2", "it holds likes, but this server goes by ratings"),
        ("#rating=i2:5", "instead of #ratings= or #likes="),
    ],
)
def test_a_wrong_link_is_refused(page: Page, fragment: str, words: str) -> None:
    page.evaluate("x => { location.hash = x; }", fragment)
    notice = page.locator("#link-notice")
    expect(notice).to_contain_text("The link was not used: ")
    expect(notice).to_contain_text(words)
    expect(notice).to_contain_text("Ask for the link again, or go on without it.")
    expect(page.locator("#ratings > li")).to_have_count(0)
    expect(page.locator("#list > li")).to_have_count(10)


def test_a_skip_link_is_no_wrong_link(page: Page) -> None:
    page.evaluate("location.hash = '#list'")
    expect(page.locator("#link-notice")).to_be_empty()


def test_unknown_titles_of_a_link_are_left_out_and_told(browser: Browser, address: str) -> None:
    phone = {"width": 390, "height": 844}
    for page in open_page(browser, address, path="#ratings=i2:5,nope:4", viewport=phone):
        wait_for_update(page, 1)
        expect(page.locator("#ratings .title")).to_have_text(["Film 2 1952"])
        expect(page.locator("#link-notice")).to_contain_text("does not know 1 of the 2 titles")
        expect(page.locator("#link-notice .notice")).to_be_in_viewport()


def test_a_link_of_likes(browser: Browser) -> None:
    with served(fitted("ease", implicit=True)) as address:
        for page in open_page(browser, address, path="#likes=i2,i4"):
            wait_for_update(page, 1)
            expect(page.locator("#ratings > li")).to_have_count(2)
            assert shared_link(page) == f"{address}/#likes=i2,i4"
            page.context.grant_permissions(["clipboard-read", "clipboard-write"])
            page.get_by_role("button", name="Copy").click()
            expect(page.get_by_role("button", name="Copied")).to_be_visible()
            assert page.evaluate("navigator.clipboard.readText()").endswith("#likes=i2,i4")


def test_a_link_that_cannot_be_opened_yet_can_be_tried_again(
    browser: Browser, address: str
) -> None:
    for page in open_page(browser, address, fails=True):
        page.route("**/v1/predict", lambda route: route.abort("connectionrefused"))
        page.evaluate("location.hash = '#ratings=i2:5'")
        notice = page.locator("#link-notice")
        expect(notice.get_by_role("alert")).to_contain_text("The link was not opened.")
        page.unroute("**/v1/predict")
        notice.get_by_role("button", name="Try again").click()
        expect(page.locator("#ratings > li")).to_have_count(1)
