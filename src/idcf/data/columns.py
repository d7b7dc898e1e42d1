"""Columns in memory become `Interactions`: the checks they pass, and the border to dataframes.

Knows nothing of files. Dataframes come in through narwhals, imported when one is given.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from idcf.data.interactions import Floats, Interactions, Ints, Vocab, encode
from idcf.errors import ConfigError, DataError, unknown

if TYPE_CHECKING:
    import narwhals as nw

ROLES = ("user_id", "item_id", "rating", "timestamp")
Ids = tuple[Vocab, Ints]
Numbers = NDArray[np.float64]
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")  # "007" and "+7" are names, not numbers


class DataWarning(UserWarning):
    """The interactions can be used, but something in them was put right on the way in."""


@dataclass(frozen=True)
class Origin:
    """Where columns came from, so that an error can point at the place."""

    name: str
    row: Callable[[int], str] = "row {}".format  # what the n-th row is called there
    names: Mapping[str, str] = field(default_factory=dict)  # what a role is called there

    def refuse(self, role: str, row: int, value: object, why: str) -> NoReturn:
        column = self.names.get(role, role)
        raise DataError(f"{self.name}, {self.row(row)}, column {column!r}: {value!r} {why}")


def find_columns(
    columns: Mapping[str, str] | None, names: Sequence[str], where: str, implicit: bool | None
) -> dict[str, str]:
    """Which of the names plays which role. Ids are needed; the others may be absent."""
    asked = dict(columns or {})
    for role in asked:
        if role not in ROLES:
            raise ConfigError(f"columns: {unknown('role', role, ROLES)}")
    needed = {"user_id", "item_id", *asked, *(["rating"] if implicit is False else [])}
    found = {role: asked.get(role, role) for role in ROLES}
    for role in [role for role in ROLES if found[role] not in names]:
        if role in needed:
            yours = f"; name yours: columns={{{role!r}: ...}}, --column {role}=..."
            way = "" if role in asked else yours
            raise DataError(f"{where}: {unknown('column', found[role], names)}{way}")
        del found[role]
    for role, name in found.items():
        if list(names).count(name) > 1:
            raise DataError(f"{where}: two columns are named {name!r} ({role}); rename one of them")
    lower = {name.lower(): name for name in names}
    near = get_close_matches("rating", lower, n=1, cutoff=0.8)
    if near and implicit is None and "rating" not in found:
        hint = f"if it is {lower[near[0]]!r}, pass columns={{'rating': {lower[near[0]]!r}}}"
        warn(f"{where}: no column 'rating', so taken as implicit feedback; {hint}")
    return found


def text_ids(values: Sequence[str], role: str, origin: Origin, *, integer: bool = False) -> Ids:
    """Ids out of a text file: integers where every one of them is written as one."""
    unique = set(values)
    if not all(map(str.strip, unique)):
        row = next(i for i, x in enumerate(values) if not x.strip())
        origin.refuse(role, row, values[row], "is an empty id; fill it in or drop the row")
    whole = all(map(_INTEGER.fullmatch, unique))
    if integer and not whole:
        row = next(i for i, x in enumerate(values) if not _INTEGER.fullmatch(x))
        origin.refuse(role, row, values[row], "is not an integer id, which this format needs")
    ids: list[Any] = sorted(map(int, unique)) if whole else sorted(unique)
    place = {str(x): n for n, x in enumerate(ids)}
    return Vocab(ids), np.fromiter(map(place.__getitem__, values), np.int64, len(values))


def typed_ids(values: Sequence[Any], role: str, origin: Origin) -> Ids:
    """Ids that are Python objects: all strings or all integers, none missing."""
    kinds = set(map(type, values))
    for kind in (str, (int, np.integer)):
        if all(issubclass(k, kind) and k is not bool for k in kinds):
            ids = sorted(set(values))
            place = {x: n for n, x in enumerate(ids)}
            rows = np.fromiter(map(place.__getitem__, values), np.int64, len(values))
            return Vocab([str(x) if kind is str else int(x) for x in ids]), rows
    first = values[0]
    for row, value in enumerate(values):
        _refuse_id(value, first, role, row, origin)
    raise AssertionError("unreachable: some value was neither a string nor an integer")


def _refuse_id(value: Any, first: Any, role: str, row: int, origin: Origin) -> None:
    kind = type(value).__name__
    if kind in ("NoneType", "NAType", "NaTType") or (isinstance(value, float) and value != value):
        origin.refuse(role, row, value, "is a missing id; drop the row")
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        why = f"is of type {kind}; ids must be strings or integers: cast the column"
        origin.refuse(role, row, value, why)
    if isinstance(value, str) is not isinstance(first, str):
        why = f"is of type {kind} but {first!r} before it is not; cast all ids to one type"
        origin.refuse(role, row, value, why)


def numbers(values: Sequence[Any], role: str, origin: Origin) -> Numbers:
    """A column of numerals. What is not one is an error that names the place."""
    try:
        return np.fromiter(map(float, values), np.float64, len(values))
    except (ValueError, TypeError):
        for row, value in enumerate(values):
            try:
                float(value)
            except (ValueError, TypeError):
                origin.refuse(role, row, value, "is not a number; correct the row or drop it")
        raise


def seconds(values: Numbers, origin: Origin) -> Ints:
    """Times as whole seconds; a missing one is an error."""
    missing = np.flatnonzero(~np.isfinite(values))
    if len(missing):
        why = "is not a time; drop the row, or the whole column if times do not matter"
        origin.refuse("timestamp", int(missing[0]), float(values[missing[0]]), why)
    return values.astype(np.int64)


def assemble(
    origin: Origin,
    users: Ids,
    items: Ids,
    rating: Numbers | None,
    time: Ints | None,
    implicit: bool | None = None,
) -> Interactions:
    """Columns as a table: ratings checked, and of each pair only the last row kept."""
    implicit = rating is None if implicit is None else implicit
    n = len(users[1])
    value = np.ones(n, np.float32) if rating is None else _checked(rating, origin, implicit)
    table = Interactions(users[0], items[0], users[1], items[1], value, time, implicit)
    if implicit and not value.all():
        warn(f"{origin.name}: {n - np.count_nonzero(value):,} rows of weight 0 dropped")
        table = table.where(value > 0)
    if not len(table):
        raise DataError(f"{origin.name}: no rows; give at least one interaction")
    if implicit:
        table = replace(table, rating=np.ones_like(table.rating))
    return _keep_last(table, origin.name)


def _checked(rating: Numbers, origin: Origin, implicit: bool) -> Floats:
    with np.errstate(over="ignore"):
        value = rating.astype(np.float32)
    for row in np.flatnonzero(~np.isfinite(value))[:1]:
        why = "is not a finite number; correct the row or drop it"
        origin.refuse("rating", int(row), float(rating[row]), why)
    for row in np.flatnonzero(value < 0)[:1] if implicit else ():
        why = "is negative; implicit feedback is counted from 0 (ratings need implicit=False)"
        origin.refuse("rating", int(row), float(rating[row]), why)
    return value


def _keep_last(table: Interactions, name: str) -> Interactions:
    pair = table.user * len(table.items) + table.item
    _, back = np.unique(pair[::-1], return_index=True)
    again = len(pair) - len(back)
    if not again:
        return table
    warn(f"{name}: {again:,} rows repeat a (user, item) pair; only the last row of each is kept")
    return table.where(np.sort(len(pair) - 1 - back))


def from_table(
    source: Any,
    *,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
    origin: Origin | None = None,
    text: bool = False,
) -> Interactions:
    """From a pandas, Polars or Arrow table. With `text` it came out of a text file, where
    an id has no type yet."""
    import narwhals as nw

    try:
        frame = nw.from_native(source, eager_only=True)
        names = frame.columns
    except (TypeError, nw.exceptions.NarwhalsError) as error:
        raise DataError(
            f"cannot read interactions from {type(source).__name__}: give the path of a file or "
            f"a pandas, Polars (collected) or Arrow table with distinct column names"
        ) from error
    name = origin.name if origin else f"{frame.implementation.name.lower()} table"
    found = find_columns(columns, names, name, implicit)
    where = Origin(name, origin.row if origin else Origin.row, found)
    return assemble(
        where,
        _ids(frame[found["user_id"]], "user_id", where, text),
        _ids(frame[found["item_id"]], "item_id", where, text),
        _ratings(frame[found["rating"]], where) if "rating" in found else None,
        _times(frame[found["timestamp"]], where) if "timestamp" in found else None,
        implicit,
    )


def _ids(series: nw.Series[Any], role: str, origin: Origin, text: bool) -> Ids:
    if series.dtype.is_integer() and not series.null_count():
        return encode(series.to_numpy())
    if series.dtype.is_float():  # what pandas makes of integers once one was missing
        values = series.to_numpy().astype(np.float64)
        for row in np.flatnonzero(~np.isfinite(values) | (values != np.floor(values)))[:1]:
            _refuse_id(values[row].item(), 0, role, int(row), origin)
        return encode(values.astype(np.int64))
    if text or (series.implementation.is_pyarrow() and series.dtype == _narwhals().String):
        return _arrow_ids(series, role, origin, text)
    return typed_ids(series.to_list(), role, origin)


def _arrow_ids(series: nw.Series[Any], role: str, origin: Origin, text: bool) -> Ids:
    """Each different string is looked at once, so a million rows take no time."""
    codes = series.to_native().dictionary_encode().combine_chunks()
    unique, row = codes.dictionary.to_pylist(), codes.indices.to_numpy(zero_copy_only=False)
    missing = codes.null_count or (text and not all(map(str.strip, unique)))
    if missing or not unique:
        values = series.to_list()
        return text_ids(values, role, origin) if text else typed_ids(values, role, origin)
    vocab, place = (text_ids if text else typed_ids)(unique, role, origin)
    return vocab, place[row]


def _floats(series: nw.Series[Any]) -> Numbers:
    return series.cast(_narwhals().Float64).to_numpy().astype(np.float64)


def _ratings(series: nw.Series[Any], origin: Origin) -> Numbers:
    try:
        return _floats(series)
    except Exception:  # each engine has its own; the slow way finds the row, or succeeds
        return numbers(series.to_list(), "rating", origin)


def _times(series: nw.Series[Any], origin: Origin) -> Ints:
    nw = _narwhals()
    try:
        if series.dtype == nw.Date:
            series = series.cast(nw.Datetime)
        if series.dtype == nw.Datetime:
            return seconds(np.floor(_floats(series.dt.timestamp("ms")) / 1000), origin)
        return seconds(_floats(series), origin)
    except DataError:
        raise
    except Exception:  # as above: text or objects
        return _dates(series.to_list(), origin)


def _dates(values: Sequence[Any], origin: Origin) -> Ints:
    """Seconds since 1970 of ISO dates or numerals; a date without a zone is taken as UTC."""
    try:
        with warnings.catch_warnings(action="error"):  # numpy warns of zones and drops them
            fast = np.array(values, "datetime64[s]")
        if not np.isnat(fast).any():
            return fast.astype(np.int64)
    except (ValueError, TypeError, UserWarning, DeprecationWarning):
        pass
    return seconds(np.array([_instant(x, n, origin) for n, x in enumerate(values)]), origin)


def _instant(value: Any, row: int, origin: Origin) -> float:
    try:
        return float(value)
    except (ValueError, TypeError):
        try:
            date = datetime.fromisoformat(str(value))
        except ValueError:
            why = "is neither seconds nor an ISO date; correct it or drop the column"
            origin.refuse("timestamp", row, value, why)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _narwhals() -> Any:
    import narwhals

    return narwhals


def warn(text: str) -> None:
    """Say what was put right."""
    warnings.warn(text, DataWarning, stacklevel=3)
