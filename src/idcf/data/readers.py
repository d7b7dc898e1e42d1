"""Read interactions from a dataframe or a file: CSV, TSV, Parquet, RecBole or MovieLens.

Checks of values are in `columns`, the text formats in `datasets.formats`. Imports pyarrow only when
a CSV or Parquet file is read.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from idcf.data.column_names import find_columns, holds_ids, resolve_columns
from idcf.data.columns import (
    ColumnOrigin,
    WeightRule,
    build_interactions,
    to_dataframe,
    warn_about_data,
)
from idcf.data.datasets.formats import (
    interactions_from_text,
    read_movielens,
    read_recbole,
    wrong_width_message,
)
from idcf.data.inputs import InteractionsTable
from idcf.data.interactions import Interactions, align_vocabularies, encode_ids
from idcf.data.missing_values import MissingRule, interactions_from_rows
from idcf.data.parquet_reader import ParquetColumns, parquet_errors, parquet_files
from idcf.data.shards import ShardedTable, is_sharded_folder
from idcf.errors import ConfigError, DataError, unknown_name_message
from idcf.files import expand_user, read_text

if TYPE_CHECKING:
    import pyarrow as pa

csv.field_size_limit(1 << 30)  # of the module csv, whose default is 128 KiB
DuplicateRule = Literal["last", "count"]
_SUPPORTED_SUFFIXES = (
    ".csv, .tsv, .parquet, .inter, .data, .base, .test or .dat (text may be gzipped)"
)


def read_interactions(
    source: InteractionsTable,
    *,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
    missing: MissingRule = "error",
    weight: str | None = None,
    duplicates: DuplicateRule = "last",
) -> Interactions:
    """Read interactions from a dataframe or a file.

    Parameters
    ----------
    source
        A pandas, Polars or Arrow table, a sparse matrix of SciPy (users x items, whose ids are the
        numbers of rows and columns), the path of a file (.csv, .tsv, .parquet, .inter, .data,
        .base, .test, .dat; text may be gzipped), of a folder of Parquet files or of shards (see
        `idcf shard`), or `Interactions`.
    columns
        Column names by role, where they differ from the roles `user_id`, `item_id`, `rating` and
        `timestamp`.
    implicit
        True: implicit feedback; a rating is a count, and rows of count 0 are dropped.
        False: ratings are required. By default the table is implicit if it has no rating column.
    missing
        "drop": drop rows of dataframes, CSV and Parquet files that lack an id, a rating or a time,
        with a warning that counts them. "error": refuse them.
    weight
        Name of a column of implicit feedback with the confidence of each row, above 0, such as a
        count, a time spent or an amount; rows of weight 0 are dropped.
    duplicates
        Of rows that repeat a (user, item) pair the "last" one is kept; "count" keeps it too, with
        the sum of their weights, 1 each without a column. The values of a sparse matrix are then
        its weights.

    Raises
    ------
    ConfigError
        If weights are asked for of a source that has ratings, or cannot have weights.
    DataError
        If the source cannot be read, a required column is missing or a value cannot be used.
    """
    if weight is not None or duplicates != "last":
        columns, implicit = _require_clicks(source, columns, implicit, weight, duplicates)
    weights = WeightRule(weight is not None, duplicates == "count")
    if isinstance(source, Interactions):
        return source.as_implicit() if implicit and not source.implicit else source
    if hasattr(source, "tocsr"):
        return _read_matrix(source, implicit, weights)
    if not isinstance(source, str | Path):
        frame = to_dataframe(
            source,
            f"cannot read interactions from {type(source).__name__}: give the path of a file or "
            "a pandas, Polars (collected) or Arrow table with distinct column names",
        )
        name = f"{frame.implementation.name.lower()} table"
        names = find_columns(columns, frame.columns, name, implicit)
        origin = ColumnOrigin(name, column_names=names)
        return interactions_from_rows(frame, origin, implicit, missing, weights=weights)
    path = expand_user(source)
    suffix = format_suffix(path)
    if is_sharded_folder(path):
        return _read_shards(path, columns, implicit)
    if suffix in ("csv", "tsv"):
        return _read_csv_interactions(path, columns, implicit, missing, weights)
    if suffix == "parquet" or path.is_dir():
        return _read_parquet_interactions(path, columns, implicit, missing, weights)
    if suffix == "inter":
        return interactions_from_text(*read_recbole(path), columns, implicit, weights=weights)
    if suffix in ("data", "base", "test", "dat"):
        return read_movielens(path, columns, implicit, weights)
    raise DataError(f"{path}: the format cannot be told from the name; give {_SUPPORTED_SUFFIXES}")


def _require_clicks(
    source: Any,
    columns: Mapping[str, str] | None,
    implicit: bool | None,
    weight: str | None,
    duplicates: str,
) -> tuple[Mapping[str, str] | None, bool | None]:
    """Return `columns` and `implicit` with which the weights of clicks are read as ratings are;
    raise ConfigError if the source has ratings, or cannot have weights."""
    option = "duplicates='count'" if weight is None else "weight"
    if duplicates not in get_args(DuplicateRule):
        names = get_args(DuplicateRule)
        raise ConfigError(f"duplicates: {unknown_name_message('value', duplicates, names)}")
    if implicit is False:
        raise ConfigError(f"{option} is for clicks; leave it out, or implicit=False")
    if isinstance(source, Interactions):
        raise ConfigError(f"the weights of Interactions are its field weight; leave out {option}")
    if hasattr(source, "tocsr"):
        if weight is not None:
            raise ConfigError(
                "a sparse matrix has no columns; leave out weight: with duplicates='count' its "
                "values are the weights"
            )
        return columns, True
    if isinstance(source, str | Path) and is_sharded_folder(Path(source).expanduser()):
        raise ConfigError(
            f"{source}: shards hold no weights, and each (user, item) pair once; leave out "
            f"{option}, or fit the table that the shards were made from"
        )
    if weight is None:
        return columns, implicit
    others = [name for name in column_names(source) if name != weight]
    rating = resolve_columns(others, "table", columns, ["rating"]).get("rating")
    if rating is not None and implicit is None:
        raise ConfigError(
            f"weight is for clicks, and the column {rating!r} holds ratings; leave weight out, or "
            "leave the ratings aside with implicit=True, --implicit"
        )
    return {**(columns or {}), "rating": weight}, True


def _read_matrix(matrix: Any, implicit: bool | None, weights: WeightRule) -> Interactions:
    """Read the stored values of a sparse matrix; those of equal places are added up."""
    entries = matrix.tocsr().tocoo()
    values = entries.data.astype(np.float64)
    origin = ColumnOrigin("sparse matrix", "entry {}".format)
    users, items = (encode_ids(x.astype(np.int64)) for x in (entries.row, entries.col))
    rule = WeightRule(reads_values=weights.counts_repeats)
    return build_interactions(origin, users, items, values, None, bool(implicit), rule)


def read_train_test(
    train: Any,
    test: Any,
    *,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
    missing: MissingRule = "error",
) -> tuple[Interactions, Interactions]:
    """Read two sources, as `read_interactions` does, as tables with common vocabularies. A (user,
    item) pair that is in both sources is dropped from `train`, with a warning."""
    train_table, test_table = align_vocabularies(
        read_interactions(train, columns=columns, implicit=implicit, missing=missing),
        read_interactions(test, columns=columns, implicit=implicit, missing=missing),
    )
    n_items = len(train_table.items)
    is_shared = np.isin(
        train_table.user * n_items + train_table.item, test_table.user * n_items + test_table.item
    )
    if is_shared.any():
        warn_about_data(
            f"{is_shared.sum():,} (user, item) pairs are in both train and test; kept in test only"
        )
        train_table = train_table.where(~is_shared)
    return train_table, test_table


def column_names(source: Any) -> list[str]:
    """Names of the columns of a dataframe, or of a CSV or Parquet file; none of another source."""
    if isinstance(source, Interactions) or hasattr(source, "tocsr"):
        return []
    if not isinstance(source, str | Path):
        return list(
            to_dataframe(source, "give a pandas, Polars (collected) or Arrow table").columns
        )
    path = expand_user(source)
    if format_suffix(path) == "parquet" or (path.is_dir() and not is_sharded_folder(path)):
        from pyarrow import parquet

        first = parquet_files(path)[0]
        with parquet_errors(first):
            return list(parquet.read_schema(first).names)
    if format_suffix(path) in ("csv", "tsv"):
        return next(csv.reader(io.StringIO(read_text(path)), delimiter=delimiter_of(path)))
    return []


def read_table(path: Path, id_columns: Collection[str] = ()) -> pa.Table:
    """Read a Parquet file, or any other as CSV or TSV, whole, as an Arrow table. In CSV, ids (of
    the `id_columns`, too) are read as text, so that `007` keeps its zeros, and Arrow guesses the
    type of other columns. Raises DataError if the file is missing, empty or damaged."""
    if format_suffix(path) == "parquet":
        from pyarrow import parquet

        with parquet_errors(path):
            return parquet.read_table(path)
    text = read_text(path)
    header = next(csv.reader(io.StringIO(text), delimiter=delimiter_of(path)))
    ids = [name for name in header if holds_ids(name) or name in id_columns]
    return _parse_csv(path, text, text_columns=ids)


def format_suffix(path: Path) -> str:
    """Suffix in lower case, without a dot and without `.gz`."""
    return path.name.removesuffix(".gz").rpartition(".")[2].lower()


def delimiter_of(path: Path) -> str:
    """Return the delimiter of a text file: a tab for .tsv, otherwise a comma."""
    return "\t" if format_suffix(path) == "tsv" else ","


def _read_parquet_interactions(
    path: Path,
    columns: Mapping[str, str] | None,
    implicit: bool | None,
    missing: MissingRule,
    weights: WeightRule,
) -> Interactions:
    """Read Parquet in chunks or, if that meets a value that it does not understand, whole."""
    source = ParquetColumns.find(path, columns, implicit)
    table = source.interactions(implicit, weights)
    if table is not None:
        return table
    origin = ColumnOrigin(str(path), column_names=source.names)
    frame = to_dataframe(source.whole_table())
    return interactions_from_rows(frame, origin, implicit, missing, weights=weights)


def _read_shards(
    path: Path, columns: Mapping[str, str] | None, implicit: bool | None
) -> Interactions:
    """Read a folder of shards; its columns have the names of their roles."""
    table = ShardedTable.open(path).interactions()
    optional = {"rating": not table.implicit, "timestamp": table.time is not None}
    names = ["user_id", "item_id", *(name for name, is_there in optional.items() if is_there)]
    find_columns(columns, names, str(path), implicit)
    if not implicit or table.implicit:
        return table
    users, items = (table.users, table.user), (table.items, table.item)
    return build_interactions(ColumnOrigin(str(path)), users, items, table.rating, table.time, True)


def _read_csv_interactions(
    path: Path,
    columns: Mapping[str, str] | None,
    implicit: bool | None,
    missing: MissingRule,
    weights: WeightRule,
) -> Interactions:
    """Read the columns of all roles as text, which `interactions_from_dataframe` parses."""
    text, delimiter = read_text(path), delimiter_of(path)
    header = next(csv.reader(io.StringIO(text), delimiter=delimiter))
    if len(header) == 1:
        first_line = text.split("\n")[0]
        raise DataError(wrong_width_message(f"{path}, line 1", first_line, delimiter, 2))
    names = find_columns(columns, header, str(path), implicit)
    selected = list(dict.fromkeys(names.values()))
    frame = to_dataframe(_parse_csv(path, text, text_columns=selected, columns=selected))
    origin = ColumnOrigin(str(path), partial(_csv_line_label, text, delimiter), names)
    return interactions_from_rows(
        frame, origin, implicit, missing, ids_are_text=True, weights=weights
    )


def _parse_csv(
    path: Path, text: str, *, text_columns: Collection[str], columns: Sequence[str] = ()
) -> pa.Table:
    """Parse the text of a CSV or TSV file; `columns` selects columns, all of them if empty."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    delimiter = delimiter_of(path)
    parsing = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values='"' in text)
    conversion = arrow_csv.ConvertOptions(
        include_columns=list(columns), column_types=dict.fromkeys(text_columns, pa.string())
    )
    try:
        return arrow_csv.read_csv(
            pa.BufferReader(text.encode()), parse_options=parsing, convert_options=conversion
        )
    except pa.ArrowException as error:
        reader = csv.reader(io.StringIO(text), delimiter=delimiter)
        width = 0  # of the header
        for fields in filter(None, reader):
            width = width or len(fields)
            if len(fields) != width:
                position, line = f"{path}, line {reader.line_num}", delimiter.join(fields)
                raise DataError(wrong_width_message(position, line, delimiter, width)) from None
        raise DataError(f"{path}: {str(error).splitlines()[0]}; correct the file") from None


def _csv_line_label(text: str, delimiter: str, row: int) -> str:
    """Label of the line where a row of the table ends, such as "line 7"."""
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    next(islice(filter(None, reader), row + 1, None))
    return f"line {reader.line_num}"
