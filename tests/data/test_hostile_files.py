"""Files that are damaged or made to harm are refused in one sentence, with the line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from idcf.data.readers import read_interactions, read_table
from idcf.data.shard_writer import write_shards
from idcf.data.user_chunks import HistoryFile, read_user_chunks
from idcf.errors import DataError

HEADER = "user_id,item_id,rating\n"


def test_line_ends_of_old_systems_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"user_id,item_id,rating\ru,i,3\rv,i,4\r")
    assert read_interactions(path).rating.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"u,i,3\nu\0x,j,3\n", "line 3: a NUL character"),
        (b"u,i,3\nu,Caf\xe9,3\n", "line 3: byte 0xe9 is not utf-8"),
        (b"u,i,3\nu,j,1e30\n", "is beyond 1e\\+09"),
    ],
)
def test_the_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(HEADER.encode() + content)
    with pytest.raises(DataError, match=message):
        read_interactions(path)


def test_titles_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"item_id,title\ni1,Caf\xe9\ni2,Toy Story\n")
    with pytest.raises(DataError, match="line 2: byte 0xe9 is not utf-8"):
        read_table(path)


def test_a_long_field_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("item_id,title," + "x" * 200_000 + "\ni1,Toy Story,1\n")
    assert read_table(path).num_rows == 1


@pytest.mark.parametrize("value", ["1_0", "５", "0x10"])
def test_a_number_is_written_as_one(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{HEADER}u,i,3\nu,j,{value}\n")
    with pytest.raises(DataError, match=r"line 3, column 'rating': .* is not a number"):
        read_interactions(path)


@pytest.mark.parametrize("value", ["now", "today", "tomorrow"])
def test_a_word_is_no_time(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{HEADER[:-1]},timestamp\nu,i,3,2001-02-03\nu,j,3,{value}\n")
    with pytest.raises(DataError, match=r"line 3, column 'timestamp': .* is neither seconds nor"):
        read_interactions(path)
    times = pa.array([[1], [2]])
    with pytest.raises(DataError, match=r"column 'timestamp': '\[1\]' is neither seconds nor"):
        read_interactions(pa.table({"user_id": [1, 2], "item_id": [1, 2], "timestamp": times}))


@pytest.mark.parametrize("name", ["x" * 300 + ".csv", "a\0.csv", "~nobody-of-this-name/a.csv"])
def test_a_path_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_interactions(name)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(DataError, match="is neither a file nor a folder"):
            read_interactions(tmp_path / name)
        with pytest.raises(DataError, match="cannot be read: it is not a file"):
            next(read_user_chunks(HistoryFile(tmp_path / name), False))


def test_large_ratings_are_no_shards(tmp_path: Path) -> None:
    table = pa.table({"user_id": [1, 2], "item_id": [1, 2], "rating": [3.0, 1e30]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"row 1, column 'rating': .* is beyond 1e\+09"):
        write_shards(tmp_path / "a.parquet", tmp_path / "shards")


def test_memory_is_taken_for_what_a_gzipped_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(f"{HEADER}u,i,3\n".encode()))
    monkeypatch.setenv("IDCF_MAX_UNPACKED_BYTES", str(1 << 50))
    assert len(read_interactions(path)) == 1


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv.gz"
    rows = "".join(f"u{n},i,3\n" for n in range(1000))
    path.write_bytes(gzip.compress((HEADER + rows).encode()))
    assert len(read_interactions(path)) == 1000
    monkeypatch.setenv("IDCF_MAX_UNPACKED_BYTES", "5000")
    with pytest.raises(DataError, match=r"unpacks to more than 5,000 bytes.*IDCF_MAX_UNPACKED_"):
        read_interactions(path)
