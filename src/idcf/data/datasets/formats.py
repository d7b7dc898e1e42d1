"""File formats of the public datasets: MovieLens, RecBole, NGCF, Monti's HDF5 and others.

Needs only numpy and the standard library (and h5py for Douban, imported on first use), so that the
datasets load on a machine without pandas, Polars or Arrow. Does not know which datasets exist.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from idcf.data.column_names import COLUMN_ROLES, find_columns
from idcf.data.columns import (
    NO_WEIGHTS,
    ColumnOrigin,
    WeightRule,
    build_interactions,
    encode_text_ids,
    parse_numbers,
    to_whole_seconds,
)
from idcf.data.interactions import Interactions, Ints, Vocab
from idcf.data.missing_values import counted_bad_values
from idcf.errors import DataError, require_extra, unknown_name_message
from idcf.files import check_file, read_text


def read_delimited(
    path: Path,
    delimiter: str | None,
    names: Sequence[str] | None = None,
    *,
    min_columns: int = 0,
    encoding: str = "utf-8",
) -> tuple[dict[str, list[str]], ColumnOrigin]:
    """Read a delimited text file: text of each column by name, and its origin, with line numbers.

    Fields are separated by white space if there is no delimiter; names are in the first line if
    none are given; columns from `min_columns`, if positive, may be absent. Raises DataError if the
    file cannot be read, has no rows, or a line has the wrong number of fields.
    """
    text = read_text(path, encoding)
    lines = list(filter(str.strip, text.split("\n")))
    first_fields = lines[0].split(delimiter)
    has_header = names is None
    names = first_fields if names is None else names
    width = len(names)
    if min_columns and min_columns <= len(first_fields) < width:
        width = len(first_fields)
    for row, line in enumerate(lines):
        if len(line.split(delimiter)) != width:
            position = f"{path}, {_line_label(text, row)}"
            raise DataError(wrong_width_message(position, line, delimiter, width))
    if len(lines) == has_header:
        raise DataError(f"{path}: a header but no rows; give at least one interaction")
    # one flat list: a million short lists would cost seconds of garbage collection
    fields = text.split() if delimiter is None else delimiter.join(lines).split(delimiter)
    first = width * has_header
    columns = {name: fields[first + k :: width] for k, name in enumerate(names[:width])}
    return columns, ColumnOrigin(str(path), lambda row: _line_label(text, row + has_header))


def _line_label(text: str, row: int) -> str:
    """Label of the line of a row, where rows are counted without blank lines."""
    line_numbers = (n for n, line in enumerate(text.split("\n"), 1) if line.strip())
    return f"line {next(islice(line_numbers, row, None))}"


def wrong_width_message(position: str, line: str, delimiter: str | None, width: int) -> str:
    """Error text for a line, at a file and line number, that has not `width` fields."""
    n_fields = len(line.split(delimiter))
    delimiters = [d for d in ("\t", "::", ",", ";", "|", " ") if d in line]
    hint = f"; it looks separated by {delimiters[0]!r}" if n_fields == 1 and delimiters else ""
    delimiter_label = "white space" if delimiter is None else repr(delimiter)
    return (
        f"{position}: expected {width} fields separated by {delimiter_label}, "
        f"found {n_fields}{hint}: "
        f"correct the line {line[:80]!r}, or read the file yourself and give the table"
    )


def interactions_from_text(
    table: Mapping[str, list[str]],
    origin: ColumnOrigin,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
    *,
    integer_ids: bool = False,
    weights: WeightRule = NO_WEIGHTS,
) -> Interactions:
    """Build interactions from text columns and their origin, as `read_delimited` returns them.
    `columns` and `implicit` are those of `read_interactions`; some formats require
    `integer_ids`."""
    names = find_columns(columns, list(table), origin.source_name, implicit)
    origin = replace(origin, column_names=names)

    values = {role: table[name] for role, name in names.items()}
    with counted_bad_values(origin, lambda: values):
        users, items = (
            encode_text_ids(values[role], role, origin, integer_ids=integer_ids)
            for role in ("user_id", "item_id")
        )
        rating, seconds = (
            parse_numbers(values[role], role, origin) if role in values else None
            for role in ("rating", "timestamp")
        )
        time = None if seconds is None else to_whole_seconds(seconds, origin)
        return build_interactions(origin, users, items, rating, time, implicit, weights)


def read_recbole(path: Path) -> tuple[dict[str, list[str]], ColumnOrigin]:
    """Read a RecBole file (.inter, .user, .item), whose header is `name:type`. Returns the text of
    each column by name, without the type; and the origin of the columns."""
    table, origin = read_delimited(path, "\t")
    if len(table) == 1:
        raise DataError(wrong_width_message(f"{path}, line 1", next(iter(table)), "\t", 2))
    kinds = ("token", "token_seq", "float", "float_seq")
    for name in table:
        kind = name.partition(":")[2]
        if kind not in kinds:
            raise DataError(
                f"{path}, line 1: {unknown_name_message('type', kind, kinds)}, "
                f"in column {name!r}; write it as in 'user_id:token'"
            )
    return {name.partition(":")[0]: values for name, values in table.items()}, origin


def read_movielens(
    path: Path,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
    weights: WeightRule = NO_WEIGHTS,
) -> Interactions:
    """Read MovieLens ratings: lines of user, item, rating and, optionally, time. The suffix says
    the delimiter: commas under a header in .csv, `::` in .dat (MovieLens-1M), tabs in any other
    file (MovieLens-100K). `columns` and `implicit` are those of `read_interactions`."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix == ".csv":
        table = read_delimited(path, ",")
    else:
        table = read_delimited(
            path, "::" if suffix == ".dat" else "\t", COLUMN_ROLES, min_columns=3
        )
    return interactions_from_text(*table, columns, implicit, integer_ids=True, weights=weights)


def read_user_item_pairs(path: Path) -> Interactions:
    """Read implicit feedback from `user item` lines, which are in order of time."""
    return interactions_from_text(*read_delimited(path, None, COLUMN_ROLES[:2]), integer_ids=True)


def read_adjacency(path: Path) -> Interactions:
    """Read implicit feedback from NGCF's `user item item ...` lines."""
    text = read_text(path)
    lines = [line.split() for line in text.split("\n") if line.strip()]
    lengths = np.array([len(line) - 1 for line in lines])
    ends = np.cumsum(lengths)
    user_origin = ColumnOrigin(str(path), partial(_line_label, text))
    item_origin = ColumnOrigin(
        str(path), lambda row: _line_label(text, int(np.searchsorted(ends, row, "right")))
    )
    user_ids = [line[0] for line in lines]
    item_ids = list(chain.from_iterable(line[1:] for line in lines))
    users, user = encode_text_ids(user_ids, "user_id", user_origin, integer_ids=True)
    items = encode_text_ids(item_ids, "item_id", item_origin, integer_ids=True)
    return build_interactions(item_origin, (users, np.repeat(user, lengths)), items, None, None)


def _read_monti_matrices(path: Path, *names: str) -> list[Any]:
    """Matrices of Monti's MATLAB v7.3 file, transposed as in MATLAB; None for a missing one."""
    require_extra("hdf5", "h5py")
    import h5py

    check_file(path)
    try:
        with h5py.File(path) as file:
            return [np.asarray(file[x]).T if x in file else None for x in names]
    except OSError as error:
        raise DataError(f"{path}: not Monti's HDF5 file ({error}); copy it again") from None


def read_douban(path: Path) -> tuple[Interactions, Interactions]:
    """Read Monti's Douban file: the tables of the official training and test part."""
    names = ("M", "Otraining", "Otest")
    matrices = _read_monti_matrices(path, *names)
    if missing := [name for name, x in zip(names, matrices, strict=True) if x is None]:
        reason = f"it has no {', '.join(missing)}"
        raise DataError(f"{path}: not Monti's HDF5 file ({reason}); copy it again")
    rating, train_mask, test_mask = matrices
    users, items = (Vocab(range(n)) for n in rating.shape)

    def masked_table(mask: Ints) -> Interactions:
        """Return the ratings of the cells that are not 0 in a mask [U, I]."""
        user, item = np.nonzero(mask)
        origin = ColumnOrigin(str(path), lambda i: f"user {user[i]}, item {item[i]}")
        return build_interactions(origin, (users, user), (items, item), rating[user, item], None)

    return masked_table(train_mask), masked_table(test_mask)


def read_douban_friends(path: Path) -> Any:
    """Read the friend graph of Monti's Douban file, 0 or 1 [U, U]; None if it has none."""
    return _read_monti_matrices(path, "W_users")[0]


_GENRE_COLUMNS = tuple(f"genre_{n}" for n in range(19))
# delimiter and columns of MovieLens' files of users and items, which are encoded as latin-1
_SIDE_FILE_FORMATS = {
    "u.user": ("|", ("user_id", "age", "gender", "occupation", "zip_code")),
    "u.item": ("|", ("item_id", "title", "release", "video_release", "imdb", *_GENRE_COLUMNS)),
    "users.dat": ("::", ("user_id", "gender", "age", "occupation", "zip_code")),
    "movies.dat": ("::", ("item_id", "title", "genres")),
}


def read_side_columns(path: Path) -> dict[str, list[str]]:
    """Read the columns of u.user, u.item, users.dat, movies.dat, or of a RecBole .user or .item."""
    if path.name in _SIDE_FILE_FORMATS:
        delimiter, names = _SIDE_FILE_FORMATS[path.name]
        return read_delimited(path, delimiter, names, encoding="latin-1")[0]
    if path.suffix in (".user", ".item"):
        return read_recbole(path)[0]
    raise DataError(
        f"{path}: not a side table; known: {', '.join(_SIDE_FILE_FORMATS)}, *.user, *.item"
    )


def read_titles(path: Path) -> dict[Hashable, str]:
    """Read titles by item id, with the year after the title, as in "Heat (1995)"."""
    columns = read_side_columns(path)
    ids = map(int, columns["item_id"])
    if "title" in columns:
        return dict(zip(ids, columns["title"], strict=True))
    names_and_years = zip(columns["movie_title"], columns["release_year"], strict=True)
    titles = (f"{name} ({year})" if year else name for name, year in names_and_years)
    return dict(zip(ids, titles, strict=True))
