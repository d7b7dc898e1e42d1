"""Histories of many users as arrays, laid end to end, translated without a loop over users.

The result is that of `HistoryReader.read_pairs`, which reads the chunks with values that need a
closer look, such as a missing rating.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from idcf.data.columns import ColumnOrigin
from idcf.data.history_reader import HistoryReader, NewUser, read_times
from idcf.data.interactions import Floats, Ints, offsets_from_lengths
from idcf.data.parquet_reader import UnusualValue, checked_times
from idcf.data.user_chunks import UserChunk
from idcf.errors import DataError
from idcf.types import History, Users

_ORIGIN = ColumnOrigin("history")


class HistoryArrays(NamedTuple):
    """Histories of n users; items that the model does not know are left out."""

    user_ids: Any  # Arrow array [n], as in the file
    offsets: Ints  # [n + 1]: where the items of each user start
    item_rows: Ints  # [N]: rows of the catalogue, ascending and distinct within a user
    values: Floats  # [N]: ratings, or 1 for implicit feedback
    n_later: Ints | None  # [N]: items of the history that are later; None: not needed
    n_unknown_items: Ints  # [n]: rows of items that the model does not know

    @property
    def lengths(self) -> Ints:
        """Number of known items of each user, [n]."""
        return np.diff(self.offsets)

    def as_users(self) -> Users:
        """Return the users as models expect them."""
        arrays = (self.item_rows, self.values, self.offsets)
        return Users(
            torch.full((len(self.offsets) - 1,), -1), History(*map(torch.from_numpy, arrays))
        )

    def new_users(self, positions: Ints) -> list[NewUser]:
        """Return some of the users one by one, as views."""
        out, starts, stops = [], self.offsets[positions], self.offsets[positions + 1]
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            n_later = None if self.n_later is None else self.n_later[start:stop]
            items, values = self.item_rows[start:stop], self.values[start:stop]
            out.append(NewUser(items, values, n_later=n_later))
        return out

    def select(self, positions: Ints) -> HistoryArrays:
        """Return some of the users, in ascending order."""
        lengths = self.lengths
        if len(positions) == len(lengths):
            return self
        is_selected = np.zeros(len(lengths), np.bool_)
        is_selected[positions] = True
        rows = np.repeat(is_selected, lengths)
        return HistoryArrays(
            None,
            offsets_from_lengths(lengths[positions]),
            self.item_rows[rows],
            self.values[rows],
            None if self.n_later is None else self.n_later[rows],
            self.n_unknown_items[positions],
        )


class ChunkReader:
    """Translates chunks of a history file. `item_ids` are those of a folder of `idcf shard`, whose
    items are numbers; None: the items are ids."""

    def __init__(
        self, reader: HistoryReader, item_ids: Sequence[Any] | None, *, reads_order: bool
    ) -> None:
        self.reader, self.item_ids, self.reads_order = reader, item_ids, reads_order
        self._row_of_number = None if item_ids is None else reader.rows_of(item_ids)

    def read(self, chunk: UserChunk) -> HistoryArrays:
        """Translate a chunk; raises DataError for a rating or a time that cannot be used."""
        try:
            return self._read_arrays(chunk)
        except UnusualValue:
            return self._read_pairs(chunk)

    def _read_arrays(self, chunk: UserChunk) -> HistoryArrays:
        """Translate all users at once; raises UnusualValue."""
        lengths = np.diff(chunk.offsets)
        rows, owner = self._item_rows(chunk.items), np.repeat(np.arange(len(lengths)), lengths)
        is_known = rows >= 0
        n_unknown = np.bincount(owner[~is_known], minlength=len(lengths))
        order = np.flatnonzero(is_known)
        key = owner[order] * len(self.reader.item_ids) + rows[order]
        by_key = np.argsort(key, kind="stable")
        order, key = order[by_key], key[by_key]
        is_last = np.ones(len(key), np.bool_)  # of the rows of one user and item
        is_last[:-1] = key[1:] != key[:-1]
        values = self._values(chunk, order)
        order = order[is_last]
        owner = owner[order]
        return HistoryArrays(
            chunk.user_ids,
            offsets_from_lengths(np.bincount(owner, minlength=len(lengths))),
            rows[order],
            values[is_last],
            self._count_later(chunk, order, owner) if self.reads_order else None,
            n_unknown,
        )

    def _item_rows(self, items: Any) -> Ints:
        """Return the row of each item; -1: the model does not know it."""
        numbers, row_of_number = items, self._row_of_number
        if row_of_number is None:
            encoded = items.dictionary_encode()
            row_of_number = self.reader.rows_of([*encoded.dictionary.to_pylist(), None])
            numbers = encoded.indices.fill_null(len(row_of_number) - 1)
        rows: Ints = row_of_number[numbers.to_numpy()]
        return rows

    def _values(self, chunk: UserChunk, order: Ints) -> Floats:
        """Return the ratings of some rows; raises UnusualValue if one of them cannot be used."""
        from pyarrow import types

        if self.reader.implicit:
            return np.ones(len(order), np.float32)
        kind = chunk.ratings.type
        if not (types.is_integer(kind) or types.is_floating(kind)) or chunk.ratings.null_count:
            raise UnusualValue
        ratings: NDArray[np.float64] = chunk.ratings.to_numpy()[order].astype(np.float64)
        low, high = self.reader.rating_limits
        if not ((ratings >= low) & (ratings <= high) & np.isfinite(ratings)).all():
            raise UnusualValue
        return ratings.astype(np.float32)

    def _count_later(self, chunk: UserChunk, order: Ints, owner: Ints) -> Ints:
        """Return how many items of a history are later than each one: by the times of the rows or,
        without any, by their places."""
        if chunk.times is None and self.item_ids is not None:
            raise DataError(
                "recency needs the order of the histories, and these shards have no column "
                "timestamp: write them from a table with one, or leave out --recency"
            )
        times = order if chunk.times is None else checked_times(chunk.times, _ORIGIN)[order]
        by_time = np.lexsort((times, owner))
        sorted_owner, sorted_times = owner[by_time], times[by_time]
        is_end = np.ones(len(order), np.bool_)  # of a run of equal times of a user
        is_end[:-1] = (sorted_owner[1:] != sorted_owner[:-1]) | (
            sorted_times[1:] != sorted_times[:-1]
        )
        run_ends = np.flatnonzero(is_end)
        run_end = np.repeat(run_ends, np.diff(run_ends, prepend=-1))
        user_end = np.searchsorted(sorted_owner, sorted_owner, "right")
        n_later = np.empty(len(order), np.int64)
        n_later[by_time] = user_end - 1 - run_end
        return n_later

    def _read_pairs(self, chunk: UserChunk) -> HistoryArrays:
        """Translate one user after the other."""
        ids = chunk.items.to_pylist()
        if self.item_ids is not None:
            ids = [self.item_ids[x] for x in ids]
        ratings = [1.0] * len(ids) if self.reader.implicit else chunk.ratings.to_pylist()
        times = chunk.times.to_pylist() if self.reads_order and chunk.times is not None else None
        new_users, n_unknown = [], []
        for start, stop in zip(
            chunk.offsets[:-1].tolist(), chunk.offsets[1:].tolist(), strict=True
        ):
            known = [k for k in range(start, stop) if self.reader.knows_item(ids[k])]
            seconds = read_times([times[k] for k in known]) if times and known else None
            new_users.append(self.reader.read_pairs([(ids[k], ratings[k]) for k in known], seconds))
            n_unknown.append(stop - start - len(known))
        return HistoryArrays(
            chunk.user_ids,
            offsets_from_lengths([len(x.item_rows) for x in new_users]),
            _join([x.item_rows for x in new_users], np.int64),
            _join([x.values for x in new_users], np.float32),
            _join([x.n_later for x in new_users], np.int64) if self.reads_order else None,
            np.array(n_unknown, np.int64),
        )


def _join(arrays: Sequence[Any], dtype: Any) -> Any:
    """Return arrays one after the other."""
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
