"""`idcf embed`: write the embeddings of all users of a history file, in chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.cli import history_files
from idcf.cli import options as o

if TYPE_CHECKING:
    from idcf.inference.predictor import Predictor


def embed(
    model_folder: o.ModelFolder,
    histories: Annotated[
        Path,
        typer.Argument(
            metavar="HISTORIES",
            help="CSV or Parquet file of the users' histories: user_id, item_id, rating, sorted "
            "by user_id.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Parquet file to write.", show_default=False)
    ],
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Write an embedding for every user of a file.

    The Parquet file has the columns user_id, embedding, n_known_items and n_unknown_items.
    The embedding of a user without any known item is null.
    """
    o.limit_threads(threads)
    from idcf.recommender import Recommender

    start = time.perf_counter()
    predictor = Recommender.load(model_folder).predictor
    embedding_size = predictor.embed([predictor.read_new_user(None)]).shape[1]
    records = history_files.read_histories(histories, predictor.domain.implicit)
    counts = write_embeddings(predictor, records, out)
    seconds = round(time.perf_counter() - start, 2)
    o.print_result(
        {
            **asdict(counts),
            "embedding_size": embedding_size,
            "file": str(out),
            "seconds": seconds,
        },
        f"{counts.n_users:,} users, embedding size {embedding_size}; {counts}; {seconds:.1f} s\n"
        f"written to {out}",
        as_json,
    )


def write_embeddings(
    predictor: Predictor, histories: Iterator[history_files.HistoryRecord], out: Path
) -> history_files.HistoryCounts:
    """Write the embeddings of users to a Parquet file and return how many users there were."""
    counts = history_files.HistoryCounts()

    def tables() -> Iterator[Any]:
        """Yield an Arrow table of embeddings for each chunk of histories, adding to `counts`."""
        for chunk in history_files.chunk_histories(histories):
            parsed = history_files.parse_histories(predictor, chunk)
            counts.add(parsed)
            yield _embedding_table(predictor, parsed)

    history_files.write_parquet(tables(), out)
    return counts


def _embedding_table(predictor: Predictor, histories: history_files.ParsedHistories) -> Any:
    """Return an Arrow table with one row per user."""
    import pyarrow as pa

    embeddings = predictor.embed(histories.new_users)
    n_known_items = [len(user.item_rows) for user in histories.new_users]
    column = pa.FixedSizeListArray.from_arrays(
        pa.array(embeddings.reshape(-1)),
        embeddings.shape[1],
        mask=pa.array([not n for n in n_known_items]),
    )
    return pa.table(
        {
            "user_id": pa.array(histories.user_ids),
            "embedding": column,
            "n_known_items": pa.array(n_known_items, pa.int32()),
            "n_unknown_items": pa.array(histories.n_unknown_items, pa.int32()),
        }
    )
