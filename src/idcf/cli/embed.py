"""`idcf embed`: write the embeddings of all users of a history file or of a folder of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from idcf.cli import options as o
from idcf.cli.history_files import (
    HISTORIES_HELP,
    BulkOptions,
    convert_histories,
    print_conversion,
)


def embed(
    model_folder: o.ModelFolder,
    histories: Annotated[
        Path, o.argument("HISTORIES", f"CSV or Parquet file of the users' {HISTORIES_HELP}")
    ],
    out: Annotated[
        Path,
        o.option(
            "PATH",
            "File to write: .parquet, .csv or .jsonl. For a folder of histories, a folder.",
        ),
    ],
    column: o.HistoryColumns = None,
    engine: o.EngineName = None,
    workers: o.Workers = None,
    address: o.ClusterAddress = None,
    device: o.Device = "auto",
    overwrite: o.OverwriteParts = False,
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Write an embedding for every user of a file or of a folder of files.

    The files have the columns user_id, embedding (in CSV embedding_0 and so on), n_known_items and
    n_unknown_items.
    The embedding of a user without any known item is null.
    For a folder, an interrupted run continues when the command is given again.
    """
    o.require_engine_extra(engine)
    o.limit_threads(threads)
    options = BulkOptions(
        device, engine, workers, address, overwrite, threads, not as_json, o.parse_columns(column)
    )
    values, size = convert_histories(model_folder, histories, out, options)
    print_conversion({**values, "embedding_size": size}, f"embedding size {size}", as_json)
