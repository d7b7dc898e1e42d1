"""Parquet read in chunks gives what the reader of whole tables gives, whatever the row groups."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import id_rows
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from idcf import Recommender
from idcf.data import parquet_reader
from idcf.data.columns import DataWarning
from idcf.data.interactions import Interactions
from idcf.data.parquet_reader import IdCodes, ParquetColumns
from idcf.data.readers import read_interactions
from idcf.errors import DataError

IDS = {
    "text": st.text(st.sampled_from("aàz09 Ω\U0001f600"), min_size=1, max_size=3),
    "integers": st.integers(-3, 12),
}


@st.composite
def tables(draw: Any) -> pa.Table:
    """Tables with text or integer ids, some with ratings and times, and with repeated pairs."""
    n = draw(st.integers(1, 30))
    columns: dict[str, Any] = {
        name: draw(st.lists(IDS[draw(st.sampled_from(sorted(IDS)))], min_size=n, max_size=n))
        for name in ("user_id", "item_id")
    }
    if draw(st.booleans()):
        columns["rating"] = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    if draw(st.booleans()):
        columns["timestamp"] = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    return pa.table(columns)


def same_tables(one: Interactions, other: Interactions) -> bool:
    """Return whether two tables have the same vocabularies, in the same order, and rows."""
    assert one.user.dtype == other.user.dtype == np.int64
    assert one.rating.dtype == other.rating.dtype == np.float32
    return (
        one.users.ids == other.users.ids
        and one.items.ids == other.items.ids
        and one.implicit == other.implicit
        and id_rows(one) == id_rows(other)
    )


def read(source: Any, **options: Any) -> Interactions | str:
    """Return the table, or the message of the error without the name of the source."""
    with warnings.catch_warnings(action="ignore", category=DataWarning):
        try:
            return read_interactions(source, **options)
        except DataError as error:
            return str(error).replace(str(source), "pyarrow table")


@given(tables(), st.integers(1, 40), st.integers(1, 7), st.sampled_from([None, True]))
def test_chunks_and_row_groups_do_not_matter(
    tmp_path_factory: Any, table: pa.Table, group: int, chunk: int, implicit: bool | None
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    parquet.write_table(table, path, row_group_size=group)
    whole = read(table, implicit=implicit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_reader, "_CHUNK_ROWS", chunk)
        chunked = read(path, implicit=implicit)
    if isinstance(whole, str):
        assert chunked == whole
    else:
        assert isinstance(chunked, Interactions)
        assert same_tables(chunked, whole)


def column(values: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, kind)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("user_id", column([1.0, 2.0, 2.0, 4.0])),
        ("user_id", column([1.0, 2.5, 2.0, 4.0])),
        ("user_id", column([1, None, 2, 4])),
        ("user_id", column(["a", "b", None, "c"])),
        ("user_id", column(["a", "b", "a", "c"], pa.large_string())),
        ("user_id", column(["a", "b", "a", "c"]).dictionary_encode()),
        ("user_id", column([True, False, True, True])),
        ("user_id", column([2**63 + 1, 5, 5, 7], pa.uint64())),
        ("rating", column([1.0, None, 3.0, 4.0])),
        ("rating", column([1.0, float("inf"), 3.0, 4.0])),
        ("rating", column(["1", "2", "3", "x"])),
        ("rating", column(["1", "2", "3", "4"])),
        ("timestamp", column(["2020-01-01", "2020-01-02", "5", "2020-01-04"])),
        ("timestamp", column([10, 20, None, 30])),
        ("timestamp", column([10, 20, 25, 30], pa.timestamp("ms"))),
        ("timestamp", column([10, 20, 25, 30], pa.date32())),
        ("timestamp", column([1.5, -2.5, float("nan"), 3.0])),
    ],
    ids=str,
)
def test_unusual_columns_read_as_before(
    tmp_path: Path, monkeypatch, name: str, values: pa.Array
) -> None:
    """Other types of ids, gaps, texts and dates: the same table, or the same error and row."""
    monkeypatch.setattr(parquet_reader, "_CHUNK_ROWS", 2)
    columns = {
        "user_id": column(["a", "b", "a", "c"]),
        "item_id": column([4, 3, 2, 1]),
        "rating": column([1.0, 2.0, 3.0, 4.0]),
        "timestamp": column([4, 3, 2, 1]),
    }
    table = pa.table({**columns, name: values})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    whole, chunked = read(table), read(tmp_path / "x.parquet")
    if isinstance(whole, str):
        assert chunked == whole
    else:
        assert isinstance(chunked, Interactions)
        assert same_tables(chunked, whole)


def test_a_folder_reads_as_one_file(tmp_path: Path) -> None:
    """As Spark writes it: with an empty marker and with checksums beside the parts."""
    users, items = [f"u{n % 7}" for n in range(50)], [n // 7 for n in range(50)]
    table = pa.table({"user_id": users, "item_id": items})
    parquet.write_table(table, tmp_path / "whole.parquet")
    folder = tmp_path / "parts"
    folder.mkdir()
    for number in range(3):
        part = table.slice(20 * number, 20)
        parquet.write_table(part, folder / f"part-{number:05}.snappy.parquet")
    (folder / "_SUCCESS").touch()
    (folder / ".part-00000.parquet").write_bytes(b"crc")
    assert same_tables(read_interactions(folder), read_interactions(tmp_path / "whole.parquet"))
    recommender = Recommender("popularity", key_threshold=1, device="cpu").fit(str(folder))
    assert len(recommender.manifest.domain.levels) == 1


def test_errors_of_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.parquet file in this folder"):
        read_interactions(tmp_path)
    parquet.write_table(pa.table({"user_id": [1], "item_id": [2]}), tmp_path / "a.parquet")
    parquet.write_table(pa.table({"user_id": ["x"], "item_id": [2]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: column 'user_id' is string, but int64 in a"):
        read_interactions(tmp_path)
    parquet.write_table(pa.table({"item_id": [2]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="column 'user_id' is missing"):
        read_interactions(tmp_path)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(DataError, match=r"b\.parquet: not a whole Parquet file"):
        read_interactions(tmp_path)


def test_codes_are_numbered_by_first_occurrence() -> None:
    codes = IdCodes(6)
    codes.add(pa.array(["b", "a", "b"]), slice(0, 3))
    codes.add(pa.array(["c", "a", "d"]), slice(3, 6))
    assert codes.codes.tolist() == [0, 1, 0, 2, 1, 3]
    assert codes.ids.to_pylist() == ["b", "a", "c", "d"]
    assert len(codes) == 4


def test_usual_columns_are_never_read_whole(tmp_path: Path, monkeypatch) -> None:
    table = pa.table({"user_id": ["a", "b"], "item_id": [1, 2], "rating": [1.0, 2.0]})
    parquet.write_table(table, tmp_path / "x.parquet")
    monkeypatch.setattr(ParquetColumns, "whole_table", lambda self: pytest.fail("read whole"))
    assert len(read_interactions(tmp_path / "x.parquet")) == 2
