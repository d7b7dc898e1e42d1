"""Write a table in memory as a folder of shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from idcf.data.interactions import Interactions
from idcf.data.shard_writer import write_shards as write_source
from idcf.data.shards import ShardedTable


def write_shards(
    table: Interactions, folder: Path, n_shards: int = 2, block_users: int = 16
) -> ShardedTable:
    """Write the shards of a table of which every user and every item has rows."""
    columns = {
        "user_id": np.array(table.users.ids)[table.user],
        "item_id": np.array(table.items.ids)[table.item],
    }
    if not table.implicit:
        columns["rating"] = table.rating
    if table.time is not None:
        columns["timestamp"] = table.time
    source = folder.with_name(f"{folder.name}.parquet")
    parquet.write_table(pa.table(columns), source)
    return write_source(source, folder, n_shards=n_shards, block_users=block_users)[0]
