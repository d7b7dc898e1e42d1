"""The page in a browser with hostile titles, ids and attributes: no script of theirs runs."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

from attack import Tally
from page_browser import ARGS, CHROMIUM
from serve_world import served, world

from idcf.data.interactions import Vocab
from idcf.recommender import Recommender

TITLES = [
    "<script>window.attacked=1</script>",
    "<img src=x onerror=window.attacked=1>",
    '"><svg/onload=window.attacked=1>',
    "' autofocus onfocus=window.attacked=1 x='",
    "javascript:window.attacked=1",
    "</title></style></textarea><script>window.attacked=1</script>",
    "<iframe srcdoc='<script>parent.attacked=1</script>'></iframe>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>@import'//evil.example/x.css'</style>",
    "<a href=javascript:window.attacked=1>x</a>",
    "<form><button formaction=javascript:window.attacked=1>x",
    "<math><mtext></mtext><script>window.attacked=1</script></math>",
    "<noscript><p title='</noscript><img src=x onerror=window.attacked=1>'>",
    "${window.attacked=1}",
    "{{constructor.constructor('window.attacked=1')()}}",
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "\u202egnp.exe",
    "\u0001\u0008null",
    "&lt;script&gt;window.attacked=1&lt;/script&gt;",
    "\\u003cscript\\u003ewindow.attacked=1",
    "💥" * 40,
    "a" * 3000,
    " ",
]


def run(folder: Path, seed: int, share: float) -> Tally:
    """Give every item a hostile title; list, search, rate, like and share them."""
    tally = Tally()
    if CHROMIUM is None:
        tally.left_out["page_titles"] = "chromium is not installed"
        return tally
    from playwright.sync_api import sync_playwright

    n_rounds = max(1, round(8 * share))
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        for number in range(n_rounds):
            rng = random.Random(seed + number)
            with served(hostile_model(rng, implicit=number % 2 == 1)) as address:
                use_page(tally, browser, address, rng, f"seed {seed + number}")
        browser.close()
    return tally


def hostile_model(rng: random.Random, implicit: bool) -> Recommender:
    """Return a model whose items have hostile titles, and some hostile ids."""
    table = world(implicit)
    ids = [x if k % 2 else f"{x}{rng.choice(TITLES[:18])}" for k, x in enumerate(table.items.ids)]
    titles = {x: rng.choice(TITLES) for x in ids}
    for k, title in enumerate(TITLES):  # each of them at least once
        titles[ids[k]] = title
    table = dataclasses.replace(table, items=Vocab(ids))
    return Recommender("popularity" if implicit else "bias", device="cpu").fit(table, titles=titles)


def use_page(tally: Tally, browser: Any, address: str, rng: random.Random, case: str) -> None:
    """Use the page as a person does, and watch what it runs and asks for."""
    problems: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(f"error {error}"))
    page.on("dialog", lambda dialog: (problems.append("a dialog"), dialog.dismiss()))
    page.on(
        "request",
        lambda x: None if x.url.startswith(address) else problems.append(f"asks {x.url}"),
    )
    page.on("popup", lambda x: problems.append(f"opens {x.url}"))
    page.goto(address)
    page.locator("#list li").first.wait_for()
    for title in rng.sample(TITLES, 8):
        page.get_by_role("combobox").first.fill(title[:100])
        page.wait_for_timeout(150)
        tally.count("search for a hostile title")
    page.get_by_role("combobox").first.fill("")
    for number in range(4):
        control = page.locator("#list li").nth(number).locator("label, button").first
        control.click()
        page.wait_for_timeout(200)
        tally.count("answer about a hostile title")
    page.goto(f"{address}/#ratings={'%3Cscript%3E' * 3}:5,__proto__:3&likes=<img>")
    page.reload()
    page.locator("#list li").first.wait_for()
    tally.count("titles shown", page.locator("#list li").count())
    for script, expected in (
        ("window.attacked", None),
        ("document.querySelectorAll('script:not([src]), iframe, base, #list img').length", 0),
        ("({}).rating", None),
        ("location.origin", address),
    ):
        if (value := page.evaluate(script)) != expected:
            problems.append(f"{script} is {value!r}")
    context.close()
    tally.count("pages")
    for problem in problems:
        tally.fail("page", case, problem)
