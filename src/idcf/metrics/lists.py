"""What lists hold: weighted recall, the ratings of hits, and how lists spread over the catalogue.

A *hit* is an item among the first k of a user's list that is relevant to the user. Coverage and
Gini coefficient are no averages over users; their intervals come from resampled users all the same.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from idcf.errors import ConfigError, DataError
from idcf.metrics.arrays import Array, Float64Array, Ints, check_columns, check_confidence_level
from idcf.metrics.ranking import RelevantItems, hit_rows
from idcf.metrics.stats import Interval, PerUserMetric

MAX_RESAMPLED_CELLS = 1 << 22  # counts of items held at once: 32 MB


def weighted_recall_at(
    top_items: Array, relevant: RelevantItems, k: int | None = None
) -> Float64Array:
    """Return the sum of the gains of hits / the sum of the gains of all relevant items [U].

    Gain: `relevant.gains`, 1 if there are none. With the gain 1 / propensity of an item this is
    recall by inverse propensity weights.

    Examples
    --------
    >>> relevant = RelevantItems(np.array([3, 5]), np.array([0, 2]), np.array([1.0, 3.0]))
    >>> weighted_recall_at(np.array([[5, 1]]), relevant).tolist()
    [0.75]
    """
    rows, lengths = hit_rows(top_items, relevant, k), relevant.lengths()
    gains = relevant.gains if relevant.gains is not None else np.ones(len(relevant.items))
    owner = np.repeat(np.arange(len(lengths)), lengths)
    total = np.bincount(owner, gains, len(lengths))
    ratio = np.full(len(lengths), np.nan)
    hit_gains = np.append(gains, 0.0)[rows].sum(1)
    # rounding may put a list with every relevant item an ulp above 1
    np.divide(np.minimum(hit_gains, total), total, out=ratio, where=lengths > 0)
    return ratio


def mean_over_hits(
    top_items: Array,
    relevant: RelevantItems,
    values: Array,
    k: int | None = None,
    *,
    users: Array | None = None,
) -> PerUserMetric:
    """Return the average of a value over all hits of all users; a user without hits is left out.

    `values` [N] has one entry for each of `relevant.items`, such as its rating. The weight of a
    user is the number of hits. `users` [U] are distinct and sorted; 0..U-1 by default.

    Examples
    --------
    >>> relevant = RelevantItems(np.array([3, 5, 8]), np.array([0, 2, 3]))
    >>> ratings = np.array([2.0, 5.0, 4.0])
    >>> mean_over_hits(np.array([[5, 3], [8, 1]]), relevant, ratings).mean().__round__(3)
    3.667
    """
    _, values = check_columns(items=relevant.items, values=values)
    rows = hit_rows(top_items, relevant, k)
    n_hits = (rows >= 0).sum(1)
    total = np.append(values.astype(np.float64), 0.0)[rows].sum(1)
    ids = np.arange(len(rows)) if users is None else np.asarray(users)
    has_hits = n_hits > 0
    return PerUserMetric(ids[has_hits], total[has_hits], n_hits[has_hits].astype(np.float64))


def coverage_interval(
    top_items: Array,
    n_items: int,
    k: int | None = None,
    *,
    rng: np.random.Generator,
    n_resamples: int = 200,
    confidence_level: float = 0.95,
) -> Interval:
    """Return coverage@k: items that are among the first k of any list / items of the catalogue.

    More users cover more items: compare systems on the same users. For the interval see
    `gini_interval`.

    Examples
    --------
    >>> lists = np.array([[0, 1], [0, 2]])
    >>> coverage_interval(lists, 4, rng=np.random.default_rng(0)).value
    0.75
    """
    return _interval_of_counts(
        top_items[:, :k],
        n_items,
        lambda counts: (counts > 0).mean(1),
        rng,
        n_resamples,
        confidence_level,
    )


def gini_interval(
    top_items: Array,
    n_items: int,
    k: int | None = None,
    *,
    rng: np.random.Generator,
    n_resamples: int = 200,
    confidence_level: float = 0.95,
) -> Interval:
    """Return the Gini coefficient@k of how often each item of the catalogue is listed.

    G = Σ_j (2j - n - 1) c_j / (n Σ c), with the counts c in ascending order, j = 1..n, over all n
    items, also those that no list holds. 0: every item is listed equally often; near 1: few items
    fill all lists.

    The interval has the spread of the values for resampled users around their mean, laid around
    the value itself: a resample holds some users twice and others not at all, and so covers fewer
    items than the users do.

    Examples
    --------
    >>> gini_interval(np.array([[0], [1], [2]]), 3, rng=np.random.default_rng(0)).value
    0.0
    >>> gini_interval(np.array([[0], [0]]), 4, rng=np.random.default_rng(0)).value
    0.75
    """
    return _interval_of_counts(top_items[:, :k], n_items, _gini, rng, n_resamples, confidence_level)


def _gini(counts: Float64Array) -> Float64Array:
    """Return the Gini coefficient of each line of counts [R, I]: [R]."""
    n_items = counts.shape[1]
    weight = 2.0 * np.arange(1, n_items + 1) - n_items - 1
    gini: Float64Array = np.sort(counts, axis=1) @ weight / (n_items * counts.sum(1))
    return gini


def _interval_of_counts(
    top_items: Ints,
    n_items: int,
    statistic: Callable[[Float64Array], Float64Array],
    rng: np.random.Generator,
    n_resamples: int,
    confidence_level: float,
) -> Interval:
    """Return a statistic of the counts of items in lists [U, k], with an interval over users."""
    if n_resamples < 1:
        raise ConfigError(f"n_resamples is {n_resamples}: draw at least 1, or 200")
    check_confidence_level(confidence_level)
    listed = top_items >= 0
    if not listed.any():
        raise DataError("no list holds an item: rank the catalogue for at least one user")
    if top_items.max() >= n_items:
        raise DataError(f"a list names item {top_items.max()} of a catalogue of {n_items} items")
    n_users, offsets = len(top_items), np.concatenate([[0], np.cumsum(listed.sum(1))])
    is_listed = csr_array(
        (np.ones(offsets[-1]), top_items[listed], offsets), shape=(n_users, n_items)
    ).T.tocsr()
    value = float(statistic(np.asarray(is_listed.sum(1), np.float64)[None])[0])
    draws = np.empty(n_resamples)
    step = max(1, MAX_RESAMPLED_CELLS // max(n_items, n_users))
    for start in range(0, n_resamples, step):
        n_rows = min(step, n_resamples - start)
        times_drawn = rng.multinomial(n_users, np.full(n_users, 1 / n_users), size=n_rows)
        counts = np.ascontiguousarray((is_listed @ times_drawn.T.astype(np.float64)).T)
        draws[start : start + n_rows] = statistic(counts)
    low, high = np.quantile(draws, [0.5 - confidence_level / 2, 0.5 + confidence_level / 2])
    shift = value - float(draws.mean())
    return Interval(value, min(value, max(0.0, low + shift)), max(value, min(1.0, high + shift)))
