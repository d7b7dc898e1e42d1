"""Files of histories, a piece at a time: what is in memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idcf.errors import DataError, unknown

if TYPE_CHECKING:
    from idcf.data.history_reader import Read
    from idcf.inference.predictor import Desk

ROWS, PEOPLE = 1 << 16, 1 << 12  # read and answered at a time: all that is ever in memory
Person = tuple[Any, list[tuple[Any, Any]]]


def people(path: Path, implicit: bool) -> Iterator[Person]:
    """Each user's rows. Sorted, so that one user is in memory and nobody comes twice."""
    last: Any = None
    for user, rows in groupby(_rows(path, implicit), itemgetter(0)):
        if user is None or (last is not None and not user > last):
            raise DataError(f"{path}: user {user!r} comes after {last!r}; sort it by user_id")
        last = user
        yield user, [(item, rating) for _, item, rating in rows]


def chunks(everybody: Iterator[Person], most: int | None = None) -> Iterator[list[Person]]:
    """So many people at a time, or fewer where each of them takes room."""
    while chunk := list(islice(everybody, min(PEOPLE, most or PEOPLE))):
        yield chunk


def read(desk: Desk, chunk: list[Person], counts: dict[str, int]) -> tuple[list[Read], list[int]]:
    """What is known of each, and how many of their items are strange to the model."""
    known = desk.reader.knows
    reads = [desk.reader.pairs([p for p in pairs if known(p[0])]) for _, pairs in chunk]
    strange = [sum(not known(x) for x, _ in pairs) for _, pairs in chunk]
    counts["people"] = counts.get("people", 0) + len(chunk)
    nothing = sum(not len(x.rows) for x in reads)
    counts["nothing_known"] = counts.get("nothing_known", 0) + nothing
    counts["unknown_items"] = counts.get("unknown_items", 0) + sum(strange)
    return reads, strange


def write(tables: Iterator[Any], out: Path) -> None:
    """Arrow tables of one schema become a Parquet file. All or nothing: an unfinished file never
    has the name that was asked for."""
    import pyarrow as pa
    from pyarrow import parquet

    part = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        writer = None
        for table in tables:
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
