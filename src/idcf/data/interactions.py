"""An immutable table of (user, item, rating, time), and the map from outside ids to rows.

Knows nothing of files or formats: `parsers` reads those and comes here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idcf.errors import DataError
from idcf.types import Domain, History, Users

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]


class Vocab:
    """Two-way map between outside ids (all strings or all integers) and 0..n-1."""

    def __init__(self, ids: Sequence[Hashable]) -> None:
        self.ids = tuple(ids)
        self._row = {x: i for i, x in enumerate(self.ids)}
        if len(self._row) != len(self.ids):
            raise DataError(f"{len(self.ids) - len(self._row)} duplicate ids in vocabulary")

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocab) and self.ids == other.ids

    def __hash__(self) -> int:
        return hash(self.ids)

    def row(self, x: Hashable, missing: int = -1) -> int:
        """Row of an id; `missing` where it was never seen."""
        return self._row.get(x, missing)

    def rows(self, ids: Iterable[Hashable]) -> Ints:
        get = self._row.get
        return np.fromiter((get(x, -1) for x in ids), np.int64)


def encode(values: NDArray[Any]) -> tuple[Vocab, Ints]:
    """Rows of a column of ids, and the map back: sorted, so file order does not matter."""
    ids, rows = np.unique(values, return_inverse=True)
    return Vocab(ids.tolist()), rows.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Interactions:
    """Columns of equal length. Rows are selected by `where`, never copied by hand."""

    users: Vocab
    items: Vocab
    user: Ints
    item: Ints
    rating: Floats  # 1 everywhere for implicit feedback
    time: Ints | None = None
    implicit: bool = False
    user_features: Floats | None = None  # [U, F]
    item_features: Floats | None = None  # [I, F]

    @classmethod
    def from_columns(
        cls,
        user: NDArray[Any],
        item: NDArray[Any],
        rating: NDArray[Any] | None = None,
        time: NDArray[Any] | None = None,
    ) -> Self:
        """From columns of outside ids that were checked before. No `rating`: implicit feedback."""
        if len(user) == 0:
            raise DataError("no interactions given")
        users, u = encode(user)
        items, i = encode(item)
        implicit = rating is None
        value = np.ones(len(u), np.float32) if rating is None else rating.astype(np.float32)
        return cls(users, items, u, i, value, None if time is None else time, implicit)

    def __len__(self) -> int:
        return len(self.user)

    def __repr__(self) -> str:
        kind = "implicit" if self.implicit else "explicit"
        return (
            f"<Interactions {len(self.users):,} users x {len(self.items):,} items, "
            f"{len(self):,} rows, {kind}>"
        )

    def where(self, mask: Mask | Ints) -> Self:
        """The rows that a mask or an index selects."""
        time = None if self.time is None else self.time[mask]
        return replace(
            self, user=self.user[mask], item=self.item[mask], rating=self.rating[mask], time=time
        )

    def had(self) -> Self:
        """Who had what, and not how they rated it."""
        return replace(self, rating=np.ones_like(self.rating), implicit=True)

    def of(self, users: Ints) -> Self:
        """The rows of these users."""
        chosen = np.zeros(len(self.users), bool)
        chosen[users] = True
        return self.where(chosen[self.user])

    def plus(self, other: Interactions) -> Self:
        """Both tables in one; they must share their vocabularies."""
        if self.users is not other.users or self.items is not other.items:
            raise DataError("only tables of one vocabulary can be joined")
        both = self.time is not None and other.time is not None
        join = np.concatenate
        return replace(
            self,
            user=join([self.user, other.user]),
            item=join([self.item, other.item]),
            rating=join([self.rating, other.rating]),
            time=join([self.time, other.time]) if both else None,
        )

    def counts(self) -> Ints:
        """Rows of each user."""
        return np.bincount(self.user, minlength=len(self.users))

    def item_counts(self) -> Ints:
        return np.bincount(self.item, minlength=len(self.items))

    @cached_property
    def by_user(self) -> tuple[Ints, Ints]:
        """Stable order of the rows by user, and where each user starts."""
        return group(self.user, len(self.users))

    def history(self, users: Ints) -> History:
        """What each of these users did, in table order; empty for user -1."""
        order, start = self.by_user
        index, offsets = ragged(
            start[users], np.where(users < 0, 0, start[users + 1] - start[users])
        )
        rows = order[index]
        return History(
            torch.from_numpy(self.item[rows]),
            torch.from_numpy(self.rating[rows]),
            torch.from_numpy(offsets),
        )

    def people(self, users: Ints) -> Users:
        """These users, with all that is known of them."""
        return Users(torch.from_numpy(users), self.history(users), self.features_of(users))

    def features_of(self, users: Ints) -> Tensor | None:
        """[B, F]; nothing is known of user -1."""
        if self.user_features is None:
            return None
        known = self.user_features[users].astype(np.float32, copy=False)  # a copy, as indexed
        known[users < 0] = 0
        return torch.from_numpy(known)

    def domain(self) -> Domain:
        order, start = group(self.item, len(self.items))
        raters = History(
            torch.from_numpy(self.user[order]),
            torch.from_numpy(self.rating[order]),
            torch.from_numpy(start),
        )
        return Domain(
            n_users=len(self.users),
            n_items=len(self.items),
            mean=0.0 if self.implicit else float(self.rating.mean(dtype=np.float64)),
            levels=(1.0,) if self.implicit else tuple(np.unique(self.rating).tolist()),
            implicit=self.implicit,
            raters=raters,
            n_user_features=0 if self.user_features is None else self.user_features.shape[1],
            item_features=None
            if self.item_features is None
            else torch.from_numpy(self.item_features.astype(np.float32)),
        )


def group(keys: Ints, n: int) -> tuple[Ints, Ints]:
    """Stable order of rows by key, and where each of n keys starts [n + 1]."""
    start = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=n))])
    return np.argsort(keys, kind="stable"), start


def ragged(start: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Index of the slices start[b] : start[b] + length[b] laid end to end, and their offsets."""
    offsets = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    index = np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], length)
    return index, offsets
