"""What the metrics share: array types, checks of input columns, and sums per user."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from idcf.errors import ConfigError, DataError

Array = NDArray[Any]
Ints = NDArray[np.int64]
Float64Array = NDArray[np.float64]


def check_columns(**columns: Array) -> list[Array]:
    """Return the columns as flat arrays, or raise `DataError` if one differs from the first in
    length; the message names it."""
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    first, length = next((name, column.size) for name, column in arrays.items())
    for name, column in arrays.items():
        if column.ndim != 1:
            raise DataError(
                f"{name} has shape {column.shape}: give a flat array, one entry per row"
            )
        if len(column) != length:
            raise DataError(
                f"{name} has {len(column)} rows and {first} has {length}: give one per row"
            )
    return list(arrays.values())


def check_binary_columns(user: Array, score: Array, positive: Array) -> list[Array]:
    """Return users, scores as float64 and labels as bool, or raise `DataError`."""
    user, score, positive = check_columns(user=user, score=score, positive=positive)
    check_no_nan("score", score)
    if positive.dtype != np.bool_ and not np.isin(positive, (0, 1)).all():
        raise DataError(
            "positive holds values other than 0 and 1: give True for relevant rows, else False"
        )
    return [user, score.astype(np.float64), positive.astype(np.bool_)]


def check_no_nan(name: str, column: Array) -> None:
    """Raise `DataError` if a column holds NaN."""
    nan_rows = np.flatnonzero(np.isnan(column))
    if len(nan_rows):
        raise DataError(
            f"{name} is NaN in {len(nan_rows)} rows, first in row {nan_rows[0]}: fix the model"
        )


def check_confidence_level(confidence_level: float) -> None:
    """Raise `ConfigError` unless 0 < confidence_level < 1."""
    if not 0 < confidence_level < 1:
        raise ConfigError(
            f"confidence_level is {confidence_level}: give a share between 0 and 1, such as 0.95"
        )


def sum_by_owner(owner: Array, values: Float64Array, n_owners: int) -> Float64Array:
    """Sum the values of the rows of each owner 0..n_owners-1: [n_owners]."""
    return np.bincount(owner, values, n_owners).astype(np.float64, copy=False)


def group_sorted_users(sorted_user: Array) -> tuple[Ints, Ints, Ints]:
    """Return the distinct users [U] of sorted rows, the first row of each and the number of rows
    [U + 1], and the position of each row among the rows of its user, from 0 [N]."""
    users, first, counts = np.unique(sorted_user, return_index=True, return_counts=True)
    start = np.append(first, len(sorted_user))
    return users, start, np.arange(len(sorted_user)) - np.repeat(first, counts)


def segment_sums(values: Float64Array, start: Ints) -> Float64Array:
    """Return the sums of values[start[u] : start[u + 1]] [U]; no segment may be empty."""
    return np.add.reduceat(values, start[:-1]) if len(values) else np.zeros(0)


def mean_over_ties(values: Float64Array, rank: Ints, score: Array) -> Float64Array:
    """Replace each value by the mean over the run of equal scores of one user; rows are sorted by
    user and score, and `rank` is the position of each row within its user."""
    is_first = rank == 0
    is_first[1:] |= score[1:] != score[:-1]
    start = np.append(np.flatnonzero(is_first), len(values))
    return np.repeat(segment_sums(values, start) / np.diff(start), np.diff(start))
