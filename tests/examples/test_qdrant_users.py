"""The recipe for Qdrant, on the store in memory that its client has."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from builders import board
from pyarrow import parquet
from shard_files import write_shards

from idcf import Recommender
from idcf.inference.bulk import BulkWork
from idcf.inference.bulk_folder import convert_folder
from idcf.training.engine import LocalEngine

qdrant_client = pytest.importorskip("qdrant_client")
EXAMPLE = Path(__file__).parents[2] / "examples" / "qdrant_users.py"


def test_nearest_items_are_recommended(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("qdrant_users", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    table, client = board(50, 40, 6, 18), qdrant_client.QdrantClient(":memory:")
    recommender = Recommender("als", embedding_size=4, device="cpu", key_threshold=10).fit(table)
    work = BulkWork.of_model(recommender.save(tmp_path / "model"), "cpu")
    shards = write_shards(table, tmp_path / "shards", 3)
    convert_folder(work, tmp_path / "shards", tmp_path / "out", LocalEngine())
    example.load_items(client, recommender)
    for _ in range(2):
        assert example.load_users(client, tmp_path / "out") == 50
    assert client.count("users").count == 50
    rows = parquet.read_table(tmp_path / "shards.parquet").to_pylist()
    for user in shards.user_ids(0)[:5]:
        history = {x["item_id"]: x["rating"] for x in rows if x["user_id"] == user}
        expected = recommender.recommend(history, n=5)
        result = example.nearest_items(client, user, 5, list(history))
        assert [item for item, _ in result] == [x.item_id for x in expected]
    assert example.nearest_items(client, "nobody") == []
