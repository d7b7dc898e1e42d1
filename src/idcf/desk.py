"""A model ready to answer: ids in, ids out. What `Recommender` and the server both stand on.

Reads histories, asks the index, names what it found. Knows no training and no HTTP.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from idcf.artifact import Artifact
from idcf.data.histories import Read, Reader, as_users, ragged
from idcf.data.interactions import Floats, Ints
from idcf.errors import DataError
from idcf.index import Exact, best_of
from idcf.types import Users

NEVER = float("-inf")
_FEW = 6  # up to so many are answered sooner one by one: a pass has a price of its own
POPULAR = "popular"  # where nothing is known of a person, whatever the model
FEATURES = "features"  # where nothing is known of what they did, but something else is
_NO_FEATURES = "features: the model was trained without any; fit it with users=, or leave them out"


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


class Answers(list[Recommendations]):
    """A plain list, one answer for each person asked about."""

    def to_table(self) -> Any:
        """An Arrow table of user_id, item_id, score, rank, std, source; best first for each
        person. People without a name are numbered from 0."""
        import pyarrow as pa

        who = [n if x.user_id is None else x.user_id for n, x in enumerate(self) for _ in x]
        rows = [x for answer in self for x in answer]
        return pa.table(
            {
                "user_id": pa.array(who),
                "item_id": pa.array([x.item_id for x in rows]),
                "score": pa.array([x.score for x in rows], pa.float32()),
                "rank": pa.array([x.rank for x in rows], pa.int32()),
                "std": pa.array([x.std for x in rows], pa.float32()),
                "source": pa.array([x.source for x in rows], pa.string()),
            }
        )


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
        self.source, self.features = found.model.source, found.manifest.user_features
        self.reader = Reader(
            found.items, implicit=world.implicit, levels=world.levels, titles=found.titles
        )

    def read(self, history: Any, features: Mapping[str, Any] | None = None) -> Read:
        """All that a newcomer tells of themselves."""
        read = self.reader.one(history)
        if features is None:
            return read
        if self.features is None:
            raise DataError(_NO_FEATURES)
        return read._replace(features=self.features.one(features))

    def reads(self, histories: Any, features: Any = None) -> tuple[list[Hashable], list[Read]]:
        """The same of many: `features` is a list, one dict for each of a list of histories."""
        if features is None:
            return self.reader.many(histories)
        if not isinstance(histories, list) or not isinstance(features, Sequence):
            raise DataError("features of many go with a list of histories: a list of dicts")
        if len(features) != len(histories):
            raise DataError(f"features are {len(features)}, but there are {len(histories)} people")
        both = zip(histories, features, strict=True)
        return [None] * len(histories), [self.read(*x) for x in both]

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
        scores = self.index.one(read.rows, read.values, read.features)
        if filters.only is not None:
            kept = np.full_like(scores, NEVER)
            kept[filters.only] = scores[filters.only]
            scores = kept
        if filters.seen:
            scores[read.rows] = NEVER
        if filters.never is not None:
            scores[filters.never] = NEVER
        rows = best_of(scores, n)
        source = self._source(len(read.rows), read.features)
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
                source=self._source(len(x.read.rows), x.read.features),
            )
            for x, rows, scores in lists
        ]

    def many(self, users: Users, n: int, filters: Filters, who: Sequence[Hashable]) -> Answers:
        """All of them in one pass, with the same filters."""
        skip = users.history if filters.seen else None
        only, never = (None if x is None else torch.from_numpy(x) for x in filters[:2])
        found = self.index.top(users, n, skip, only, never)
        told = users.history.lengths().tolist()
        known = [None] * len(who) if users.features is None else users.features.numpy()
        lists = zip(found.rows.tolist(), found.scores.tolist(), who, told, known, strict=True)
        return Answers(
            self.listed(rows, scores, (), user, self._source(length, features))
            for rows, scores, user, length, features in lists
        )

    def _source(self, length: int, features: Floats | None) -> str:
        if length:
            return self.source
        return POPULAR if features is None or not features.any() else FEATURES

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
