"""`idcf embed`: a file of histories becomes a file of vectors, a piece at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.cli import history_files
from idcf.cli import options as o

if TYPE_CHECKING:
    from idcf.inference.predictor import Desk


def embed(
    folder: o.Folder,
    histories: Annotated[
        Path,
        typer.Argument(help="Parquet or CSV: user_id, item_id, rating; sorted by user_id."),
    ],
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")],
    threads: o.Threads = 1,
    as_json: o.Json = False,
) -> None:
    """Vectors of people the model has never met: columns user_id, vector, known, unknown."""
    o.limit_threads(threads)
    from idcf.recommender import Recommender

    began = time.perf_counter()
    desk = Recommender.load(folder).desk
    found = write(desk, history_files.people(histories, desk.world.implicit), out)
    found |= {"file": str(out), "seconds": round(time.perf_counter() - began, 2)}
    typer.echo(json.dumps(found) if as_json else _text(found))


def write(desk: Desk, everybody: Iterator[history_files.Person], out: Path) -> dict[str, Any]:
    """The vectors of all these people in one file."""
    width = desk.embed([desk.reader.one(None)]).shape[1]
    counts = {"width": width}
    tables = (_table(desk, chunk, width, counts) for chunk in history_files.chunks(everybody))
    history_files.write(tables, out)
    return counts


def _table(
    desk: Desk, chunk: list[history_files.Person], width: int, counts: dict[str, int]
) -> Any:
    """A vector each; none for somebody whose items are all strange to the model."""
    import pyarrow as pa

    reads, strange = history_files.read(desk, chunk, counts)
    vectors = desk.embed(reads)
    empty = [not len(x.rows) for x in reads]
    flat = pa.array(vectors.reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, width, mask=pa.array(empty))
    return pa.table(
        {
            "user_id": pa.array([who for who, _ in chunk]),
            "vector": column,
            "known": pa.array([len(x.rows) for x in reads], pa.int32()),
            "unknown": pa.array(strange, pa.int32()),
        }
    )


def _text(found: dict[str, Any]) -> str:
    return (
        f"{found['people']:,} people, vectors of {found['width']}; nothing known of "
        f"{found['nothing_known']:,}, {found['unknown_items']:,} unknown items; "
        f"{found['seconds']:.1f} s\nwritten to {found['file']}"
    )
