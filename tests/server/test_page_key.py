"""The web page of a server that needs an API key: asked for once, then sent each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from page_browser import NEEDS_CHROMIUM, open_page, search, wait_for_update
from playwright.sync_api import Browser, Page, Request, expect
from serve_world import fitted, served

from idcf.server.access import AccessRules
from idcf.server.run import ServerOptions

pytestmark = NEEDS_CHROMIUM
KEY = "a-key-of-the-tests-of-the-page"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of a server that needs a key."""
    rules = AccessRules(api_keys={"page": KEY})
    with served(fitted(), options=ServerOptions(rules=rules)) as server_address:
        yield server_address


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, which asks for the key."""
    yield from open_page(browser, address, fails=True, is_ready=False)


def enter(page: Page, key: str) -> None:
    """Enter a key into the dialog."""
    page.get_by_label("API key", exact=True).fill(key)
    page.keyboard.press("Enter")


def test_the_key_is_asked_for_once_and_sent_with_every_request(page: Page) -> None:
    requests: list[Request] = []
    page.on("request", lambda request: requests.append(request))
    dialog = page.get_by_role("dialog", name="This server needs an API key")
    expect(dialog).to_be_visible()
    expect(page.get_by_label("API key", exact=True)).to_be_focused()
    enter(page, KEY)
    expect(dialog).to_be_hidden()
    wait_for_update(page, 1)
    page.locator("#list li").first.locator("label").last.click()
    wait_for_update(page, 2)
    search(page, "film")
    page.reload()
    expect(page.locator("#list li")).to_have_count(10)
    expect(dialog).to_be_hidden()
    sent = [x for x in requests if "/v1/" in x.url]
    assert {x.url.rpartition("/v1/")[2].partition("?")[0] for x in sent} > {"model", "recommend"}
    assert {x.headers["authorization"] for x in sent} == {f"Bearer {KEY}"}
    assert not [x.url for x in requests if KEY in x.url]
    assert page.evaluate("document.cookie + localStorage.length") == "0"


def test_a_wrong_key_is_told_of_and_asked_for_again(page: Page) -> None:
    enter(page, "not the key")
    expect(page.get_by_role("alert")).to_contain_text("has no spaces")
    enter(page, "another-key-of-nobody")
    expect(page.get_by_role("alert")).to_contain_text("does not accept this key. Check it")
    enter(page, KEY)
    expect(page.locator("#list li")).to_have_count(10)


def test_without_a_key_the_page_says_what_to_do(page: Page) -> None:
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("alert")).to_contain_text("needs an API key. Ask whoever runs it")
    page.get_by_role("button", name="Try again").click()
    enter(page, KEY)
    expect(page.locator("#list li")).to_have_count(10)


def test_a_key_that_is_withdrawn_is_asked_for_and_the_change_goes_on(page: Page) -> None:
    enter(page, KEY)
    wait_for_update(page, 1)
    page.evaluate("sessionStorage.setItem('idcf-api-key', 'an-older-key-of-the-page')")
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("does not accept this key")
    page.get_by_role("button", name="Not now").click()
    page.get_by_role("button", name="Try again").click()
    enter(page, KEY)
    expect(page.locator("#list li")).to_have_count(10)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_dialog(browser: Browser, address: str, scheme: str) -> None:
    options = {"color_scheme": scheme, "viewport": {"width": 390, "height": 844}}
    for page in open_page(browser, address, fails=True, is_ready=False, **options):
        enter(page, "another-key-of-nobody")
        expect(page.get_by_role("alert")).to_be_visible()
        found = Axe().run(page).response["violations"]
        assert [(x["id"], [y["html"] for y in x["nodes"]]) for x in found] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
