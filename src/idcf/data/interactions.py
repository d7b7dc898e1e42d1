"""The table of interactions (user, item, rating, time) and the vocabularies of its ids.

Does not know files or formats: `readers` builds tables from those. Torch is imported by the methods
that return tensors, so that a command that lists or reads tables starts quickly.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idcf.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from idcf.types import Domain, History, Users

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Vocab:
    """Two-way map between external ids, all strings or all integers, and rows 0..n-1."""

    def __init__(self, ids: Sequence[Hashable]) -> None:
        self.ids = tuple(ids)
        self._row_by_id = {x: i for i, x in enumerate(self.ids)}
        if len(self._row_by_id) != len(self.ids):
            raise DataError(f"{len(self.ids) - len(self._row_by_id)} duplicate ids in vocabulary")

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocab) and self.ids == other.ids

    def __hash__(self) -> int:
        return hash(self.ids)

    def row(self, external_id: Hashable, missing: int = -1) -> int:
        """Row of an id, or `missing` if the id is not in the vocabulary."""
        return self._row_by_id.get(external_id, missing)

    def rows(self, ids: Iterable[Hashable]) -> Ints:
        """Row of each id, -1 for an id that is not in the vocabulary."""
        get = self._row_by_id.get
        return np.fromiter((get(x, -1) for x in ids), np.int64)


def row_lookup(vocab: Vocab) -> dict[Hashable, int]:
    """Row of every id, by the id as text and, where it is written as a number, as an integer."""
    rows: dict[Hashable, int] = {x: n for n, x in enumerate(vocab.ids)}
    for n, x in enumerate(vocab.ids):
        if not isinstance(x, str):
            rows.setdefault(str(x), n)
        elif len(x) < 20 and x.removeprefix("-").isdecimal() and str(int(x)) == x:  # not "007"
            rows.setdefault(int(x), n)
    return rows


def titles_by_row(items: Vocab, titles: Mapping[Any, str] | None) -> tuple[str | None, ...]:
    """Title of each item of a vocabulary, in row order; None where `titles` has none."""
    rows = row_lookup(items) if titles else {}
    title_by_row = {rows[x]: str(title) for x, title in (titles or {}).items() if x in rows}
    return tuple(map(title_by_row.get, range(len(items))))


def encode_ids(values: NDArray[Any]) -> tuple[Vocab, Ints]:
    """Vocabulary of a column of ids, in sorted order, and the row of each entry."""
    ids, rows = np.unique(values, return_inverse=True)
    return Vocab(ids.tolist()), rows.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Interactions:
    """Immutable table with one row per interaction.

    `users` and `items` are the vocabularies; `user` and `item` are the columns, which hold rows of
    these vocabularies. A vocabulary may hold users or items without interactions.
    """

    users: Vocab  # U ids
    items: Vocab  # I ids
    user: Ints  # [rows], 0..U-1
    item: Ints  # [rows], 0..I-1
    rating: Floats  # [rows]; 1 everywhere for implicit feedback
    time: Ints | None = None  # [rows], seconds since 1970
    implicit: bool = False  # whether the feedback is implicit
    user_features: Floats | None = None  # [U, F]
    item_features: Floats | None = None  # [I, F]
    # how many features each column of the side table became; (): all belong together
    user_feature_widths: tuple[int, ...] = ()
    item_feature_widths: tuple[int, ...] = ()
    weight: Floats | None = None  # [rows], > 0: confidence of implicit feedback; None: all equal

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        kind = "implicit" if self.implicit else "explicit"
        return (
            f"<Interactions {len(self.users):,} users x {len(self.items):,} items, "
            f"{len(self):,} rows, {kind}>"
        )

    def where(self, mask: Mask | Ints) -> Self:
        """The table of the rows that a mask or an index selects; vocabularies are not reduced."""
        return replace(
            self,
            user=self.user[mask],
            item=self.item[mask],
            rating=self.rating[mask],
            time=None if self.time is None else self.time[mask],
            weight=None if self.weight is None else self.weight[mask],
        )

    def as_implicit(self) -> Self:
        """The table as implicit feedback: every rating becomes 1."""
        return replace(self, rating=np.ones_like(self.rating), implicit=True)

    def weights_raised_to(self, power: float) -> Self:
        """The table with each weight w as w^power, scaled to a mean of 1; without weights for 0."""
        if self.weight is None or not power:
            return replace(self, weight=None)
        weight = self.weight.astype(np.float64) ** power
        return replace(self, weight=(weight / weight.mean()).astype(np.float32))

    def user_mask(self, users: Ints) -> Mask:
        """Which users are among these, [U]."""
        mask = np.zeros(len(self.users), bool)
        mask[users] = True
        return mask

    def for_users(self, users: Ints) -> Self:
        """The table of the rows of these users."""
        return self.where(self.user_mask(users)[self.user])

    def concat(self, other: Interactions) -> Self:
        """The rows of this table, then those of `other`, which must share both vocabularies."""
        if self.users is not other.users or self.items is not other.items:
            raise DataError("only tables of one vocabulary can be joined")
        has_time = self.time is not None and other.time is not None
        has_weight = self.weight is not None or other.weight is not None
        join = np.concatenate
        return replace(
            self,
            user=join([self.user, other.user]),
            item=join([self.item, other.item]),
            rating=join([self.rating, other.rating]),
            time=join([self.time, other.time]) if has_time else None,
            weight=join([x.row_weights() for x in (self, other)]) if has_weight else None,
        )

    def row_weights(self) -> Floats:
        """Weight of each row, 1 where the table has no weights."""
        return np.ones(len(self), np.float32) if self.weight is None else self.weight

    def user_counts(self) -> Ints:
        """Number of rows of each user, [U]."""
        return np.bincount(self.user, minlength=len(self.users))

    def item_counts(self) -> Ints:
        """Number of rows of each item, [I]."""
        return np.bincount(self.item, minlength=len(self.items))

    @cached_property
    def rows_by_user(self) -> tuple[Ints, Ints]:
        """Table rows ordered by user, and the start of each user in that order, [U + 1]."""
        return group_rows_by_key(self.user, len(self.users))

    def history(self, users: Ints) -> History:
        """Return the histories of users, given as rows of `users` or -1 for an empty history.

        The entries of each user are in the order of the table's rows.
        """
        import torch

        from idcf.types import History

        order, start = self.rows_by_user
        lengths = np.where(users < 0, 0, start[users + 1] - start[users])
        index, offsets = slice_index(start[users], lengths)
        rows = order[index]
        return History(
            torch.from_numpy(self.item[rows]),
            torch.from_numpy(self.rating[rows]),
            torch.from_numpy(offsets),
        )

    def times_of(self, users: Ints) -> list[Ints] | None:
        """Times of the entries of `history` of each of `users`, who have rows; None: no times."""
        if self.time is None:
            return None
        order, start = self.rows_by_user
        return [self.time[order[start[user] : start[user + 1]]] for user in users.tolist()]

    def build_users(self, users: Ints) -> Users:
        """These users with their histories and features, as models expect them."""
        import torch

        from idcf.types import Users

        return Users(torch.from_numpy(users), self.history(users), self.features_of(users))

    def features_of(self, users: Ints) -> Tensor | None:
        """Features of these users, [B, F], 0 for user -1; None if the table has no features."""
        import torch

        if self.user_features is None:
            return None
        # indexing with an array copies, so the table is not changed
        features = self.user_features[users].astype(np.float32, copy=False)
        features[users < 0] = 0
        return torch.from_numpy(features)

    @property
    def mean_rating(self) -> float:
        """Mean of the ratings; 0 for implicit feedback."""
        return 0.0 if self.implicit else float(self.rating.mean(dtype=np.float64))

    @property
    def rating_std(self) -> float:
        """Standard deviation of the ratings; 1 for implicit feedback, or without rows."""
        has_ratings = len(self) and not self.implicit
        return float(self.rating.std(dtype=np.float64)) if has_ratings else 1.0

    def domain(self) -> Domain:
        """Facts about this table that a model needs when it is built."""
        import torch

        from idcf.types import Domain, Ragged

        order, start = group_rows_by_key(self.item, len(self.items))
        raters = Ragged(
            torch.from_numpy(self.user[order]),
            torch.from_numpy(self.rating[order]),
            torch.from_numpy(start),
        )
        user_features, item_features = (
            None if x is None else torch.from_numpy(x.astype(np.float32))
            for x in (self.user_features, self.item_features)
        )
        return Domain(
            n_users=len(self.users),
            n_items=len(self.items),
            mean=self.mean_rating,
            levels=(1.0,) if self.implicit else tuple(np.unique(self.rating).tolist()),
            implicit=self.implicit,
            raters=raters,
            n_user_features=0 if self.user_features is None else self.user_features.shape[1],
            item_features=item_features,
            user_features=user_features,
            user_feature_widths=self.user_feature_widths,
            item_feature_widths=self.item_feature_widths,
            std=self.rating_std,
        )


def align_vocabularies(*tables: Interactions) -> list[Interactions]:
    """Return the tables, in order, with common vocabularies: the union of their ids. Raises
    DataError if ids are strings in one table and integers in another."""
    users = _merge_vocabularies("user", [t.users for t in tables])
    items = _merge_vocabularies("item", [t.items for t in tables])
    return [recode_ids(t, users, items) for t in tables]


def recode_ids(table: Interactions, users: Vocab, items: Vocab) -> Interactions:
    """The table with these vocabularies; raises DataError if one of them lacks an id of it."""
    user_rows = users.rows(table.users.ids)
    item_rows = items.rows(table.items.ids)
    for kind, rows, vocab in (("user", user_rows, table.users), ("item", item_rows, table.items)):
        for missing in np.flatnonzero(rows < 0)[:1]:
            external_id = vocab.ids[missing]
            raise DataError(f"{kind} {external_id!r} is not in the vocabulary it must be in")
    user, item = user_rows[table.user], item_rows[table.item]
    return replace(table, users=users, items=items, user=user, item=item)


def _merge_vocabularies(kind: str, vocabs: Sequence[Vocab]) -> Vocab:
    """Return the sorted union of vocabularies; raise DataError if ids mix strings and integers."""
    ids: list[Any] = list(set().union(*(v.ids for v in vocabs)))
    if len({isinstance(x, str) for x in ids}) > 1:
        raise DataError(f"{kind} ids are strings in one table and integers in the other")
    return Vocab(sorted(ids))


def offsets_from_lengths(lengths: ArrayLike) -> Ints:
    """Start of each of n ragged rows laid end to end, and the end of the last, int64 [n + 1]."""
    lengths = np.asarray(lengths, np.int64)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def group_rows_by_key(keys: Ints, n_keys: int) -> tuple[Ints, Ints]:
    """Stable order of the rows by key, and the start of each key in that order, [n_keys + 1]."""
    offsets = offsets_from_lengths(np.bincount(keys, minlength=n_keys))
    return np.argsort(keys, kind="stable"), offsets


def slice_index(start: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Index of the slices start[b] : start[b] + length[b] laid end to end, and their offsets."""
    offsets = offsets_from_lengths(length)
    index = np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], length)
    return index, offsets
