"""Result types of the public API: recommendations, predictions, explanations and questions.

All ids are the caller's own item and user ids. Nothing here depends on a model.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Recommendation(NamedTuple):
    """One item of a recommendation list."""

    item_id: Any
    score: float  # what the list is ordered by, larger is better: expected benefit or rating
    rank: int  # 1 is the best
    title: str | None = None  # None: the item has no title
    std: float | None = None  # standard deviation of the rating, if requested and available
    source: str = "relation"  # origin of the score: posterior, relation, features or popular
    probability: float | None = None  # that the user takes the item up, if the model knows
    rating: float | None = None  # expected rating, if the user chooses the item
    rating_if_shown: float | None = None  # expected rating, if it is shown instead; with `std`


class Recommendations(list[Recommendation]):
    """Recommendations for one user, best first.

    Parameters
    ----------
    unknown_items
        Item ids of the history that the model does not know; they were ignored.
    user_id
        Id of the user, or None if the caller gave none.
    """

    def __init__(
        self,
        recommendations: Iterable[Recommendation] = (),
        unknown_items: Sequence[Hashable] = (),
        user_id: Hashable = None,
    ) -> None:
        super().__init__(recommendations)
        self.unknown_items, self.user_id = tuple(unknown_items), user_id


class RecommendationBatch(list[Recommendations]):
    """Recommendations for several users, in the order in which the users were given."""

    def to_table(self) -> Any:
        """Return all lists as one Arrow table.

        Columns are user_id, item_id, score, rank, std, source, probability, rating and
        rating_if_shown; rows are ordered by user, then by rank. Users without an id are numbered
        from 0.
        """
        import pyarrow as pa

        ids = [n if x.user_id is None else x.user_id for n, x in enumerate(self) for _ in x]
        types = {
            "item_id": None,
            "score": pa.float32(),
            "rank": pa.int32(),
            "std": pa.float32(),
            "source": pa.string(),
            "probability": pa.float32(),
            "rating": pa.float32(),
            "rating_if_shown": pa.float32(),
        }
        rows = [row for recommendations in self for row in recommendations]
        columns = {k: pa.array([getattr(x, k) for x in rows], v) for k, v in types.items()}
        return pa.table({"user_id": pa.array(ids), **columns})


class Reason(NamedTuple):
    """An item of the user's history and its effect on the explained score."""

    item_id: Any
    title: str | None
    rating: float  # that of the history
    effect: float  # score with this item in the history minus the score without it


class Cohort(NamedTuple):
    """A group of at least five key users that resemble the user."""

    size: int  # number of key users
    weight: float  # share of the user's resemblance; over all cohorts the sum is 1
    liked_titles: tuple[str, ...]  # titles, or else ids, of items the cohort has in common


class Explanation(NamedTuple):
    """The score of one item for one user, and where it comes from."""

    item_id: Any
    title: str | None
    score: float
    std: float | None = None  # standard deviation of the rating, if the model has a posterior
    reasons: tuple[Reason, ...] = ()  # largest absolute effect first
    cohorts: tuple[Cohort, ...] = ()  # largest weight first
    unknown_items: tuple[Hashable, ...] = ()  # items of the history that the model does not know


class Question(NamedTuple):
    """An item to ask a new user about."""

    item_id: Any
    title: str | None
    expected_gain: float  # expected reduction of the variance of the user's ratings


class PredictionInterval(NamedTuple):
    """Predicted ratings of several items with intervals; each field has one value per item."""

    score: Floats  # expected rating
    std: Floats  # standard deviation of the rating
    low: Floats  # lower bound of the interval
    high: Floats  # upper bound of the interval
