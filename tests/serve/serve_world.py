"""A small world served for real: uvicorn in a thread, sockets, JSON."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import uvicorn

from idcf.data.interactions import Interactions
from idcf.data.synthetic import checkerboard
from idcf.desk import Cohort, Desk, Explanation, Question, Reason, Recommendations
from idcf.recommender import Recommender
from idcf.serve.app import create
from idcf.serve.engine import Engine, Limits

TOKEN = "a-token-of-the-tests"
EVEN = {"i2": 5.0, "i4": 5.0, "i3": 1.0}
TITLES = {f"i{n}": f"Film {n} ({1950 + n})" for n in range(40)} | {"i1": "Matrix, The (1999)"}


@cache
def world(implicit: bool = False) -> Interactions:
    return checkerboard(90, 40, np.random.default_rng(0), few=6, many=20, implicit=implicit)


@cache
def fitted(name: str = "idcf-dot", implicit: bool = False, seed: int = 0) -> Recommender:
    options = {"epochs": 3} if name.startswith("idcf") else {}
    made = Recommender(name, key_threshold=12, device="cpu", seed=seed, **options)
    return made.fit(world(implicit), titles=TITLES)


@contextmanager
def served(recommender: Recommender, limits: Limits | None = None, **more: Any) -> Iterator[str]:
    """The address of a real server, on a free port of the loopback."""
    app = create(Engine(recommender, limits), **more)
    config = uvicorn.Config(
        app, port=0, log_level="warning", access_log=False, lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    for _ in range(500):
        if server.started:
            break
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted().save(tmp_path_factory.mktemp("serve") / "model")


@pytest.fixture(scope="session")
def address(folder: Path) -> Iterator[str]:
    with served(fitted(), folder=folder, token=TOKEN) as found:
        yield found


@pytest.fixture
def client(address: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=address, timeout=10) as found:
        yield found


def said(history: dict[str, float]) -> list[dict[str, Any]]:
    return [{"item_id": x, "rating": r} for x, r in history.items()]


def ids(answer: Any) -> list[str]:
    return [x["item_id"] for x in answer.json()["items"]]


class Posterior(Recommender):
    """Stands in for a model with a posterior: reasons by leaving items out, honest but slow."""

    def explain(self, history: Any, item: Any) -> Explanation:
        told = dict(history)
        score = float(self.predict(told, [item])[0])
        reasons = []
        for x, rating in told.items():
            rest = {k: v for k, v in told.items() if k != x}
            effect = score - float(self.predict(rest, [item])[0])
            reasons.append(Reason(x, TITLES.get(x), rating, effect))
        reasons.sort(key=lambda x: -abs(x.effect))
        cohort = Cohort(12, 0.4, ("Film 8 (1958)", "Matrix, The (1999)"))
        return Explanation(item, TITLES.get(item), score, 0.4, tuple(reasons), (cohort,))

    def next_question(self, history: Any = None, n: int = 5) -> list[Question]:
        found = self.recommend(history or {}, n=n)
        return [Question(x.item_id, x.title, 1 / x.rank) for x in found]

    @property
    def desk(self) -> Desk:
        found = super().desk
        found.listed = partial(_unsure, found)  # type: ignore[method-assign]
        return found


def _unsure(desk: Desk, *words: Any, **more: Any) -> Recommendations:
    found = Desk.listed(desk, *words, **more)
    rows = [x._replace(std=0.2 + x.rank / 20, source="posterior") for x in found]
    return Recommendations(rows, found.unknown_items, found.user_id)
