"""Load what `idcf embed` wrote for a folder into Qdrant, and query it.

    pip install qdrant-client
    idcf embed model histories --out embeddings
    python examples/qdrant_users.py model embeddings http://127.0.0.1:6333

For what the inner product of a user and an item means, see `pgvector_users.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import numpy as np
from pyarrow import parquet
from qdrant_client import QdrantClient, models

from idcf import Recommender

_POINTS_PER_REQUEST = 1000


def load_items(client: QdrantClient, recommender: Recommender) -> None:
    """Create the collections, and fill that of the items with their vectors and biases."""
    items = recommender.predictor.ranker.item_embeddings
    if items is None:
        raise SystemExit("this model has no vectors: take idcf-bayes, als or another idcf-* model")
    # the bias is one more coordinate, which is 1 for every user
    vectors = np.concatenate([items.vector.cpu().numpy(), items.bias.cpu().numpy()[:, None]], 1)
    for name in ("items", "users"):
        if not client.collection_exists(name):
            size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
            client.create_collection(name, vectors_config=size)
    _upsert(client, "items", recommender.predictor.item_ids, vectors)


def load_users(client: QdrantClient, folder: Path) -> int:
    """Load all parts of a folder, and return the number of users. Loading a part again changes
    nothing. Users without a known item have no vector and are left out."""
    n_users = 0
    for path in sorted(folder.glob("*.parquet")):
        for batch in parquet.ParquetFile(path).iter_batches(columns=["user_id", "embedding"]):
            known = batch.filter(batch["embedding"].is_valid())
            vectors = known["embedding"].flatten().to_numpy().reshape(len(known), -1)
            vectors = np.pad(vectors, ((0, 0), (0, 1)), constant_values=1)
            _upsert(client, "users", known["user_id"].to_pylist(), vectors)
            n_users += len(known)
    return n_users


def _upsert(client: QdrantClient, name: str, ids: Any, vectors: Any) -> None:
    """Write points, whose ids follow from those of the users or items."""
    for start in range(0, len(ids), _POINTS_PER_REQUEST):
        rows = slice(start, start + _POINTS_PER_REQUEST)
        batch = models.Batch(
            ids=[_point_id(x) for x in ids[rows]],
            vectors=vectors[rows].tolist(),
            payloads=[{"id": x} for x in ids[rows]],
        )
        client.upsert(name, points=batch)


def _point_id(row_id: Any) -> str:
    """Return the id of a point, which must be a number or a UUID."""
    return str(uuid5(NAMESPACE_OID, f"idcf:{row_id}"))


def nearest_items(
    client: QdrantClient, user_id: Any, n: int = 10, seen: list[Any] | None = None
) -> list[tuple[Any, float]]:
    """Return the n items with the largest inner product with a user's vector, without those that
    the user has seen."""
    user = client.retrieve("users", [_point_id(user_id)], with_vectors=True)
    if not user:
        return []
    excluded = models.HasIdCondition(has_id=[_point_id(x) for x in seen or []])
    result = client.query_points(
        "items", query=user[0].vector, query_filter=models.Filter(must_not=[excluded]), limit=n
    )
    return [(x.payload["id"], x.score) for x in result.points]


def main(model: str, folder: str, address: str) -> None:
    """Load everything."""
    client = QdrantClient(address)
    load_items(client, Recommender.load(model))
    print(f"{load_users(client, Path(folder)):,} users loaded")


if __name__ == "__main__":
    main(*sys.argv[1:])
