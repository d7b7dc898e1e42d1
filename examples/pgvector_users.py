"""Load what `idcf embed` wrote for a folder into PostgreSQL with pgvector, and query it.

    pip install "psycopg[binary]"
    idcf embed model histories --out embeddings
    python examples/pgvector_users.py model embeddings "host=127.0.0.1 user=postgres"

The inner product of a user's and an item's vector is the expected rating of the item, or its score,
less what is equal for all items. So the nearest items of a user by inner product are those of
`recommend` for models with two towers, and for `idcf-bayes` on ratings those of `quality=1`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from pyarrow import parquet

from idcf import Recommender

_SCHEMA = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE IF NOT EXISTS items (item_id text PRIMARY KEY, embedding vector({size}) NOT NULL);
CREATE TABLE IF NOT EXISTS users (user_id text NOT NULL, embedding vector({size}) NOT NULL);
CREATE TABLE IF NOT EXISTS loaded_parts (name text PRIMARY KEY, n_users bigint NOT NULL);
"""
_USER = "(SELECT embedding FROM users WHERE user_id = %(user)s)"
_NEAREST_ITEMS = f"""
SELECT item_id, -(embedding <#> {_USER}) FROM items
WHERE NOT item_id = ANY(%(seen)s) AND EXISTS {_USER}
ORDER BY embedding <#> {_USER} LIMIT %(n)s
"""


def create_tables(connection: psycopg.Connection[Any], recommender: Recommender) -> None:
    """Create the tables, and fill that of the items with their vectors and biases."""
    items = recommender.predictor.ranker.item_embeddings
    if items is None:
        raise SystemExit("this model has no vectors: take idcf-bayes, als or another idcf-* model")
    # the bias is one more coordinate, which is 1 for every user
    vectors = np.concatenate([items.vector.cpu().numpy(), items.bias.cpu().numpy()[:, None]], 1)
    connection.execute(_SCHEMA.format(size=vectors.shape[1]))
    connection.execute("TRUNCATE items")
    copy_vectors(connection, "items (item_id, embedding)", recommender.predictor.item_ids, vectors)
    connection.commit()


def load_users(connection: psycopg.Connection[Any], folder: Path) -> int:
    """Load the parts of a folder that are not yet loaded, each in one transaction, and return the
    number of users. Users without a known item have no vector and are left out."""
    n_users = 0
    for path in sorted(folder.glob("*.parquet")):
        with connection.transaction():
            row = connection.execute("SELECT 1 FROM loaded_parts WHERE name = %s", [path.name])
            if row.fetchone():
                continue
            n_part = 0
            for ids, vectors in read_embeddings(path):
                copy_vectors(connection, "users (user_id, embedding)", ids, vectors)
                n_part += len(ids)
            values = [path.name, n_part]
            connection.execute("INSERT INTO loaded_parts VALUES (%s, %s)", values)
        n_users += n_part
    return n_users


def read_embeddings(path: Path) -> Iterator[tuple[list[Any], Any]]:
    """Yield user ids and vectors, with 1 as the last coordinate, in batches."""
    for batch in parquet.ParquetFile(path).iter_batches(columns=["user_id", "embedding"]):
        known = batch.filter(batch["embedding"].is_valid())
        vectors = known["embedding"].flatten().to_numpy().reshape(len(known), -1)
        yield known["user_id"].to_pylist(), np.pad(vectors, ((0, 0), (0, 1)), constant_values=1)


def copy_vectors(connection: psycopg.Connection[Any], target: str, ids: Any, vectors: Any) -> None:
    """Write rows of an id and a vector by COPY in its binary format."""
    size = vectors.shape[1]
    content = np.ascontiguousarray(vectors, ">f4")
    vector_head = struct.pack(">ihh", 4 + 4 * size, size, 0)  # bytes, dimensions, 0
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {target} FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.write(b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0))
        for row_id, vector in zip(ids, content, strict=True):
            text = str(row_id).encode()
            id_field = struct.pack(">hi", 2, len(text)) + text  # 2 columns
            copy.write(id_field + vector_head + vector.tobytes())
        copy.write(struct.pack(">h", -1))


def index_users(connection: psycopg.Connection[Any]) -> None:
    """Index the users by id, after loading, which is faster."""
    connection.execute("CREATE UNIQUE INDEX IF NOT EXISTS users_by_id ON users (user_id)")
    connection.execute("ANALYZE users, items")
    connection.commit()


def index_items(connection: psycopg.Connection[Any]) -> None:
    """Index the items by inner product: approximate, for catalogues of some 100,000 items or more.

    Seen items are then left out after the search, so that a list may be short.
    """
    connection.execute(
        "CREATE INDEX IF NOT EXISTS items_by_product ON items USING hnsw (embedding vector_ip_ops)"
    )
    connection.commit()


def nearest_items(
    connection: psycopg.Connection[Any], user_id: Any, n: int = 10, seen: list[Any] | None = None
) -> list[tuple[str, float]]:
    """Return the n items with the largest inner product with a user's vector, without those that
    the user has seen."""
    arguments = {"user": str(user_id), "seen": [str(x) for x in seen or []], "n": n}
    return connection.execute(_NEAREST_ITEMS, arguments).fetchall()


def main(model: str, folder: str, address: str) -> None:
    """Load everything, and print the nearest items of one user."""
    with psycopg.connect(address) as connection:
        create_tables(connection, Recommender.load(model))
        print(f"{load_users(connection, Path(folder)):,} users loaded")
        index_users(connection)
        row = connection.execute("SELECT user_id FROM users LIMIT 1").fetchone()
        for item_id, score in nearest_items(connection, row[0] if row else ""):
            print(f"{score:8.3f}  {item_id}")


if __name__ == "__main__":
    main(*sys.argv[1:])
