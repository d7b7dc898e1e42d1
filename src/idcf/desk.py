"""A model ready to answer: ids in, ids out. What `Recommender` and the server both stand on.

Reads histories, asks the index, names what it found. Knows no training and no HTTP.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from idcf.artifact import Artifact
from idcf.data.histories import Read, Reader, as_users, lookup, ragged
from idcf.data.interactions import Floats, Interactions, Ints
from idcf.errors import ColdUserError
from idcf.index import Exact, best_of
from idcf.types import Users

NEVER = float("-inf")
_FEW = 6  # up to so many are answered sooner one by one: a pass has a price of its own
POPULAR = "popular"  # where nothing is known of a person, whatever the model


class Recommendation(NamedTuple):
    item_id: Any
    score: float  # the expected rating, or the larger the better where there are no ratings
    rank: int  # 1 is the best
    title: str | None = None
    std: float | None = None  # of the score, from a model that has a posterior
    source: str = "relation"  # how it came about: posterior, relation, features, popular


class Recommendations(list[Recommendation]):
    """A plain list, best first. `unknown_items`: what in the history the model has never seen."""

    def __init__(
        self,
        rows: Iterable[Recommendation] = (),
        unknown_items: Sequence[Hashable] = (),
        user_id: Hashable = None,
    ) -> None:
        super().__init__(rows)
        self.unknown_items, self.user_id = tuple(unknown_items), user_id


class Reason(NamedTuple):
    """An item of the newcomer's own, and what their score of the item in question owes to it."""

    item_id: Any
    title: str | None
    rating: float
    effect: float  # the score with this item in the history, less the score without it


class Cohort(NamedTuple):
    """Key users who were listened to: never fewer than five, never a single person."""

    size: int
    weight: float  # their share of the attention
    likes: tuple[str, ...]  # titles (or ids) of what they have in common


class Explanation(NamedTuple):
    item_id: Any
    title: str | None
    score: float
    std: float | None = None
    reasons: tuple[Reason, ...] = ()  # the largest effect first
    cohorts: tuple[Cohort, ...] = ()


class Question(NamedTuple):
    """An item to ask a newcomer about."""

    item_id: Any
    title: str | None
    gain: float  # the larger, the more the answer is expected to tell


class Filters(NamedTuple):
    """Rows that may be recommended (None: all of them), and rows that may not."""

    only: Ints | None = None
    never: Ints | None = None
    seen: bool = True  # are the items of the history left out?


class Asked(NamedTuple):
    """One newcomer's question, translated."""

    read: Read
    n: int
    filters: Filters = Filters()


class Desk:
    """A frozen model with its catalogue."""

    def __init__(self, found: Artifact) -> None:
        world = found.manifest.domain
        self.index = Exact(found.model)
        self.ids, self.titles, self.world = found.items.ids, found.titles, world
        self.source = found.model.source
        self.reader = Reader(
            found.items, implicit=world.implicit, levels=world.levels, titles=found.titles
        )

    def embed(self, reads: Sequence[Read]) -> Floats:
        """Vectors of newcomers: [B, D]."""
        vectors: Floats = self.index.embed(as_users(reads)).vector.float().cpu().numpy()
        return vectors

    def filters(
        self, candidates: Iterable[Any] | None, exclude: Iterable[Any] | None, seen: bool = True
    ) -> Filters:
        only = None if candidates is None else self.reader.rows(candidates, "candidates")
        never = None if exclude is None else self.reader.rows(exclude, "exclude", strict=False)
        return Filters(only, never, seen)

    def one(self, asked: Asked) -> Recommendations:
        """The quick way, for one newcomer."""
        read, n, filters = asked
        scores = self.index.one(read.rows, read.values)
        if filters.only is not None:
            kept = np.full_like(scores, NEVER)
            kept[filters.only] = scores[filters.only]
            scores = kept
        if filters.seen:
            scores[read.rows] = NEVER
        if filters.never is not None:
            scores[filters.never] = NEVER
        rows = best_of(scores, n)
        source = self.source if len(read.rows) else POPULAR
        return self.listed(rows.tolist(), scores[rows].tolist(), read.unknown, source=source)

    def answer(self, asked: Sequence[Asked]) -> list[Recommendations]:
        """Many newcomers in one pass, each with an n and filters of their own."""
        alike = [x for x in asked if x.filters.only is None]
        if len(alike) < _FEW:
            return [self.one(x) for x in asked]
        together = iter(self._pass(alike))  # a choice of candidates is rare, and answered alone
        return [next(together) if x.filters.only is None else self.one(x) for x in asked]

    def _pass(self, asked: Sequence[Asked]) -> list[Recommendations]:
        people = as_users([x.read for x in asked])
        skip = people.history
        if any(x.filters.never is not None or not x.filters.seen for x in asked):
            skip = ragged([_barred(x) for x in asked])
        found = self.index.top(people, max(x.n for x in asked), skip)
        lists = zip(asked, found.rows.tolist(), found.scores.tolist(), strict=True)
        return [
            self.listed(
                rows[: x.n],
                scores[: x.n],
                x.read.unknown,
                source=self.source if len(x.read.rows) else POPULAR,
            )
            for x, rows, scores in lists
        ]

    def many(
        self, users: Users, n: int, filters: Filters, who: Sequence[Hashable]
    ) -> list[Recommendations]:
        """All of them in one pass, with the same filters."""
        skip = users.history if filters.seen else None
        only, never = (None if x is None else torch.from_numpy(x) for x in filters[:2])
        found = self.index.top(users, n, skip, only, never)
        told = users.history.lengths().tolist()
        lists = zip(found.rows.tolist(), found.scores.tolist(), who, told, strict=True)
        return [
            self.listed(rows, scores, (), user, self.source if length else POPULAR)
            for rows, scores, user, length in lists
        ]

    def known(
        self, table: Interactions, who: Sequence[Any], n: int, filters: Filters, least: int
    ) -> list[Recommendations]:
        """Lists for people of a table, who must have this many rows in it."""
        row = lookup(table.users)
        ids = np.array([row.get(x, -1) for x in who], np.int64)
        users = Users(torch.from_numpy(ids), table.history(ids))
        for x in np.flatnonzero(users.history.lengths().numpy() < least).tolist():
            raise ColdUserError(f"user {who[x]!r} was not trained on; pass their history= instead")
        inductive = self.index.model.inductive
        return self.many(users.anonymous() if inductive else users, n, filters, who)

    def listed(
        self,
        rows: list[int],
        scores: list[float],
        unknown: Sequence[Hashable] = (),
        user: Hashable = None,
        source: str = "relation",
    ) -> Recommendations:
        ids, titles, pairs = self.ids, self.titles, zip(rows, scores, strict=True)
        found = [
            Recommendation(ids[row], score, rank, titles[row], None, source)
            for rank, (row, score) in enumerate(pairs, 1)
            if score > NEVER
        ]
        return Recommendations(found, unknown, user)


def _barred(asked: Asked) -> Ints:
    """Rows that this newcomer must not be shown."""
    parts = [asked.read.rows] if asked.filters.seen else []
    if asked.filters.never is not None:
        parts.append(asked.filters.never)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
