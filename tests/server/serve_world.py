"""A small world served for real: uvicorn in a thread, sockets, JSON."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import uvicorn

from idcf.data.interactions import Interactions
from idcf.recommender import Recommender
from idcf.server.app import create
from idcf.server.batcher import Engine, Limits
from idcf.testing.synthetic import checkerboard

TOKEN = "a-token-of-the-tests"
EVEN = {"i2": 5.0, "i4": 5.0, "i3": 1.0}
TITLES = {f"i{n}": f"Film {n} ({1950 + n})" for n in range(40)} | {"i1": "Matrix, The (1999)"}


@cache
def world(implicit: bool = False) -> Interactions:
    return checkerboard(90, 40, np.random.default_rng(0), few=6, many=20, implicit=implicit)


@cache
def fitted(name: str = "idcf-dot", implicit: bool = False, seed: int = 0) -> Recommender:
    small = {"sweeps": 16, "burn_in": 8, "embedding_size": 4, "rank": 6}
    options = small if name == "idcf-bayes" else {"epochs": 3} if name.startswith("idcf") else {}
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
