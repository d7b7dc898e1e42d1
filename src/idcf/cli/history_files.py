"""Convert large files of histories in chunks, so that memory does not grow with them.

A history file is CSV or Parquet with the columns user_id, item_id and rating, sorted by user_id. A
column timestamp is read where the order of a history matters; without it the order is that of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from idcf.cli import options as o
from idcf.errors import DataError, unknown_name_message
from idcf.files import atomic_path, check_writable

if TYPE_CHECKING:
    from idcf.data.history_reader import NewUser
    from idcf.inference.predictor import Predictor

HISTORIES_HELP = "histories: user_id, item_id, rating, sorted by user_id."
ROWS_PER_READ = 1 << 16  # rows of a Parquet file in memory
USERS_PER_CHUNK = 1 << 12  # users whose results are computed together
_MAX_NUMBER_CHARS = 18


class ParsedHistories(NamedTuple):
    """Histories of some users, translated for one model."""

    user_ids: list[Any]  # as in the file
    new_users: list[NewUser]  # in the order of `user_ids`
    n_unknown_items: list[int]  # per user; these items are left out of `new_users`


def convert_histories(
    predictor: Predictor,
    histories: Path,
    out: Path,
    make_table: Callable[[ParsedHistories], Any],
    *,
    reads_times: bool = False,
) -> dict[str, Any]:
    """Write the Arrow tables that `make_table` makes of a history file to one Parquet file.

    Returns what `--json` prints: n_users, n_users_without_known_items, n_unknown_items (one for
    each row of an unknown item), file and seconds.
    """
    start = time.perf_counter()
    check_writable(out)
    counts = dict.fromkeys(("n_users", "n_users_without_known_items", "n_unknown_items"), 0)

    def tables() -> Iterator[Any]:
        """Yield a table for each chunk of users, all with the schema of the first."""
        schema = None
        records = read_histories(histories, predictor.domain.implicit, reads_times=reads_times)
        while chunk := list(islice(records, USERS_PER_CHUNK)):
            parsed = _parse_histories(predictor, chunk)
            counts["n_users"] += len(chunk)
            counts["n_users_without_known_items"] += sum(
                not len(user.item_rows) for user in parsed.new_users
            )
            counts["n_unknown_items"] += sum(parsed.n_unknown_items)
            table = make_table(parsed)
            schema = schema or table.schema
            yield table.cast(schema)

    _write_parquet(tables(), out)
    return {**counts, "file": str(out), "seconds": round(time.perf_counter() - start, 2)}


def print_conversion(values: dict[str, Any], detail: str, as_json: bool) -> None:
    """Print the result of `convert_histories`; `detail` says what every user got."""
    text = (
        f"{{n_users:,}} users, {detail}; {{n_users_without_known_items:,}} users without a known "
        "item, {n_unknown_items:,} unknown items; {seconds:.1f} s\nwritten to {file}"
    )
    o.print_result(values, text.format_map(values), as_json)


def read_histories(
    path: Path, implicit: bool, *, reads_times: bool = False
) -> Iterator[tuple[Any, list[tuple[Any, ...]]]]:
    """Yield each user id of a history file with its (item id, rating) pairs, user by user.

    If `implicit`, the column rating is not read and every rating is 1. If the file `reads_times`
    and has a column timestamp, the pairs are triples. Raises DataError if the file cannot be read,
    lacks a column, or is sorted neither as text nor as numbers.
    """
    sort_keys = [_text_key, _number_key]  # the orders that all users so far are sorted in
    previous: Any = None
    for user, rows in groupby(_read_rows(path, implicit, reads_times), itemgetter(0)):
        if user is None:
            raise DataError(f"{path}: there is a row without user_id after user {previous!r}")
        if previous is not None:
            sort_keys = [key for key in sort_keys if key(previous) < key(user)]
        if not sort_keys:
            raise DataError(
                f"{path}: user {user!r} comes after {previous!r}; sort the file by user_id"
            )
        previous = user
        yield user, [row[1:] for row in rows]


def _parse_histories(predictor: Predictor, chunk: list[Any]) -> ParsedHistories:
    """Translate histories to item rows; items that the model does not know are left out."""
    from idcf.data.history_reader import read_times

    reader = predictor.history_reader
    parsed = ParsedHistories([], [], [])
    for user, entries in chunk:
        known = [entry for entry in entries if reader.knows_item(entry[0])]
        times = read_times([entry[2] for entry in known]) if known and len(known[0]) > 2 else None
        parsed.user_ids.append(user)
        parsed.new_users.append(reader.read_pairs([entry[:2] for entry in known], times))
        parsed.n_unknown_items.append(len(entries) - len(known))
    return parsed


def _write_parquet(tables: Iterator[Any], out: Path) -> None:
    """Write tables of one schema to a Parquet file, which appears only once it is complete."""
    import pyarrow as pa
    from pyarrow import parquet

    first = next(tables, None)
    if first is None:
        raise DataError("the file of histories has no rows; nothing was written")
    try:
        with (
            atomic_path(out) as temporary,
            parquet.ParquetWriter(temporary, first.schema) as writer,
        ):
            for table in chain([first], tables):
                writer.write_table(table)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{out} cannot be written: {error}") from None


def _text_key(user: Any) -> Any:
    """Sort key of ids as text, or as numbers where they are no strings."""
    return user


def _number_key(user: Any) -> tuple[bool, int, Any]:
    """Sort key of ids as numbers; ids that are not numbers come last, as text."""
    if isinstance(user, str):
        is_number = user.isdecimal() and len(user) <= _MAX_NUMBER_CHARS
        return not is_number, int(user) if is_number else 0, user
    return False, 0, user


def _read_rows(path: Path, implicit: bool, reads_times: bool) -> Iterator[tuple[Any, ...]]:
    """Yield (user id, item id, rating) of each row of a file, and the time if there are times."""
    import pyarrow as pa

    names = ["user_id", "item_id", *([] if implicit else ["rating"])]
    read_batches = _parquet_batches if path.suffix == ".parquet" else _csv_batches
    try:
        for batch in read_batches(path, names, ["timestamp"] if reads_times else []):
            columns = [batch[name].to_pylist() for name in names]
            if implicit:
                columns.append([1.0] * len(batch))
            if "timestamp" in batch.schema.names:
                columns.append(batch["timestamp"].to_pylist())
            yield from zip(*columns, strict=True)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _parquet_batches(path: Path, names: list[str], optional: list[str]) -> Iterator[Any]:
    """Yield the rows of a Parquet file in batches, with the columns `names` and those of the
    `optional` ones that it has."""
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    _require_columns(path, names, file.schema_arrow.names)
    optional = [name for name in optional if name in file.schema_arrow.names]
    yield from file.iter_batches(ROWS_PER_READ, columns=names + optional)


def _csv_batches(path: Path, names: list[str], optional: list[str]) -> Iterator[Any]:
    """Yield the rows of a CSV file with ids as text, so that the id 007 stays 007; the columns are
    those of `_parquet_batches`."""
    import pyarrow as pa
    from pyarrow import csv

    with csv.open_csv(path) as header:
        _require_columns(path, names, header.schema.names)
        names = names + [name for name in optional if name in header.schema.names]
    types = {"user_id": pa.string(), "item_id": pa.string(), "rating": pa.float64()}
    options = csv.ConvertOptions(
        include_columns=names,
        column_types={name: types[name] for name in names if name in types},
        strings_can_be_null=True,
        null_values=[""],  # "NA" and "null" may be ids
    )
    yield from csv.open_csv(path, convert_options=options)


def _require_columns(path: Path, names: list[str], columns: list[str]) -> None:
    """Raise DataError if one of `names` is not among the columns of the file."""
    for name in names:
        if name not in columns:
            raise DataError(f"{path}: {unknown_name_message('column', name, columns)}")
