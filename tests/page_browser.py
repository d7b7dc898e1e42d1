"""The web page in a real browser, for the tests: Chromium, an open page, and waiting for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed: apt-get install chromium, or set CHROMIUM"
)
ARGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The loaded page; an error message or a request to another server fails the test."""
    yield from open_page(browser, address)


def open_page(
    browser: Browser,
    address: str,
    *,
    path: str = "",
    fails: bool = False,
    is_ready: bool = True,
    **options: Any,
) -> Iterator[Page]:
    """Yield the loaded page, with its list if it `is_ready`. If `fails`, requests may: the browser
    logs each that does."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    context.set_default_timeout(8000)
    page, problems = context.new_page(), []

    def note(message: ConsoleMessage) -> None:
        """Keep what the browser logs, except for refused requests that the page tells of."""
        is_refusal = message.text.startswith("Failed to load resource")
        if message.type in ("error", "warning") and not (fails and is_refusal):
            problems.append(message.text)

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", note)
    page.on("request", lambda r: None if r.url.startswith(address) else problems.append(r.url))
    page.goto(address + path)
    if is_ready:
        expect(page.locator("#list li")).to_have_count(10)
    yield page
    context.close()
    assert problems == []


def search(page: Page, text: str) -> None:
    """Type a text into the search and wait for the first match."""
    page.get_by_role("combobox", name="Search for a title").fill(text)
    expect(page.get_by_role("option").first).to_be_visible()


def wait_for_update(page: Page, number: int) -> None:
    """Wait until the page shows all responses of its nth update."""
    expect(page.locator("body")).to_have_attribute("data-update", str(number))
