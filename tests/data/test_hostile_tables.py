"""NUL characters, times out of range and tables that are too large, in every kind of table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from idcf.data.interactions import Interactions, titles_by_row
from idcf.data.parquet_limits import read_limited_table
from idcf.data.readers import read_interactions, read_table
from idcf.data.shard_writer import write_shards
from idcf.data.side_tables import add_side_tables, read_side_table
from idcf.errors import ConfigError, DataError

Columns = dict[str, Sequence[Any]]
LIMIT = "IDCF_MAX_UNPACKED_BYTES"


def in_parquet(columns: Columns, folder: Path) -> Path:
    """Write a Parquet file."""
    parquet.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def as_category(columns: Columns, folder: Path) -> pd.DataFrame:
    """Return texts as categories of pandas."""
    frame = pd.DataFrame(columns)
    texts = [name for name, values in columns.items() if isinstance(values[0], str)]
    return frame.astype(dict.fromkeys(texts, "category"))


KINDS: dict[str, Callable[[Columns, Path], Any]] = {
    "pandas": lambda columns, folder: pd.DataFrame(columns),
    "categories": as_category,
    "polars": lambda columns, folder: pl.DataFrame(columns),
    "arrow": lambda columns, folder: pa.table(columns),
    "parquet": in_parquet,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("column", ["user_id", "item_id"])
def test_an_id_with_nul_is_refused_with_its_row(kind: str, column: str, tmp_path: Path) -> None:
    columns: Columns = {"user_id": ["a", "b"], "item_id": ["i", "j"], "rating": [1.0, 2.0]}
    columns[column] = ["x", "y\0"]
    with pytest.raises(DataError, match=rf"row 1, column '{column}': 'y\\x00' has a NUL"):
        read_interactions(KINDS[kind](columns, tmp_path))


def test_an_id_with_nul_gets_into_no_shard(tmp_path: Path) -> None:
    path = in_parquet(
        {"user_id": ["a", "b\0"], "item_id": ["i", "j"], "rating": [1.0, 2]}, tmp_path
    )
    with pytest.raises(DataError, match="has a NUL"):
        write_shards(path, tmp_path / "shards")


@pytest.mark.parametrize("kind", KINDS)
def test_a_title_with_nul_is_refused(kind: str, tmp_path: Path) -> None:
    table = read_interactions(pd.DataFrame({"user_id": [1, 2], "item_id": ["i", "j"]}))
    items = KINDS[kind]({"item_id": ["i", "j"], "title": ["Heat", "Al\0en"]}, tmp_path)
    titles = add_side_tables(table, None, items).titles
    with pytest.raises(DataError, match=r"title 'Al\\x00en' of item 'j' has a NUL"):
        titles_by_row(table.items, titles)


def read_times(kind: str, times: Sequence[Any], folder: Path) -> Interactions:
    """Read a table with times."""
    n = len(times)
    columns = {"user_id": range(n), "item_id": range(n), "rating": [1.0] * n, "timestamp": times}
    return read_interactions(KINDS[kind]({k: list(v) for k, v in columns.items()}, folder))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", [1e30, -1e30, float("inf"), float("nan"), 2.0**62])
def test_a_time_out_of_range_is_refused(kind: str, time: float, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1, column 'timestamp': .* (is not a time|missing)"):
        read_times(kind, [5.0, time], tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_times_before_1970_are_read(kind: str, tmp_path: Path) -> None:
    table = read_times(kind, [-1e9, 5.0], tmp_path)
    assert table.time is not None
    assert table.time.tolist() == [-1_000_000_000, 5]


def one_text(text: str, n: int) -> Any:
    """Return a column of one text, which Parquet stores once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([text]))


def test_rows_of_one_value_are_counted_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 1_000_000
    columns = {"user_id": np.zeros(n, np.int8), "item_id": np.arange(n) // 2, "rating": np.ones(n)}
    path = in_parquet(columns, tmp_path)
    monkeypatch.setenv(LIMIT, str(n))
    with pytest.raises(DataError, match=f"unpacks to more than 1,000,000 bytes.*{LIMIT}"):
        read_interactions(path)


@pytest.mark.parametrize("role", ["user_id", "item_id"])
def test_a_terabyte_of_one_text_is_refused(role: str, tmp_path: Path) -> None:
    n = 2_000_000
    columns: dict[str, Any] = {
        "user_id": np.arange(n),
        "item_id": np.arange(n),
        "rating": np.ones(n),
    }
    columns[role] = one_text("x" * 500_000, n)
    path = in_parquet(columns, tmp_path)
    with pytest.raises(DataError, match="unpacks to more than"):
        read_interactions(path)
    with pytest.raises(DataError, match="unpacks to more than"):
        write_shards(path, tmp_path / "shards")


@pytest.mark.parametrize("is_list", [False, True])
def test_a_terabyte_of_titles_or_words_is_refused(is_list: bool, tmp_path: Path) -> None:
    n = 100_000
    words: Any = one_text("x" * 1_000_000, n * (1 + 9 * is_list))
    if is_list:
        words = pa.ListArray.from_arrays(pa.array(np.arange(n + 1, dtype=np.int32) * 10), words)
    path = in_parquet({"item_id": np.arange(n), "title": words}, tmp_path)
    assert path.stat().st_size < 3_000_000
    with pytest.raises(DataError, match="unpacks to more than"):
        read_side_table(path, "item")


def test_a_list_of_many_values_in_one_row_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_parquet({"user_id": [1], "item_id": [1], "rating": [np.zeros(200_000)]}, tmp_path)
    monkeypatch.setenv(LIMIT, "1000000")
    with pytest.raises(DataError, match="unpacks to more than 1,000,000"):
        read_interactions(path)


def test_long_texts_within_the_limit_are_read_in_parts(tmp_path: Path) -> None:
    n = 3000
    columns = {"user_id": one_text("u" * 100_000, n), "item_id": np.arange(n), "rating": np.ones(n)}
    assert len(read_interactions(in_parquet(columns, tmp_path))) == n


def test_tables_are_read_as_arrow_reads_them(tmp_path: Path) -> None:
    words = pa.array(["v", "u", None, "v"]).dictionary_encode()
    table = pa.table(
        {
            "item_id": [1, 2, 3, 4],
            "text": ["a", None, "", "é"],
            "words": [["x", "yy"], [], None, ["z", None]],
            "category": words,
            "numbers": [[1], [2, 3], None, []],
            "record": [{"a": 1, "b": "x"}] * 4,
            "day": pa.array([0, 1, None, 3], pa.timestamp("us")),
        }
    )
    for rows in (table, table.slice(0, 0)):
        parquet.write_table(rows, tmp_path / "t.parquet", row_group_size=3)
        assert read_limited_table(tmp_path / "t.parquet").to_pydict() == rows.to_pydict()
        assert read_table(tmp_path / "t.parquet").num_rows == rows.num_rows


def test_lists_of_texts_with_several_dictionaries_are_read(tmp_path: Path) -> None:
    words = [[f"word {n} {k} {'x' * 90}" for k in range(3)] for n in range(10_000)]
    table = pa.table({"item_id": range(10_000), "words": words})
    parquet.write_table(table, tmp_path / "t.parquet", dictionary_pagesize_limit=10_000)
    assert read_limited_table(tmp_path / "t.parquet").to_pydict() == table.to_pydict()


def test_a_limit_that_is_no_number_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = in_parquet({"user_id": [1], "item_id": [1]}, tmp_path)
    monkeypatch.setenv(LIMIT, "8GB")
    with pytest.raises(ConfigError, match=f"{LIMIT} must be a number of bytes, got '8GB'"):
        read_interactions(path)


def test_ten_thousand_feature_columns_are_refused() -> None:
    rng = np.random.default_rng(0)
    table = read_interactions(pd.DataFrame({"user_id": range(9), "item_id": range(9)}))
    columns = {f"f{n}": rng.normal(size=9) for n in range(10_000)}
    items = pd.DataFrame({"item_id": range(9), **columns})
    with pytest.raises(DataError, match=r"10,000 columns become .* features .*leave out columns"):
        add_side_tables(table, None, items)
