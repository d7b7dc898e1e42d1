"""A generator of hostile Parquet files, beside those of `hostile_tables`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hostile_tables import KINDS, Case, Rng, Row, draw_rows, kind, parquet_bytes, write


def _table(rows: list[Row], **columns: Any) -> pa.Table:
    users, items, ratings = (list(x) for x in zip(*rows, strict=True))
    return pa.table({"user_id": users, "item_id": items, "rating": ratings, **columns})


def _put(rows: list[Row], name: str, column: Any) -> pa.Table:
    """Return the table of rows with another column in the place of one, or beside them."""
    table = _table(rows)
    if name not in table.column_names:
        return table.append_column(name, column)
    return table.set_column(table.column_names.index(name), name, column)


def _parquet(
    name: str,
    column: str,
    values: Callable[[list[Row]], Any],
    rows: Callable[[list[Row]], list[Row]] | None = None,
    *,
    says: tuple[str, ...] = (),
    is_open: bool = False,
) -> None:
    """Add a kind of a Parquet file with another column; without `rows` it must be refused."""

    def make(folder: Path, rng: Rng) -> Case:
        drawn = draw_rows(rng)
        table = _put(drawn, column, values(drawn))
        path = write(folder, parquet_bytes(table), "a.parquet")
        return Case(path, rows(drawn) if rows else None, says, is_open=is_open)

    KINDS[f"Parquet: {name}"] = make


def _same(rows: list[Row]) -> list[Row]:
    return rows


def _user_numbers(rows: list[Row]) -> list[int]:
    return [int(u[1:]) for u, _, _ in rows]


def _with_numbers(rows: list[Row]) -> list[Row]:
    return [(int(u[1:]), i, r) for u, i, r in rows]


def _with_gap(rows: list[Row], value: Any, column: int = 0) -> list[Any]:
    return [value if k == 2 else x[column] for k, x in enumerate(rows)]


for _type in (
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
):
    _parquet(
        f"users {_type}", "user_id", lambda x, t=_type: pa.array(_user_numbers(x), t), _with_numbers
    )
for _type in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
    _parquet(
        f"users {_type}",
        "user_id",
        lambda x, t=_type: pa.array([u for u, _, _ in x]).cast(t),
        _same,
    )
for _type in (pa.float32(), pa.decimal128(5, 1), pa.large_string(), pa.string()):
    _parquet(
        f"ratings {_type}",
        "rating",
        lambda x, t=_type: pa.array([str(r) for *_, r in x]).cast(t),
        _same,
    )
_parquet(
    "ratings float16", "rating", lambda x: pa.array(np.array([r for *_, r in x], np.float16)), _same
)
_parquet(
    "ratings int8",
    "rating",
    lambda x: pa.array([3] * len(x), pa.int8()),
    lambda x: [(u, i, 3.0) for u, i, _ in x],
)
_INSTANT = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
for _type in (
    pa.date32(),
    pa.date64(),
    pa.timestamp("s"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
):
    _parquet(
        f"times {_type}",
        "timestamp",
        lambda x, t=_type: pa.array([_INSTANT] * len(x)).cast(t, safe=False),
        _same,
    )
_parquet("times in text", "timestamp", lambda x: pa.array(["2001-02-03"] * len(x)), _same)
_parquet("nested columns beside", "x", lambda x: pa.array([{"a": [{"b": 1}]}] * len(x)), _same)
_parquet("an empty column beside", "x", lambda x: pa.nulls(len(x)), _same)
_parquet(
    "a nested rating of the same name",
    "x",
    lambda x: pa.array([{"rating": 1.0, "user_id": "a"}] * len(x)),
    _same,
)

_ROW = ("row 2", "user_id")
_parquet("a missing user", "user_id", lambda x: pa.array(_with_gap(x, None)), says=_ROW)
_parquet(
    "a missing item",
    "item_id",
    lambda x: pa.array(_with_gap(x, None, 1)),
    says=("row 2", "item_id"),
)
_parquet("all users missing", "user_id", lambda x: pa.nulls(len(x), pa.string()), says=("user_id",))
_parquet("users of no type", "user_id", lambda x: pa.nulls(len(x)), says=("user_id",))
_parquet(
    "fractional users",
    "user_id",
    lambda x: pa.array([0.5 + k for k in range(len(x))]),
    says=("user_id",),
)
_parquet(
    "huge fractional users", "user_id", lambda x: pa.array([1e300] * len(x)), says=("user_id",)
)
_parquet(
    "a user that is not a number",
    "user_id",
    lambda x: pa.array([1.0, 2.0, float("nan")] + [3.0] * (len(x) - 3)),
    says=_ROW,
)
_parquet(
    "users that are lists", "user_id", lambda x: pa.array([[u] for u, *_ in x]), says=("user_id",)
)
_parquet(
    "users that are structs",
    "user_id",
    lambda x: pa.array([{"a": u} for u, *_ in x]),
    says=("user_id",),
)
_parquet("users that are true", "user_id", lambda x: pa.array([True] * len(x)), says=("user_id",))
_parquet(
    "users that are bytes",
    "user_id",
    lambda x: pa.array([u.encode() for u, *_ in x]),
    says=("user_id",),
)
_parquet(
    "users that are dates",
    "user_id",
    lambda x: pa.array([date(2001, 1, 1)] * len(x)),
    says=("user_id",),
)
_parquet(
    "users above 64 bits",
    "user_id",
    lambda x: pa.array([2**63 + k for k in range(len(x))], pa.uint64()),
    is_open=True,
)
for _value in (None, float("nan"), float("inf"), 1e30, -3e38):
    _parquet(
        f"a rating of {_value}",
        "rating",
        lambda x, v=_value: pa.array(_with_gap(x, v, 2)),
        says=("row 2", "rating"),
    )
_parquet(
    "ratings of words", "rating", lambda x: pa.array(["good"] * len(x)), says=("row 0", "rating")
)
_parquet("ratings that are lists", "rating", lambda x: pa.array([[3.0]] * len(x)), says=("rating",))
_parquet(
    "ratings that are structs",
    "rating",
    lambda x: pa.array([{"a": 3.0}] * len(x)),
    says=("rating",),
)
_parquet(
    "ratings that are bytes", "rating", lambda x: pa.array([b"\xff"] * len(x)), says=("rating",)
)
_parquet(
    "ratings that are dates",
    "rating",
    lambda x: pa.array([date(2001, 1, 1)] * len(x)),
    is_open=True,
)
_parquet("ratings that are truth", "rating", lambda x: pa.array([True] * len(x)), is_open=True)
_parquet("ratings of no type", "rating", lambda x: pa.nulls(len(x)), says=("rating",))
_parquet(
    "large decimals",
    "rating",
    lambda x: pa.array([Decimal(10) ** 35] * len(x), pa.decimal128(38, 0)),
    says=("rating",),
)
_parquet(
    "a time of 1e30", "timestamp", lambda x: pa.array([1e30] * len(x)), says=("row 0", "timestamp")
)
_parquet(
    "a missing time",
    "timestamp",
    lambda x: pa.array([1, 2, None] + [3] * (len(x) - 3)),
    says=("row 2", "timestamp"),
)
_parquet(
    "times that are words",
    "timestamp",
    lambda x: pa.array(["now"] * len(x)),
    says=("row 0", "timestamp"),
)
_parquet(
    "times that are lists", "timestamp", lambda x: pa.array([[1]] * len(x)), says=("timestamp",)
)
_parquet(
    "times that are hours",
    "timestamp",
    lambda x: pa.array([1] * len(x), pa.time32("s")),
    is_open=True,
)
_parquet(
    "times that are spans",
    "timestamp",
    lambda x: pa.array([1] * len(x), pa.duration("s")),
    is_open=True,
)
_parquet("the rating twice", "rating ", lambda x: pa.array([1.0] * len(x)), is_open=True)


@kind
def _parquet_without_rows(folder: Path, rng: Rng) -> Case:
    table = _table(draw_rows(rng)).slice(0, 0)
    return Case(write(folder, parquet_bytes(table), "a.parquet"), None, ("no rows",))


@kind
def _parquet_columns_twice(folder: Path, rng: Rng) -> Case:
    table = _table(draw_rows(rng))
    name = str(rng.choice(table.column_names))
    table = pa.Table.from_arrays([*table.columns, table[name]], [*table.column_names, name])
    return Case(write(folder, parquet_bytes(table), "a.parquet"), None, (name,))


@kind
def _parquet_without_a_column(folder: Path, rng: Rng) -> Case:
    name = str(rng.choice(["user_id", "item_id"]))
    table = _table(draw_rows(rng)).drop_columns([name])
    return Case(write(folder, parquet_bytes(table), "a.parquet"), None, (name,))


@kind
def _parquet_cut(folder: Path, rng: Rng) -> Case:
    content = parquet_bytes(_table(draw_rows(rng)))
    cut = int(rng.integers(len(content)))
    return Case(write(folder, content[:cut], "a.parquet"), None)


@kind
def _parquet_flipped(folder: Path, rng: Rng) -> Case:
    """Without checksums of pages a flipped bit may go unseen, but nothing breaks."""
    content = bytearray(parquet_bytes(_table(draw_rows(rng)), compression="none"))
    for _ in range(int(rng.integers(1, 4))):
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    return Case(write(folder, bytes(content), "a.parquet"), None, is_open=True)


@kind
def _parquet_of_other_kinds(folder: Path, rng: Rng) -> Case:
    rows = draw_rows(rng)
    options: list[dict[str, Any]] = [
        {"compression": "gzip"}, {"compression": "zstd"}, {"row_group_size": 1},
        {"use_dictionary": False}, {"version": "1.0"}, {"data_page_version": "2.0"},
    ]  # fmt: skip
    content = parquet_bytes(_table(rows), **options[int(rng.integers(len(options)))])
    return Case(write(folder, content, "a.parquet"), rows)


@kind
def _parquet_bomb(folder: Path, rng: Rng) -> Case:
    n = 3_000_000
    table = pa.table(
        {"user_id": pa.array(np.zeros(n, np.int64)), "item_id": pa.array(np.zeros(n, np.int64))}
    )
    path = write(folder, parquet_bytes(table), "a.parquet")
    return Case(path, None, ("IDCF_MAX_UNPACKED_BYTES",), unpacked_bytes=100_000)


@kind
def _parquet_folder(folder: Path, rng: Rng) -> Case:
    rows, path = draw_rows(rng), folder / "parts"
    path.mkdir()
    for k, part in enumerate((rows[:3], rows[3:])):
        write(path, parquet_bytes(_table(part)), f"{k}.parquet")
    write(path, b"", "_SUCCESS")
    write(path, b"x", ".hidden.parquet")
    return Case(path, rows)


@kind
def _parquet_folder_with_a_mistake(folder: Path, rng: Rng) -> Case:
    rows, path = draw_rows(rng), folder / "parts"
    path.mkdir()
    write(path, parquet_bytes(_table(rows[:3])), "0.parquet")
    seconds: list[tuple[bytes, str]] = [
        (b"", "1.parquet"), (b"PAR1", "1.parquet"),
        (parquet_bytes(_put(rows, "user_id", pa.array(_user_numbers(rows)))), "user_id"),
        (parquet_bytes(_table(rows).drop_columns(["rating"])), "rating"),
    ]  # fmt: skip
    content, says = seconds[int(rng.integers(len(seconds)))]
    write(path, content, "1.parquet")
    return Case(path, None, (says,))
