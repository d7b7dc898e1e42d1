"""Sort interactions by user and item in bounded memory, through temporary files.

Rows are checked and written to disk as they come (`spill_rows`), then distributed over buckets,
which are ranges of user ids (`distribute`), and each bucket is sorted in memory (`sort_bucket`).
Only the item vocabulary is held as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idcf.data.interactions import Floats, Ints, offsets_from_lengths
from idcf.data.parquet_reader import IdCodes
from idcf.data.shard_source import Rows
from idcf.errors import ConfigError

MAX_BUCKETS = 512
_BUCKET_ROWS = 1 << 21  # more rows are not sorted faster
_SORT_BYTES = 120  # memory per row of a bucket while it is sorted, without texts
_SORT_TEXT_BYTES = 40  # more per row with text ids
_SORT_TEXTS = 4  # the same per byte of text
_MAX_INTEGER = 10**18  # see `columns._INTEGER`
_SAMPLE_SIZE = 1 << 15
_PREFIX_BYTES = 64  # of a text id; users of one prefix are in one bucket
Progress = Callable[[int], object]  # called with a number of rows


@dataclass(frozen=True, kw_only=True)
class Spill:
    """What was written by `spill_rows`; plain values, for the journal."""

    files: tuple[str, ...]
    n_source_rows: int
    n_rows: int  # without those of weight 0
    n_items: int
    users_are_text: bool
    text_bytes: int  # of all user ids
    sample: tuple[Any, ...]  # some user ids, spaced evenly over the rows

    def bucket_bounds(self, memory: int) -> list[Any]:
        """Return the first user id of every bucket but the first, so that a bucket is sorted in
        `memory` bytes. Raises ConfigError if that takes too many buckets."""
        row_bytes = _SORT_BYTES + _SORT_TEXT_BYTES * self.users_are_text
        row_bytes += _SORT_TEXTS * self.text_bytes // max(self.n_rows, 1)
        n_buckets = -(-self.n_rows * row_bytes // memory)
        if n_buckets > MAX_BUCKETS:
            factor = n_buckets / MAX_BUCKETS
            raise ConfigError(
                f"{self.n_rows:,} rows cannot be sorted in this memory; give {factor:.1f} times as "
                "much (--memory)"
            )
        n_buckets = max(n_buckets, min(-(-self.n_rows // _BUCKET_ROWS), MAX_BUCKETS))
        ids = sorted(self.sample)
        bounds = [ids[len(ids) * n // n_buckets] for n in range(1, n_buckets)]
        return sorted(set(bounds))


@dataclass(frozen=True)
class SortedRows:
    """Rows sorted by user and item, each pair once, of users that are numbered in their order."""

    user_ids: Any  # Arrow array [U], ascending
    offsets: Ints  # [U + 1]: where the rows of each user start
    items: NDArray[np.int32]
    ratings: Floats | None
    times: Ints | None

    @property
    def n_users(self) -> int:
        """Number of users."""
        return len(self.user_ids)

    def users(self, start: int, stop: int | None = None) -> SortedRows:
        """Return the rows of the users `start` to `stop`, without a copy."""
        offsets = self.offsets[start : None if stop is None else stop + 1]
        rows = slice(int(offsets[0]), int(offsets[-1]))
        return SortedRows(
            self.user_ids[start:stop],
            offsets - offsets[0],
            self.items[rows],
            None if self.ratings is None else self.ratings[rows],
            None if self.times is None else self.times[rows],
        )

    @staticmethod
    def concat(parts: Sequence[SortedRows]) -> SortedRows:
        """Lay rows end to end; users of a part come after those of the part before it."""
        import pyarrow as pa

        ratings = [x.ratings for x in parts if x.ratings is not None]
        times = [x.times for x in parts if x.times is not None]
        return SortedRows(
            pa.concat_arrays([x.user_ids for x in parts]),
            offsets_from_lengths(np.concatenate([np.diff(x.offsets) for x in parts])),
            np.concatenate([x.items for x in parts]),
            np.concatenate(ratings) if ratings else None,
            np.concatenate(times) if times else None,
        )


def spill_rows(
    chunks: Iterable[Rows], folder: Path, *, implicit: bool, ids_are_text: bool, progress: Progress
) -> tuple[Spill, Any]:
    """Write rows to temporary files in `folder`, without those of weight 0 of implicit feedback.

    Returns what was written, and the item ids in the order of their codes, an Arrow array. Where
    `ids_are_text`, ids become integers if all of them are written so.
    """
    import pyarrow as pa

    items, sampler, files, n_source_rows, n_rows = IdCodes(0), _Sampler(), list[str](), 0, 0
    user_types, text_bytes = set[Any](), 0
    with ExitStack() as stack:
        writer = None
        for rows in chunks:
            n_source_rows += len(rows)
            codes = items.encode_chunk(rows.items)
            users = rows.users
            if ids_are_text and pa.string() not in user_types:
                users = _as_integers(users)
            mask = rows.ratings > 0 if implicit and rows.ratings is not None else None
            batch = _batch(users, codes, None if implicit else rows.ratings, rows.times)
            if mask is not None and not mask.all():
                batch = batch.filter(pa.array(mask))
            if users.type not in user_types:
                user_types.add(users.type)
                files.append(f"rows-{len(files)}.arrow")
                stack.close()
                writer = stack.enter_context(_open_writer(folder / files[-1], batch.schema))
            assert writer is not None
            writer.write_batch(batch)
            sampler.add(batch.column("user_id"))
            n_rows += len(batch)
            text_bytes += batch.column("user_id").nbytes
            progress(len(rows))
    ids = pa.array([], pa.string()) if items.ids is None else items.ids
    if ids_are_text:
        ids = _as_integers(ids)
    is_text = pa.string() in user_types
    spill = Spill(
        files=tuple(files),
        n_source_rows=n_source_rows,
        n_rows=n_rows,
        n_items=len(ids),
        users_are_text=is_text,
        text_bytes=text_bytes if is_text else 0,
        sample=sampler.ids(is_text),
    )
    return spill, ids


def sort_items(ids: Any) -> tuple[Any, NDArray[np.int32]]:
    """Return item ids in sorted order, and the place in it of each id as given."""
    from pyarrow import compute

    order = compute.sort_indices(ids)
    row_of_code = np.empty(len(ids), np.int32)
    row_of_code[order.to_numpy()] = np.arange(len(ids), dtype=np.int32)
    return ids.take(order), row_of_code


def distribute(spill: Spill, bounds: list[Any], folder: Path, progress: Progress) -> list[int]:
    """Distribute rows over the files of buckets, in their order; return the rows of each."""
    import pyarrow as pa

    counts = np.zeros(len(bounds) + 1, np.int64)
    keys = _sort_keys(pa.array(bounds, pa.string() if spill.users_are_text else pa.int64()))
    with ExitStack() as stack:
        writers: list[Any] = []
        for batch in read_spill(spill, folder):
            if not writers:
                paths = [folder / bucket_name(n) for n in range(len(counts))]
                writers = [stack.enter_context(_open_writer(x, batch.schema)) for x in paths]
            bucket = np.searchsorted(keys, _sort_keys(batch.column("user_id")), side="right")
            order = np.argsort(bucket.astype(np.uint16), kind="stable")
            sizes = np.bincount(bucket, minlength=len(counts))
            start, ordered = offsets_from_lengths(sizes), batch.take(pa.array(order))
            for n in np.flatnonzero(sizes):
                writers[n].write_batch(ordered.slice(start[n], sizes[n]))
            counts += sizes
            progress(len(batch))
    return [int(x) for x in counts]


def bucket_name(index: int) -> str:
    """Return the name of the file of a bucket."""
    return f"bucket-{index:03d}.arrow"


def read_spill(spill: Spill, folder: Path) -> Iterator[Any]:
    """Yield the record batches of a spill, all with user ids of one type."""
    import pyarrow as pa

    for name in spill.files:
        for batch in _read_batches(folder / name):
            users = batch.column("user_id")
            if spill.users_are_text and pa.types.is_integer(users.type):
                batch = batch.set_column(0, "user_id", users.cast(pa.string()))
            yield batch


def count_users(batches: Iterable[Any]) -> int:
    """Return the number of distinct users of a bucket."""
    import pyarrow as pa

    users = [x.column("user_id") for x in batches]
    return len(pa.chunked_array(users).unique()) if users else 0


def read_bucket(path: Path) -> Iterator[Any]:
    """Yield the record batches of a bucket."""
    return _read_batches(path)


def sort_bucket(batches: Iterable[Any], item_row_of_code: NDArray[np.int32]) -> SortedRows | None:
    """Sort the rows of a bucket. Of the rows of a (user, item) pair the last by time, where there
    are times, and then by position remains. None: there are no rows."""
    import pyarrow as pa

    parts = [x for x in batches if len(x)]
    if not parts:
        return None
    table = pa.Table.from_batches(parts)
    del parts
    users = table.column("user_id").combine_chunks()
    items = item_row_of_code[table.column("item").to_numpy()]
    ratings, times = (
        table.column(name).to_numpy() if name in table.column_names else None
        for name in ("rating", "timestamp")
    )
    del table
    order, is_new_user, is_last = _order_rows(users, items, len(item_row_of_code), times)
    user_ids = users.take(pa.array(order[is_new_user]))
    starts = np.flatnonzero(is_new_user)
    if not is_last.all():
        starts = offsets_from_lengths(is_last)[starts]
        order = order[is_last]
    return SortedRows(
        user_ids,
        np.append(starts, len(order)).astype(np.int64),
        items[order],
        None if ratings is None else ratings[order],
        None if times is None else times[order],
    )


def _order_rows(
    users: Any, items: NDArray[np.int32], n_items: int, times: Ints | None
) -> tuple[Ints, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the order of rows by user, item, time and position, in which rows a user begins, and
    which rows are the last of their pair."""
    keys = _user_ranks(users)
    n_keys = int(keys.max()) + 1
    row_bits = len(keys).bit_length()
    if n_keys * n_items < 2 ** (63 - row_bits):  # numbers are sorted faster than their order
        packed = ((keys * n_items + items) << row_bits) + np.arange(len(keys))
        packed.sort()
        order = packed & (2**row_bits - 1)
        keys = packed >> row_bits
        is_last = np.append(keys[1:] != keys[:-1], True)
        keys //= n_items
    else:
        order = np.lexsort((items, keys))
        keys = keys[order]
        ordered_items = items[order]
        is_last = np.append(
            (keys[1:] != keys[:-1]) | (ordered_items[1:] != ordered_items[:-1]), True
        )
    is_new_user = np.append(True, keys[1:] != keys[:-1])
    if times is not None and not is_last.all():
        pair = np.cumsum(is_last) - is_last
        repeated = np.flatnonzero(np.bincount(pair)[pair] > 1)
        rows = order[repeated]
        order[repeated] = rows[np.lexsort((times[rows], pair[repeated]))]
    return order, is_new_user, is_last


def _user_ranks(users: Any) -> Ints:
    """Return the rank of each user id among the distinct ones."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_integer(users.type):
        numbers: Ints = users.to_numpy()
        order = np.argsort(numbers)
        ordered = numbers[order]
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.append(0, np.cumsum(ordered[1:] != ordered[:-1]))
        return ranks
    encoded = users.dictionary_encode()
    order = compute.sort_indices(encoded.dictionary).to_numpy()
    rank_of_code = np.empty(len(order), np.int64)
    rank_of_code[order] = np.arange(len(order))
    ranked: Ints = rank_of_code[encoded.indices.to_numpy()]
    return ranked


def _as_integers(texts: Any) -> Any:
    """Return texts as int64 if every one is written as an integer, else the texts."""
    import pyarrow as pa
    from pyarrow import compute

    try:
        numbers = texts.cast(pa.int64())
    except pa.ArrowInvalid:
        return texts
    limits = compute.min_max(numbers).as_py()
    is_short = not len(numbers) or max(-limits["min"], limits["max"]) < _MAX_INTEGER
    return numbers if is_short and numbers.cast(pa.string()).equals(texts) else texts


def _sort_keys(ids: Any) -> NDArray[Any]:
    """Return NumPy keys in the order of ids: integers, or the first bytes of texts."""
    import pyarrow as pa

    if pa.types.is_integer(ids.type):
        integers: NDArray[Any] = ids.to_numpy()
        return integers
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    _, offsets_buffer, data = ids.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    lengths = np.minimum(np.diff(offsets), _PREFIX_BYTES)
    width = max(int(lengths.max(initial=0)), 1)
    prefix = np.zeros((len(ids), width), np.uint8)
    for column in range(width):
        is_within = lengths > column
        text = np.frombuffer(data, np.uint8)
        prefix[is_within, column] = text[offsets[:-1][is_within] + column]
    return prefix.view(f"S{width}").ravel()


def _batch(users: Any, items: Any, ratings: Floats | None, times: Ints | None) -> Any:
    """Return a record batch of the columns that there are."""
    import pyarrow as pa

    columns = {"user_id": users, "item": items, "rating": ratings, "timestamp": times}
    return pa.record_batch({name: pa.array(x) for name, x in columns.items() if x is not None})


class _Sampler:
    """Every n-th user id of the rows, where n doubles whenever there are too many."""

    def __init__(self) -> None:
        self._ids: list[Any] = []
        self._step, self._n_rows = 1, 0

    def add(self, users: Any) -> None:
        """Take ids from the next rows."""
        first = -self._n_rows % self._step
        self._n_rows += len(users)
        picked = np.arange(first, len(users), self._step)
        self._ids += users.take(picked).to_pylist()
        while len(self._ids) > _SAMPLE_SIZE:
            self._ids = self._ids[::2]
            self._step *= 2

    def ids(self, as_text: bool) -> tuple[Any, ...]:
        """Return the ids, as texts if the users have text ids."""
        return tuple(map(str, self._ids)) if as_text else tuple(self._ids)


def _open_writer(path: Path, schema: Any) -> Any:
    """Open a temporary file of record batches."""
    from pyarrow import ipc

    return ipc.new_stream(str(path), schema, options=ipc.IpcWriteOptions(compression="lz4"))


def _read_batches(path: Path) -> Iterator[Any]:
    """Yield the record batches of a temporary file."""
    import pyarrow as pa
    from pyarrow import ipc

    with pa.OSFile(str(path), "rb") as file, ipc.open_stream(file) as reader:
        yield from reader
