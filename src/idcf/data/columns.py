"""Build `Interactions` from columns in memory: column roles, checks of values, dataframes.

Does not know files. Dataframes are read through narwhals, which is imported on first use.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from idcf.data.interactions import Doubles, Floats, Interactions, Ints, Mask, Vocab, encode_ids
from idcf.errors import ConfigError, DataError

if TYPE_CHECKING:
    import narwhals as nw

EncodedIds = tuple[Vocab, Ints]
MAX_RATING = 1e9  # in float32 the squares of larger numbers soon overflow
_PAIR_CHUNK = 1 << 20
_LIBRARY = ("idcf", "contextlib", "functools")  # modules between the caller and a warning
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")  # "007" and "+7" are text ids, not numbers


class WeightRule(NamedTuple):
    """Where the weights of clicks come from; by default there are none."""

    reads_values: bool = False  # the column of the role rating holds them
    counts_repeats: bool = False  # those of rows that repeat a (user, item) pair are added up


NO_WEIGHTS = WeightRule()


class BadValueError(DataError):
    """A value of a row cannot be used."""


class DataWarning(UserWarning):
    """The interactions can be used, but rows were dropped or an assumption was made."""


@dataclass(frozen=True)
class ColumnOrigin:
    """Source of columns and the labels of its rows and columns, for error messages."""

    source_name: str  # such as the path of a file
    row_label: Callable[[int], str] = "row {}".format  # label of the n-th row, such as "line 7"
    column_names: Mapping[str, str] = field(default_factory=dict)  # name of each role's column

    def raise_bad_value(self, role: str, row: int, value: object, reason: str) -> NoReturn:
        """Raise BadValueError for one value; `reason` ends the sentence that begins with it."""
        column = self.column_names.get(role, role)
        raise BadValueError(
            f"{self.source_name}, {self.row_label(row)}, column {column!r}: {value!r} {reason}"
        )


def encode_text_ids(
    values: Sequence[str], role: str, origin: ColumnOrigin, *, integer_ids: bool = False
) -> EncodedIds:
    """Vocabulary and rows of ids in a text file: integers if all of them are written as integers.
    Raises DataError if an id is empty, or no integer where the format requires `integer_ids`."""
    unique = set(values)
    if not all(map(str.strip, unique)):
        row = next(i for i, x in enumerate(values) if not x.strip())
        origin.raise_bad_value(role, row, values[row], "is an empty id; fill it in or drop the row")
    all_integers = all(map(_INTEGER.fullmatch, unique))
    if integer_ids and not all_integers:
        row = next(i for i, x in enumerate(values) if not _INTEGER.fullmatch(x))
        reason = "is not an integer id, which this format needs"
        origin.raise_bad_value(role, row, values[row], reason)
    ids: list[Any] = sorted(map(int, unique)) if all_integers else sorted(unique)
    row_by_text = {str(x): n for n, x in enumerate(ids)}
    return Vocab(ids), np.fromiter(map(row_by_text.__getitem__, values), np.int64, len(values))


def encode_typed_ids(values: Sequence[Any], role: str, origin: ColumnOrigin) -> EncodedIds:
    """Vocabulary and rows of ids that are Python objects, all strings or all integers. Raises
    DataError if an id is missing or of another type."""
    types = set(map(type, values))
    for kind in (str, (int, np.integer)):
        if all(issubclass(t, kind) and t is not bool for t in types):
            ids = sorted(set(values))
            row_by_id = {x: n for n, x in enumerate(ids)}
            rows = np.fromiter(map(row_by_id.__getitem__, values), np.int64, len(values))
            return Vocab([str(x) if kind is str else int(x) for x in ids]), rows
    for row, value in enumerate(values):
        _check_id(value, values[0], role, row, origin)
    raise AssertionError("unreachable: some value was neither a string nor an integer")


def _check_id(value: Any, first: Any, role: str, row: int, origin: ColumnOrigin) -> None:
    """Raise DataError if an id is missing, of a wrong type, or of another type than the first."""
    kind = type(value).__name__
    if kind in ("NoneType", "NAType", "NaTType") or (isinstance(value, float) and value != value):
        origin.raise_bad_value(role, row, value, "is a missing id; drop the row")
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        reason = f"is of type {kind}; ids must be strings or integers: cast the column"
        origin.raise_bad_value(role, row, value, reason)
    if isinstance(value, str) is not isinstance(first, str):
        reason = f"is of type {kind} but {first!r} before it is not; cast all ids to one type"
        origin.raise_bad_value(role, row, value, reason)


def parse_numbers(values: Sequence[Any], role: str, origin: ColumnOrigin) -> Doubles:
    """Convert a column to float64; raise DataError for the first value that is not a number."""
    try:
        return np.fromiter(map(_parse_number, values), np.float64, len(values))
    except (ValueError, TypeError):
        for row, value in enumerate(values):
            try:
                _parse_number(value)
            except (ValueError, TypeError):
                reason = "is not a number; correct the row or drop it"
                origin.raise_bad_value(role, row, value, reason)
        raise


def _parse_number(value: Any) -> float:
    """Return a number; unlike `float`, refuse 1_000 and digits of other alphabets in a text."""
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        raise ValueError(value)
    return float(value)


def to_whole_seconds(values: Doubles, origin: ColumnOrigin) -> Ints:
    """Convert times to integers; raise DataError for the first that is missing or infinite."""
    reason = "is not a time; drop the row, or the whole column if times do not matter"
    _require("timestamp", values, np.abs(values) < 2**63, origin, reason)
    return values.astype(np.int64)


def build_interactions(
    origin: ColumnOrigin,
    users: EncodedIds,
    items: EncodedIds,
    rating: Doubles | Floats | None,
    time: Ints | None,
    implicit: bool | None = None,
    weights: WeightRule = NO_WEIGHTS,
) -> Interactions:
    """Build a table from checked columns; only the last row of a (user, item) pair is in it.

    Without ratings the feedback is implicit by default. Ratings of implicit feedback are counts:
    rows of count 0 are dropped, and `weights` says whether the others become weights. Raises
    DataError if a rating is not finite, a count is negative, or there are no rows; ConfigError if
    there are ratings and `weights`.
    """
    implicit = rating is None if implicit is None else implicit
    if not implicit and weights != NO_WEIGHTS:
        raise ConfigError(
            f"{origin.source_name}: duplicates='count' is for clicks, and the table has ratings; "
            "leave it out, or leave the ratings aside with implicit=True, --implicit"
        )
    rating = np.ones(len(users[1]), np.float32) if rating is None else rating
    values = check_ratings(rating, implicit, origin)
    table = Interactions(users[0], items[0], users[1], items[1], values, time)
    has_times = time is not None
    del users, items, rating, time  # or rows that are dropped would be held
    if implicit:
        if n_zeros := len(values) - np.count_nonzero(values):
            warn_about_data(zero_weights_message(origin.source_name, int(n_zeros)))
        table = table.where(values > 0)
        weight = table.rating if weights.reads_values else None
        table = replace(table.as_implicit(), weight=weight)
    if not len(table):
        raise DataError(no_rows_message(origin.source_name))
    is_last = _last_of_pairs(table)
    if is_last is None:
        return table
    if weights.counts_repeats:
        table = _add_weights_of_pairs(table)
    else:
        n_repeats = int((~is_last).sum())
        message = repeats_message(origin.source_name, n_repeats, has_times)
        hint = "; duplicates='count', --duplicates count, makes each count" if implicit else ""
        warn_about_data(message + hint)
    return table.where(is_last)


def _add_weights_of_pairs(table: Interactions) -> Interactions:
    """Give every row the sum of the weights of the rows of its (user, item) pair."""
    pair = table.user * len(table.items) + table.item
    _, position = np.unique(pair, return_inverse=True)
    sums = np.bincount(position, table.row_weights())
    return replace(table, weight=sums[position].astype(np.float32))


def check_ratings(rating: Doubles | Floats, implicit: bool, origin: ColumnOrigin) -> Floats:
    """Return ratings as float32; raise DataError for the first that is not finite or, for implicit
    feedback, negative."""
    with np.errstate(over="ignore"):
        values = np.asarray(rating, np.float32)
    reason = "is not a finite number; correct the row or drop it"
    _require("rating", rating, np.isfinite(values), origin, reason)
    reason = f"is beyond {MAX_RATING:g}; correct the row, or divide the ratings"
    _require("rating", rating, np.abs(values) <= MAX_RATING, origin, reason)
    if implicit:
        reason = "is negative; implicit feedback is counted from 0 (ratings need implicit=False)"
        _require("rating", rating, values >= 0, origin, reason)
    return values


def no_rows_message(source_name: str) -> str:
    """Error text for a source without rows."""
    return f"{source_name}: no rows; give at least one interaction"


def zero_weights_message(source_name: str, n_rows: int) -> str:
    """Text of the warning that rows of implicit feedback were dropped."""
    return f"{source_name}: {n_rows:,} rows of weight 0 dropped"


def repeats_message(source_name: str, n_rows: int, has_times: bool) -> str:
    """Text of the warning that rows of repeated (user, item) pairs were dropped."""
    rule = "the row with the latest timestamp" if has_times else "the last row"
    return f"{source_name}: {n_rows:,} rows repeat a (user, item) pair; only {rule} of each is kept"


def _last_of_pairs(table: Interactions) -> Mask | None:
    """Return which rows are the last of their (user, item) pair by time, where there are times, and
    then by position; None: no pair is repeated.

    A large table has few arrays of its length beside it: pairs are computed in chunks, or twice.
    """
    n_items, pair = len(table.items), table.user * len(table.items)
    pair += table.item
    pair.sort()
    repeated = np.unique(pair[1:][pair[1:] == pair[:-1]])
    del pair
    if not len(repeated):
        return None
    is_repeated = np.zeros(len(table), bool)
    for low in range(0, len(table), _PAIR_CHUNK):
        rows = slice(low, low + _PAIR_CHUNK)
        pairs = table.user[rows] * n_items + table.item[rows]
        position = np.searchsorted(repeated, pairs).clip(max=len(repeated) - 1)
        is_repeated[rows] = repeated[position] == pairs
    rows_of_repeated = np.flatnonzero(is_repeated)
    if table.time is not None:
        by_time = np.argsort(table.time[rows_of_repeated], kind="stable")
        rows_of_repeated = rows_of_repeated[by_time]
    rows_of_repeated = rows_of_repeated[::-1]
    pairs = table.user[rows_of_repeated] * n_items + table.item[rows_of_repeated]
    _, first = np.unique(pairs, return_index=True)  # from the end
    is_last = ~is_repeated
    is_last[rows_of_repeated[first]] = True
    return is_last


def _require(
    role: str, values: Doubles | Floats, valid: Mask, origin: ColumnOrigin, reason: str
) -> None:
    """Raise DataError for the first value of a column that is not valid."""
    for row in np.flatnonzero(~valid)[:1]:
        origin.raise_bad_value(role, int(row), float(values[row]), reason)


def to_dataframe(source: Any, error_message: str = "") -> nw.DataFrame[Any]:
    """Wrap a pandas, Polars (collected) or Arrow table in a narwhals frame. Raises DataError with
    `error_message` for anything else, or if column names repeat."""
    import narwhals as nw

    try:
        frame: nw.DataFrame[Any] = nw.from_native(source, eager_only=True)
        _ = frame.columns  # raises if column names repeat
    except (TypeError, nw.exceptions.NarwhalsError) as error:
        raise DataError(error_message) from error
    return frame


def interactions_from_dataframe(
    frame: nw.DataFrame[Any],
    origin: ColumnOrigin,
    implicit: bool | None,
    *,
    ids_are_text: bool = False,
    weights: WeightRule = NO_WEIGHTS,
) -> Interactions:
    """Build a table from the columns of a dataframe that `origin` names (see `find_columns`). Where
    `ids_are_text`, as in a CSV file, ids become integers if all of them are written so. Raises
    DataError if a value cannot be used."""
    names = origin.column_names
    return build_interactions(
        origin,
        ids_from_series(frame[names["user_id"]], "user_id", origin, ids_are_text),
        ids_from_series(frame[names["item_id"]], "item_id", origin, ids_are_text),
        ratings_from_series(frame[names["rating"]], origin) if "rating" in names else None,
        times_from_series(frame[names["timestamp"]], origin) if "timestamp" in names else None,
        implicit,
        weights,
    )


def ids_from_series(
    series: nw.Series[Any], role: str, origin: ColumnOrigin, ids_are_text: bool
) -> EncodedIds:
    """Encode a column of ids by the fastest method that its type allows."""
    import narwhals as nw

    if series.dtype.is_integer() and not series.null_count():
        return encode_ids(series.to_numpy())
    if series.dtype.is_float():  # pandas turns a column of integers with a gap into floats
        values = series.to_numpy().astype(np.float64)
        is_exact = (np.abs(values) <= 2**53) & (values == np.floor(values))
        for row in np.flatnonzero(~is_exact)[:1]:
            _check_id(values[row].item(), 0, role, int(row), origin)
        return encode_ids(values.astype(np.int64))
    is_arrow_text = series.implementation.is_pyarrow() and series.dtype == nw.String
    if ids_are_text or is_arrow_text:
        return _ids_from_arrow(series, role, origin, ids_are_text)
    return encode_typed_ids(series.to_list(), role, origin)


def _ids_from_arrow(
    series: nw.Series[Any], role: str, origin: ColumnOrigin, ids_are_text: bool
) -> EncodedIds:
    """Encode a column of strings by way of its distinct values, which is fast for many rows."""
    codes = series.to_native().dictionary_encode().combine_chunks()
    unique = codes.dictionary.to_pylist()
    encode = encode_text_ids if ids_are_text else encode_typed_ids
    has_gap = codes.null_count or (ids_are_text and not all(map(str.strip, unique)))
    if has_gap or not unique:
        return encode(series.to_list(), role, origin)  # finds the row, for the error message
    vocab, row_of_code = encode(unique, role, origin)
    return vocab, row_of_code[codes.indices.to_numpy(zero_copy_only=False)]


def floats_from_series(series: nw.Series[Any]) -> Doubles:
    """A column of a dataframe as float64; the dataframe library raises for other values."""
    import narwhals as nw

    return series.cast(nw.Float64).to_numpy().astype(np.float64)


def ratings_from_series(series: nw.Series[Any], origin: ColumnOrigin) -> Doubles:
    """Return a column of ratings as float64; raise DataError naming the row that is no number."""
    try:
        return floats_from_series(series)
    except Exception:  # each dataframe library raises its own; the slow parser names the row
        return parse_numbers(series.to_list(), "rating", origin)


def times_from_series(series: nw.Series[Any], origin: ColumnOrigin) -> Ints:
    """Seconds since 1970 of a column of dates, numbers or text."""
    import narwhals as nw

    try:
        if series.dtype == nw.Date:
            series = series.cast(nw.Datetime)
        if series.dtype == nw.Datetime:
            milliseconds = floats_from_series(series.dt.timestamp("ms"))
            return to_whole_seconds(np.floor(milliseconds / 1000), origin)
        return to_whole_seconds(floats_from_series(series), origin)
    except DataError:
        raise
    except Exception:  # each dataframe library raises its own for text and objects
        return _parse_dates(series.to_list(), origin)


def to_seconds(values: Sequence[Any], origin: ColumnOrigin) -> Ints:
    """Seconds since 1970 of numbers, dates or ISO texts; DataError for the first that is none."""
    try:
        numbers = np.array(values, np.float64)
    except (ValueError, TypeError):
        return _parse_dates(values, origin)
    if numbers.ndim > 1:
        return _parse_dates(values, origin)
    return to_whole_seconds(numbers, origin)


def _parse_dates(values: Sequence[Any], origin: ColumnOrigin) -> Ints:
    """Seconds since 1970 of ISO dates or numbers; a date without a time zone is taken as UTC."""
    for row, value in enumerate(values):  # numpy knows "now" and "today", and lists of times
        is_word = isinstance(value, str) and value.strip().isalpha()
        if is_word or isinstance(value, list | tuple | dict):
            _parse_instant(str(value), row, origin)
    try:
        with warnings.catch_warnings(action="error"):  # numpy warns of time zones and drops them
            dates = np.array(values, "datetime64[s]")
        if not np.isnat(dates).any():
            return dates.astype(np.int64)
    except (ValueError, TypeError, UserWarning, DeprecationWarning):
        pass
    return to_whole_seconds(
        np.array([_parse_instant(x, n, origin) for n, x in enumerate(values)]), origin
    )


def _parse_instant(value: Any, row: int, origin: ColumnOrigin) -> float:
    """Seconds since 1970 of one ISO date or number."""
    seconds = instant_of(value)
    if seconds is None:
        reason = "is neither seconds nor an ISO date; correct it or drop the column"
        origin.raise_bad_value("timestamp", row, value, reason)
    return seconds


def instant_of(value: Any) -> float | None:
    """Seconds since 1970 of one ISO date or number; None: it is neither."""
    try:
        return float(value)
    except (ValueError, TypeError):
        try:
            date = datetime.fromisoformat(str(value))
        except ValueError:
            return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def warn_about_data(message: str) -> None:
    """Issue a DataWarning that points at the line that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARY:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, DataWarning, stacklevel=level)
