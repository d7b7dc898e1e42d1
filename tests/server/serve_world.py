"""Small fitted models, and a real server for them: uvicorn in a thread, on a free port."""

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
import pytest
from builders import board

from idcf.data.interactions import Interactions
from idcf.recommender import Recommender
from idcf.server.app import create_app
from idcf.server.batcher import BatcherLimits, RequestBatcher
from idcf.server.connections import ConnectionLimits
from idcf.server.protocol import RecommendProtocol
from idcf.server.run import ServerOptions, open_listening_sockets, server_for

TOKEN = "a-token-of-the-tests"
EVEN_HISTORY = {"i2": 5.0, "i4": 5.0, "i3": 1.0}
TITLES = {f"i{n}": f"Film {n} ({1950 + n})" for n in range(40)} | {"i1": "Matrix, The (1999)"}


def world(implicit: bool = False) -> Interactions:
    """Checkerboard interactions: even users like even items, odd users odd items."""
    return board(90, 40, 6, 20, implicit=implicit)


@cache
def fitted(name: str = "idcf-dot", implicit: bool = False, seed: int = 0) -> Recommender:
    """Return a small fitted model of this name."""
    small = {"sweeps": 16, "burn_in": 8, "embedding_size": 4, "rank": 6}
    options: dict[str, Any] = {}
    if name.startswith("idcf"):
        options = {"epochs": 3} if name != "idcf-bayes" else {} if implicit else small
    recommender = Recommender(name, key_threshold=12, device="cpu", seed=seed, **options)
    return recommender.fit(world(implicit), titles=TITLES)


@contextmanager
def served(
    recommender: Recommender,
    limits: BatcherLimits | None = None,
    *,
    has_short_cut: bool = True,
    connections: ConnectionLimits | None = None,
    options: ServerOptions | None = None,
    **app_options: Any,
) -> Iterator[str]:
    """Serve a recommender on a free local port and yield the address.

    Without the short cut, the ASGI application answers all routes.
    """
    batcher = RequestBatcher(recommender, limits)
    options = options or ServerOptions()
    rules, logs_requests = options.rules, options.logs_requests
    app = create_app(batcher, rules=rules, logs_requests=logs_requests, **app_options)
    server = server_for(
        batcher, app, connections or ConnectionLimits(), options, has_short_cut=has_short_cut
    )
    listener = open_listening_sockets("127.0.0.1", 0)[0]
    port = listener.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    for _ in range(500):
        if server.started:
            break
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the model that `address` serves."""
    return fitted().save(tmp_path_factory.mktemp("serve") / "model")


@pytest.fixture(scope="session")
def address(folder: Path) -> Iterator[str]:
    """Address of a server that all tests share."""
    with served(fitted(), folder=folder, token=TOKEN) as server_address:
        yield server_address


@pytest.fixture
def client(address: str) -> Iterator[httpx2.Client]:
    """HTTP client of the shared server."""
    with httpx2.Client(base_url=address, timeout=10) as http_client:
        yield http_client


@pytest.fixture
def short_cuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the status of each response of the short cut."""
    statuses: list[int] = []
    finish = RecommendProtocol.finish

    def counted(self: Any, cycle: Any, body: bytes, status: int = 200, *headers: Any) -> None:
        statuses.append(status)
        finish(self, cycle, body, status, *headers)

    monkeypatch.setattr(RecommendProtocol, "finish", counted)
    return statuses


def history_body(history: dict[str, float]) -> list[dict[str, Any]]:
    """Return a history as JSON requests have it."""
    return [{"item_id": item, "rating": rating} for item, rating in history.items()]


def item_ids(response: Any) -> list[str]:
    """Return the ids of the items in a response."""
    return [x["item_id"] for x in response.json()["items"]]
