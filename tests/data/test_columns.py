"""Dataframes of every library, and one clear error for each kind of bad column."""

from __future__ import annotations

import warnings
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.data.columns import DataWarning
from idcf.data.interactions import Interactions
from idcf.data.readers import read_interactions
from idcf.errors import ConfigError, DataError

COLUMNS: dict[str, list[Any]] = {
    "user_id": ["b", "a", "b"],
    "item_id": [20, 10, 10],
    "rating": [4.0, 3.0, 5.0],
    "timestamp": [7, 8, 9],
}

EXPECTED = [("b", 20, 4.0, 7), ("a", 10, 3.0, 8), ("b", 10, 5.0, 9)]

TABLES = [
    pd.DataFrame,
    pl.DataFrame,
    pa.table,
    lambda c: pd.DataFrame(c).astype({"user_id": object}),
    lambda c: pd.DataFrame(c).astype({"user_id": "category", "item_id": "Int64"}),
    lambda c: pl.DataFrame(c, schema_overrides={"user_id": pl.Categorical}),
    lambda c: pa.table({**c, "user_id": pa.array(c["user_id"]).dictionary_encode()}),
    lambda c: pd.DataFrame(c).astype({"item_id": float}),
]


def rows(table: Interactions) -> list[tuple[Any, ...]]:
    """(user id, item id, rating, time) of each row of a table."""
    time = [None] * len(table) if table.time is None else table.time.tolist()
    users = [table.users.ids[u] for u in table.user]
    items = [table.items.ids[i] for i in table.item]
    return list(zip(users, items, table.rating.tolist(), time, strict=True))


@pytest.mark.parametrize("make", TABLES)
def test_every_kind_of_table_reads_the_same(make: Any) -> None:
    table = read_interactions(make(COLUMNS))
    assert rows(table) == EXPECTED
    assert [type(x) for x in table.items.ids] == [int, int]


def test_interactions_pass_through() -> None:
    table = read_interactions(pd.DataFrame(COLUMNS))
    assert read_interactions(table) is table


def test_interactions_become_implicit_on_request() -> None:
    table = read_interactions(pd.DataFrame(COLUMNS))
    implicit = read_interactions(table, implicit=True)
    assert implicit.implicit
    assert implicit.rating.tolist() == [1.0, 1.0, 1.0]
    assert not table.implicit, "the table given is not changed"
    assert read_interactions(implicit, implicit=True) is implicit


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_columns_may_have_other_names(make: Any) -> None:
    names = {"user_id": "reader", "item_id": "book", "rating": "stars", "timestamp": "date"}
    table = make({names[k]: v for k, v in COLUMNS.items()})
    assert rows(read_interactions(table, columns=names)) == EXPECTED


def test_ratings_of_one_stay_explicit_by_default() -> None:
    frame = pd.DataFrame({"user_id": [1, 2], "item_id": [1, 1], "rating": [1.0, 1.0]})
    assert not read_interactions(frame).implicit
    assert read_interactions(frame, implicit=True).implicit


def test_counts_become_one_and_zero_counts_are_dropped() -> None:
    frame = pd.DataFrame({"user_id": [1, 2, 3], "item_id": [1, 1, 1], "rating": [5, 0, 2]})
    with pytest.warns(DataWarning, match="1 rows of weight 0 dropped"):
        table = read_interactions(frame, implicit=True)
    assert table.rating.tolist() == [1, 1]
    assert [table.users.ids[u] for u in table.user] == [1, 3]


def test_strings_in_a_dataframe_stay_strings() -> None:
    for make in (pd.DataFrame, pl.DataFrame, pa.table):
        table = read_interactions(make({"user_id": ["10", "9"], "item_id": [1, 2]}))
        assert table.users.ids == ("10", "9")


TIMES = [
    pd.to_datetime(["1970-01-02", "1970-01-01 00:00:10.9"], format="ISO8601"),
    pd.to_datetime(["1970-01-02", "1970-01-01 00:00:10"], format="ISO8601", utc=True),
    ["1970-01-02", "1970-01-01T00:00:10"],
    ["1970-01-02T01:00:00+01:00", "1970-01-01T00:00:10Z"],
    ["86400", "10.0"],
    [86400.0, 10.5],
]


@pytest.mark.parametrize("times", TIMES)
def test_times_become_whole_seconds(times: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({"user_id": [1, 2], "item_id": [1, 1], "timestamp": times})
    assert read_interactions(frame).time.tolist() == [86400, 10]  # type: ignore[union-attr]
    arrow = pa.Table.from_pandas(frame)
    assert read_interactions(arrow).time.tolist() == [86400, 10]  # type: ignore[union-attr]
    frame.to_csv(tmp_path / "x.csv", index=False)
    table = read_interactions(tmp_path / "x.csv")
    assert table.time.tolist() == [86400, 10]  # type: ignore[union-attr]


def test_days_without_hours_are_times_too() -> None:
    days = pa.array([1, 2], pa.date32())
    table = read_interactions(pa.table({"user_id": [1, 2], "item_id": [1, 1], "timestamp": days}))
    assert table.time is not None
    assert table.time.tolist() == [86400, 172800]


def test_users_and_items_that_occur_once_are_accepted() -> None:
    table = read_interactions(pd.DataFrame({"user_id": ["a"], "item_id": ["x"], "rating": [3]}))
    assert len(table) == 1


NAN = float("nan")
BAD_TABLES = [
    (pd.DataFrame, {"rating": ["4", "x", "5"]}, "row 1, column 'rating': 'x' is not a number"),
    (pl.DataFrame, {"rating": [4, None, 5]}, "row 1, column 'rating': the value is missing"),
    (pa.table, {"rating": [4, 3, None]}, "row 2, column 'rating': the value is missing"),
    (pd.DataFrame, {"rating": [4, NAN, 5]}, "row 1, column 'rating': the value is missing"),
    (pd.DataFrame, {"user_id": [1, "a", 2]}, "row 1, column 'user_id': 'a' is of type str but 1"),
    (pd.DataFrame, {"user_id": ["a", 1, "b"]}, "row 1, column 'user_id': 1 is of type int"),
    (pd.DataFrame, {"user_id": ["a", None, "b"]}, "row 1, column 'user_id': the value is missing"),
    (pl.DataFrame, {"user_id": ["a", None, "b"]}, "row 1, column 'user_id': the value is missing"),
    (pa.table, {"user_id": ["a", None, "b"]}, "row 1, column 'user_id': the value is missing"),
    (pl.DataFrame, {"item_id": [1, None, 2]}, "row 1, column 'item_id': the value is missing"),
    (pd.DataFrame, {"item_id": [1, NAN, 2]}, "row 1, column 'item_id': the value is missing"),
    (pd.DataFrame, {"item_id": [1, 2.5, 2]}, "row 1, column 'item_id': 2.5 is of type float"),
    (pd.DataFrame, {"item_id": [True, False, True]}, "True is of type bool"),
    (pl.DataFrame, {"item_id": [[1], [2], [3]]}, r"is of type list; ids must be strings"),
    (pd.DataFrame, {"timestamp": [1, NAN, 2]}, "row 1, column 'timestamp': the value is missing"),
    (pl.DataFrame, {"timestamp": ["1", "x", "2"]}, "row 1, column 'timestamp': 'x' is neither"),
]


@pytest.mark.parametrize(("make", "change", "message"), BAD_TABLES)
def test_bad_tables_get_one_clear_error(make: Any, change: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_interactions(make(COLUMNS | change))


def test_negative_counts_are_rejected_for_implicit_feedback_only() -> None:
    frame = pd.DataFrame(COLUMNS | {"rating": [1, -2, 3]})
    with pytest.raises(DataError, match=r"row 1, column 'rating': -2.0 is negative; .*implicit"):
        read_interactions(frame, implicit=True)
    assert read_interactions(frame).rating.tolist() == [1, -2, 3]


def test_a_missing_column_names_the_nearest_and_the_remedy() -> None:
    frame = pd.DataFrame(COLUMNS).rename(columns={"item_id": "item_idd"})
    message = (
        r"pandas table: no column named 'item_id'; did you mean 'item_idd'\?.*columns=\{'item_id'"
    )
    with pytest.raises(DataError, match=message):
        read_interactions(frame)
    with pytest.raises(DataError, match="no column named 'stars'"):
        read_interactions(pd.DataFrame(COLUMNS), columns={"rating": "stars"})
    with pytest.raises(ConfigError, match="no role named 'user'; did you mean 'user_id'"):
        read_interactions(frame, columns={"user": "x"})


def test_usual_spellings_are_recognized() -> None:
    names = {"user_id": "userId", "item_id": "Movie ID", "rating": "stars", "timestamp": "ts"}
    frame = pd.DataFrame(COLUMNS)
    message = "read by their usual names: 'userId' as user_id, 'Movie ID' as item_id, 'stars' as r"
    with pytest.warns(DataWarning, match=message):
        table = read_interactions(frame.rename(columns=names))
    assert rows(table) == rows(read_interactions(frame))
    with pytest.warns(DataWarning, match="'Movie ID' as item_id"):
        assert read_interactions(frame.rename(columns=names), implicit=True).implicit
    with warnings.catch_warnings(action="error"):  # names that are given need no notice
        read_interactions(frame.rename(columns=names), columns=names)
        read_interactions(frame.assign(stars=frame.rating, movieId=1))  # nor do exact ones
    with pytest.raises(DataError, match=r"'customer' and 'uid' may both be user_id; say which: co"):
        read_interactions(frame.rename(columns={"user_id": "customer"}).assign(uid=1))


GAPS: dict[str, list[Any]] = {
    "user_id": ["a", None, "b", "c", None, "a"],
    "item_id": ["x", "y", "x", None, "y", "z"],
    "rating": [1.0, 2.0, None, 4.0, 5.0, 3.0],
}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_rows_with_gaps_are_counted_or_dropped(make: Any) -> None:
    counts = "2 without user_id, 1 without item_id, 1 without rating"
    message = (
        rf"row 1, column 'user_id': the value is missing in 4 rows \(row 1, row 2, .*; {counts}"
    )
    with pytest.raises(DataError, match=message):
        read_interactions(make(GAPS))
    with pytest.warns(DataWarning, match=f"4 rows dropped: {counts}"):
        table = read_interactions(make(GAPS), missing="drop")
    assert rows(table) == [("a", "x", 1.0, None), ("a", "z", 3.0, None)]
    wrong = make({**GAPS, "rating": ["1", "2", "", "4", "5", "many"]})
    with (
        pytest.warns(DataWarning, match="4 rows dropped"),
        pytest.raises(DataError, match="row 5, column 'rating': 'many' is not a number"),
    ):
        read_interactions(wrong, missing="drop")  # the number is that of the source
    with pytest.raises(ConfigError, match="missing must be 'error' or 'drop', got 'skip'"):
        read_interactions(make(GAPS), missing="skip")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_with_gaps(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    frame = pd.DataFrame(GAPS)
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    with pytest.raises(DataError, match=r"column 'user_id': the value is missing in 4 rows"):
        read_interactions(path)
    with pytest.warns(DataWarning, match="4 rows dropped"):
        assert len(read_interactions(path, missing="drop")) == 2


def test_a_rating_column_that_was_probably_meant_is_mentioned() -> None:
    frame = pd.DataFrame(COLUMNS).rename(columns={"rating": "Ratingg"})
    with pytest.warns(DataWarning, match=r"columns=\{'rating': 'Ratingg'\}"):
        assert read_interactions(frame).implicit
    with warnings.catch_warnings(action="error"):
        read_interactions(frame, implicit=True)


@pytest.mark.parametrize("source", [3, {"user_id": [1]}, pl.LazyFrame(COLUMNS)])
def test_a_source_that_is_not_a_table_is_rejected(source: Any) -> None:
    with pytest.raises(DataError, match=f"cannot read interactions from {type(source).__name__}"):
        read_interactions(source)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": [1.0, 1e300, 2.0]}, r"row 1, column 'timestamp': 1e\+300 is not a time"),
        ({"timestamp": [1.0, -(2.0**64), 2.0]}, r"row 1, column 'timestamp': -1.8.* is not a time"),
        ({"user_id": [1.0, 2.0, 1e300]}, r"row 2, column 'user_id': 1e\+300 is of type float"),
        ({"item_id": [2.0**54, 1.0, 2.0]}, r"row 0, column 'item_id': 1.8.* is of type float"),
        ({"rating": [1.0, 2.0, 1e39]}, r"row 2, column 'rating': 1e\+39 is not a finite number"),
    ],
)
def test_numbers_too_large_to_store_are_rejected(make: Any, change: Any, message: str) -> None:
    """Cast to 64 bits they would become other numbers: times of year -292 billion, merged ids."""
    with pytest.raises(DataError, match=message):
        read_interactions(make(COLUMNS | change))


def test_the_largest_exact_float_is_still_an_id() -> None:
    frame = pd.DataFrame(COLUMNS | {"user_id": [2.0**53, -(2.0**53), 7.0]})
    assert read_interactions(frame).users.ids == (-(2**53), 7, 2**53)


def test_the_last_row_of_a_pair_is_kept_in_its_place() -> None:
    frame = pd.DataFrame(
        {"user_id": [1, 2, 1, 2, 1], "item_id": [5, 5, 6, 5, 5], "rating": [1, 2, 3, 4, 5]}
    )
    with pytest.warns(DataWarning, match="2 rows repeat a .user, item. pair; only the last"):
        table = read_interactions(frame)
    assert table.rating.tolist() == [3, 4, 5]
    assert table.user.tolist() == [0, 1, 0]
    assert table.item.tolist() == [1, 0, 0]


def test_counts_of_zero_may_leave_nothing() -> None:
    frame = pd.DataFrame(COLUMNS | {"rating": [0, 0, 0]})
    with (
        pytest.raises(DataError, match="pandas table: no rows; give at least one interaction"),
        pytest.warns(DataWarning, match="3 rows of weight 0 dropped"),
    ):
        read_interactions(frame, implicit=True)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=8), st.booleans())
def test_times_as_text_are_those_of_numbers(seconds: list[int], as_dates: bool) -> None:
    """Dates of the years 1 to 9999 are also written as ISO dates."""
    n = len(seconds)
    low, high = -62_135_596_800, 253_402_300_799
    if as_dates:
        seconds = [min(max(x, low), high) for x in seconds]
    epoch = datetime(1970, 1, 1)
    texts = [(epoch + timedelta(seconds=x)).isoformat() if as_dates else str(x) for x in seconds]
    frame = pd.DataFrame({"user_id": range(n), "item_id": range(n), "timestamp": texts})
    table = read_interactions(frame)
    assert table.time is not None
    assert table.time.tolist() == seconds
