"""Rows of a table of interactions that cannot be used: count them, or drop those with gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from idcf.data.columns import (
    NO_WEIGHTS,
    BadValueError,
    ColumnOrigin,
    WeightRule,
    instant_of,
    interactions_from_dataframe,
    warn_about_data,
)
from idcf.data.interactions import Interactions, Ints, Mask
from idcf.errors import ConfigError, DataError

if TYPE_CHECKING:
    import narwhals as nw

MissingRule = Literal["error", "drop"]
_MAX_SHOWN_ROWS = 10
_MAX_RATING = float(np.finfo(np.float32).max)


def interactions_from_rows(
    frame: nw.DataFrame[Any],
    origin: ColumnOrigin,
    implicit: bool | None,
    missing: MissingRule,
    *,
    ids_are_text: bool = False,
    weights: WeightRule = NO_WEIGHTS,
) -> Interactions:
    """Build a table as `interactions_from_dataframe` does, of the rows without gaps.

    The error for a bad value says how many rows cannot be used, and which are the first.
    """
    if implicit and not weights.reads_values and "rating" in origin.column_names:
        frame = _with_ratings_filled(frame, origin.column_names["rating"])
    frame, origin = handle_missing_values(frame, origin, missing, ids_are_text=ids_are_text)
    with counted_bad_values(origin, lambda: _values(frame, origin)):
        return interactions_from_dataframe(
            frame, origin, implicit, ids_are_text=ids_are_text, weights=weights
        )


def _with_ratings_filled(frame: nw.DataFrame[Any], name: str) -> nw.DataFrame[Any]:
    """Return a table of clicks, whose ratings are left aside, with 1 for each missing rating."""
    import narwhals as nw

    is_missing = _is_missing(frame[name], blank_is_missing=True)
    if not is_missing.any():
        return frame
    one = "1" if frame[name].dtype == nw.String else 1
    values = [
        one if gap else x for x, gap in zip(frame[name].to_list(), is_missing.tolist(), strict=True)
    ]
    filled = nw.new_series(name, values, backend=frame.implementation)
    return frame.with_columns(**{name: filled})


@contextmanager
def counted_bad_values(
    origin: ColumnOrigin, values: Callable[[], Mapping[str, Sequence[Any]]]
) -> Iterator[None]:
    """Add to a BadValueError of the block how many rows have one, if there are several; `values`
    returns the column of each role, which is needed for that alone."""
    try:
        yield
    except BadValueError as error:
        raise DataError(f"{error}{_describe_bad_rows(values(), origin)}") from None


def _values(frame: nw.DataFrame[Any], origin: ColumnOrigin) -> dict[str, Sequence[Any]]:
    """Return the column of each role."""
    return {role: frame[name].to_list() for role, name in origin.column_names.items()}


def _describe_bad_rows(
    values: Mapping[str, Sequence[Any]], origin: ColumnOrigin, n_gaps: int = 0
) -> str:
    """Return how many rows have a value that is no rating or no time; "" for the only bad row."""
    checks = {"rating": (_is_rating, "not a finite number"), "timestamp": (_is_time, "not a time")}
    masks = {
        f"whose {role} is {problem}": np.array([not is_valid(x) for x in values[role]], bool)
        for role, (is_valid, problem) in checks.items()
        if role in values
    }
    no_row = np.zeros(len(values["user_id"]), bool)
    is_bad: Mask = np.logical_or.reduce([no_row, *masks.values()])
    n_rows = int(is_bad.sum())
    if n_rows + n_gaps < 2 or not n_rows:
        return ""
    counts = ", ".join(f"{n:,} {reason}" for reason, n in _counts(masks).items())
    other = "other " if n_gaps else ""
    return f"; {n_rows:,} {other}rows cannot be used ({_row_labels(is_bad, origin)}; {counts})"


def _is_rating(value: Any) -> bool:
    """Whether a value is missing or a finite number."""
    try:
        return _is_gap(value) or bool(abs(float(value)) <= _MAX_RATING)
    except (ValueError, TypeError, OverflowError):
        return False


def _is_time(value: Any) -> bool:
    """Whether a value is missing or a time."""
    seconds = 0.0 if _is_gap(value) else instant_of(value)
    return seconds is not None and abs(seconds) < 2**63


def _is_gap(value: Any) -> bool:
    """Whether a value is missing."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def _row_labels(mask: Mask, origin: ColumnOrigin) -> str:
    """Return the labels of the first rows of a mask, with dots if there are more."""
    first_rows = np.flatnonzero(mask)[:_MAX_SHOWN_ROWS].tolist()
    more = ", ..." if mask.sum() > len(first_rows) else ""
    return ", ".join(map(origin.row_label, first_rows)) + more


def handle_missing_values(
    frame: nw.DataFrame[Any],
    origin: ColumnOrigin,
    missing: MissingRule,
    *,
    ids_are_text: bool = False,
) -> tuple[nw.DataFrame[Any], ColumnOrigin]:
    """Return a table without the rows that lack a value, and the origin with labels of its rows.

    Only the columns that `origin` names are looked at. Rows are dropped, with a warning that counts
    them by column, where `missing` is "drop"; otherwise such rows raise DataError. Blank text is a
    gap, in columns of ids only where `ids_are_text`, as in a CSV file.
    """
    if missing not in ("error", "drop"):
        raise ConfigError(f"missing must be 'error' or 'drop', got {missing!r}")
    names = origin.column_names
    masks = {
        role: _is_missing(frame[name], ids_are_text or role in ("rating", "timestamp"))
        for role, name in names.items()
    }
    is_missing: Mask = np.logical_or.reduce(list(masks.values()))
    if not is_missing.any():
        return frame, origin
    counts = ", ".join(f"{n:,} without {role}" for role, n in _counts(masks).items())
    if missing == "error":
        bad_rows = _describe_bad_rows(_values(frame, origin), origin, int(is_missing.sum()))
        raise DataError(_gap_message(masks, origin, counts) + bad_rows)
    warn_about_data(f"{origin.source_name}: {is_missing.sum():,} rows dropped: {counts}")
    rows: Ints = np.flatnonzero(~is_missing)
    labels = origin.row_label
    complete = ColumnOrigin(origin.source_name, lambda n: labels(int(rows[n])), names)
    return frame.filter((~is_missing).tolist()), complete


def _is_missing(series: nw.Series[Any], blank_is_missing: bool) -> Mask:
    """Return which values of a column are null or not a number, or blank text if that counts."""
    import narwhals as nw

    mask: Mask = np.array(series.is_null().to_numpy(), bool)
    if series.dtype.is_float():
        mask |= np.array(series.is_nan().fill_null(False).to_numpy(), bool)
    elif blank_is_missing and series.dtype == nw.String:
        is_blank = (series.str.strip_chars() == "").fill_null(False)
        mask |= np.array(is_blank.to_numpy(), bool)
    return mask


def _counts(masks: Mapping[str, Mask]) -> dict[str, int]:
    """Return the number of gaps of each role that has any."""
    return {role: int(mask.sum()) for role, mask in masks.items() if mask.any()}


def _gap_message(masks: Mapping[str, Mask], origin: ColumnOrigin, counts: str) -> str:
    """Return the text of the error: the first gap, how many rows have one, and what to do."""
    is_missing: Mask = np.logical_or.reduce(list(masks.values()))
    first_row, n_rows = int(is_missing.argmax()), int(is_missing.sum())
    column = next(origin.column_names[role] for role, mask in masks.items() if mask[first_row])
    place = f"{origin.source_name}, {origin.row_label(first_row)}, column {column!r}"
    labels = _row_labels(is_missing, origin)
    total = f" in {n_rows:,} rows ({labels}; {counts})" if n_rows > 1 else ""
    return (
        f"{place}: the value is missing{total}; fill it in, or drop such rows by missing='drop', "
        "--drop-missing"
    )
