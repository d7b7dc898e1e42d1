"""`idcf embed`: write the embeddings of all users of a history file, in chunks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from idcf.cli import options as o
from idcf.cli.history_files import (
    HISTORIES_HELP,
    ParsedHistories,
    convert_histories,
    print_conversion,
)

if TYPE_CHECKING:
    from idcf.inference.predictor import Predictor


def embed(
    model_folder: o.ModelFolder,
    histories: Annotated[
        Path, o.argument("HISTORIES", f"CSV or Parquet file of the users' {HISTORIES_HELP}")
    ],
    out: Annotated[Path, o.option("FILE", "Parquet file to write.")],
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Write an embedding for every user of a file.

    The Parquet file has the columns user_id, embedding, n_known_items and n_unknown_items.
    The embedding of a user without any known item is null.
    """
    o.limit_threads(threads)
    from idcf.recommender import Recommender

    predictor = Recommender.load(model_folder).predictor
    size = predictor.embed([predictor.read_new_user(None)]).shape[1]
    values = convert_histories(predictor, histories, out, partial(_embedding_table, predictor))
    print_conversion({**values, "embedding_size": size}, f"embedding size {size}", as_json)


def _embedding_table(predictor: Predictor, histories: ParsedHistories) -> Any:
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
