"""Put one system through one examination: held-out rows of a group of users.

Ratings: rmse, mae, and two orderings. `ndcg` is the paper's: gain 2^rating - 1, the user's whole
test list, users with at least 2 test ratings. `ndcg@10` has the same gain, and `recall@20` counts
every held-out item; both rank the whole catalogue less what the user had in training, and are left
out for a model to whom that is not affordable (`Model.lists`).
Implicit feedback: each positive meets NEGATIVES uniform items of the whole vocabulary, not
filtered, as in the paper; `auc` pools all users, `auc-user` does not, `ndcg` orders each user's
positives and negatives, `ndcg@20` goes with `recall@20`. Predictions are not clipped.
Where a model says how sure it is: `cover90` is the share of ratings inside its 90 % intervals,
`nll` the negative log-likelihood of the ratings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from idcf import metrics
from idcf.data.interactions import Floats, Interactions, Ints
from idcf.data.split import Split
from idcf.errors import DataError
from idcf.inference.scoring import deviations, predict, top
from idcf.metrics import Interval, PerUser, Relevant
from idcf.metrics.stats import Statistic
from idcf.models.base import Model, Posterior
from idcf.rng import stream

NEGATIVES = 5  # for each positive
NDCG_AT, RECALL_AT = 10, 20
CELLS = 1 << 21  # of a matrix of scores held at once
_LISTS = (f"ndcg@{NDCG_AT}", f"recall@{RECALL_AT}")


def metrics_of(implicit: bool) -> tuple[str, ...]:
    """Every metric that such data may have."""
    if implicit:
        return ("auc", "auc-user", "ndcg", *_LISTS, f"ndcg@{RECALL_AT}")
    return ("rmse", "mae", "cover90", "nll", "ndcg", *_LISTS)


class Part(NamedTuple):
    """Who answers for whom."""

    model: Model
    users: Ints


class Measured(NamedTuple):
    interval: Interval
    n_users: int
    n_ratings: int
    each: PerUser | None = None  # what the interval is of: for pairing systems


@dataclass(frozen=True, eq=False)
class Exam:
    """What a group of users did before, and what they are asked about."""

    seen: Interactions
    rows: Interactions  # held out
    asked: Interactions  # the same, and the negatives of implicit feedback, rated 0
    users: Ints  # who has rows
    relevant: Relevant  # the items of `rows`, in the order of `users`

    @classmethod
    def of(cls, split: Split, users: Ints) -> Self:
        rows = split.test.of(users)
        if not len(rows):
            raise DataError(
                f"none of the {len(users):,} users asked for has test rows "
                f"({len(split.key_users):,} key and {len(split.query_users):,} query users, "
                f"{len(split.test):,} test rows); choose another --key-threshold"
            )
        asked = _with_negatives(rows) if rows.implicit else rows
        who = np.unique(rows.user)
        return cls(split.train, rows, asked, who, _relevant(rows, who))

    def labels(self) -> Floats:
        """Ratings as gains can use them: none below 0."""
        return self.asked.rating - min(0.0, float(self.asked.rating.min()))


def measure(exam: Exam, parts: Sequence[Part], *, lists: bool = True) -> dict[str, Measured]:
    """Every metric that the system has, by name; without `lists` no whole catalogue is ranked."""
    asked, scores = exam.asked, _scores(exam, parts)
    found: dict[str, Measured] = {}
    if not exam.rows.implicit and all(part.model.rates for part in parts):
        errors = metrics.squared_error(asked.user, scores, asked.rating)
        found["rmse"] = _average(exam, errors, "rmse")
        found["mae"] = _average(
            exam, metrics.absolute_error(asked.user, scores, asked.rating), "mean-ratio"
        )
        found |= _calibration(exam, parts, scores)
    if exam.rows.implicit:
        pooled = metrics.auc_interval(asked.user, scores, asked.rating)
        each = metrics.auc_parts(asked.user, scores, asked.rating)
        found["auc"] = Measured(pooled, len(exam.users), len(exam.rows), each)
        found["auc-user"] = _average(exam, metrics.auc_per_user(asked.user, scores, asked.rating))
    found["ndcg"] = _average(exam, metrics.ndcg(asked.user, scores, exam.labels()))
    if not (lists and all(part.model.lists for part in parts)):
        return found
    best = _lists(exam, parts, max(NDCG_AT, RECALL_AT))
    at = min(NDCG_AT, best.shape[1])
    found[_LISTS[0]] = _each(exam, metrics.ndcg_at(best, exam.relevant, at))
    found[_LISTS[1]] = _each(exam, metrics.recall_at(best, exam.relevant))
    if exam.rows.implicit:
        found[f"ndcg@{RECALL_AT}"] = _each(exam, metrics.ndcg_at(best, exam.relevant))
    return found


def _calibration(exam: Exam, parts: Sequence[Part], scores: Floats) -> dict[str, Measured]:
    """Nothing where some part of the system does not know how sure it is."""
    std, asked = spreads(exam, parts), exam.asked
    if std is None:
        return {}
    inside = metrics.covered(asked.user, scores, std, asked.rating, 0.9)
    surprise = metrics.negative_log_likelihood(asked.user, scores, std, asked.rating)
    return {"cover90": _average(exam, inside), "nll": _average(exam, surprise)}


def spreads(exam: Exam, parts: Sequence[Part]) -> Floats | None:
    """The standard deviation of every row that is asked about."""
    out = np.full(len(exam.asked), np.nan, np.float32)
    for part, mine in _shares(exam.asked.user, parts, len(exam.asked.users)):
        if not isinstance(part.model, Posterior):
            return None
        out[mine] = deviations(
            part.model, exam.asked.where(mine), exam.seen, anonymous=part.model.anonymous
        )
    return out


def chance(exam: Exam) -> dict[str, Measured]:
    """What a random order gets: the floor of every ordering."""
    asked = exam.asked
    found: dict[str, Measured] = {}
    if exam.rows.implicit:
        half = Measured(Interval(0.5, 0.5, 0.5), len(exam.users), len(exam.rows))
        found |= {"auc": half, "auc-user": half}
    found["ndcg"] = _average(exam, metrics.random_ndcg(asked.user, exam.labels()))
    candidates = len(asked.items) - exam.seen.counts()[exam.users]
    expected = metrics.random_ndcg_at(exam.relevant, candidates, NDCG_AT)
    found[f"ndcg@{NDCG_AT}"] = _each(exam, expected)
    if exam.rows.implicit:
        longer = metrics.random_ndcg_at(exam.relevant, candidates, RECALL_AT)
        found[f"ndcg@{RECALL_AT}"] = _each(exam, longer)
    recalled = np.minimum(RECALL_AT / np.maximum(candidates, 1), 1.0)
    recalled[exam.relevant.lengths() == 0] = np.nan
    found[f"recall@{RECALL_AT}"] = _each(exam, recalled)
    return found


def errors(exam: Exam, model: Model, seen: Interactions) -> Interval:
    """RMSE of an inductive model that may read `seen` and no more."""
    scores = predict(model, exam.rows, seen, anonymous=True)
    each = metrics.squared_error(exam.rows.user, scores, exam.rows.rating)
    return _average(exam, each, "rmse").interval


def _scores(exam: Exam, parts: Sequence[Part]) -> Floats:
    out = np.full(len(exam.asked), np.nan, np.float32)
    for part, mine in _shares(exam.asked.user, parts, len(exam.asked.users)):
        out[mine] = predict(
            part.model, exam.asked.where(mine), exam.seen, anonymous=part.model.anonymous
        )
    return out


def _lists(exam: Exam, parts: Sequence[Part], k: int) -> Ints:
    items = len(exam.asked.items)
    out = np.full((len(exam.users), min(k, items)), -1)
    size = max(1, min(128, CELLS // items))
    for part, mine in _shares(exam.users, parts, len(exam.asked.users)):
        out[mine] = top(
            part.model,
            exam.users[mine],
            exam.seen,
            k,
            anonymous=part.model.anonymous,
            size=size,
        )
    return out


def _shares(user: Ints, parts: Sequence[Part], n: int) -> list[tuple[Part, Ints]]:
    """The places of `user` that each part answers for, where there are any."""
    out = []
    for part in parts:
        theirs = np.zeros(n, bool)
        theirs[part.users] = True
        if len(mine := np.flatnonzero(theirs[user])):
            out.append((part, mine))
    return out


def _average(exam: Exam, each: PerUser, statistic: Statistic = "mean-ratio") -> Measured:
    """The average over users or rows; the same resamples of users for every system."""
    if not len(each):
        return Measured(Interval(np.nan, np.nan, np.nan), 0, 0)
    interval = metrics.bootstrap(
        each.total, each.weight, statistic=statistic, rng=stream(0, "bootstrap")
    )
    return Measured(interval, len(each), int(exam.rows.counts()[each.users].sum()), each)


def _each(exam: Exam, value: np.typing.NDArray[np.float64]) -> Measured:
    return _average(exam, PerUser.of(value, exam.users))


def _relevant(rows: Interactions, users: Ints) -> Relevant:
    order, _ = rows.by_user
    gains = None
    if not rows.implicit:
        rating = rows.rating.astype(np.float64)
        gains = np.exp2(rating - min(0.0, rating.min())) - 1
        order = order[gains[order] > 0]
        gains = gains[order]
    counts = np.bincount(rows.user[order], minlength=len(rows.users))[users]
    return Relevant(rows.item[order], np.concatenate([[0], np.cumsum(counts)]), gains)


def _with_negatives(rows: Interactions) -> Interactions:
    """Fixed: the same for every system, seed and machine."""
    drawn = stream(0, "test negatives").integers(len(rows.items), size=len(rows) * NEGATIVES)
    return replace(
        rows,
        user=np.concatenate([rows.user, np.repeat(rows.user, NEGATIVES)]),
        item=np.concatenate([rows.item, drawn]),
        rating=np.concatenate([rows.rating, np.zeros(len(drawn), np.float32)]),
        time=None,
    )
