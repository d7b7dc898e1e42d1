"""Large files of histories: read and write them in chunks, so that memory does not grow with them.

A history file is CSV or Parquet with the columns user_id, item_id and rating, sorted by user_id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from idcf.errors import DataError, unknown_name_message
from idcf.files import atomic_path

if TYPE_CHECKING:
    from idcf.data.history_reader import NewUser
    from idcf.inference.predictor import Predictor

ROWS_PER_READ = 1 << 16  # rows of a Parquet file in memory
USERS_PER_CHUNK = 1 << 12  # users whose results are computed together
_MAX_NUMBER_CHARS = 18
HistoryRecord = tuple[Any, list[tuple[Any, Any]]]  # user id, (item id, rating) pairs


class ParsedHistories(NamedTuple):
    """Histories of some users, translated for one model."""

    user_ids: list[Any]  # as in the file
    new_users: list[NewUser]  # in the order of `user_ids`
    n_unknown_items: list[int]  # per user; these items are left out of `new_users`


@dataclass
class HistoryCounts:
    """Totals over the histories of a file: users, users without a known item, unknown items.

    An unknown item counts once for each history that holds it.
    """

    n_users: int = 0
    n_users_without_known_items: int = 0
    n_unknown_items: int = 0

    def add(self, histories: ParsedHistories) -> None:
        """Add the counts of some users."""
        self.n_users += len(histories.new_users)
        self.n_users_without_known_items += sum(
            not len(user.item_rows) for user in histories.new_users
        )
        self.n_unknown_items += sum(histories.n_unknown_items)

    def __str__(self) -> str:
        return (
            f"{self.n_users_without_known_items:,} users without a known item, "
            f"{self.n_unknown_items:,} unknown items"
        )


def read_histories(path: Path, implicit: bool) -> Iterator[HistoryRecord]:
    """Yield the history of each user in a file, one user at a time.

    Parameters
    ----------
    path : Path
        CSV or Parquet file, sorted by user_id: as text, or as numbers if the ids are numbers.
    implicit : bool
        Whether the model was trained on implicit feedback; the column rating is then not read.

    Raises
    ------
    DataError
        If the file cannot be read, lacks a column or is not sorted.
    """
    sort_keys = [_text_key, _number_key]  # the orders that all users so far are sorted in
    previous: Any = None
    for user, rows in groupby(_read_rows(path, implicit), itemgetter(0)):
        if user is None:
            raise DataError(f"{path}: there is a row without user_id after user {previous!r}")
        if previous is not None:
            sort_keys = [key for key in sort_keys if key(previous) < key(user)]
        if not sort_keys:
            raise DataError(
                f"{path}: user {user!r} comes after {previous!r}; sort the file by user_id"
            )
        previous = user
        yield user, [(item, rating) for _, item, rating in rows]


def chunk_histories(histories: Iterator[HistoryRecord]) -> Iterator[list[HistoryRecord]]:
    """Yield lists of at most USERS_PER_CHUNK users."""
    while chunk := list(islice(histories, USERS_PER_CHUNK)):
        yield chunk


def parse_histories(predictor: Predictor, chunk: list[HistoryRecord]) -> ParsedHistories:
    """Translate histories to item rows; items that the model does not know are left out."""
    reader = predictor.history_reader
    user_ids, new_users, n_unknown_items = [], [], []
    for user, pairs in chunk:
        known_pairs = [pair for pair in pairs if reader.knows_item(pair[0])]
        user_ids.append(user)
        new_users.append(reader.read_pairs(known_pairs))
        n_unknown_items.append(len(pairs) - len(known_pairs))
    return ParsedHistories(user_ids, new_users, n_unknown_items)


def write_parquet(tables: Iterator[Any], out: Path) -> None:
    """Write Arrow tables of one schema to a Parquet file, which appears only once it is complete.

    Raises
    ------
    DataError
        If there are no tables, or if the file cannot be written.
    """
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


def _read_rows(path: Path, implicit: bool) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (user id, item id, rating) of each row of a file."""
    import pyarrow as pa

    names = ["user_id", "item_id", *([] if implicit else ["rating"])]
    read_batches = _parquet_batches if path.suffix == ".parquet" else _csv_batches
    try:
        for batch in read_batches(path, names):
            columns = [batch[name].to_pylist() for name in names]
            if implicit:
                columns.append([1.0] * len(batch))
            yield from zip(*columns, strict=True)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _parquet_batches(path: Path, names: list[str]) -> Iterator[Any]:
    """Yield the rows of a Parquet file in batches, with only the columns `names`."""
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    _require_columns(path, names, file.schema_arrow.names)
    yield from file.iter_batches(ROWS_PER_READ, columns=names)


def _csv_batches(path: Path, names: list[str]) -> Iterator[Any]:
    """Yield the rows of a CSV file with ids as text, so that the id 007 stays 007."""
    import pyarrow as pa
    from pyarrow import csv

    with csv.open_csv(path) as header:
        _require_columns(path, names, header.schema.names)
    types = {"user_id": pa.string(), "item_id": pa.string(), "rating": pa.float64()}
    options = csv.ConvertOptions(
        include_columns=names,
        column_types={name: types[name] for name in names},
        strings_can_be_null=True,
        null_values=[""],  # "NA" and "null" may be ids
    )
    yield from csv.open_csv(path, convert_options=options)


def _require_columns(path: Path, names: list[str], columns: list[str]) -> None:
    """Raise DataError if one of `names` is not among the columns of the file."""
    for name in names:
        if name not in columns:
            raise DataError(f"{path}: {unknown_name_message('column', name, columns)}")
