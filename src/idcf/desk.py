"""A model ready to answer: ids in, ids out. What `Recommender` and the server both stand on.

Reads histories, asks the index, names what it found. Knows no training and no HTTP.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from idcf.answers import (
    Answers,
    Cohort,
    Explanation,
    Question,
    Reason,
    Recommendation,
    Recommendations,
)
from idcf.artifact import Artifact
from idcf.data.histories import Read, Reader, as_users, ragged
from idcf.data.interactions import Floats, Ints
from idcf.data.side import newcomer, newcomers
from idcf.errors import ConfigError
from idcf.index import Exact, best_of
from idcf.models import Posterior
from idcf.models.bayes import Bayes
from idcf.reasons import cohorts, gains, leave_one_out
from idcf.types import Users

__all__ = ["NEVER", "Asked", "Desk", "Filters", "Recommendations"]

NEVER = float("-inf")
_COHORTS = 3  # that are named in an explanation
_FEW = 6  # up to so many are answered sooner one by one: a pass has a price of its own
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
        self.posterior = found.model if isinstance(found.model, Posterior) else None
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
        found = self.listed(rows.tolist(), scores[rows].tolist(), read.unknown)
        return self._told([found], as_users([read]), rows[None] if std else None)[0]

    def answer(self, asked: Sequence[Asked]) -> list[Recommendations]:
        """Many newcomers in one pass, each with an n and filters of their own."""
        together = [x for x in asked if not self._alone(x)]
        if len(together) < _FEW:
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
        found = self.index.top(people, max(x.n for x in asked), skip)
        lists = zip(asked, found.rows.tolist(), found.scores.tolist(), strict=True)
        listed = [self.listed(r[: x.n], s[: x.n], x.read.unknown) for x, r, s in lists]
        sure = any(x.std for x in asked)
        return self._told(listed, people, found.rows.numpy() if sure else None)

    def many(
        self, users: Users, n: int, filters: Filters, who: Sequence[Hashable], std: bool = False
    ) -> Answers:
        """All of them in one pass, with the same filters."""
        skip = users.history if filters.seen else None
        only, never = (None if x is None else torch.from_numpy(x) for x in filters[:2])
        found = self.index.top(users, n, skip, only, never)
        lists = zip(found.rows.tolist(), found.scores.tolist(), who, strict=True)
        listed = [self.listed(rows, scores, (), user) for rows, scores, user in lists]
        listed = self._told(listed, users, found.rows.numpy() if std else None)
        for place in np.flatnonzero(users.history.lengths().numpy() == 0).tolist():
            read = self.reader.one(None)
            if users.features is not None:
                read = read._replace(features=users.features[place].numpy())
            listed[place] = Recommendations(self.one(Asked(read, n, filters, std)), (), who[place])
        return Answers(listed)

    def _told(
        self, found: list[Recommendations], users: Users, rows: Ints | None
    ) -> list[Recommendations]:
        """The same with how each answer came about and, where it is asked for, how sure it is."""
        told, sure = users.history.lengths().tolist(), None
        known = None if users.features is None else users.features.any(1).tolist()
        if self.posterior is not None and rows is not None and rows.size:
            sure = self.deviations(users, rows)
        for place, (answer, length) in enumerate(zip(found, told, strict=True)):
            source = self.source if length else POPULAR
            if not length and known is not None and known[place]:
                source = FEATURES
            std = [None] * len(answer) if sure is None else sure[place].tolist()
            answer[:] = [
                x._replace(std=y, source=source) for x, y in zip(answer, std, strict=False)
            ]
        return found

    @torch.inference_mode()
    def deviations(self, users: Users, rows: Ints) -> Floats:
        """How sure a posterior model is of these items [B, K] of these people."""
        if self.posterior is None:
            raise ConfigError(no_posterior("a standard deviation", self.source))
        model = self.posterior
        owner = torch.arange(len(rows), device=model.device)
        asked = torch.from_numpy(rows).to(model.device)
        found: Floats = model.deviation(users.to(model.device), asked, owner).cpu().numpy()
        return found

    def listed(
        self,
        rows: list[int],
        scores: list[float],
        unknown: Sequence[Hashable] = (),
        user: Hashable = None,
    ) -> Recommendations:
        ids, titles, pairs = self.ids, self.titles, zip(rows, scores, strict=True)
        found = [
            Recommendation(ids[row], score, rank, titles[row])
            for rank, (row, score) in enumerate(pairs, 1)
            if score > NEVER
        ]
        return Recommendations(found, unknown, user)

    def explain(self, read: Read, row: int) -> Explanation:
        """Which of their own items, and which key users, a score comes from."""
        score, effects = leave_one_out(self.index.model, read.rows, read.values, row)
        own = zip(read.rows.tolist(), read.values.tolist(), effects, strict=True)
        reasons = [Reason(self.ids[r], self.titles[r], v, e) for r, v, e in own]
        users, std = as_users([read]), None
        groups: tuple[Cohort, ...] = ()
        if self.posterior is not None:
            std = float(self.deviations(users, np.array([[row]]))[0, 0])
        if isinstance(self.index.model, Bayes):
            groups = self._cohorts(self.index.model, users)
        reasons.sort(key=lambda x: -abs(x.effect))
        return Explanation(self.ids[row], self.titles[row], score, std, tuple(reasons), groups)

    def _cohorts(self, model: Bayes, users: Users) -> tuple[Cohort, ...]:
        weight = cohorts(model, users.to(model.device))[0]
        best = weight.argsort(descending=True)[:_COHORTS].tolist()
        return tuple(
            Cohort(int(model.sizes[c]), float(weight[c]), self._named(model.likes[c].tolist()))
            for c in best
            if model.sizes[c] > 0
        )

    def _named(self, rows: list[int]) -> tuple[str, ...]:
        return tuple(self.titles[r] or str(self.ids[r]) for r in rows)

    def questions(self, read: Read, n: int) -> list[Question]:
        """The items whose answer would tell most, without those that they have told of already."""
        model = self.index.model
        if not isinstance(model, Bayes):
            raise ConfigError(no_posterior("next_question", self.source))
        gain = gains(model, as_users([read]).to(model.device))[0].cpu().numpy()
        gain[read.rows] = NEVER
        rows = best_of(gain, n).tolist()
        return [Question(self.ids[r], self.titles[r], float(gain[r])) for r in rows]


def no_posterior(what: str, source: str) -> str:
    return f"{what} needs a posterior model such as idcf-bayes; this one's answers are {source!r}"


def _barred(asked: Asked) -> Ints:
    """Rows that this newcomer must not be shown."""
    parts = [asked.read.rows] if asked.filters.seen else []
    if asked.filters.never is not None:
        parts.append(asked.filters.never)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
