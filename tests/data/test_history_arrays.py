"""Histories of many users as arrays: what reading one user after the other gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from idcf import DataError
from idcf.data.history_arrays import ChunkReader, HistoryArrays
from idcf.data.history_reader import HistoryReader, as_users
from idcf.data.interactions import Vocab, offsets_from_lengths
from idcf.data.parquet_reader import UnusualValue
from idcf.data.user_chunks import UserChunk

ITEMS = [*range(100, 112)]


def random_chunk(seed: int, has_times: bool, as_text: bool = False) -> UserChunk:
    """Return users with repeated and unknown items, and equal times."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, 30)
    items = rng.integers(98, 114, lengths.sum()).tolist()
    return UserChunk(
        pa.array(range(30)),
        offsets_from_lengths(lengths),
        pa.array([str(x) for x in items] if as_text else items),
        pa.array(rng.integers(1, 6, len(items)).astype(np.float32)),
        pa.array(rng.integers(0, 5, len(items))) if has_times else None,
    )


def reader(implicit: bool = False) -> HistoryReader:
    return HistoryReader(Vocab(ITEMS), implicit=implicit, levels=(1.0, 5.0))


def assert_equal(first: HistoryArrays, second: HistoryArrays) -> None:
    assert first.user_ids.equals(second.user_ids)
    for name, a, b in zip(first._fields[1:], first[1:], second[1:], strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        assert a.dtype == b.dtype, name


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("has_times", [False, True])
@pytest.mark.parametrize("as_text", [False, True])
def test_arrays_are_those_of_single_histories(
    seed: int, implicit: bool, has_times: bool, as_text: bool
) -> None:
    chunk = random_chunk(seed, has_times, as_text)
    chunks = ChunkReader(reader(implicit), None, reads_order=True)
    arrays = chunks._read_arrays(chunk)
    assert_equal(arrays, chunks._read_pairs(chunk))
    assert arrays.n_unknown_items.sum() > 0
    assert len(arrays.item_rows) + arrays.n_unknown_items.sum() < len(chunk.items)  # repeated items


def test_numbers_of_shards_are_items() -> None:
    ids = [str(x) for x in (113, 105, 100, 7)]  # in the order of another vocabulary
    lengths = np.array([2, 4, 1])
    chunk = UserChunk(
        pa.array(["a", "b", "c"]), offsets_from_lengths(lengths),
        pa.array([1, 2, 0, 1, 2, 3, 3]), pa.array([1.0, 2, 3, 4, 5, 1, 2]), None,
    )  # fmt: skip
    chunks = ChunkReader(reader(), ids, reads_order=False)
    arrays = chunks.read(chunk)
    assert arrays.item_rows.tolist() == [0, 5, 0, 5]
    assert arrays.values.tolist() == [2, 1, 5, 4]
    assert arrays.n_unknown_items.tolist() == [0, 2, 1]
    assert arrays.lengths.tolist() == [2, 2, 0]
    slow = chunks._read_pairs(chunk)
    np.testing.assert_array_equal(slow.item_rows, arrays.item_rows)
    with pytest.raises(DataError, match="these shards have no column timestamp"):
        ChunkReader(reader(), ids, reads_order=True).read(chunk)


UNUSUAL: list[tuple[Any, str | None]] = [
    (pa.array([1.0, None, 3.0]), "item 101 has no rating"),
    (pa.array([1.0, 99.0, 3.0]), "outside the scale"),
    (pa.array([1.0, float("nan"), 3.0]), "not finite"),
    (pa.array(["1", "2", "3"]), None),
    (pa.array([1, 2, 3]).cast(pa.decimal128(25, 2)), None),
]


@pytest.mark.parametrize(("ratings", "message"), UNUSUAL)
def test_unusual_ratings_are_read_one_by_one(ratings: Any, message: str | None) -> None:
    items, offsets = pa.array([100, 101, 102]), np.array([0, 2, 3])
    chunk = UserChunk(pa.array([1, 2]), offsets, items, ratings, None)
    chunks = ChunkReader(reader(), None, reads_order=False)
    with pytest.raises(UnusualValue):
        chunks._read_arrays(chunk)
    if message is None:
        assert chunks.read(chunk).values.tolist() == [1, 2, 3]
    else:
        with pytest.raises(DataError, match=message):
            chunks.read(chunk)


def test_a_bad_rating_of_an_unknown_item_does_not_matter() -> None:
    items, ratings = pa.array([100, 7, None]), pa.array([1.0, 99.0, 2.0])
    chunk = UserChunk(pa.array([1]), np.array([0, 3]), items, ratings, None)
    arrays = ChunkReader(reader(), None, reads_order=False).read(chunk)
    assert (arrays.item_rows.tolist(), arrays.n_unknown_items.tolist()) == ([0], [2])


def test_missing_times_are_errors() -> None:
    items, ratings = pa.array([100, 101]), pa.array([1.0, 2.0])
    chunk = UserChunk(pa.array([1]), np.array([0, 2]), items, ratings, pa.array([5, None]))
    with pytest.raises(DataError, match="timestamp"):
        ChunkReader(reader(), None, reads_order=True).read(chunk)


def test_users_and_selections() -> None:
    chunk = random_chunk(2, True)
    arrays = ChunkReader(reader(), None, reads_order=True).read(chunk)
    new_users = arrays.new_users(np.arange(30))
    expected, users = as_users(new_users), arrays.as_users()
    for a, b in zip(expected.history, users.history, strict=True):
        assert a.equal(b)
    assert users.ids.equal(expected.ids)
    positions = np.array([1, 4, 29])
    selected = arrays.select(positions).new_users(np.arange(3))
    for a, b in zip(selected, [new_users[x] for x in positions], strict=True):
        np.testing.assert_array_equal(a.item_rows, b.item_rows)
        np.testing.assert_array_equal(a.n_later, b.n_later)
