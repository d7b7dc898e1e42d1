"""Anything people bring becomes `Interactions`: a dataframe, CSV, Parquet, a raw format.

Imports pyarrow only when a CSV or Parquet file is read. What columns must look like is known by
`tables`, what the raw formats look like by `raw`, which datasets there are by `sources`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from idcf.data.columns import Origin, find_columns, from_table, warn
from idcf.data.datasets.formats import (
    atomic,
    check_file,
    from_text,
    movielens,
    read_text,
    wrong_width,
)
from idcf.data.interactions import Interactions, Vocab
from idcf.errors import DataError

_KNOWN = ".csv, .tsv, .parquet, .inter, .data, .base, .test or .dat (text may be gzipped)"


def read_interactions(
    source: Any, *, columns: Mapping[str, str] | None = None, implicit: bool | None = None
) -> Interactions:
    """From a pandas, Polars or Arrow table, or a file (.csv, .tsv, .parquet, .inter, ...).

    Columns are `user_id, item_id, rating, timestamp`; `columns` maps these to other names. No
    rating column: implicit feedback, and so with `implicit=True`, where ratings are counts.
    """
    if isinstance(source, Interactions):
        return source
    if not isinstance(source, str | Path):
        return from_table(source, columns=columns, implicit=implicit)
    path = Path(source).expanduser()
    suffix = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if suffix in ("csv", "tsv"):
        return _csv(path, "," if suffix == "csv" else "\t", columns, implicit)
    if suffix == "parquet":
        return _parquet(path, columns, implicit)
    if suffix == "inter":
        return from_text(*atomic(path), columns, implicit)
    if suffix in ("data", "base", "test", "dat"):
        return movielens(path, columns, implicit)
    raise DataError(f"{path}: the format cannot be told from the name; give {_KNOWN}")


def read_split(
    train: Any,
    test: Any,
    *,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
) -> tuple[Interactions, Interactions]:
    """Two sources as tables of one vocabulary. A pair in both stays in `test` alone."""
    one = read_interactions(train, columns=columns, implicit=implicit)
    two = read_interactions(test, columns=columns, implicit=implicit)
    one, two = align(one, two)
    n = len(one.items)
    again = np.isin(one.user * n + one.item, two.user * n + two.item)
    if again.any():
        warn(f"{again.sum():,} (user, item) pairs are in both train and test; kept in test only")
        one = one.where(~again)
    return one, two


def align(*tables: Interactions) -> list[Interactions]:
    """The same rows over one vocabulary that holds the ids of all the tables."""
    users = _union("user", [t.users for t in tables])
    items = _union("item", [t.items for t in tables])
    return [recode(t, users, items) for t in tables]


def recode(table: Interactions, users: Vocab, items: Vocab) -> Interactions:
    """The same rows over other vocabularies, which must hold all ids of the table."""
    user, item = users.rows(table.users.ids), items.rows(table.items.ids)
    for kind, rows, old in (("user", user, table.users), ("item", item, table.items)):
        if len(lost := np.flatnonzero(rows < 0)):
            raise DataError(f"{kind} {old.ids[lost[0]]!r} is not in the vocabulary it must be in")
    return replace(table, users=users, items=items, user=user[table.user], item=item[table.item])


def _union(kind: str, vocabs: Sequence[Vocab]) -> Vocab:
    ids: list[Any] = list(set().union(*(v.ids for v in vocabs)))
    if len({isinstance(x, str) for x in ids}) > 1:
        raise DataError(f"{kind} ids are strings in one table and integers in the other")
    return Vocab(sorted(ids))


def _csv(
    path: Path, delimiter: str, columns: Mapping[str, str] | None, implicit: bool | None
) -> Interactions:
    """Everything is read as text and typed by us, so that an id 007 keeps its zeros."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    text = read_text(path)
    names = next(csv.reader(io.StringIO(text), delimiter=delimiter))
    if len(names) == 1:
        raise DataError(wrong_width(f"{path}, line 1", text.split("\n")[0], delimiter, 2))
    found = find_columns(columns, names, str(path), implicit)
    used = list(dict.fromkeys(found.values()))
    try:
        table = arrow.read_csv(
            pa.BufferReader(text.encode()),
            parse_options=arrow.ParseOptions(delimiter=delimiter, newlines_in_values='"' in text),
            convert_options=arrow.ConvertOptions(
                include_columns=used, column_types={name: pa.string() for name in used}
            ),
        )
    except pa.ArrowInvalid as error:
        _refuse_csv(path, text, delimiter, len(names))
        raise DataError(f"{path}: {str(error).splitlines()[0]}; correct the file") from None
    origin = Origin(str(path), partial(_csv_line, text, delimiter))
    # the table has no columns but the ones found, so a name cannot be missed twice
    return from_table(table, columns=found, implicit=implicit, origin=origin, text=True)


def _csv_line(text: str, delimiter: str, row: int) -> str:
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    next(islice(filter(None, reader), row + 1, None))
    return f"line {reader.line_num}"


def _refuse_csv(path: Path, text: str, delimiter: str, width: int) -> None:
    """Name the first line that has not as many fields as the header."""
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    for row in filter(None, reader):
        if len(row) != width:
            line = delimiter.join(row)
            where = f"{path}, line {reader.line_num}"
            raise DataError(wrong_width(where, line, delimiter, width))


def _parquet(path: Path, columns: Mapping[str, str] | None, implicit: bool | None) -> Interactions:
    import pyarrow as pa
    from pyarrow import parquet

    check_file(path)
    try:
        names = parquet.read_schema(path).names
        found = find_columns(columns, names, str(path), implicit)
        table = parquet.read_table(path, columns=list(dict.fromkeys(found.values())))
    except (pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0]
        raise DataError(f"{path}: not a whole Parquet file ({why}); write it again") from None
    return from_table(table, columns=found, implicit=implicit, origin=Origin(str(path)))
