"""A model ready to answer: ids in, ids out. What `Recommender` and the server both stand on.

Reads histories, asks the index, names what it found. Knows no training and no HTTP.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from idcf.data.history_reader import Read, Reader, as_users, ragged
from idcf.data.interactions import Floats, Ints
from idcf.data.side_tables import newcomer, newcomers
from idcf.errors import ConfigError
from idcf.inference.artifact import Artifact
from idcf.inference.kernels import Evidence
from idcf.inference.topk import Exact, Found, best_of
from idcf.inference.uncertainty import Sure
from idcf.models.bayes import Bayes
from idcf.results import Answers, Recommendation, Recommendations
from idcf.types import Users

__all__ = ["NEVER", "Asked", "Desk", "Filters", "Recommendations"]

NEVER = float("-inf")
_FEW = 8  # fewer are answered sooner one by one: a pass has a price of its own
_FEW_SURE = 2  # the same where it is said how sure the answers are: there is no quick way for one
POPULAR = "popular"  # where nothing is known of a person, whatever the model
FEATURES = "features"  # where nothing is known of what they did, but something else is


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
    std: bool = False  # say how sure each answer is, where the model knows


class Desk:
    """A frozen model with its catalogue."""

    def __init__(self, found: Artifact) -> None:
        world = found.manifest.domain
        self.index = Exact(found.model)
        self.ids, self.titles, self.world = found.items.ids, found.titles, world
        self.source, self.features = found.model.source, found.manifest.user_features
        self.posterior = Sure(found.model) if isinstance(found.model, Bayes) else None
        self.raters = None  # what to show somebody of whom nothing is known: what most people had
        if isinstance(found.model, Bayes):
            self.raters = found.model.raters.cpu().numpy()
        self.reader = Reader(
            found.items, implicit=world.implicit, levels=world.levels, titles=found.titles
        )

    def read(self, history: Any, features: Any = None) -> Read:
        """All that a newcomer tells of themselves."""
        return newcomer(self.reader, self.features, history, features)

    def reads(self, histories: Any, features: Any = None) -> tuple[list[Hashable], list[Read]]:
        """The same of many."""
        return newcomers(self.reader, self.features, histories, features)

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
        read, n, filters, std = asked
        scores = self.index.one(read.rows, read.values, read.features)
        order = scores if read.told or self.raters is None else self.raters.copy()
        if filters.only is not None:
            kept = np.full_like(order, NEVER)
            kept[filters.only] = order[filters.only]
            order = kept
        if filters.seen:
            order[read.rows] = NEVER
        if filters.never is not None:
            order[filters.never] = NEVER
        rows = best_of(order, n)
        sure = self._sure_of(read, rows).tolist() if std and self.posterior is not None else None
        return self.listed(rows.tolist(), scores[rows].tolist(), read, sure)

    def _sure_of(self, read: Read, rows: Ints) -> Floats:
        """How sure a posterior model is of these items of one person."""
        way = self.index.way
        if (
            self.posterior
            and isinstance(way, Evidence)
            and len(read.rows)
            and read.features is None
        ):
            return self.posterior.one(way, (read.rows, read.values), rows)
        found: Floats = self.deviations(as_users([read]), rows[None])[0]
        return found

    def answer(self, asked: Sequence[Asked]) -> list[Recommendations]:
        """Many newcomers in one pass, each with an n and filters of their own."""
        together = [x for x in asked if not self._alone(x)]
        sure = self.posterior is not None and any(x.std for x in together)
        if len(together) < (_FEW_SURE if sure else _FEW):
            return [self.one(x) for x in asked]
        found = iter(self._pass(together))
        return [self.one(x) if self._alone(x) else next(found) for x in asked]

    def _alone(self, asked: Asked) -> bool:
        """A choice of candidates is rare, and all of whom nothing is known see the same."""
        silent = not len(asked.read.rows) and self.raters is not None
        return silent or asked.filters.only is not None

    def _pass(self, asked: Sequence[Asked]) -> list[Recommendations]:
        people = as_users([x.read for x in asked])
        skip = people.history
        if any(x.filters.never is not None or not x.filters.seen for x in asked):
            skip = ragged([_barred(x) for x in asked])
        n = max(x.n for x in asked)
        sure: list[list[float] | None] = [None] * len(asked)
        if self.posterior is not None and any(x.std for x in asked):
            belief = self.posterior.believe(people)  # once, for both the list and how sure it is
            found = self.index.search(self.posterior.embed(people, belief), n, skip)
            sure = self.posterior(belief, found.rows).cpu().tolist()
        else:
            found = self.index.top(people, n, skip)
        lists = zip(asked, found.rows.tolist(), found.scores.tolist(), sure, strict=True)
        return [self.listed(r[: x.n], s[: x.n], x.read, y) for x, r, s, y in lists]

    def many(
        self, reads: Sequence[Read], n: int, filters: Filters, who: Sequence[Hashable], std: bool
    ) -> Answers:
        """All of them in one pass, with the same filters."""
        users = as_users(reads)
        answers = self.of_users(users, n, filters, who, std)
        for place, read in enumerate(reads):
            if not len(read.rows):  # all of whom nothing is known see the same
                found = self.one(Asked(read, n, filters, std))
                answers[place] = Recommendations(found, (), who[place])
            answers[place].unknown_items = read.unknown
        return answers

    def of_users(
        self, users: Users, n: int, filters: Filters, who: Sequence[Hashable], std: bool
    ) -> Answers:
        """The same of people with histories, who may be known by number."""
        skip = users.history if filters.seen else None
        only, never = (None if x is None else torch.from_numpy(x) for x in filters[:2])
        found = self.index.top(users, n, skip, only, never)
        sure = self._sure(users, found, std)
        lists = zip(found.rows.tolist(), found.scores.tolist(), sure, who, strict=True)
        return Answers(self.listed(r, s, None, y, user) for r, s, y, user in lists)

    def _sure(self, users: Users, found: Found, std: bool) -> list[list[float] | None]:
        """How sure each answer is, where that is asked for and the model knows."""
        if not std or self.posterior is None:
            return [None] * len(users)
        sure: list[list[float] | None] = self.deviations(users, found.rows.numpy()).tolist()
        return sure

    def deviations(self, users: Users, rows: Ints) -> Floats:
        """How sure a posterior model is of these items [B, K] of these people."""
        if self.posterior is None:
            raise ConfigError(no_posterior("a standard deviation", self.source))
        belief = self.posterior.believe(users)
        found: Floats = self.posterior(belief, torch.from_numpy(rows)).cpu().numpy()
        return found

    def listed(
        self,
        rows: list[int],
        scores: list[float],
        read: Read | None = None,
        std: list[float] | None = None,
        user: Hashable = None,
    ) -> Recommendations:
        """What is told: of a person who was read, or who is known to have a history."""
        source, ids, titles = self.source, self.ids, self.titles
        deviation: Sequence[float | None] = std or [None] * len(rows)
        if read is not None and not len(read.rows):
            source = FEATURES if read.told else POPULAR
        found = [
            Recommendation(ids[row], score, rank, titles[row], sure, source)
            for rank, (row, score, sure) in enumerate(zip(rows, scores, deviation, strict=True), 1)
            if score > NEVER
        ]
        return Recommendations(found, () if read is None else read.unknown, user)

    def predict(self, read: Read, items: Iterable[Any], sure: bool) -> tuple[Floats, Floats]:
        """Scores and, if asked, standard deviations of some items for one newcomer."""
        rows = [self.reader.row(x) for x in items]
        std = self._sure_of(read, np.array(rows)) if sure else np.empty(0)
        scores = self.index.one(read.rows, read.values, read.features)[rows]
        return scores, std.astype(np.float32)

    def similar(self, item: Any, n: int) -> Recommendations:
        """The items most like this one; the score is their likeness."""
        row = self.reader.row(item)
        scores = self.index.similar(row)
        scores[row] = NEVER
        rows = best_of(scores, n)
        return self.listed(rows.tolist(), scores[rows].tolist())


def no_posterior(what: str, source: str) -> str:
    return f"{what} needs a posterior model such as idcf-bayes; this one's answers are {source!r}"


def _barred(asked: Asked) -> Ints:
    """Rows that this newcomer must not be shown."""
    parts = [asked.read.rows] if asked.filters.seen else []
    if asked.filters.never is not None:
        parts.append(asked.filters.never)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
