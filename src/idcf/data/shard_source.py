"""Read interactions a chunk of rows at a time from CSV, Parquet, a folder of either, or a query.

Values are checked as `readers` checks them, with the row of the whole source in errors, but nothing
is collected: `shard_spill` sorts the rows. Queries run in DuckDB, which is imported for them only.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

from idcf.data.column_names import find_columns
from idcf.data.columns import (
    ColumnOrigin,
    check_ratings,
    encode_text_ids,
    ids_from_series,
    ratings_from_series,
    times_from_series,
    to_dataframe,
)
from idcf.data.datasets.formats import wrong_width_message
from idcf.data.interactions import Floats, Ints
from idcf.data.parquet_reader import (
    ParquetColumns,
    UnusualValue,
    checked_ratings,
    checked_times,
    plain_ids,
)
from idcf.data.readers import delimiter_of, format_suffix
from idcf.data.shards import is_sharded_folder
from idcf.errors import DataError, require_extra
from idcf.files import check_file

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_RATIO = 5  # of a text table, for the estimate of disk space
_CSV_ROW_BYTES = 25  # of a row as text, for the same estimate
_MAX_CSV_BLOCK, _MIN_CSV_BLOCK = 1 << 22, 1 << 18  # bytes of text that are parsed at once
_CSV_EXPANSION = 16  # memory of a block while it is checked, per byte of text


@dataclass(frozen=True)
class Rows:
    """A chunk of checked rows, in the order of the source."""

    users: Any  # Arrow array of texts or int64
    items: Any
    ratings: Floats | None
    times: Ints | None

    def __len__(self) -> int:
        return len(self.users)


class RowSource(ABC):
    """A source of interactions that is read in chunks."""

    name: str  # for messages
    description: dict[str, str | int]  # differs if the source has changed
    columns: Mapping[str, str]  # name of each role's column
    ids_are_text: bool = False  # ids become integers if all of them are written so
    n_rows: int | None = None  # None: not known before the source was read
    estimated_rows: int = 0

    @abstractmethod
    def chunks(self, max_bytes: int) -> Iterator[dict[str, Any]]:
        """Yield the Arrow array of each role, chunk by chunk; `max_bytes`: memory for a chunk."""

    def row_label(self, row: int) -> str:
        """Label of a row of the whole source, for messages."""
        return f"row {row}"

    def rows(self, implicit: bool, max_bytes: int) -> Iterator[Rows]:
        """Yield checked rows; raises DataError for the first value that cannot be used."""
        start = 0
        for chunk in self.chunks(max_bytes):
            origin = ColumnOrigin(self.name, partial(self._shifted_label, start), self.columns)
            yield _check_chunk(chunk, origin, implicit, self.ids_are_text)
            start += len(chunk["user_id"])

    def _shifted_label(self, start: int, row: int) -> str:
        """Label of a row of the chunk that begins at the row `start`."""
        return self.row_label(start + row)


class ParquetSource(RowSource):
    """A Parquet file, or the Parquet files of a folder."""

    def __init__(
        self, path: Path, columns: Mapping[str, str] | None, implicit: bool | None
    ) -> None:
        self._parquet = ParquetColumns.find(path, columns, implicit)
        self.name, self.columns = str(path), self._parquet.names
        self.n_rows = self.estimated_rows = self._parquet.n_rows
        self.description = _describe_files("parquet", path, self._parquet.files)

    def chunks(self, max_bytes: int) -> Iterator[dict[str, Any]]:
        """Yield the Arrow array of each role, chunk by chunk."""
        chunk_rows = min(max(max_bytes // 400, 1 << 12), 1 << 19)
        for _, chunk in self._parquet.chunks(*self.columns, chunk_rows=chunk_rows):
            yield chunk


class CsvSource(RowSource):
    """A CSV or TSV file, plain or gzipped, or those of a folder, which have one header."""

    ids_are_text = True

    def __init__(
        self,
        path: Path,
        files: tuple[Path, ...],
        columns: Mapping[str, str] | None,
        implicit: bool | None,
    ) -> None:
        self.name, self._files = str(path), files
        header = _read_header(files[0])
        self.columns = find_columns(columns, header, str(files[0]), implicit)
        for file in files[1:]:
            other = _read_header(file)
            missing = [x for x in self.columns.values() if other.count(x) != 1]
            optional = [x for x in ("rating", "timestamp") if x not in self.columns and x in other]
            if missing or (optional and columns is None):
                raise DataError(
                    f"{file}: column {[*missing, *optional][0]!r} is not in every file of the "
                    "folder; write all files with the same columns"
                )
        self.description = _describe_files("csv", path, files)
        n_bytes = sum(
            x.stat().st_size * (_GZIP_RATIO if _is_gzipped(x) else 1) for x in self._files
        )
        self.estimated_rows = n_bytes // _CSV_ROW_BYTES

    def chunks(self, max_bytes: int) -> Iterator[dict[str, Any]]:
        """Yield the Arrow array of each role, chunk by chunk."""
        block_bytes = min(max(max_bytes // _CSV_EXPANSION, _MIN_CSV_BLOCK), _MAX_CSV_BLOCK)
        for file in self._files:
            for batch in _csv_batches(file, list(self.columns.values()), block_bytes):
                yield {role: batch.column(name) for role, name in self.columns.items()}

    def row_label(self, row: int) -> str:
        """Line where a row ends, such as "line 7", with the name of the file in a folder."""
        for file in self._files:
            with _open_text(file) as text:
                reader = csv.reader(text, delimiter=delimiter_of(file))
                n_lines = 0
                for _ in islice(filter(None, reader), row + 2):  # the header, and rows from 0
                    n_lines += 1
                if n_lines == row + 2:
                    label = f"line {reader.line_num}"
                    return label if len(self._files) == 1 else f"{file.name}, {label}"
                row -= max(n_lines - 1, 0)
        return f"row {row}"


class QuerySource(RowSource):
    """The result of an SQL query, run by DuckDB."""

    def __init__(
        self,
        query: str,
        columns: Mapping[str, str] | None,
        implicit: bool | None,
        *,
        memory: int,
        threads: int,
        spill_folder: Path,
    ) -> None:
        self.name, self.description = "query", {"kind": "query", "query": query}
        self._query = query.strip().rstrip(";")
        self._settings: dict[str, Any] = {
            "memory_limit": f"{max(memory >> 20, 64)}MiB",
            "threads": threads,
            "temp_directory": str(spill_folder),
        }
        with self._query_errors(), self._connect() as connection:
            names = connection.execute(f"SELECT * FROM ({self._query}) LIMIT 0").description
        self.columns = find_columns(columns, [x[0] for x in names], self.name, implicit)

    def chunks(self, max_bytes: int) -> Iterator[dict[str, Any]]:
        """Yield the Arrow array of each role, chunk by chunk."""
        selected = dict.fromkeys(self.columns.values())
        names = ", ".join('"{}"'.format(name.replace('"', '""')) for name in selected)
        with self._query_errors(), self._connect() as connection:
            relation = connection.sql(f"SELECT {names} FROM ({self._query})")
            chunk_rows = min(max(max_bytes // 400, 1 << 12), 1 << 19)
            for batch in relation.to_arrow_reader(chunk_rows):
                yield {role: batch.column(name) for role, name in self.columns.items()}

    def _connect(self) -> Any:
        """Open a database in memory with the limits of this source."""
        import duckdb

        return duckdb.connect(config=self._settings)

    @contextmanager
    def _query_errors(self) -> Iterator[None]:
        """Raise DataError if the query in the block fails, ConfigError if DuckDB is missing."""
        require_extra("shards", "duckdb")
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            reason = str(error).strip().splitlines()[0]
            raise DataError(f"query: {reason}; correct the SQL") from None


def open_file_source(
    path: Path, columns: Mapping[str, str] | None, implicit: bool | None
) -> RowSource:
    """Open a CSV or Parquet file, or a folder of either. Raises DataError for any other file, or if
    a column is missing."""
    if not path.is_dir():
        check_file(path)
        suffix = format_suffix(path)
        if suffix == "parquet":
            return ParquetSource(path, columns, implicit)
        if suffix in ("csv", "tsv"):
            return CsvSource(path, (path,), columns, implicit)
        raise DataError(f"{path}: shards are made from .csv, .tsv (also .gz) or .parquet files")
    if is_sharded_folder(path):
        raise DataError(f"{path}: is a folder of shards already; give the table it was made from")
    files = sorted(x for x in path.iterdir() if x.is_file() and not x.name.startswith((".", "_")))
    texts = tuple(x for x in files if format_suffix(x) in ("csv", "tsv"))
    n_parquet = sum(format_suffix(x) == "parquet" for x in files)
    if texts and n_parquet:
        raise DataError(f"{path}: holds CSV and Parquet files; give a folder of one kind")
    if texts:
        return CsvSource(path, texts, columns, implicit)
    if not n_parquet:
        raise DataError(f"{path}: no .parquet, .csv or .tsv file in this folder; give another")
    return ParquetSource(path, columns, implicit)


def _describe_files(kind: str, path: Path, files: tuple[Path, ...]) -> dict[str, str | int]:
    """Describe files by their names, sizes and times of change."""
    facts = [(x.name, x.stat().st_size, x.stat().st_mtime_ns) for x in files]
    fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return {
        "kind": kind,
        "name": path.name,
        "n_files": len(files),
        "n_bytes": sum(size for _, size, _ in facts),
        "fingerprint": fingerprint,
    }


def _check_chunk(
    chunk: dict[str, Any], origin: ColumnOrigin, implicit: bool, ids_are_text: bool
) -> Rows:
    """Check the columns of a chunk and convert them."""
    users, items = (
        _check_ids(chunk[role], role, origin, ids_are_text) for role in ("user_id", "item_id")
    )
    ratings = _check_ratings(chunk["rating"], origin, implicit) if "rating" in chunk else None
    times = _check_times(chunk["timestamp"], origin) if "timestamp" in chunk else None
    return Rows(users, items, ratings, times)


def _check_ids(values: Any, role: str, origin: ColumnOrigin, ids_are_text: bool) -> Any:
    """Return ids as an Arrow array of texts or of int64."""
    import pyarrow as pa
    from pyarrow import compute

    if ids_are_text:
        lengths = compute.binary_length(compute.utf8_trim_whitespace(values))
        if len(lengths) and compute.min(lengths).as_py() == 0:
            encode_text_ids(values.to_pylist(), role, origin)  # raises, with the row
        return values
    try:
        ids = plain_ids(values)
    except UnusualValue:
        series = to_dataframe(pa.table({role: values}))[role]
        vocab, rows = ids_from_series(series, role, origin, False)
        ids = pa.array(vocab.ids).take(pa.array(rows))
    try:
        return ids.cast(pa.int64() if pa.types.is_integer(ids.type) else pa.string())
    except pa.ArrowInvalid:
        row, value = next(
            (n, x) for n, x in enumerate(ids.to_pylist()) if not -(2**63) <= x < 2**63
        )
        origin.raise_bad_value(role, row, value, "is an integer of more than 64 bits; give text")


def _check_ratings(values: Any, origin: ColumnOrigin, implicit: bool) -> Floats:
    """Return ratings as float32."""
    import pyarrow as pa

    try:
        return checked_ratings(values, implicit)
    except UnusualValue:
        series = to_dataframe(pa.table({"rating": values}))["rating"]
        return check_ratings(ratings_from_series(series, origin), implicit, origin)


def _check_times(values: Any, origin: ColumnOrigin) -> Ints:
    """Return times as seconds since 1970."""
    import pyarrow as pa

    try:
        return checked_times(values, origin)
    except UnusualValue:
        series = to_dataframe(pa.table({"timestamp": values}))["timestamp"]
        return times_from_series(series, origin)


def _is_gzipped(path: Path) -> bool:
    """Return whether a file begins as gzip does."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


def _open_bytes(path: Path) -> IO[bytes]:
    """Open a file, gzipped or not."""
    return gzip.open(path, "rb") if _is_gzipped(path) else path.open("rb")  # type: ignore[return-value]


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    """Open a UTF-8 text file, gzipped or not; raises DataError if its gzip is damaged."""
    with _open_bytes(path) as file:
        try:
            yield io.TextIOWrapper(file, "utf-8-sig", newline="")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = str(error).lower()
            raise DataError(f"{path}: damaged gzip ({reason}); download or copy it again") from None


def _read_header(path: Path) -> list[str]:
    """Return the names of the columns of a CSV file."""
    check_file(path)
    delimiter = delimiter_of(path)
    try:
        with _open_text(path) as text:
            names = next(filter(None, csv.reader(text, delimiter=delimiter)), [])
    except UnicodeDecodeError as error:
        _raise_csv_error(path, error)
    if not "".join(names).strip():
        raise DataError(f"{path}: the file is empty; give one with at least one interaction")
    if len(names) == 1:
        raise DataError(wrong_width_message(f"{path}, line 1", names[0], delimiter, 2))
    return names


def _csv_batches(path: Path, names: list[str], block_bytes: int) -> Iterator[Any]:
    """Yield the columns `names` of a CSV file as text, block by block."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    selected = list(dict.fromkeys(names))
    stream: Any = pa.OSFile(str(path), "rb")
    if _is_gzipped(path):
        stream = pa.CompressedInputStream(stream, "gzip")
    reading = arrow_csv.ReadOptions(use_threads=pa.cpu_count() > 1, block_size=block_bytes)
    parsing = arrow_csv.ParseOptions(delimiter=delimiter_of(path), newlines_in_values=True)
    conversion = arrow_csv.ConvertOptions(
        include_columns=selected, column_types=dict.fromkeys(selected, pa.string())
    )
    try:
        with stream, arrow_csv.open_csv(stream, reading, parsing, conversion) as reader:
            yield from reader
    except (pa.ArrowException, OSError) as error:
        _raise_csv_error(path, error)


def _raise_csv_error(path: Path, error: Exception) -> NoReturn:
    """Raise DataError for the first line of a CSV file that cannot be parsed."""
    with _open_text(path) as text:  # raises if the gzip is damaged
        for number, line in enumerate(text.buffer, 1):  # type: ignore[attr-defined]
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as problem:
                byte = f"byte 0x{line[problem.start]:02x} is not utf-8"
                raise DataError(f"{path}, line {number}: {byte}; save the file as utf-8") from None
    delimiter, width = delimiter_of(path), 0
    with _open_text(path) as text:
        reader = csv.reader(text, delimiter=delimiter)
        for fields in filter(None, reader):
            width = width or len(fields)
            if len(fields) != width:
                position, line_text = f"{path}, line {reader.line_num}", delimiter.join(fields)
                raise DataError(wrong_width_message(position, line_text, delimiter, width))
    raise DataError(f"{path}: {str(error).splitlines()[0]}; correct the file")
