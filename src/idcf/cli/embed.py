"""`idcf embed`: a file of histories becomes a file of vectors, a piece at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.cli.evaluate import Threads, limit_threads
from idcf.cli.serve import Folder, Json
from idcf.errors import DataError, unknown

if TYPE_CHECKING:
    from idcf.desk import Desk

ROWS, PEOPLE = 1 << 16, 1 << 12  # read and embedded at a time: all that is ever in memory
Person = tuple[Any, list[tuple[Any, Any]]]


def embed(
    folder: Folder,
    histories: Annotated[
        Path,
        typer.Argument(help="Parquet or CSV: user_id, item_id, rating; sorted by user_id."),
    ],
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")],
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Vectors of people the model has never met: columns user_id, vector, known, unknown."""
    limit_threads(threads)
    from idcf.recommender import Recommender

    began = time.perf_counter()
    desk = Recommender.load(folder).desk
    found = write(desk, people(histories, desk.world.implicit), out)
    found |= {"file": str(out), "seconds": round(time.perf_counter() - began, 2)}
    typer.echo(json.dumps(found) if as_json else _text(found))


def people(path: Path, implicit: bool) -> Iterator[Person]:
    """Each user's rows. Sorted, so that one user is in memory and nobody comes twice."""
    last: Any = None
    for user, rows in groupby(_rows(path, implicit), itemgetter(0)):
        if user is None or (last is not None and not user > last):
            raise DataError(f"{path}: user {user!r} comes after {last!r}; sort it by user_id")
        last = user
        yield user, [(item, rating) for _, item, rating in rows]


def write(desk: Desk, everybody: Iterator[Person], out: Path) -> dict[str, Any]:
    """All or nothing: an unfinished file never has the name that was asked for."""
    import pyarrow as pa
    from pyarrow import parquet

    width = desk.embed([desk.reader.one(None)]).shape[1]
    counts = {"people": 0, "nothing_known": 0, "unknown_items": 0, "width": width}
    part = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        writer = None
        for chunk in _chunks(everybody):
            table = _table(desk, chunk, width, counts)
            if writer is None:
                writer = parquet.ParquetWriter(part, table.schema)
            writer.write_table(table)
        if writer is None:
            raise DataError("there is nobody in the file; nothing was written")
        writer.close()
        part.replace(out)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{out} cannot be written: {error}") from None
    finally:
        part.unlink(missing_ok=True)
    return counts


def _table(desk: Desk, chunk: list[Person], width: int, counts: dict[str, int]) -> Any:
    """A vector each; none for somebody whose items are all strange to the model."""
    import pyarrow as pa

    known = desk.reader.knows
    reads = [desk.reader.pairs([p for p in pairs if known(p[0])]) for _, pairs in chunk]
    strange = [sum(not known(x) for x, _ in pairs) for _, pairs in chunk]
    vectors = desk.embed(reads)
    empty = [not len(x.rows) for x in reads]
    flat = pa.array(vectors.reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, width, mask=pa.array(empty))
    counts["people"] += len(chunk)
    counts["nothing_known"] += sum(empty)
    counts["unknown_items"] += sum(strange)
    return pa.table(
        {
            "user_id": pa.array([who for who, _ in chunk]),
            "vector": column,
            "known": pa.array([len(x.rows) for x in reads], pa.int32()),
            "unknown": pa.array(strange, pa.int32()),
        }
    )


def _chunks(everybody: Iterator[Person]) -> Iterator[list[Person]]:
    while chunk := list(islice(everybody, PEOPLE)):
        yield chunk


def _rows(path: Path, implicit: bool) -> Iterator[tuple[Any, Any, Any]]:
    """Rows of a file, a piece of it at a time."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    needed = ["user_id", "item_id", *([] if implicit else ["rating"])]
    try:
        if path.suffix == ".parquet":
            file = parquet.ParquetFile(path)
            names, pieces = file.schema_arrow.names, None
        else:
            pieces = csv.open_csv(path)
            names = pieces.schema.names
        for name in needed:
            if name not in names:
                raise DataError(f"{path}: {unknown('column', name, names)}")
        for piece in pieces or file.iter_batches(ROWS, columns=needed):
            columns = [piece[name].to_pylist() for name in needed]
            yield from zip(*columns, *([[1.0] * len(columns[0])] if implicit else []), strict=True)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _text(found: dict[str, Any]) -> str:
    return (
        f"{found['people']:,} people, vectors of {found['width']}; nothing known of "
        f"{found['nothing_known']:,}, {found['unknown_items']:,} unknown items; "
        f"{found['seconds']:.1f} s\nwritten to {found['file']}"
    )
