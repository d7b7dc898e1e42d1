"""Write one shard file, block by block, and summarize the ratings of blocks.

Does not know where blocks come from: `shard_writer` cuts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from idcf.data.interactions import Floats
from idcf.data.shard_spill import SortedRows
from idcf.data.shards import MAX_RATING_LEVELS, Shard, file_sha256
from idcf.errors import DataError
from idcf.files import atomic_path

_MAX_BLOCK_ROWS = 64 << 20  # of a row group of pyarrow


@dataclass
class RatingSummary:
    """Counts, range and sum of ratings, added up over blocks in their order."""

    counts: dict[float, int] | None = field(default_factory=dict)  # None: too many levels
    low: float = float("inf")
    high: float = float("-inf")
    total: float = 0.0

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Read what `values` returned."""
        counts = values["counts"]
        return cls(**{**values, "counts": None if counts is None else dict(counts)})

    def values(self) -> dict[str, Any]:
        """Return plain values for the journal."""
        counts = None if self.counts is None else sorted(self.counts.items())
        return {"counts": counts, "low": self.low, "high": self.high, "total": self.total}

    def add(self, ratings: Floats | None, n_rows: int) -> None:
        """Add the ratings of a block; None: implicit feedback."""
        from pyarrow import array

        if ratings is None:
            ratings, levels = np.ones(1, np.float32), [(1.0, n_rows)]
        else:
            pairs = array(ratings).value_counts()
            levels = list(zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True))
        self.low, self.high = (
            min(self.low, float(ratings.min())),
            max(self.high, float(ratings.max())),
        )
        self.total += float(ratings.sum(dtype=np.float64))
        if self.counts is not None:
            for level, n in levels:
                self.counts[level + 0.0] = self.counts.get(level, 0) + n  # -0.0 becomes 0.0
            if len(self.counts) > MAX_RATING_LEVELS:
                self.counts = None


class ShardFile:
    """A shard file that is being written, one row group for each block."""

    def __init__(self, path: Path, first_block: int, stack: ExitStack) -> None:
        import pyarrow as pa

        self.path, self.first_block = path, first_block
        self.n_blocks = self.n_users = self.n_rows = 0
        self._stack = stack
        self._sink = stack.enter_context(
            pa.OSFile(str(stack.enter_context(atomic_path(path))), "wb")
        )
        self._writer: Any = None

    @property
    def n_bytes(self) -> int:
        """Size of what was written so far."""
        return int(self._sink.tell())

    def add(self, block: SortedRows) -> None:
        """Write a block."""
        import pyarrow as pa
        from pyarrow import parquet

        n_rows = len(block.items)
        if n_rows > _MAX_BLOCK_ROWS:
            raise DataError(
                f"{n_rows:,} rows of {block.n_users:,} users are too many for one block; "
                "take fewer users per block (--block-users)"
            )
        user = np.repeat(np.arange(block.n_users, dtype=np.int32), np.diff(block.offsets))
        columns = {
            "user_id": block.user_ids.take(pa.array(user)),
            "item": block.items,
            "rating": block.ratings,
            "timestamp": block.times,
        }
        table = pa.table({name: x for name, x in columns.items() if x is not None})
        if self._writer is None:
            self._writer = self._stack.enter_context(
                parquet.ParquetWriter(
                    self._sink,
                    table.schema,
                    compression="zstd",
                    use_dictionary=["user_id", "rating"],
                    column_encoding={
                        name: "DELTA_BINARY_PACKED"  # written and read faster than dictionaries
                        for name in ("item", "timestamp")
                        if name in table.column_names
                    },
                )
            )
        self._writer.write_table(table, row_group_size=n_rows)
        self.n_blocks += 1
        self.n_users += block.n_users
        self.n_rows += n_rows

    def close(self) -> Shard:
        """Finish the file and describe it."""
        self._stack.close()
        return Shard(
            file=self.path.name,
            first_block=self.first_block,
            n_blocks=self.n_blocks,
            n_users=self.n_users,
            n_rows=self.n_rows,
            n_bytes=self.path.stat().st_size,
            sha256=file_sha256(self.path),
        )
