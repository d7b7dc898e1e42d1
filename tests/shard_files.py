"""Write a table in memory as a folder of shards."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from idcf.data.interactions import Interactions
from idcf.data.shards import FORMAT, Shard, ShardedTable, TableBlocks, file_sha256


def write_shards(
    table: Interactions, folder: Path, n_shards: int = 2, block_users: int = 16
) -> ShardedTable:
    """Write the shards of a table of which every user has rows."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks, shards = TableBlocks(table, block_users), []
    parquet.write_table(pa.table({"item_id": list(table.items.ids)}), folder / "items.parquet")
    for n, numbers in enumerate(np.array_split(np.arange(blocks.n_blocks), n_shards)):
        if not len(numbers):
            continue
        path, first_row, writer = folder / f"shard-{n:05}.parquet", 0, None
        for number in numbers.tolist():
            block = blocks.read_block(number)
            users = pa.array(list(blocks.user_ids(number)))
            columns = {
                "user_id": users.take(
                    pa.array(np.repeat(np.arange(len(users)), np.diff(block.offsets)))
                ),
                "item": block.items,
            }
            if block.ratings is not None:
                columns["rating"] = block.ratings
            if block.times is not None:
                columns["timestamp"] = block.times
            part = pa.table(columns)
            writer = writer or parquet.ParquetWriter(path, part.schema)
            writer.write_table(part)
            first_row += part.num_rows
        writer.close()
        first, last = int(numbers[0]), int(numbers[-1])
        n_users = blocks.users_of_block(last).stop - blocks.users_of_block(first).start
        shards.append(
            Shard(
                file=path.name, first_block=first, n_blocks=len(numbers), n_users=n_users,
                n_rows=first_row, n_bytes=path.stat().st_size, sha256=file_sha256(path),
            )
        )  # fmt: skip
    names = ("n_users", "n_items", "n_rows", "n_blocks", "block_users", "implicit", "has_times")
    manifest = {
        **{name: getattr(blocks, name) for name in names},
        "format": FORMAT,
        "idcf_version": "test",
        "has_ratings": not table.implicit,
        "rating_counts": blocks.rating_counts,
        "rating_range": blocks.rating_range,
        "rating_sum": blocks.rating_sum,
        "columns": {},
        "options": {},
        "source": {},
        "items_sha256": file_sha256(folder / "items.parquet"),
        "shards": [asdict(x) for x in shards],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return ShardedTable.open(folder)
