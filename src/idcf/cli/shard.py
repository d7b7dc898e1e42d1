"""`idcf shard`: write a table of any size as Parquet files sorted by user."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from idcf.cli import options as o
from idcf.errors import require_extra


def shard(
    out: Annotated[Path, o.option("FOLDER", "Folder to write; it appears once it is complete.")],
    source: Annotated[
        Path | None,
        o.argument(
            "[SOURCE]",
            "CSV, TSV (also .gz) or Parquet file, or a folder of either; or give --query.",
        ),
    ] = None,
    query: Annotated[
        str | None,
        o.option(
            "SQL",
            "Query run by DuckDB, e.g. \"SELECT user_id, item_id FROM 'log/*.parquet'\".",
        ),
    ] = None,
    column: o.ColumnMapping = None,
    implicit: o.ImplicitSwitch = None,
    shards: Annotated[
        int | None, o.option("N", "Number of files; by default they have about 64 MB.", min=1)
    ] = None,
    block_users: Annotated[
        int, o.option("N", "Users of a block, which is read and trained on at once.", min=1)
    ] = 4096,
    memory: Annotated[
        str, o.option("SIZE", "Memory that the program may take; it sorts on disk.")
    ] = "1GiB",
    overwrite: Annotated[
        bool, o.switch("--overwrite", "Replace a folder of shards that FOLDER already is.")
    ] = False,
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Write a table of any size as Parquet files sorted by user.

    FOLDER can be given to `idcf train` and `idcf estimate` like a file.
    An interrupted run continues when the command is given again.
    """
    if query:
        require_extra("shards", "duckdb")
    o.limit_numpy_threads(threads)
    import pyarrow as pa

    from idcf.data.shard_writer import write_shards
    from idcf.training.memory import parse_memory

    start = time.perf_counter()
    pa.set_cpu_count(threads)
    table, was_complete = write_shards(
        source,
        out,
        query=query,
        columns=o.parse_columns(column),
        implicit=implicit,
        n_shards=shards,
        block_users=block_users,
        memory=parse_memory(memory),
        threads=threads,
        overwrite=overwrite,
        progress=not as_json,
    )
    seconds = time.perf_counter() - start
    values = {
        "folder": str(out),
        "n_users": table.n_users,
        "n_items": table.n_items,
        "n_rows": table.n_rows,
        "n_blocks": table.n_blocks,
        "n_shards": len(table.shards),
        "n_bytes": sum(x.n_bytes for x in table.shards),
        "feedback": "implicit" if table.implicit else "explicit",
        "was_complete": was_complete,
        "seconds": round(seconds, 2),
    }
    text = (
        "{n_rows:,} rows of {n_users:,} users x {n_items:,} items, {feedback} feedback; "
        "{n_shards:,} files, {n_bytes:,} bytes"
    ).format_map(values)
    speed = "" if was_complete else f"; {seconds:.1f} s, {table.n_rows / seconds:,.0f} rows/s"
    status = "already complete, nothing was written:" if was_complete else "written to"
    o.print_result(values, f"{text}{speed}\n{status} {out}", as_json)
