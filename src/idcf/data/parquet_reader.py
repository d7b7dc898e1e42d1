"""Read interactions from Parquet, one file or a folder of files, a chunk of rows at a time.

Ids become integer codes as they are read, so that neither the texts nor a second copy of the table
are ever held. `ParquetColumns.interactions` gives None where a value needs a closer look, such as a
missing id or a date that is text: `readers` then reads the whole table, which finds the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idcf.data.column_names import find_columns
from idcf.data.columns import (
    MAX_RATING,
    NO_WEIGHTS,
    ColumnOrigin,
    EncodedIds,
    WeightRule,
    build_interactions,
    encode_typed_ids,
    times_from_series,
    to_dataframe,
    to_whole_seconds,
)
from idcf.data.interactions import Floats, Interactions, Ints
from idcf.errors import DataError
from idcf.files import check_file

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_ROWS = 1 << 19
_READ_BYTES = 1 << 20  # of a column at once, so that large row groups are not held
Codes = NDArray[np.int32]


class UnusualValue(Exception):
    """A chunk holds values that only the reader of whole tables understands."""


@dataclass(frozen=True)
class ParquetColumns:
    """The columns of interactions in Parquet files, and how they are read."""

    path: Path  # of the file or folder
    files: tuple[Path, ...]
    names: Mapping[str, str]  # name of each role's column
    n_rows: int

    @classmethod
    def find(
        cls, path: Path, columns: Mapping[str, str] | None, implicit: bool | None
    ) -> ParquetColumns:
        """Find the columns of each role; raises DataError as `find_columns` does, if a file is
        damaged, or if two files differ in a column."""
        from pyarrow import parquet

        files, first, n_rows = parquet_files(path), None, 0
        for file in files:
            with parquet_errors(file):
                schema, n_file_rows = (
                    parquet.read_schema(file),
                    parquet.read_metadata(file).num_rows,
                )
            n_rows += n_file_rows
            if first is None:
                first = schema
                names = find_columns(columns, schema.names, str(path), implicit)
            for name in names.values():
                if name not in schema.names or not schema.field(name).type.equals(
                    first.field(name).type
                ):
                    other = schema.field(name).type if name in schema.names else "missing"
                    raise DataError(
                        f"{file}: column {name!r} is {other}, but {first.field(name).type} in "
                        f"{files[0].name}; write all files with the same columns"
                    )
        return cls(path, files, names, n_rows)

    def whole_table(self) -> pa.Table:
        """Read the columns of all files at once."""
        import pyarrow as pa
        from pyarrow import parquet

        columns, parts = list(dict.fromkeys(self.names.values())), []
        for file in self.files:
            with parquet_errors(file):
                parts.append(parquet.ParquetFile(file).read(columns))
        return pa.concat_tables(parts)

    def interactions(
        self, implicit: bool | None, weights: WeightRule = NO_WEIGHTS
    ) -> Interactions | None:
        """Read the table in chunks; None: a value needs the reader of whole tables."""
        users, items = IdCodes(self.n_rows), IdCodes(self.n_rows)
        ratings = np.empty(self.n_rows, np.float32) if "rating" in self.names else None
        times = np.empty(self.n_rows, np.int64) if "timestamp" in self.names else None
        origin = ColumnOrigin(str(self.path), column_names=self.names)
        is_implicit = ratings is None if implicit is None else implicit
        try:
            for start, chunk in self.chunks(*self.names):
                rows = slice(start, start + len(chunk["user_id"]))
                users.add(chunk["user_id"], rows)
                items.add(chunk["item_id"], rows)
                if ratings is not None:
                    ratings[rows] = checked_ratings(chunk["rating"], is_implicit)
                if times is not None:
                    times[rows] = checked_times(chunk["timestamp"], origin)
        except UnusualValue:
            return None
        return build_interactions(
            origin,
            users.encode("user_id", origin),
            items.encode("item_id", origin),
            ratings,
            times,
            implicit,
            weights,
        )

    def chunks(
        self, *roles: str, chunk_rows: int = _CHUNK_ROWS
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the first row of a chunk of rows, and the Arrow array of each of some roles."""
        from pyarrow import parquet

        names, start = {role: self.names[role] for role in roles}, 0
        for path in self.files:
            with (
                parquet_errors(path),
                parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file,
            ):
                columns = list(dict.fromkeys(names.values()))
                for batch in file.iter_batches(chunk_rows, columns=columns):
                    yield start, {role: batch.column(name) for role, name in names.items()}
                    start += batch.num_rows


class IdCodes:
    """A column of ids as codes, in the order in which the ids first occur, and the ids in Arrow."""

    def __init__(self, n_rows: int) -> None:
        self.codes: Codes = np.empty(n_rows, np.int32)
        self.ids: Any = None  # Arrow array of the distinct ids

    def __len__(self) -> int:
        return 0 if self.ids is None else len(self.ids)

    def add(self, values: Any, rows: slice) -> None:
        """Encode a chunk, an Arrow array; raises `UnusualValue`."""
        self.codes[rows] = self.encode_chunk(values)

    def encode_chunk(self, values: Any) -> Codes:
        """Return the codes of a chunk, an Arrow array; raises `UnusualValue`."""
        import pyarrow as pa
        from pyarrow import compute

        encoded = plain_ids(values).dictionary_encode()
        unique = encoded.dictionary
        if self.ids is None:
            self.ids, code_of_unique = unique, np.arange(len(unique), dtype=np.int32)
        else:
            known = compute.index_in(unique, value_set=self.ids)
            is_new = compute.is_null(known).to_numpy(zero_copy_only=False)
            code_of_unique = known.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)
            code_of_unique[is_new] = len(self.ids) + np.arange(is_new.sum(), dtype=np.int32)
            if is_new.any():
                self.ids = pa.concat_arrays([self.ids, unique.filter(pa.array(is_new))])
        codes: Codes = code_of_unique[encoded.indices.to_numpy(zero_copy_only=False)]
        return codes

    def encode(self, role: str, origin: ColumnOrigin) -> EncodedIds:
        """Return the vocabulary in sorted order and the rows, and forget the codes."""
        ids = [] if self.ids is None else self.ids.to_pylist()
        self.ids = None
        vocab, row_of_code = encode_typed_ids(ids, role, origin)
        rows: Ints = row_of_code[self.codes]
        self.codes = self.codes[:0]
        return vocab, rows


def plain_ids(values: Any) -> Any:
    """Return a column of ids as an Arrow array of texts or integers without gaps."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(values.type) and types.is_string(values.type.value_type):
        values = values.cast(pa.string())
    if values.null_count:
        raise UnusualValue
    if types.is_floating(values.type):  # pandas turns a column of integers with a gap into floats
        numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
        if not ((np.abs(numbers) <= 2**53) & (numbers == np.floor(numbers))).all():
            raise UnusualValue
        return pa.array(numbers.astype(np.int64))
    if types.is_integer(values.type) or types.is_string(values.type):
        return values
    if types.is_large_string(values.type):
        return values
    raise UnusualValue


def checked_ratings(values: Any, implicit: bool) -> Floats:
    """Return ratings as float32, if all of them can be used."""
    from pyarrow import types

    if not (types.is_integer(values.type) or types.is_floating(values.type)) or values.null_count:
        raise UnusualValue
    with np.errstate(over="ignore"):
        ratings: Floats = values.to_numpy(zero_copy_only=False).astype(np.float32)
    if not (np.abs(ratings) <= MAX_RATING).all() or (implicit and (ratings < 0).any()):
        raise UnusualValue
    return ratings


def checked_times(values: Any, origin: ColumnOrigin) -> Ints:
    """Return times as seconds since 1970, if all of them can be used."""
    import pyarrow as pa
    from pyarrow import types

    is_number = types.is_integer(values.type) or types.is_floating(values.type)
    is_date = types.is_date(values.type) or types.is_timestamp(values.type)
    if not (is_number or is_date) or values.null_count:
        raise UnusualValue
    try:
        if is_number:  # without the dataframe library
            seconds = values.to_numpy(zero_copy_only=False).astype(np.float64)
            return to_whole_seconds(seconds, origin)
        series = to_dataframe(pa.table({"timestamp": values}))["timestamp"]
        return times_from_series(series, origin)
    except DataError:
        raise UnusualValue from None


def parquet_files(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or the Parquet files of a folder in the order of their names.

    Names that begin with a dot or an underscore, which Spark writes for itself, are left out.
    """
    if not path.is_dir():
        return (path,)
    files = sorted(x for x in path.glob("*.parquet") if not x.name.startswith((".", "_")))
    if not files:
        raise DataError(
            f"{path}: no .parquet file in this folder; give a file, or the folder of one"
        )
    return tuple(files)


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Raise DataError if the file is missing or empty, or if reading it in the block fails."""
    import pyarrow as pa

    check_file(path)
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: not a whole Parquet file ({reason}); write it again") from None


def count_ids(
    path: Path, columns: Mapping[str, str] | None, implicit: bool | None
) -> tuple[Ints, int, bool] | None:
    """Return the number of rows of each user, the number of items, and whether the feedback is
    implicit, reading the ids only. None: an id needs the reader of whole tables."""
    source = ParquetColumns.find(path, columns, implicit)
    users, items = IdCodes(source.n_rows), IdCodes(source.n_rows)
    try:
        for start, chunk in source.chunks("user_id", "item_id"):
            rows = slice(start, start + len(chunk["user_id"]))
            users.add(chunk["user_id"], rows)
            items.add(chunk["item_id"], rows)
    except UnusualValue:
        return None
    if not source.n_rows:
        raise DataError(f"{path}: no rows; give at least one interaction")
    is_implicit = "rating" not in source.names if implicit is None else implicit
    return np.bincount(users.codes, minlength=len(users)), len(items), is_implicit
