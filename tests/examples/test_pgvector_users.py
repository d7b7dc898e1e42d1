"""The recipe for PostgreSQL with pgvector, on a server that IDCF_TEST_POSTGRES names.

For example IDCF_TEST_POSTGRES="host=127.0.0.1 port=5432 user=postgres dbname=postgres". Tables are
created in a schema of their own, which is dropped.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import board
from pyarrow import parquet
from shard_files import write_shards

from idcf import Recommender
from idcf.inference.bulk import BulkWork
from idcf.inference.bulk_folder import convert_folder
from idcf.training.engine import LocalEngine

psycopg = pytest.importorskip("psycopg")
ADDRESS = os.environ.get("IDCF_TEST_POSTGRES")
pytestmark = pytest.mark.skipif(ADDRESS is None, reason="IDCF_TEST_POSTGRES names no server")
EXAMPLE = Path(__file__).parents[2] / "examples" / "pgvector_users.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("pgvector_users", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def connection() -> Iterator[Any]:
    with psycopg.connect(ADDRESS) as opened:
        opened.execute("CREATE EXTENSION IF NOT EXISTS vector")
        opened.execute("CREATE SCHEMA idcf_test")
        opened.execute("SET search_path TO idcf_test, public")
        opened.commit()
        yield opened
        opened.rollback()
        opened.execute("DROP SCHEMA idcf_test CASCADE")


@pytest.mark.parametrize(
    ("name", "options", "list_options"),
    [
        ("als", {"embedding_size": 4}, {}),
        ("idcf-bayes", {"sweeps": 16, "burn_in": 8, "embedding_size": 4}, {"quality": 1.0}),
    ],
)
def test_nearest_items_are_recommended(
    example: Any, connection: Any, tmp_path: Path, name: str, options: Any, list_options: Any
) -> None:
    table = board(50, 40, 6, 18)
    recommender = Recommender(name, device="cpu", key_threshold=10, **options).fit(table)
    work = BulkWork.of_model(recommender.save(tmp_path / "model"), "cpu")
    shards = write_shards(table, tmp_path / "shards", 3)
    convert_folder(work, tmp_path / "shards", tmp_path / "out", LocalEngine())
    example.create_tables(connection, Recommender.load(tmp_path / "model"))
    assert example.load_users(connection, tmp_path / "out") == 50
    assert example.load_users(connection, tmp_path / "out") == 0  # each part once
    example.index_users(connection)
    assert connection.execute("SELECT count(*) FROM users").fetchone() == (50,)
    rows = parquet.read_table(tmp_path / "shards.parquet").to_pylist()
    for user in shards.user_ids(0)[:5]:
        history = {x["item_id"]: x["rating"] for x in rows if x["user_id"] == user}
        expected = recommender.recommend(history, n=5, **list_options)
        result = example.nearest_items(connection, user, 5, list(history))
        assert [item for item, _ in result] == [x.item_id for x in expected]
        differences = [score - x.rating for (_, score), x in zip(result, expected, strict=True)]
        assert max(differences) - min(differences) < 1e-4
    example.index_items(connection)
    assert {item for item, _ in example.nearest_items(connection, user, 5)} < set(table.items.ids)
    assert example.nearest_items(connection, "nobody") == []
