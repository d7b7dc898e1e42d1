"""What people are told: recommendations, predictions, reasons and questions, in outside ids."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


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


class Predicted(NamedTuple):
    """What is expected of each item, and the interval that the rating should lie in."""

    score: Floats
    std: Floats
    low: Floats
    high: Floats
