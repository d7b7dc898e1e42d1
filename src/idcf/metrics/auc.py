"""AUC: the probability that a positive row scores above a negative row; ties count one half.

`auc_pooled` pools the rows of all users: its denominator is every pair of a positive and a negative
row, also those of two different users. `auc_per_user` compares rows of one user only.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from idcf.errors import DataError
from idcf.metrics.arrays import (
    Array,
    Float64Array,
    Ints,
    check_binary_columns,
    check_confidence_level,
    group_sorted_users,
    mean_over_ties,
    segment_sums,
    sum_by_owner,
)
from idcf.metrics.stats import Interval, PerUserMetric


def auc_pooled(score: Array, positive: Array) -> float:
    """Return P(score of a positive row > score of a negative row) + P(equal) / 2.

    Denominator: all n₁·n₀ pairs of a positive and a negative row, whatever users they belong to.
    Both classes need a row.

    Examples
    --------
    >>> auc_pooled(np.array([0.9, 0.8, 0.3, 0.3]), np.array([1, 0, 1, 0]))
    0.625
    """
    return _auc_and_contributions(np.arange(len(score)), score, positive)[0]


def auc_contributions(user: Array, score: Array, positive: Array) -> PerUserMetric:
    """Return the pooled AUC A as an average of one value per user.

    The value of user u is A + U·c_u, with U the number of users and

        c_u = Σ_{u's positives} (V - A) / n₁ + Σ_{u's negatives} (V - A) / n₀,

    where V of a row is the share of rows of the other class that it is ordered correctly against
    (Obuchowski 1997). Weights are 1. The spread of the values is that of A, so two systems can be
    compared with `paired_difference`.

    Examples
    --------
    >>> user, positive = np.array([0, 0, 1, 1]), np.array([1, 0, 1, 0])
    >>> auc_contributions(user, np.array([0.9, 0.8, 0.3, 0.3]), positive).mean()
    0.625
    """
    auc, users, contribution = _auc_and_contributions(user, score, positive)
    return PerUserMetric.from_values(auc + len(users) * contribution, users)


def auc_interval(
    user: Array, score: Array, positive: Array, *, confidence_level: float = 0.95
) -> Interval:
    """Return the pooled AUC with a normal interval, users being the unit of sampling.

    The variance is Σ_u c_u², with c_u of `auc_contributions`; the bounds are clipped to [0, 1].

    Examples
    --------
    >>> user, positive = np.array([0, 0, 1, 1]), np.array([1, 0, 1, 0])
    >>> interval = auc_interval(user, np.array([0.9, 0.8, 0.3, 0.3]), positive)
    >>> [round(x, 3) for x in interval]
    [0.625, 0.279, 0.971]
    """
    check_confidence_level(confidence_level)
    auc, _, contribution = _auc_and_contributions(user, score, positive)
    half_width = float(ndtri(0.5 + confidence_level / 2)) * float(np.linalg.norm(contribution))
    return Interval(auc, max(auc - half_width, 0.0), min(auc + half_width, 1.0))


def auc_per_user(user: Array, score: Array, positive: Array) -> PerUserMetric:
    """Return the AUC among the rows of each user.

    Denominator: the pairs of a positive and a negative row of that user. Users whose rows are all
    positive or all negative are left out; each of the others has weight 1.

    Examples
    --------
    >>> user, positive = np.array([7, 7, 8, 8, 9]), np.array([1, 0, 1, 0, 1])
    >>> auc = auc_per_user(user, np.array([0.9, 0.8, 0.3, 0.3, 0.5]), positive)
    >>> auc.users.tolist(), auc.values.tolist()
    ([7, 8], [1.0, 0.5])
    """
    user, score, positive = check_binary_columns(user, score, positive)
    order = np.lexsort((score, user))
    users, start, rank = group_sorted_users(user[order])
    mean_rank = mean_over_ties(np.add(rank, 1, dtype=np.float64), rank, score[order])
    is_positive = positive[order]
    n_positives = segment_sums(is_positive.astype(np.float64), start)
    n_pairs = n_positives * (np.diff(start) - n_positives)
    wins = segment_sums(mean_rank * is_positive, start) - n_positives * (n_positives + 1) / 2
    defined = n_pairs > 0
    return PerUserMetric.from_values(wins[defined] / n_pairs[defined], users[defined])


def _auc_and_contributions(
    user: Array, score: Array, positive: Array
) -> tuple[float, Ints, Float64Array]:
    """Return the pooled AUC, the users [U], and the contribution c_u of each [U]."""
    user, score, positive = check_binary_columns(user, score, positive)
    n_positives, n_negatives = int(positive.sum()), int((~positive).sum())
    if not n_positives or not n_negatives:
        raise DataError(
            f"auc needs both classes, got {n_positives} positive and {n_negatives} negative rows"
        )
    positive_scores, negative_scores = np.sort(score[positive]), np.sort(score[~positive])
    correct_share = np.empty(len(score))
    correct_share[positive] = _count_below(negative_scores, score[positive]) / n_negatives
    correct_share[~positive] = 1 - _count_below(positive_scores, score[~positive]) / n_positives
    auc = float(correct_share[positive].mean())
    contribution = (correct_share - auc) / np.where(positive, n_positives, n_negatives)
    users, owner = np.unique(user, return_inverse=True)
    return auc, users, sum_by_owner(owner, contribution, len(users))


def _count_below(sorted_scores: Array, score: Array) -> Float64Array:
    """Count the sorted scores below each score; equal ones count one half."""
    n_below = np.searchsorted(sorted_scores, score, "left")
    n_below_or_equal = np.searchsorted(sorted_scores, score, "right")
    return np.add(n_below, n_below_or_equal, dtype=np.float64) / 2
