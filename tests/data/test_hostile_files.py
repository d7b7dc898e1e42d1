"""Files that are damaged or made to harm are refused in one sentence, with the line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from idcf.data.readers import read_interactions, read_table
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


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv.gz"
    rows = "".join(f"u{n},i,3\n" for n in range(1000))
    path.write_bytes(gzip.compress((HEADER + rows).encode()))
    assert len(read_interactions(path)) == 1000
    monkeypatch.setenv("IDCF_MAX_UNPACKED_BYTES", "5000")
    with pytest.raises(DataError, match=r"unpacks to more than 5,000 bytes.*IDCF_MAX_UNPACKED_"):
        read_interactions(path)
