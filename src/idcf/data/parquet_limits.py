"""Read Parquet files in bounded memory: a file of a few kB may unpack to terabytes of equal values.

The numbers of values are in the metadata, and are checked before anything is read. Texts are read
as dictionaries, which are no larger than the pages of the file, and are unpacked a part at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idcf.files import max_unpacked_bytes, unpacked_too_large

if TYPE_CHECKING:
    import pyarrow as pa

    from idcf.data.interactions import Ints

_PART_BYTES = 1 << 26  # of the texts of a batch
_MAX_RATIO = 1000  # texts of a file that is read in batches, in sizes of the file
_TABLE_ROWS = 1 << 16  # read at once for a whole table
_FEW_ROWS = 1 << 8  # with lists of texts that cannot be read as dictionaries
_VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}  # 8 of other types: numbers, ends of texts


def check_value_counts(
    path: Path,
    metadata: Any,
    columns: Sequence[str] | None = None,
    *,
    lists_only: bool = False,
    limit: int | None = None,
) -> None:
    """Raise DataError if the values of some columns exceed the limit in bytes, by the metadata.

    With `lists_only` only those of lists count: columns of one value per row are read in batches.
    """
    limit, n_bytes = limit or max_unpacked_bytes(), 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for leaf in map(group.column, range(group.num_columns)):
            name, _, inner = leaf.path_in_schema.partition(".")
            if (columns is None or name in columns) and (inner or not lists_only):
                n_values = max(leaf.num_values, group.num_rows)
                n_bytes += n_values * _VALUE_BYTES.get(leaf.physical_type, 8)
    if n_bytes > limit:
        raise unpacked_too_large(path, limit)


def open_parquet(source: Any, *, in_lists: bool = True, **options: Any) -> Any:
    """Open a Parquet file, a path or a buffer; its texts, or all but those in lists, are read as
    dictionaries."""
    from pyarrow import parquet

    metadata = parquet.read_metadata(source)
    leaves = map(metadata.schema.column, range(metadata.num_columns))
    texts = [x.path for x in leaves if x.physical_type == "BYTE_ARRAY" and _is_text(x)]
    if not in_lists:
        texts = [path for path in texts if "." not in path]
    return parquet.ParquetFile(source, metadata=metadata, read_dictionary=texts, **options)


def _is_text(leaf: Any) -> bool:
    """Return whether a column is of texts or of bytes, and not of decimal numbers."""
    return leaf.logical_type.type in ("STRING", "NONE", "JSON", "ENUM")


def plain_batches(
    path: Path, file: Any, columns: Sequence[str], batch_rows: int, **options: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file of `open_parquet` with texts unpacked, the less at once the longer
    they are. Raises DataError if the texts of all rows are out of proportion to the file."""
    limit, n_bytes = max(max_unpacked_bytes(), _MAX_RATIO * path.stat().st_size), 0
    for batch in file.iter_batches(batch_rows, columns=list(columns), **options):
        ends = np.cumsum(text_lengths(batch))
        n_bytes += int(ends[-1]) if len(ends) else 0
        if n_bytes > limit:
            raise unpacked_too_large(path, limit)
        start = 0
        while start < batch.num_rows:
            before = ends[start - 1] if start else 0
            end = int(np.searchsorted(ends, before + _PART_BYTES, "right"))
            end = min(max(end, start + 1), batch.num_rows)
            yield _unpack(batch.slice(start, end - start))
            start = end
        if not batch.num_rows:
            yield _unpack(batch)


def read_limited_table(
    path: Path,
    source: bytes | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Read a whole file, or the `source`, its content.

    Raises DataError if it unpacks to more bytes than the limit: `max_unpacked_bytes()`.
    """
    import pyarrow as pa

    limit = limit or max_unpacked_bytes()
    for in_lists, batch_rows in ((True, _TABLE_ROWS), (False, _FEW_ROWS)):
        content = path if source is None else pa.BufferReader(source)
        with open_parquet(content, in_lists=in_lists, pre_buffer=False) as file:
            check_value_counts(path, file.metadata, columns, limit=limit)
            names = file.schema_arrow.names if columns is None else list(columns)
            try:
                parts = list(_limited_batches(path, file, names, batch_rows, limit))
            except pa.ArrowNotImplementedError:  # lists of more than one dictionary
                if in_lists:
                    continue
                raise
            if parts:
                return pa.Table.from_batches(parts).select(names)
            return _unpack(pa.Table.from_batches([], file.schema_arrow)).select(names)
    raise AssertionError("unreachable: the second attempt returns or raises")


def _limited_batches(
    path: Path, file: Any, names: Sequence[str], batch_rows: int, limit: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, one row group after the other; DataError: they exceed the limit."""
    n_bytes = 0
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(batch_rows, row_groups=[group], columns=names):
            if n_bytes + int(text_lengths(batch).sum()) > limit:
                raise unpacked_too_large(path, limit)
            plain = _unpack(batch)
            n_bytes += plain.nbytes
            if n_bytes > limit:
                raise unpacked_too_large(path, limit)
            yield plain


def text_lengths(batch: pa.RecordBatch) -> Ints:
    """Return how many bytes the texts of each row of a batch with dictionaries unpack to."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        lengths = _lengths(column)
        if lengths is not None:
            total += lengths
    return total


def _lengths(column: Any) -> Ints | None:
    """Return the bytes of the texts of each row of an Arrow array; None if it holds none."""
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        lengths = compute.binary_length(column.dictionary).take(column.indices).fill_null(0)
        out: Ints = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        return out
    if types.is_list(column.type) or types.is_large_list(column.type):
        lengths = _lengths(column.flatten())
        if lengths is None:
            return None
        n_values = compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        sums = np.concatenate([[0], np.cumsum(lengths)])
        of_rows: Ints = np.diff(sums[np.concatenate([[0], np.cumsum(n_values)])])
        return of_rows
    if types.is_struct(column.type):
        parts = [x for x in map(_lengths, column.flatten()) if x is not None]
        return np.sum(parts, 0) if parts else None
    return None


def _unpack(batch: Any) -> Any:
    """Return a batch or a table without dictionaries."""
    import pyarrow as pa

    fields = [pa.field(x.name, _plain_type(x.type)) for x in batch.schema]
    return batch.cast(pa.schema(fields))


def _plain_type(kind: Any) -> Any:
    """Return an Arrow type without dictionaries."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(kind):
        return kind.value_type
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain_type(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([x.with_type(_plain_type(x.type)) for x in kind])
    return kind
