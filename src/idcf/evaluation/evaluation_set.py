"""The held-out rows of a group of users, and what their metrics are computed from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from idcf.data.interactions import Doubles, Floats, Interactions, Ints, Mask
from idcf.data.split import Split
from idcf.errors import DataError
from idcf.metrics import RelevantItems
from idcf.metrics.ranking import Denominator
from idcf.rng import random_stream

N_NEGATIVES = 5  # per test positive
LIKED_FROM, LOW_UP_TO = 0.75, 0.25  # of the way from the lowest to the highest rating


class RatingScale(NamedTuple):
    """The lowest and the highest rating of the training rows."""

    lowest: float
    highest: float

    def is_liked(self, rating: Floats) -> Mask:
        """Return which ratings are liked: from 3/4 of the scale on, four stars of five."""
        liked: Mask = rating >= self.lowest + LIKED_FROM * (self.highest - self.lowest)
        return liked

    def is_low(self, rating: Floats) -> Mask:
        """Return which ratings are low: up to 1/4 of the scale, two stars of five.

        None is, on a scale of one value.
        """
        low: Mask = rating <= self.lowest + LOW_UP_TO * (self.highest - self.lowest)
        return low & (self.highest > self.lowest)

    def utility(self, rating: Floats) -> Doubles:
        """Return (rating - lowest) / (highest - lowest), clipped to 0..1; 1 on a scale of one."""
        if self.highest == self.lowest:
            return np.ones(len(rating))
        share = (rating.astype(np.float64) - self.lowest) / (self.highest - self.lowest)
        return share.clip(0, 1)


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """The held-out rows of a group of users, and the histories that models may read."""

    history_table: Interactions  # the training rows
    test_rows: Interactions  # the held-out rows
    scored_rows: Interactions  # those and, for implicit feedback, sampled negatives of rating 0
    users: Ints  # [U]: the users with held-out rows
    relevant: RelevantItems  # the items of `test_rows`, in the order of `users`
    scale: RatingScale  # of the training rows
    propensity: Doubles  # [I]: √(share of the key users with the item); one user more has it
    recall_denominator: Denominator = "relevant"  # see `metrics.recall_at`

    @classmethod
    def from_split(cls, split: Split, users: Ints) -> Self:
        """Select the test rows of these users; raise `DataError` if there are none."""
        test_rows = split.test.for_users(users)
        if not len(test_rows):
            raise DataError(
                f"none of the {len(users):,} users of the group has test rows "
                f"({len(split.key_users):,} key and {len(split.query_users):,} query users, "
                f"{len(split.test):,} test rows); choose another --key-threshold"
            )
        users, train = np.unique(test_rows.user), split.train
        n_raters = train.for_users(split.key_users).item_counts()
        return cls(
            train,
            test_rows,
            with_negatives(test_rows) if test_rows.implicit else test_rows,
            users,
            _rated_items(test_rows, users),
            RatingScale(float(train.rating.min(initial=1)), float(train.rating.max(initial=1))),
            np.sqrt((n_raters + 1) / len(split.key_users)),
            "min" if split.protocol == "strong" else "relevant",
        )

    def nonnegative_labels(self) -> Floats:
        """Return the ratings of the scored rows, shifted so that none is below 0."""
        return self.scored_rows.rating - min(0.0, float(self.scored_rows.rating.min()))

    def select_items(self, chosen: Mask, gains: Doubles | None = None) -> RelevantItems:
        """Return the items of chosen test rows [N] of each user, with gains given by row [N]."""
        return _select_items(self.test_rows, self.users, chosen, gains)

    def n_candidates(self) -> Ints:
        """Return the number of items of the catalogue that are not in each user's history [U]."""
        return len(self.test_rows.items) - self.history_table.user_counts()[self.users]


def with_negatives(rows: Interactions) -> Interactions:
    """Append the negatives with rating 0; they are equal for every system, seed and machine."""
    negatives = random_stream(0, "test negatives").integers(
        len(rows.items), size=len(rows) * N_NEGATIVES
    )
    return replace(
        rows,
        user=np.concatenate([rows.user, np.repeat(rows.user, N_NEGATIVES)]),
        item=np.concatenate([rows.item, negatives]),
        rating=np.concatenate([rows.rating, np.zeros(len(negatives), np.float32)]),
        time=None,
        weight=None,
    )


def _rated_items(rows: Interactions, users: Ints) -> RelevantItems:
    """Return the items of each user; with ratings, those of positive gain 2^rating - 1."""
    if rows.implicit:
        return _select_items(rows, users, np.ones(len(rows), bool), None)
    rating = rows.rating.astype(np.float64)
    gains = np.exp2(rating - min(0.0, rating.min())) - 1
    return _select_items(rows, users, gains > 0, gains)


def _select_items(
    rows: Interactions, users: Ints, chosen: Mask, gains: Doubles | None
) -> RelevantItems:
    """Return the items of the chosen rows of each user."""
    order, _ = rows.rows_by_user
    order = order[chosen[order]]
    counts = np.bincount(rows.user[order], minlength=len(rows.users))[users]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return RelevantItems(rows.item[order], offsets, None if gains is None else gains[order])
