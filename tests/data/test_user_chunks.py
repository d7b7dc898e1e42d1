"""Chunks of history files: whole users in order, whatever the sizes of batches and chunks."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from idcf import DataError
from idcf.data import user_chunks
from idcf.data.user_chunks import HistoryFile, read_user_chunks


def write_users(path: Path, lengths: list[int], ids: list | None = None) -> list[tuple]:
    """Write users with some numbers of rows, and return (user, items) of each."""
    ids = list(range(len(lengths))) if ids is None else ids
    item = iter(range(10**6))
    users = [(user, [next(item) for _ in range(n)]) for user, n in zip(ids, lengths, strict=True)]
    columns = {
        "user_id": [user for user, items in users for _ in items],
        "item_id": [x for _, items in users for x in items],
    }
    parquet.write_table(pa.table(columns), path, row_group_size=5)
    return users


@pytest.mark.parametrize("rows_per_read", [1, 3, 1000])
@pytest.mark.parametrize("users_per_chunk", [1, 4, 1000])
@pytest.mark.parametrize("max_rows", [1, 6, 1000])
def test_chunks_hold_whole_users(
    rows_per_read: int, users_per_chunk: int, max_rows: int, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(user_chunks, "ROWS_PER_READ", rows_per_read)
    monkeypatch.setattr(user_chunks, "USERS_PER_CHUNK", users_per_chunk)
    monkeypatch.setattr(user_chunks, "_MAX_CHUNK_ROWS", max_rows)
    users = write_users(tmp_path / "h.parquet", [1, 4, 2, 9, 1, 1, 1, 3, 12, 2])
    result = []
    for chunk in read_user_chunks(HistoryFile(tmp_path / "h.parquet"), implicit=True):
        n_users, n_rows = len(chunk.user_ids), len(chunk.items)
        assert 1 <= n_users <= users_per_chunk
        assert n_rows <= max_rows or n_users == 1
        assert len(chunk.offsets) == n_users + 1
        items = chunk.items.to_pylist()
        bounds = zip(chunk.offsets[:-1], chunk.offsets[1:], strict=True)
        result += zip(chunk.user_ids.to_pylist(), [items[a:b] for a, b in bounds], strict=True)
    assert result == users


def test_chunks_do_not_depend_on_batches(tmp_path: Path, monkeypatch) -> None:
    lengths = np.random.default_rng(0).integers(1, 30, 200).tolist()
    write_users(tmp_path / "h.parquet", lengths)
    monkeypatch.setattr(user_chunks, "USERS_PER_CHUNK", 7)
    monkeypatch.setattr(user_chunks, "_MAX_CHUNK_ROWS", 100)
    sizes = []
    for rows_per_read in (1, 50, 10**6):
        monkeypatch.setattr(user_chunks, "ROWS_PER_READ", rows_per_read)
        chunks = read_user_chunks(HistoryFile(tmp_path / "h.parquet"), implicit=True)
        sizes.append([len(x.user_ids) for x in chunks])
    assert sizes[0] == sizes[1] == sizes[2]
    assert sum(sizes[0]) == 200


def test_a_file_without_rows_is_one_empty_chunk(tmp_path: Path) -> None:
    write_users(tmp_path / "h.parquet", [])
    (chunk,) = read_user_chunks(HistoryFile(tmp_path / "h.parquet"), implicit=True)
    assert (len(chunk.user_ids), chunk.offsets.tolist(), len(chunk.items)) == (0, [0], 0)


@pytest.mark.parametrize("ids", [[3, 1, 2], [1, 3, 2], ["b", "a"], [1.5, 0.5]])
def test_users_out_of_order_are_refused(ids: list, tmp_path: Path, monkeypatch) -> None:
    write_users(tmp_path / "h.parquet", [2] * len(ids), ids)
    for size in (1, 100):
        monkeypatch.setattr(user_chunks, "USERS_PER_CHUNK", size)
        with pytest.raises(DataError, match=r"user .* comes after .*; sort the file by user_id"):
            list(read_user_chunks(HistoryFile(tmp_path / "h.parquet"), implicit=True))


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint8(), pa.int64()])
def test_ids_have_one_type(kind: pa.DataType, tmp_path: Path) -> None:
    table = pa.table({"user_id": pa.array([1, 1, 2], kind), "item_id": pa.array([5, 6, 5], kind)})
    parquet.write_table(table, tmp_path / "h.parquet")
    (chunk,) = read_user_chunks(HistoryFile(tmp_path / "h.parquet"), implicit=True)
    assert chunk.user_ids.type == chunk.items.type == pa.int64()


def test_texts_may_be_large_or_in_dictionaries(tmp_path: Path) -> None:
    users = pa.array(["a", "a", "b"]).dictionary_encode()
    items = pa.array(["x", "y", "x"], pa.large_string())
    parquet.write_table(pa.table({"user_id": users, "item_id": items}), tmp_path / "h.parquet")
    (chunk,) = read_user_chunks(HistoryFile(tmp_path / "h.parquet"), implicit=True)
    assert chunk.user_ids.equals(pa.array(["a", "b"]))
    assert chunk.items.equals(pa.array(["x", "y", "x"]))


def test_a_gzipped_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_bytes(gzip.compress(b"user_id,item_id\nu,i\nu,j\n"))
    (chunk,) = read_user_chunks(HistoryFile(path), implicit=True)
    assert chunk.items.to_pylist() == ["i", "j"]


def test_items_that_are_whole_floats_are_integers(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    parquet.write_table(pa.table({"user_id": ["u", "u"], "item_id": [3.0, 4.0]}), path)
    (chunk,) = read_user_chunks(HistoryFile(path), implicit=True)
    assert chunk.items.to_pylist() == [3, 4]
    parquet.write_table(pa.table({"user_id": ["u", "u"], "item_id": [3.0, 4.5]}), path)
    with pytest.raises(DataError, match=r"h\.parquet cannot be read"):
        list(read_user_chunks(HistoryFile(path), implicit=True))


def test_bytes_that_are_no_text_and_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_bytes(b"user_\xff,item_id\nu,i\n")
    with pytest.raises(DataError, match="it is not utf-8"):
        list(read_user_chunks(HistoryFile(path), implicit=True))
    table = pa.Table.from_arrays([pa.array(["a"])] * 3, ["user_id", "item_id", "item_id"])
    parquet.write_table(table, tmp_path / "h.parquet")
    with pytest.raises(DataError, match="two columns are named 'item_id'"):
        list(read_user_chunks(HistoryFile(tmp_path / "h.parquet"), implicit=True))
