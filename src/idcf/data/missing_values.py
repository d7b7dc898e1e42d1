"""Rows of a table of interactions without an id, a rating or a time: count them, or drop them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from idcf.data.columns import ColumnOrigin, warn_about_data
from idcf.data.interactions import Ints, Mask
from idcf.errors import ConfigError, DataError

if TYPE_CHECKING:
    import narwhals as nw

MissingRule = Literal["error", "drop"]
_MAX_SHOWN_ROWS = 10


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
        raise DataError(_gap_message(masks, origin, int(is_missing.sum()), counts))
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


def _gap_message(masks: Mapping[str, Mask], origin: ColumnOrigin, n_rows: int, counts: str) -> str:
    """Return the text of the error: the first gap, how many rows have one, and what to do."""
    is_missing = np.logical_or.reduce(list(masks.values()))
    first_rows = np.flatnonzero(is_missing)[:_MAX_SHOWN_ROWS].tolist()
    role = next(role for role, mask in masks.items() if mask[first_rows[0]])
    column = origin.column_names[role]
    labels = ", ".join(map(origin.row_label, first_rows))
    more = ", ..." if n_rows > len(first_rows) else ""
    place = f"{origin.source_name}, {origin.row_label(first_rows[0])}, column {column!r}"
    total = f" in {n_rows:,} rows ({labels}{more}; {counts})" if n_rows > 1 else ""
    return (
        f"{place}: the value is missing{total}; fill it in, or drop such rows by missing='drop', "
        "--drop-missing"
    )
