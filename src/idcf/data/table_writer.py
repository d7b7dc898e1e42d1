"""Write Arrow tables, one after the other, as Parquet, CSV or JSON lines: by the file's ending."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from idcf.errors import ConfigError
from idcf.files import atomic_path

TABLE_ENDINGS = (".parquet", ".csv", ".jsonl")


def check_table_ending(path: Path) -> None:
    """Raise ConfigError unless the ending of a file's name says how a table is written."""
    if path.suffix not in TABLE_ENDINGS:
        got = f"ends in {path.suffix!r}" if path.suffix else "has no ending"
        raise ConfigError(
            f"{path} {got}; name the file .parquet, .csv or .jsonl (JSON lines), which says how it "
            "is written"
        )


@contextmanager
def open_table(path: Path, schema: Any, dictionary_columns: Sequence[str] = ()) -> Iterator[Any]:
    """Yield an object whose `write_table` adds a table of this schema to a file, which appears when
    the block ends; for Parquet it is a `ParquetWriter`, which encodes `dictionary_columns` so."""
    from pyarrow import parquet

    check_table_ending(path)
    with atomic_path(path) as temporary:
        if path.suffix == ".csv":
            with _open_csv(temporary, schema) as csv_writer:
                yield csv_writer
        elif path.suffix == ".jsonl":
            with temporary.open("w", encoding="utf-8", newline="\n") as file:
                yield _JsonLines(file)
        else:
            columns = list(dictionary_columns)
            with parquet.ParquetWriter(temporary, schema, use_dictionary=columns) as writer:
                yield writer


class _CsvLines:
    """Writes tables as CSV; a list of n numbers becomes n columns."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write_table(self, table: Any) -> None:
        """Write the rows of a table."""
        self._writer.write_table(split_lists(table))


@contextmanager
def _open_csv(path: Path, schema: Any) -> Iterator[_CsvLines]:
    """Yield a writer of tables of this schema, after the header."""
    from pyarrow import csv

    with csv.CSVWriter(path, split_lists(schema.empty_table()).schema) as writer:
        yield _CsvLines(writer)


class _JsonLines:
    """Writes a JSON object per row."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write_table(self, table: Any) -> None:
        """Write the rows of a table."""
        columns = [_json_values(column) for column in table.columns]
        for row in zip(*columns, strict=True):
            values = dict(zip(table.column_names, row, strict=True))
            self._file.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")


def split_lists(table: Any) -> Any:
    """Return a table with a column for each place of lists of one length: x_0, x_1 and so on."""
    import pyarrow as pa
    from pyarrow import compute

    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_fixed_size_list(column.type):
            columns[name] = column
            continue
        for place in range(column.type.list_size):
            columns[f"{name}_{place}"] = compute.list_element(column, place)
    return pa.table(columns)


def _json_values(column: Any) -> Sequence[Any]:
    """Return the values of a column; 32-bit numbers have as few digits as tell them apart."""
    import pyarrow as pa

    if pa.types.is_float32(column.type):
        return column.cast(pa.string()).cast(pa.float64()).to_pylist()  # type: ignore[no-any-return]
    values: list[Any] = column.to_pylist()
    if pa.types.is_fixed_size_list(column.type):
        table = split_lists(pa.table({"x": column}))
        rows = zip(*(_json_values(x) for x in table.columns), strict=True)
        return [None if x is None else list(row) for x, row in zip(values, rows, strict=True)]
    return values
