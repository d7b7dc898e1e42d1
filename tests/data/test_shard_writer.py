"""Shards hold what the readers of tables give, in the same bytes however they come about."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import id_rows, write_file
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from test_readers import BAD_CSV

from idcf.data import shard_spill, shard_writer
from idcf.data.columns import DataWarning
from idcf.data.interactions import Interactions
from idcf.data.readers import read_interactions
from idcf.data.shard_files import ShardFile
from idcf.data.shard_writer import write_shards
from idcf.data.shards import ShardedTable, TableBlocks, UserBlocks
from idcf.errors import ConfigError, DataError

LIMIT = 8 << 30  # of memory, above what the test process may hold already
IDS = {
    "text": st.text(st.sampled_from("aàz09 Ω\U0001f600"), min_size=1, max_size=3),
    "padded": st.sampled_from(["007", "7", "x", "-0", "10", "é", "e"]),
    "integers": st.integers(-3, 40),
    "large": st.sampled_from([-(2**62), 2**62, -5, 2**40, 10**17, 10**18]),
}


@st.composite
def tables(draw: Any) -> pa.Table:
    """Tables with text or integer ids, some with ratings and times, and with repeated pairs."""
    n = draw(st.integers(1, 60))
    columns: dict[str, Any] = {
        name: draw(st.lists(IDS[draw(st.sampled_from(sorted(IDS)))], min_size=n, max_size=n))
        for name in ("user_id", "item_id")
    }
    if draw(st.booleans()):
        columns["rating"] = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    if draw(st.booleans()):
        columns["timestamp"] = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    return pa.table(columns)


def shard(source: Path, folder: Path, **options: Any) -> ShardedTable:
    """Write shards and return them as they are read."""
    shutil.rmtree(folder, ignore_errors=True)
    table, was_complete = write_shards(source, folder, memory=LIMIT, **options)
    assert not was_complete
    table.verify()
    assert {
        x.name for x in folder.parent.iterdir() if x.name.startswith(f".{folder.name}")
    } == set()
    return table


def result(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what a function returns, or the message of its error."""
    try:
        return function(*arguments, **options)
    except DataError as error:
        return str(error)


def assert_same(table: ShardedTable, expected: Interactions) -> None:
    """Check shards against the table of a reader; users without rows are not in shards."""
    actual = table.interactions()
    assert actual.items == expected.items
    has_rows = expected.user_counts() > 0
    ids = [x for x, there in zip(expected.users.ids, has_rows, strict=True) if there]
    assert list(actual.users.ids) == ids == sorted(ids)
    assert actual.implicit == expected.implicit
    assert sorted(id_rows(actual)) == sorted(id_rows(expected))
    assert table.user_counts().tolist() == expected.user_counts()[has_rows].tolist()
    assert (table.n_users, table.n_items) == (len(ids), len(expected.items))
    assert table.n_rows == len(expected)


def assert_blocks(table: UserBlocks) -> None:
    """Check the order of users and rows of all blocks."""
    n_rows = 0
    for index in range(table.n_blocks):
        block = table.read_block(index)
        assert block.index == index
        assert block.first_user == index * table.block_users
        n_users = min(table.block_users, table.n_users - block.first_user)
        assert block.n_users == n_users == len(table.user_ids(index))
        assert block.offsets[0] == 0
        assert block.offsets[-1] == len(block.items)
        assert block.items.dtype == np.int32
        for user in range(n_users):
            items = block.items[block.offsets[user] : block.offsets[user + 1]]
            assert (np.diff(items) > 0).all()
        n_rows += len(block.items)
    assert n_rows == table.n_rows


def assert_same_blocks(one: UserBlocks, other: UserBlocks) -> None:
    """Check that two tables have the same blocks and the same facts."""
    for name in ("n_users", "n_items", "n_rows", "n_blocks", "implicit", "has_times", "items"):
        assert getattr(one, name) == getattr(other, name)
    for name in ("rating_counts", "rating_range", "rating_sum", "rating_levels", "mean_rating"):
        assert getattr(one, name) == getattr(other, name)
    for index in range(one.n_blocks):
        a, b = one.read_block(index), other.read_block(index)
        assert one.user_ids(index) == other.user_ids(index)
        for x, y in ((a.offsets, b.offsets), (a.items, b.items)):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
        for x, y in ((a.ratings, b.ratings), (a.times, b.times)):
            assert (x is None) == (y is None)
            if x is not None:
                np.testing.assert_array_equal(x, y)


def assert_same_problem(message: str, of_reader: str) -> None:
    """Compare two errors; the reader counts the other rows, too. Of a missing value only the row
    is compared: it is one of those that the reader lists, who goes by rows, not by columns."""
    if ": the value is missing" in of_reader:
        row = message.split(", ")[1]
        assert re.search(rf"\b{row}\b", of_reader) or ", ...;" in of_reader
        assert message.endswith("the row") or message.endswith("drop it")
    else:
        assert of_reader == message or of_reader.startswith(f"{message}; ")


def digests(folder: Path) -> dict[str, str]:
    """Return the checksums of all files of a folder."""
    return {x.name: hashlib.sha256(x.read_bytes()).hexdigest() for x in folder.iterdir()}


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sort few rows at a time, so that small tables have many buckets."""
    monkeypatch.setattr(shard_spill, "_BUCKET_ROWS", 7)
    with warnings.catch_warnings(action="ignore", category=DataWarning):
        yield


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("implicit", [None, True])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_shards_hold_what_the_reader_gives(
    tmp_path: Path, suffix: str, implicit: bool | None
) -> None:
    path = tmp_path / f"x.{suffix}"

    @settings(max_examples=25)
    @given(tables(), st.integers(1, 9))
    def check(table: pa.Table, block_users: int) -> None:
        if suffix == "csv":
            table.to_pandas().to_csv(path, index=False)
        else:
            parquet.write_table(table, path, row_group_size=11)
        expected = result(read_interactions, path, implicit=implicit)
        if isinstance(expected, str):
            message = result(shard, path, tmp_path / "out", implicit=implicit)
            assert isinstance(message, str)
            assert_same_problem(message, expected)
            return
        shards = shard(path, tmp_path / "out", implicit=implicit, block_users=block_users)
        assert_same(shards, expected)
        assert_blocks(shards)
        again = read_interactions(tmp_path / "out")
        assert id_rows(again) == id_rows(shards.interactions())
        assert_same_blocks(shards, TableBlocks(again, block_users))

    check()


def random_frame(n_rows: int, seed: int = 0, *, text: bool = False) -> pa.Table:
    """Return a table of distinct pairs in random order, with ratings and times."""
    rng = np.random.default_rng(seed)
    pairs = rng.choice(n_rows * 4, n_rows, replace=False)
    user, item = np.divmod(pairs, 40)
    ids = [np.char.mod("u%d", user), np.char.mod("i%d", item)] if text else [user * 1000, item]
    return pa.table(
        {
            "user_id": ids[0],
            "item_id": ids[1],
            "rating": rng.integers(1, 11, n_rows) / 2,
            "timestamp": rng.integers(0, 10**9, n_rows),
        }
    )


@pytest.fixture
def frame_file(tmp_path: Path) -> Path:
    """A Parquet file of 20,000 rows."""
    parquet.write_table(random_frame(20_000, text=True), tmp_path / "x.parquet")
    return tmp_path / "x.parquet"


@pytest.mark.usefixtures("small_buckets")
def test_the_order_of_the_source_and_the_buckets_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = random_frame(3000, text=True)
    order = np.random.default_rng(1).permutation(len(frame))
    results = []
    for name, table, bucket_rows in (
        ("a", frame, 10**6),
        ("b", frame, 301),
        ("c", frame.take(order), 100),
    ):
        monkeypatch.setattr(shard_spill, "_BUCKET_ROWS", bucket_rows)
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=500)
        shard(tmp_path / f"{name}.parquet", tmp_path / name, block_users=37, n_shards=3)
        results.append(digests(tmp_path / name))
        results[-1].pop("manifest.json")
    assert results[0] == results[1] == results[2]


def test_blocks_do_not_depend_on_the_number_of_shards(tmp_path: Path, frame_file: Path) -> None:
    expected = TableBlocks(read_interactions(frame_file), 100)
    for n in (1, 2, 7, expected.n_blocks):
        table = shard(frame_file, tmp_path / "out", block_users=100, n_shards=n)
        assert len(table.shards) == n
        assert_same_blocks(table, expected)
        groups = [b for x in table.shards for b in table.blocks(x)]
        assert [b.index for b in groups] == list(range(table.n_blocks))
        file = parquet.ParquetFile(tmp_path / "out" / table.shards[-1].file)
        assert file.num_row_groups == table.shards[-1].n_blocks
        assert file.schema_arrow.names == ["user_id", "item", "rating", "timestamp"]
    with pytest.raises(ConfigError, match="21 shards of 2,000 users need blocks of fewer users"):
        write_shards(
            frame_file,
            tmp_path / "o",
            block_users=100,
            n_shards=expected.n_blocks + 1,
            memory=LIMIT,
        )


def test_shards_have_the_size_that_is_set(
    tmp_path: Path, frame_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "_SHARD_BYTES", 50_000)
    table = shard(frame_file, tmp_path / "out", block_users=50)
    assert len(table.shards) > 2
    assert all(50_000 <= x.n_bytes < 70_000 for x in table.shards[:-1])


def test_many_ratings_are_described_by_their_range(tmp_path: Path) -> None:
    frame = random_frame(3000)
    ratings = np.random.default_rng(0).normal(size=3000).astype(np.float32)
    parquet.write_table(frame.set_column(2, "rating", pa.array(ratings)), tmp_path / "x.parquet")
    table = shard(tmp_path / "x.parquet", tmp_path / "out", block_users=64)
    assert table.rating_counts == table.rating_levels == ()
    assert table.rating_range == (ratings.min(), ratings.max())
    assert table.rating_sum == pytest.approx(ratings.sum(dtype=np.float64))
    assert_same_blocks(table, TableBlocks(read_interactions(tmp_path / "x.parquet"), 64))


def test_folders_and_compressed_files(tmp_path: Path) -> None:
    frame = random_frame(500).to_pandas()
    frame.to_csv(tmp_path / "whole.csv", index=False)
    expected = read_interactions(tmp_path / "whole.csv")
    text = (tmp_path / "whole.csv").read_bytes()
    (tmp_path / "whole.csv.gz").write_bytes(gzip.compress(text))
    frame.to_csv(tmp_path / "whole.tsv", index=False, sep="\t")
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    for folder in ("texts", "tables"):
        (tmp_path / folder).mkdir()
    for n in range(3):
        part = frame[n * 200 : (n + 1) * 200]
        part.to_csv(tmp_path / "texts" / f"{n}.csv", index=False)
        part.to_parquet(tmp_path / "tables" / f"{n}.parquet")
    (tmp_path / "tables" / "_SUCCESS").touch()
    for name in ("whole.csv.gz", "whole.tsv", "bom.csv", "texts", "tables"):
        assert_same(shard(tmp_path / name, tmp_path / "out"), expected)
    write_file(tmp_path / "texts", "3.csv", "user_id,item_id,rating,timestamp\n1,2,3,4\n5,6,x,7\n")
    with pytest.raises(DataError, match=r"texts, 3.csv, line 3, column 'rating': 'x' is not a num"):
        shard(tmp_path / "texts", tmp_path / "out")
    write_file(tmp_path / "texts", "3.csv", "user_id,item_id\n1,2\n")
    with pytest.raises(DataError, match=r"3.csv: column 'rating' is not in every file"):
        shard(tmp_path / "texts", tmp_path / "out")


def test_columns_of_other_names(tmp_path: Path) -> None:
    path = write_file(tmp_path, "x.csv", "uid,stars,iid\n007,2,1\n8,3,2\n")
    columns = {"user_id": "uid", "item_id": "iid", "rating": "stars"}
    table = shard(path, tmp_path / "out", columns=columns)
    assert_same(table, read_interactions(path, columns=columns))
    assert table.manifest.columns == columns
    assert read_interactions(tmp_path / "out", implicit=True).implicit
    with pytest.raises(DataError, match="no column named 'uid'"):
        read_interactions(tmp_path / "out", columns=columns)


def test_ids_that_turn_out_to_be_text_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are spilled as integers until one is none."""
    monkeypatch.setattr("idcf.data.shard_source._MAX_CSV_BLOCK", 2000)
    monkeypatch.setattr("idcf.data.shard_source._MIN_CSV_BLOCK", 2000)
    monkeypatch.setattr(shard_spill, "_BUCKET_ROWS", 50)
    rows = [f"{n % 83},{n}" for n in range(1500)]
    path = write_file(tmp_path, "x.csv", "\n".join(["user_id,item_id", *rows, "007,x"]))
    assert_same(shard(path, tmp_path / "out", block_users=10), read_interactions(path))


@pytest.mark.parametrize("text", BAD_CSV)
def test_errors_are_those_of_the_reader(tmp_path: Path, text: str) -> None:
    path = write_file(tmp_path, "x.csv", text)
    with pytest.raises(DataError) as expected:
        read_interactions(path)
    with pytest.raises(DataError) as raised:
        write_shards(path, tmp_path / "out", memory=LIMIT)
    assert_same_problem(str(raised.value), str(expected.value))
    assert [x.name for x in tmp_path.iterdir()] == ["x.csv"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.csv", b"user_id,item_id\na,\xff\n", "line 2: byte 0xff is not utf-8"),
        (
            "x.csv.gz",
            gzip.compress(b"user_id,item_id\n" + b"a,b\n" * 99, mtime=0)[:-9],
            "damaged gzip",
        ),
        ("x.txt", b"a", "shards are made from .csv, .tsv"),
        ("x.parquet", b"PAR1", "not a whole Parquet file"),
        ("y.csv", None, "no file at"),
    ],
)
def test_damaged_sources(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        write_shards(tmp_path / name, tmp_path / "out", memory=LIMIT)
    assert not (tmp_path / "out").exists()


def test_parquet_values_that_need_a_closer_look(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = {
        "user_id": pa.array([1.0, 2.0, 3.0]),
        "item_id": pa.array(["a", "b", "a"]).dictionary_encode(),
        "rating": ["1", "2.5", "3"],
        "timestamp": ["2020-01-01", "2021-01-01T10:00:00+01:00", "5"],
    }
    parquet.write_table(pa.table(columns), path)
    assert_same(shard(path, tmp_path / "out"), read_interactions(path))
    for change, message in (
        ({"user_id": [1, None, 3]}, "row 1, column 'user_id': .* is a missing id; drop the row"),
        ({"user_id": pa.array([1, 2**63, 3], pa.uint64())}, "row 1, .* is an integer of more than"),
        ({"rating": [1.0, 2.0, None]}, "row 2, column 'rating': nan is not a finite number"),
        ({"timestamp": ["x", "y", "z"]}, "row 0, column 'timestamp': 'x' is neither seconds"),
    ):
        parquet.write_table(pa.table(columns | change), path, row_group_size=1)
        with pytest.raises(DataError, match=message):
            write_shards(path, tmp_path / "out2", memory=LIMIT)


def test_a_query(tmp_path: Path, frame_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = f"SELECT user_id AS who, item_id, rating FROM '{frame_file}' WHERE rating > 2;"
    table, _ = write_shards(
        None, tmp_path / "out", query=query, columns={"user_id": "who"}, memory=LIMIT
    )
    expected = read_interactions(frame_file)
    expected = expected.where(expected.rating > 2)
    rows = [row[:3] for row in id_rows(expected)]
    assert sorted(row[:3] for row in id_rows(table.interactions())) == sorted(rows)
    for text, message in (
        ("SELECT 1 AS user_id, 'x' AS item_id WHERE false", "query: no rows"),
        ("SELECT 1 AS user_id", "query: no column named 'item_id'"),
        ("SELEC 1", "query: .*; correct the SQL"),
        ("SELECT 1 AS user_id, NULL::VARCHAR AS item_id", "row 0, column 'item_id'"),
    ):
        with pytest.raises(DataError, match=message):
            write_shards(None, tmp_path / "out2", query=text, memory=LIMIT)
    with pytest.raises(ConfigError, match="either a file or folder to read, or a query"):
        write_shards(frame_file, tmp_path / "out2", query="SELECT 1", memory=LIMIT)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r"duckdb is not installed; pip install 'idcf\[shards\]'"):
        write_shards(None, tmp_path / "out2", query=query, memory=LIMIT)


def test_a_finished_folder_is_not_written_again(tmp_path: Path, frame_file: Path) -> None:
    out = tmp_path / "out"
    shard(frame_file, out, block_users=100)
    before = digests(out)
    assert write_shards(frame_file, out, block_users=100, memory=LIMIT)[1]
    with pytest.raises(ConfigError, match=r"with other options \(block_users: 100, not 99\)"):
        write_shards(frame_file, out, block_users=99, memory=LIMIT)
    parquet.write_table(random_frame(50), frame_file)
    with pytest.raises(ConfigError, match="holds shards of another source, or the source has chan"):
        write_shards(frame_file, out, block_users=100, memory=LIMIT)
    assert digests(out) == before
    table, was_complete = write_shards(frame_file, out, overwrite=True, memory=LIMIT)
    assert not was_complete
    assert_same(table, read_interactions(frame_file))
    assert {x.name for x in tmp_path.iterdir()} == {"out", "x.parquet"}
    write_file(out, "notes.txt", "")
    with pytest.raises(ConfigError, match=r"also holds 'notes.txt', which would be lost"):
        write_shards(frame_file, out, overwrite=True, memory=LIMIT)
    (out / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="exists and holds no shards"):
        write_shards(frame_file, out, overwrite=True, memory=LIMIT)


def test_one_run_at_a_time(tmp_path: Path, frame_file: Path) -> None:
    with (
        shard_writer._work_folder(tmp_path / "out"),
        pytest.raises(ConfigError, match="is being written by another run"),
    ):
        write_shards(frame_file, tmp_path / "out", memory=LIMIT)


def test_a_process_that_holds_much_can_write(tmp_path: Path, frame_file: Path) -> None:
    ballast = np.ones(1 << 30, np.uint8)
    assert write_shards(frame_file, tmp_path / "out")[0].n_rows == 20_000
    del ballast


def test_numbers_that_cannot_be_used(
    tmp_path: Path, frame_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="memory of 40 MiB is too little: the program takes"):
        write_shards(frame_file, out, memory=40 << 20)
    with pytest.raises(ConfigError, match="block_users must be a whole number from 1, got 0"):
        write_shards(frame_file, out, memory=LIMIT, block_users=0)
    with monkeypatch.context() as patch:
        patch.setattr(shard_spill, "_SORT_BYTES", 10**9)
        with pytest.raises(
            ConfigError, match=r"20,000 rows cannot be sorted in this memory; give "
        ):
            write_shards(frame_file, out, memory=LIMIT)
    monkeypatch.setattr(shard_writer, "_SHARD_ROW_BYTES", 10**12)
    with pytest.raises(ConfigError, match=r"GiB of disk space, but .* GiB are free; choose a fold"):
        write_shards(frame_file, out, memory=LIMIT)
    assert {x.name for x in tmp_path.iterdir()} == {"x.parquet"}


def test_finished_files_of_an_interrupted_run_remain(
    tmp_path: Path, frame_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_spill, "_BUCKET_ROWS", 3000)
    options: dict[str, Any] = {"block_users": 64, "n_shards": 6, "memory": LIMIT}
    write_shards(frame_file, tmp_path / "whole", **options)
    expected = digests(tmp_path / "whole")
    out, work = tmp_path / "out", tmp_path / ".out.idcf-shard"
    add, n_blocks = ShardFile.add, 0

    def interrupted_add(file: ShardFile, block: Any) -> None:
        nonlocal n_blocks
        n_blocks += 1
        if n_blocks == 18:
            raise KeyboardInterrupt
        add(file, block)

    with monkeypatch.context() as patch:
        patch.setattr(ShardFile, "add", interrupted_add)
        with pytest.raises(KeyboardInterrupt):
            write_shards(frame_file, out, **options)
    assert not out.exists()
    first = work / "out" / "shard-00000.parquet"
    inode = first.stat().st_ino
    second = work / "out" / "shard-00001.parquet"
    second.write_bytes(b"damaged" + second.read_bytes()[7:])
    table, _ = write_shards(frame_file, out, **options)
    assert digests(out) == expected
    assert (out / "shard-00000.parquet").stat().st_ino == inode
    assert not work.exists()
    table.verify()


@pytest.mark.parametrize("shards", [{"n_shards": 6}, {}])
def test_a_run_that_stops_at_any_line_of_the_journal_continues(
    tmp_path: Path, frame_file: Path, monkeypatch: pytest.MonkeyPatch, shards: dict[str, int]
) -> None:
    """The last stop is between the last shard file and the manifest."""
    monkeypatch.setattr(shard_spill, "_BUCKET_ROWS", 3000)
    monkeypatch.setattr(shard_writer, "_SHARD_BYTES", 20_000)
    options: dict[str, Any] = {"block_users": 64, "memory": LIMIT, **shards}
    write_shards(frame_file, tmp_path / "whole", **options)
    expected, out = digests(tmp_path / "whole"), tmp_path / "out"
    save, n_stops = shard_writer._Job._save, 0
    while not out.exists():  # there is no such line
        n_stops += 1
        n_saves = 0

        def interrupted_save(job: Any, **values: Any) -> None:
            nonlocal n_saves
            save(job, **values)
            n_saves += 1
            if n_saves == n_stops:  # noqa: B023 - called in this turn of the loop
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(shard_writer._Job, "_save", interrupted_save)
            with suppress(KeyboardInterrupt):
                write_shards(frame_file, out, **options)
        if not out.exists():
            write_shards(frame_file, out, **options)
            assert digests(out) == expected, n_stops
            shutil.rmtree(out)
    assert n_stops >= 8
    assert digests(out) == expected


def test_an_interrupted_run_of_another_source_is_forgotten(
    tmp_path: Path, frame_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ShardFile, "add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write_shards(frame_file, tmp_path / "out", memory=LIMIT)
    parquet.write_table(random_frame(50), frame_file)
    table, _ = write_shards(frame_file, tmp_path / "out", memory=LIMIT)
    assert_same(table, read_interactions(frame_file))


@pytest.mark.parametrize("name", ["bucket-001.arrow", "rows-0.arrow"])
def test_temporary_files_that_are_not_whole(
    tmp_path: Path, frame_file: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A stream of batches that was cut between two batches looks like a whole one."""
    monkeypatch.setattr(shard_spill, "_BUCKET_ROWS", 3000 if "bucket" in name else 10**6)
    with monkeypatch.context() as patch:
        patch.setattr(ShardFile, "add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write_shards(frame_file, tmp_path / "out", memory=LIMIT)
    path = tmp_path / ".out.idcf-shard" / name
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        empty = reader.schema.empty_table()
    with pa.ipc.new_stream(path, empty.schema) as writer:
        writer.write_table(empty)
    with pytest.raises(DataError, match="a temporary file is not whole; run it again"):
        write_shards(frame_file, tmp_path / "out", memory=LIMIT)
    table, _ = write_shards(frame_file, tmp_path / "out", memory=LIMIT)
    assert_same(table, read_interactions(frame_file))


def test_a_full_disk(tmp_path: Path, frame_file: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(DataError, match=r"out cannot be written \(.*\); make room or choose"):
            write_shards(frame_file, tmp_path / "out", memory=LIMIT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {x.name for x in tmp_path.iterdir()} == {"x.parquet"}


KILLED_RUNS = """
    import os, signal, sys
    from pathlib import Path
    from idcf.data import shard_spill
    from idcf.data.shard_writer import write_shards

    shard_spill._BUCKET_ROWS = 8_000
    source, folder = map(Path, sys.argv[1:])
    work = folder.with_name(f".{folder.name}.idcf-shard")
    steps = set()

    def run():
        child = os.fork()
        if not child:
            write_shards(source, folder, n_shards=8, block_users=128, memory=8 << 30)
            os._exit(0)
        return child

    def step():  # what the runs have done
        try:
            names = {x.name for x in work.iterdir()}
            files = len(list((work / "out").glob("shard*")))
        except FileNotFoundError:  # not begun, or finished
            return None
        stages = [x for x in ("spill.json", "bucket-000.arrow", "journal.json") if x in names]
        return (*stages, files)

    has_ended = False
    while not has_ended:  # each run is killed at the first step that none before it reached
        child = run()
        while (state := step()) is None or state in steps or len(steps) == 6:
            if has_ended := os.waitpid(child, os.WNOHANG)[0] == child:
                break
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            steps.add(state)
    print(len(steps))
"""


def test_killed_runs_continue_and_give_the_same_bytes(tmp_path: Path) -> None:
    parquet.write_table(random_frame(60_000, text=True), tmp_path / "x.parquet")
    write_shards(
        tmp_path / "x.parquet", tmp_path / "whole", n_shards=8, block_users=128, memory=LIMIT
    )
    arguments = [textwrap.dedent(KILLED_RUNS), str(tmp_path / "x.parquet"), str(tmp_path / "out")]
    result = subprocess.run(
        [sys.executable, "-c", *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 3  # moments at which runs were killed
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    write_shards(
        tmp_path / "x.parquet", tmp_path / "out", n_shards=8, block_users=128, memory=LIMIT
    )
    assert {x.name for x in tmp_path.iterdir()} == {"x.parquet", "whole", "out"}


MEASURED_RUN = """
    import re, sys
    from pathlib import Path
    from idcf.data import shard_source, shard_writer

    def memory(name):
        return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

    shard_writer._load_libraries()
    limit = memory("VmRSS") + (92 << 20)
    table, _ = shard_writer.write_shards(sys.argv[1], sys.argv[2], memory=limit)
    print(table.n_rows, limit, memory("VmHWM"))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_table_larger_than_the_memory(tmp_path: Path) -> None:
    """116 MB of columns are sorted in 92 MiB beyond what the program takes without data."""
    rng = np.random.default_rng(0)
    path, n_rows = tmp_path / "x.parquet", 4_140_000
    with parquet.ParquetWriter(path, PLAIN_SCHEMA) as writer:
        for _ in range(23):
            n = n_rows // 23
            columns = [rng.integers(0, 10**6, n), rng.integers(0, 5000, n)]
            columns += [rng.integers(1, 6, n).astype(np.float32), rng.integers(0, 10**9, n)]
            writer.write_table(pa.table(columns, PLAIN_SCHEMA))
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(MEASURED_RUN)]
    result = subprocess.run(
        [*command, str(path), str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    n_written, limit, peak = map(int, result.stdout.split())
    assert n_rows * 0.99 < n_written <= n_rows
    assert peak < limit


PLAIN_SCHEMA = pa.schema(
    {"user_id": pa.int64(), "item_id": pa.int64(), "rating": pa.float32(), "timestamp": pa.int64()}
)


def test_damaged_folders(tmp_path: Path, frame_file: Path) -> None:
    out = tmp_path / "out"
    table = shard(frame_file, out, block_users=300, n_shards=3)
    path = out / table.shards[1].file
    data = path.read_bytes()
    path.write_bytes(data[:3000] + bytes([data[3000] ^ 1]) + data[3001:])
    with pytest.raises(DataError, match=r"damaged folder .* \(shard-00001.parquet has another che"):
        ShardedTable.open(out).verify()
    path.write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"\(shard-00001.parquet is .* bytes, not .* bytes\); writ"):
        ShardedTable.open(out)
    path.unlink()
    with pytest.raises(DataError, match=r"\(shard-00001.parquet is missing, not"):
        read_interactions(out)
    text = (out / "manifest.json").read_text()
    for change, message in (
        (text.replace('"n_users": 2000', '"n_users": "x"'), "manifest.json, n_users: "),
        (text.replace('"n_users": 2000', '"n_users": 9000'), "numbers of its manifest contradict"),
        (text.replace("shards-1", "shards-2"), "format 'idcf-shards-2', but this version reads"),
        (text[:-40], "manifest.json cannot be read"),
    ):
        (out / "manifest.json").write_text(change)
        with pytest.raises(DataError, match=message):
            ShardedTable.open(out)
    (out / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"no manifest.json, so it is no finished folder of shards"):
        ShardedTable.open(out)


def test_tables_are_pickled_by_their_path(tmp_path: Path, frame_file: Path) -> None:
    table = shard(frame_file, tmp_path / "out", block_users=300)
    _ = table.items, table.read_block(0)
    data = pickle.dumps(table)
    assert len(data) < 3000
    assert_same_blocks(pickle.loads(data), table)
    for index in (-1, table.n_blocks):
        with pytest.raises(IndexError):
            table.read_block(index)


def test_users_without_rows_have_empty_rows_in_a_block() -> None:
    from idcf.data.interactions import Vocab

    table = Interactions(
        Vocab("abcde"),
        Vocab("xy"),
        np.array([3, 0, 3]),
        np.array([1, 1, 0]),
        np.array([4, 2, 3], np.float32),
    )
    blocks = TableBlocks(table, 3)
    assert blocks.n_blocks == 2
    first, last = blocks.read_block(0), blocks.read_block(1)
    assert first.offsets.tolist() == [0, 1, 1, 1]
    assert last.offsets.tolist() == [0, 2, 2]
    assert last.items.tolist() == [0, 1]
    assert last.ratings is not None
    assert last.ratings.tolist() == [3, 4]
    assert blocks.rating_sum == 9
    assert_blocks(blocks)
