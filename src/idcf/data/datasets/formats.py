"""The raw formats of the public datasets, RecBole's atomic files among them.

Needs numpy and the standard library only (h5py for Douban, imported when one is read), so that
the datasets load on a machine that has neither dataframes nor Arrow.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np

from idcf.data.columns import ROLES, Ids, Origin, assemble, find_columns, numbers, seconds, text_ids
from idcf.data.interactions import Interactions, Ints, Vocab
from idcf.errors import DataError, unknown


def check_file(path: Path) -> None:
    """There is such a file and something in it."""
    if not path.exists():
        raise DataError(f"no file at {path}; check the path")
    if not path.is_file():
        raise DataError(f"{path} is a folder; give the path of a file in it")
    if not path.stat().st_size:
        raise DataError(f"{path}: the file is empty; give one with at least one interaction")


def read_bytes(path: Path) -> bytes:
    """The whole file, unpacked where it is gzip. Never empty, never the first half."""
    check_file(path)
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            why = str(error).lower()
            raise DataError(f"{path}: damaged gzip ({why}); download or copy it again") from None
    if not data or data.isspace():
        raise DataError(f"{path}: the file is empty; give one with at least one interaction")
    return data


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The whole file as text with plain line ends."""
    data = read_bytes(path)
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{data[error.start]:02x} is not {encoding}"
        raise DataError(f"{path}, line {line}: {byte}; save the file as {encoding}") from None
    return text.replace("\r\n", "\n")


def delimited(
    path: Path,
    delimiter: str | None,
    names: Sequence[str] | None = None,
    *,
    least: int = 0,
    encoding: str = "utf-8",
) -> tuple[dict[str, list[str]], Origin]:
    """Columns of text. Without `names` the first line has them; a delimiter of None is any
    white space; with `least`, the columns after that many may be absent from the file."""
    text = read_text(path, encoding)
    lines = list(filter(str.strip, text.split("\n")))
    first = lines[0].split(delimiter)
    header = names is None
    names = first if names is None else names
    width = len(first) if least and least <= len(first) < len(names) else len(names)
    split = methodcaller("split", delimiter)
    if set(map(len, map(split, lines))) != {width}:
        row, line = next((i, x) for i, x in enumerate(lines) if len(split(x)) != width)
        raise DataError(wrong_width(f"{path}, {_line(text, row)}", line, delimiter, width))
    if len(lines) == header:
        raise DataError(f"{path}: a header but no rows; give at least one interaction")
    # one flat list: a million short ones would keep the garbage collector busy for seconds
    flat = text.split() if delimiter is None else delimiter.join(lines).split(delimiter)
    columns = {name: flat[width * header + k :: width] for k, name in enumerate(names[:width])}
    return columns, Origin(str(path), lambda row: _line(text, row + header))


def _line(text: str, row: int) -> str:
    """The slow way back from a row, counted without blank lines, to its line in the file."""
    filled = (n for n, line in enumerate(text.split("\n"), 1) if line.strip())
    return f"line {next(islice(filled, row, None))}"


def wrong_width(where: str, line: str, delimiter: str | None, width: int) -> str:
    """The text for a line that falls into the wrong number of fields."""
    found = len(line.split(delimiter))
    other = [d for d in ("\t", "::", ",", ";", "|", " ") if d in line]
    hint = f"; it looks separated by {other[0]!r}" if found == 1 and other else ""
    by = "white space" if delimiter is None else repr(delimiter)
    return (
        f"{where}: expected {width} fields separated by {by}, found {found}{hint}: "
        f"correct the line {line[:80]!r}, or read the file yourself and give the table"
    )


def from_text(
    table: Mapping[str, list[str]],
    origin: Origin,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
    *,
    integer: bool = False,
) -> Interactions:
    """From columns of text, all of which came from one file."""
    found = find_columns(columns, list(table), origin.name, implicit)
    where = replace(origin, names=found)

    def ids(role: str) -> Ids:
        return text_ids(table[found[role]], role, where, integer=integer)

    def floats(role: str) -> Any:
        return numbers(table[found[role]], role, where) if role in found else None

    time = floats("timestamp")
    time = None if time is None else seconds(time, where)
    return assemble(where, ids("user_id"), ids("item_id"), floats("rating"), time, implicit)


def atomic(path: Path) -> tuple[dict[str, list[str]], Origin]:
    """The columns of a RecBole file (.inter, .user, .item), whose header is `name:type`."""
    table, origin = delimited(path, "\t")
    if len(table) == 1:
        raise DataError(wrong_width(f"{path}, line 1", next(iter(table)), "\t", 2))
    kinds = ("token", "token_seq", "float", "float_seq")
    for name in table:
        kind = name.partition(":")[2]
        if kind not in kinds:
            raise DataError(
                f"{path}, line 1: {unknown('type', kind, kinds)}, "
                f"in column {name!r}; write it as in 'user_id:token'"
            )
    return {name.partition(":")[0]: values for name, values in table.items()}, origin


def movielens(
    path: Path, columns: Mapping[str, str] | None = None, implicit: bool | None = None
) -> Interactions:
    """`user item rating [time]`: tabs in MovieLens-100K, `::` in 1M, commas under a header."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix == ".csv":
        table = delimited(path, ",")
    else:
        table = delimited(path, "::" if suffix == ".dat" else "\t", ROLES, least=3)
    return from_text(*table, columns, implicit, integer=True)


def pairs(path: Path) -> Interactions:
    """`user item` lines, in the order in which things happened."""
    return from_text(*delimited(path, None, ROLES[:2]), integer=True)


def adjacency(path: Path) -> Interactions:
    """NGCF's `user item item ...` lines."""
    text = read_text(path)
    lines = [line.split() for line in text.split("\n") if line.strip()]
    length = np.array([len(line) - 1 for line in lines])
    ends = np.cumsum(length)
    head = Origin(str(path), partial(_line, text))
    body = Origin(str(path), lambda row: _line(text, int(np.searchsorted(ends, row, "right"))))
    users, user = text_ids([line[0] for line in lines], "user_id", head, integer=True)
    each = list(chain.from_iterable(line[1:] for line in lines))
    items = text_ids(each, "item_id", body, integer=True)
    return assemble(body, (users, np.repeat(user, length)), items, None, None)


def _monti(path: Path, *names: str) -> list[Any]:
    """Matrices of Monti's MATLAB v7.3 file, as MATLAB sees them; None for one that is absent."""
    try:
        import h5py
    except ImportError:
        raise DataError(f"{path}: reading HDF5 needs h5py: pip install 'idcf[hdf5]'") from None
    check_file(path)
    try:
        with h5py.File(path) as file:
            return [np.asarray(file[x]).T if x in file else None for x in names]
    except OSError as error:
        raise DataError(f"{path}: not Monti's HDF5 file ({error}); copy it again") from None


def douban(path: Path) -> tuple[Interactions, Interactions]:
    """A rating matrix and the masks of its training and test part."""
    names = ("M", "Otraining", "Otest")
    found = dict(zip(names, _monti(path, *names), strict=True))
    if absent := [x for x in names if found[x] is None]:
        what = f"it has no {', '.join(absent)}"
        raise DataError(f"{path}: not Monti's HDF5 file ({what}); copy it again")
    rating, train, test = found.values()
    users, items = (Vocab(range(n)) for n in rating.shape)

    def table(mask: Ints) -> Interactions:
        user, item = np.nonzero(mask)
        row = Origin(str(path), lambda i: f"user {user[i]}, item {item[i]}")
        return assemble(row, (users, user), (items, item), rating[user, item], None)

    return table(train), table(test)


def douban_friends(path: Path) -> Any:
    """Who follows whom among the users, 0 or 1 [U, U]; None where the file does not say."""
    return _monti(path, "W_users")[0]


_GENRES = tuple(f"genre_{n}" for n in range(19))
_SIDE = {  # what is known of users and items: delimiter and columns of MovieLens' latin-1 files
    "u.user": ("|", ("user_id", "age", "gender", "occupation", "zip_code")),
    "u.item": ("|", ("item_id", "title", "release", "video_release", "imdb", *_GENRES)),
    "users.dat": ("::", ("user_id", "gender", "age", "occupation", "zip_code")),
    "movies.dat": ("::", ("item_id", "title", "genres")),
}


def side_table(path: Path) -> dict[str, list[str]]:
    """The columns of u.user, u.item, users.dat, movies.dat, or of a RecBole .user or .item."""
    if path.name in _SIDE:
        delimiter, names = _SIDE[path.name]
        return delimited(path, delimiter, names, encoding="latin-1")[0]
    if path.suffix in (".user", ".item"):
        return atomic(path)[0]
    raise DataError(f"{path}: not a side table; known: {', '.join(_SIDE)}, *.user, *.item")


def titles(path: Path) -> dict[Hashable, str]:
    """Item id -> title, with the year behind it as MovieLens writes it."""
    table = side_table(path)
    items = map(int, table["item_id"])
    if "title" in table:
        return dict(zip(items, table["title"], strict=True))
    named = zip(table["movie_title"], table["release_year"], strict=True)
    return dict(zip(items, (f"{x} ({y})" if y else x for x, y in named), strict=True))
