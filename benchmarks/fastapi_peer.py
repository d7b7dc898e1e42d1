"""`implicit` behind a plain FastAPI, as one would write it in an hour; for `load.py`.

Factors are random, as the time does not depend on them. The request is that of idcf's
/v1/recommend; the response has ids and scores.

    python benchmarks/fastapi_peer.py ITEMS.json      prints its address as JSON and serves
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI
from implicit.als import AlternatingLeastSquares
from pydantic import BaseModel
from scipy.sparse import csr_matrix

EMBEDDING_SIZE = 64


class HistoryItem(BaseModel):
    """One item of the history of a user."""

    item_id: str
    rating: float


class RecommendRequest(BaseModel):
    """Request of the best items for a new user."""

    history: list[HistoryItem]
    n: int = 10


class Item(BaseModel):
    """A recommended item."""

    item_id: str
    score: float


def create_app(item_ids: list[str]) -> FastAPI:
    """Return the application for a catalogue."""
    rng, n_items = np.random.default_rng(0), len(item_ids)
    row_by_id = {item: row for row, item in enumerate(item_ids)}
    model = AlternatingLeastSquares(factors=EMBEDDING_SIZE, num_threads=1)
    model.user_factors = rng.normal(0, 0.1, (1, EMBEDDING_SIZE)).astype(np.float32)
    model.item_factors = rng.normal(0, 0.1, (n_items, EMBEDDING_SIZE)).astype(np.float32)
    app = FastAPI()

    @app.get("/ready")
    async def ready() -> bool:
        return True

    @app.post("/v1/recommend")
    async def recommend(request: RecommendRequest) -> list[Item]:
        rows = [row_by_id[x.item_id] for x in request.history]
        ratings = np.array([x.rating for x in request.history], np.float32)
        history = csr_matrix((ratings, ([0] * len(rows), rows)), shape=(1, n_items))
        best, scores = model.recommend(0, history, N=request.n, recalculate_user=True)
        return [
            Item(item_id=item_ids[row], score=score)
            for row, score in zip(best.tolist(), scores.tolist(), strict=True)
        ]

    return app


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(json.dumps({"address": address, "pid": os.getpid()}), flush=True)
    app = create_app(json.loads(Path(sys.argv[1]).read_text()))
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run([listener])
