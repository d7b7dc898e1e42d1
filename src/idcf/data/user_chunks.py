"""Read the histories of a file in chunks of whole users, so that memory does not grow with it.

A history file is CSV or Parquet with columns of users, items and ratings, sorted by user, or a file
of `idcf shard`, whose items are numbers. Times are read where the order of a history matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from idcf.data.column_names import resolve_columns
from idcf.data.columns import warn_about_data
from idcf.data.interactions import Ints
from idcf.data.readers import delimiter_of
from idcf.errors import DataError, unknown_name_message
from idcf.files import expand_user

ROWS_PER_READ = 1 << 16  # rows of a Parquet file in memory
USERS_PER_CHUNK = 1 << 12  # users whose results are computed together
_MAX_CHUNK_ROWS = 1 << 18  # fewer users are taken if they have more rows; one user may have more
_READ_BYTES = 1 << 20  # of a column at once, so that large row groups are not held
_MAX_NUMBER_CHARS = 18


@dataclass(frozen=True)
class HistoryFile:
    """A file of histories, sorted by user."""

    path: Path
    items: Path | None = None  # for a file of `idcf shard`: the file with the ids of its items
    columns: Mapping[str, str] = field(default_factory=dict)  # names, where the file has them
    required_columns: Mapping[str, str] = field(default_factory=dict)  # names that it must have
    may_be_unsorted: bool = False  # such a file is sorted in memory

    @property
    def item_column(self) -> str:
        """Name of the role of items."""
        return "item_id" if self.items is None else "item"

    def column_names(
        self, names: Sequence[str], roles: Sequence[str], optional: Sequence[str] = ()
    ) -> dict[str, str]:
        """Name of the column of each role, and of the `optional` ones that there are, among all
        `names`; raises DataError for one that is missing."""
        if self.items is not None:
            resolved = {role: role for role in (*roles, *optional) if role in names}
        else:
            known = {**self.columns, **self.required_columns}
            resolved = resolve_columns(names, str(self.path), known, [*roles, *optional])
        for name in resolved.values():
            if list(names).count(name) > 1:
                raise DataError(f"{self.path}: two columns are named {name!r}; rename one of them")
        for role in (*roles, *optional):
            name = self.required_columns.get(role, resolved.get(role, role))
            if name not in names and (role in roles or role in self.required_columns):
                message = unknown_name_message("column", name, list(names))
                raise DataError(f"{self.path}: {message}; name yours: --column {role}=...")
        return {role: resolved[role] for role in (*roles, *optional) if role in resolved}

    def user_column(self, names: Sequence[str]) -> str | None:
        """Name of the column of users among all `names`; None: there is none."""
        return self.column_names(names, [], ["user_id"]).get("user_id")


class UserChunk(NamedTuple):
    """Consecutive users of a file with all their rows, as Arrow arrays."""

    user_ids: Any  # [n]
    offsets: Ints  # [n + 1]: where the rows of each user start
    items: Any  # [N]: ids or, of `idcf shard`, numbers
    ratings: Any  # [N]; None: implicit feedback
    times: Any  # [N]; None: there are none, or they are not read


def read_user_chunks(
    file: HistoryFile, implicit: bool, *, reads_times: bool = False
) -> Iterator[UserChunk]:
    """Yield the users of a file in chunks, at least one chunk, which may be empty.

    If `implicit`, ratings are not read. Chunks depend on the rows alone. Raises DataError if the
    file cannot be read, lacks a column, or is sorted neither as text nor as numbers.
    """
    import pyarrow as pa

    path = expand_user(file.path)
    if path.exists() and not path.is_file():  # nobody may ever write into a pipe
        raise DataError(f"{path} cannot be read: it is not a file")
    roles = ["user_id", file.item_column, *([] if implicit else ["rating"])]
    optional = ["timestamp"] if reads_times else []
    read_batches = _csv_batches if file.path.suffix != ".parquet" else _parquet_batches
    try:
        if file.may_be_unsorted and not _is_sorted(file, read_batches(file, ["user_id"], [])):
            yield from _cut_chunks(_sorted_batches(read_batches(file, roles, optional)), file)
        else:
            yield from _cut_chunks(read_batches(file, roles, optional), file)
    except UnicodeDecodeError:
        raise DataError(f"{file.path} cannot be read: it is not utf-8; save it so") from None
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file.path} cannot be read: {reason:.300}") from None


def _is_sorted(file: HistoryFile, batches: Iterator[Any]) -> bool:
    """Whether the users of a file, given as batches of their column, are in order."""
    import pyarrow as pa

    check = _OrderCheck(file.path)
    try:
        for batch in batches:
            users = batch.column(0)
            starts = _user_offsets(pa.chunked_array([users]), check)[:-1]
            distinct = users.take(pa.array(starts))
            goes_on = len(distinct) > 0 and distinct[0].as_py() == check.previous
            check.add(distinct[int(goes_on) :])
    except UnsortedUsers:
        warn_about_data(
            f"{file.path}: the rows are not ordered by user, so that the file is sorted in memory"
        )
        return False
    return True


def _sorted_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the rows of all batches in the order of the users, after an empty batch."""
    import pyarrow as pa
    from pyarrow import compute

    first = next(batches)
    table = pa.Table.from_batches([first, *batches])
    order = compute.sort_indices(table["user_id"].combine_chunks())  # stable
    yield first
    yield from table.take(order).to_batches(ROWS_PER_READ)


def _cut_chunks(batches: Iterator[Any], file: HistoryFile) -> Iterator[UserChunk]:
    """Yield chunks of whole users of the batches."""
    import pyarrow as pa

    rest, check, is_empty = next(batches), _OrderCheck(file.path), True
    for batch in batches:
        table = pa.Table.from_batches([rest, batch]).combine_chunks()
        offsets = _user_offsets(table["user_id"], check)
        first = 0
        while (last := _chunk_end(offsets, first)) < len(offsets) - 1:
            yield _make_chunk(table, offsets[first : last + 1], file, check)
            first, is_empty = last, False
        rest = table.slice(int(offsets[first])).combine_chunks().to_batches()[0]
    table = pa.Table.from_batches([rest])
    offsets = _user_offsets(table["user_id"], check)
    first = 0
    while first < len(offsets) - 1 or is_empty:
        last = _chunk_end(offsets, first)
        yield _make_chunk(table, offsets[first : last + 1], file, check)
        first, is_empty = last, False


def _chunk_end(offsets: Ints, first: int) -> int:
    """Return the position behind the last user of the chunk that begins with a user."""
    limit = int(np.searchsorted(offsets, offsets[first] + _MAX_CHUNK_ROWS, "right")) - 1
    return min(first + USERS_PER_CHUNK, max(limit, first + 1), len(offsets) - 1)


def _user_offsets(users: Any, check: _OrderCheck) -> Ints:
    """Return where the rows of each user of a column start, and the end of the last."""
    from pyarrow import compute

    if users.null_count:
        position = int(compute.index(users.is_null(), True).as_py())
        previous = users[position - 1].as_py() if position else check.previous
        raise DataError(
            f"{check.path}: there is a row without user_id after user {previous!r}; give every row "
            "one"
        )
    if not len(users):
        return np.zeros(1, np.int64)
    is_new = compute.not_equal(users[1:], users[:-1]).to_numpy()
    starts = np.flatnonzero(is_new) + 1
    return np.concatenate([[0], starts, [len(users)]]).astype(np.int64)


def _make_chunk(table: Any, offsets: Ints, file: HistoryFile, check: _OrderCheck) -> UserChunk:
    """Return the rows of some users of a table, whose order is checked."""
    import pyarrow as pa

    rows = table.slice(int(offsets[0]), int(offsets[-1] - offsets[0])).combine_chunks()
    offsets = offsets - offsets[0]
    columns = {
        name: rows[name].chunk(0) if rows[name].num_chunks else pa.array([], rows[name].type)
        for name in rows.column_names
    }
    user_ids = columns["user_id"].take(pa.array(offsets[:-1]))
    check.add(user_ids)
    return UserChunk(
        user_ids, offsets, columns[file.item_column], columns.get("rating"),
        columns.get("timestamp"),
    )  # fmt: skip


class UnsortedUsers(DataError):
    """The users of a file are in no order."""


class _OrderCheck:
    """Raises UnsortedUsers at the first user who is in order neither as text nor as a number."""

    def __init__(self, path: Path) -> None:
        self.path, self.previous = path, None
        self._keys = [_text_key, _number_key]  # the orders that all users so far are in

    def add(self, users: Any) -> None:
        """Check the next users, an Arrow array of distinct ones."""
        import pyarrow as pa
        from pyarrow import compute, types

        if not len(users):
            return
        if self.previous is not None:
            users = pa.concat_arrays([pa.array([self.previous], users.type), users])
        if self._keys == [_text_key] or not types.is_string(users.type):
            is_sorted = compute.all(compute.less(users[:-1], users[1:])).as_py()
            if is_sorted is not False:  # None: there is one user
                self.previous = users[-1].as_py()
                return
        ids = users.to_pylist()
        for previous, user in pairwise(ids):
            self._keys = [key for key in self._keys if key(previous) < key(user)]
            if not self._keys:
                raise UnsortedUsers(
                    f"{self.path}: user {user!r} comes after {previous!r}; sort the file by user_id"
                )
        self.previous = ids[-1]


def _text_key(user: Any) -> Any:
    """Sort key of ids as text, or as numbers where they are no strings."""
    return user


def _number_key(user: Any) -> tuple[bool, int, Any]:
    """Sort key of ids as numbers; ids that are not numbers come last, as text."""
    if isinstance(user, str):
        is_number = user.isdecimal() and len(user) <= _MAX_NUMBER_CHARS
        return not is_number, int(user) if is_number else 0, user
    return False, 0, user


def _parquet_batches(
    source: HistoryFile, roles: Sequence[str], optional: Sequence[str]
) -> Iterator[Any]:
    """Yield the rows of a Parquet file in batches, first an empty one, with a column for each role
    and for those of the `optional` ones that it has."""
    from pyarrow import parquet

    with parquet.ParquetFile(source.path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
        names = source.column_names(file.schema_arrow.names, roles, optional)
        columns = list(names.values())
        yield _plain_batch(_empty_batch(file.schema_arrow, columns), list(names))
        for batch in file.iter_batches(ROWS_PER_READ, columns=columns, use_threads=False):
            yield _plain_batch(batch.select(columns), list(names))


def _empty_batch(schema: Any, names: list[str]) -> Any:
    """Return a batch without rows."""
    import pyarrow as pa

    fields = [schema.field(name) for name in names]
    return pa.RecordBatch.from_arrays([pa.array([], x.type) for x in fields], names)


def _plain_batch(batch: Any, names: list[str]) -> Any:
    """Return a batch with other column names, with texts and integers of one type each, and without
    dictionaries."""
    import pyarrow as pa
    from pyarrow import types

    columns = []
    for name, column in zip(names, batch.columns, strict=True):
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if types.is_large_string(column.type):
            column = column.cast(pa.string())
        elif types.is_floating(column.type) and name == "item_id":
            column = column.cast(pa.int64())  # pandas turns integers with a gap into floats
        elif types.is_integer(column.type) and not types.is_uint64(column.type):
            column = column.cast(pa.int64())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names)


def _open_csv_bytes(path: Path) -> Any:
    """Open a file, gzipped or not, whatever its name."""
    import pyarrow as pa

    with path.open("rb") as file:
        is_gzipped = file.read(2) == b"\x1f\x8b"
    return pa.CompressedInputStream(str(path), "gzip") if is_gzipped else pa.OSFile(str(path))


def _csv_batches(
    source: HistoryFile, roles: Sequence[str], optional: Sequence[str]
) -> Iterator[Any]:
    """Yield the rows of a CSV file with ids as text, so that the id 007 stays 007; the columns are
    those of `_parquet_batches`."""
    import pyarrow as pa
    from pyarrow import csv

    parsing = csv.ParseOptions(delimiter=delimiter_of(source.path), newlines_in_values=True)
    with (
        _open_csv_bytes(source.path) as stream,
        csv.open_csv(stream, parse_options=parsing) as header,
    ):
        names = source.column_names(header.schema.names, roles, optional)
    types = {"user_id": pa.string(), "item_id": pa.string(), "rating": pa.float64()}
    options = csv.ConvertOptions(
        include_columns=list(names.values()),
        column_types={name: types[role] for role, name in names.items() if role in types},
        strings_can_be_null=True,
        null_values=[""],  # "NA" and "null" may be ids
    )
    with (
        _open_csv_bytes(source.path) as stream,
        csv.open_csv(stream, parse_options=parsing, convert_options=options) as reader,
    ):
        yield _empty_batch(reader.schema, list(names.values())).rename_columns(list(names))
        for batch in reader:
            yield batch.rename_columns(list(names))
