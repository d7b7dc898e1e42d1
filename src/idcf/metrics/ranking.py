"""Ranking metrics: how well a user's items are ordered, with discount 1 / log2(r + 1) at rank r.

`ndcg` orders each user's rated rows by score; the functions named `…_at` compare ranked lists over
the whole catalogue with each user's relevant items.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from idcf.errors import ConfigError, DataError, unknown_name_message
from idcf.metrics.arrays import (
    Array,
    Float64Array,
    Ints,
    check_columns,
    check_no_nan,
    group_sorted_users,
    mean_over_ties,
    segment_sums,
    sum_by_owner,
)
from idcf.metrics.stats import PerUserMetric

Gain = Literal["exp", "linear"]
Denominator = Literal["relevant", "min"]
MAX_LABEL = {"exp": 900.0, "linear": 1e300}  # of a finite gain


class RelevantItems(NamedTuple):
    """The relevant items of U users, in the order of the rows of `top_items`.

    An item -1 is unknown to the ranker: it can never be ranked, and still counts as relevant.

    Examples
    --------
    Items 3 and 5 are relevant to the first user, item 8 to the second.

    >>> relevant = RelevantItems(np.array([3, 5, 8]), np.array([0, 2, 3]))
    >>> relevant.lengths().tolist()
    [2, 1]
    """

    items: Ints  # [N], distinct within a user
    offsets: Ints  # [U + 1]: the items of user u are items[offsets[u] : offsets[u + 1]]
    gains: Float64Array | None = None  # [N], > 0, used as they are; 1 by default

    def lengths(self) -> Ints:
        """Return the number of relevant items of each user [U]."""
        return np.diff(self.offsets)


def ndcg(
    user: Array,
    score: Array,
    label: Array,
    *,
    gain: Gain = "exp",
    k: int | None = None,
    min_rows: int = 2,
) -> PerUserMetric:
    """Return NDCG of each user's rated list, each user with weight 1.

    NDCG = DCG of the order by score / DCG of the best order, DCG = Σ_{r ≤ k} gain / log2(r + 1).
    Gain: 2^label - 1 ("exp") or the label itself, which is at least 0. Denominator: the DCG of the
    user's rows in the order of their labels, cut at k.

    Rows of equal score share the mean discount of their positions, which is the exact expectation
    over random orders: a constant scorer gets the value of a random order, and the order in which
    the rows are given does not matter.

    Parameters
    ----------
    k : int, optional
        Cut-off; the whole list by default.
    min_rows : int
        Users with fewer rows are left out, as are users without any gain.

    Examples
    --------
    >>> user, label = np.array([1, 1, 1]), np.array([3, 0, 1])
    >>> ndcg(user, np.array([0.9, 0.8, 0.1]), label, gain="linear").values.round(3).tolist()
    [0.964]
    >>> ndcg(user, np.array([0.9, 0.1, 0.5]), label, gain="linear").values.tolist()
    [1.0]
    """
    user, score, label = check_columns(user=user, score=score, label=label)
    check_no_nan("score", score)
    gains = _gains_from_labels(label, gain)
    _check_cutoff(k)
    # ties sorted by gain: no weight in the expectation, but the sum is equal to the last bit
    order = np.lexsort((gains, -score.astype(np.float64), user))
    users, start, rank = group_sorted_users(user[order])
    discount = mean_over_ties(_discount(rank, k), rank, score[order])
    dcg = segment_sums(gains[order] * discount, start)
    best_order = np.lexsort((-gains, user))
    ideal = segment_sums(gains[best_order] * _discount(rank, k), start)
    defined = (np.diff(start) >= min_rows) & (ideal > 0)
    # rounding may put a perfect list an ulp above 1
    return PerUserMetric.from_values(np.minimum(dcg[defined] / ideal[defined], 1.0), users[defined])


def random_ndcg(
    user: Array, label: Array, *, gain: Gain = "exp", k: int | None = None, min_rows: int = 2
) -> PerUserMetric:
    """Return the exact expectation of `ndcg`, with its options, for a random order of the rows.

    Examples
    --------
    >>> random_ndcg(np.array([1, 1]), np.array([1, 0])).values.round(3).tolist()
    [0.815]
    """
    return ndcg(user, np.zeros(len(label)), label, gain=gain, k=k, min_rows=min_rows)


def recall_at(
    top_items: Array,
    relevant: RelevantItems,
    k: int | None = None,
    *,
    denominator: Denominator = "relevant",
) -> Float64Array:
    """Return recall@k: relevant items among the first k / relevant items.

    Gain: 1 for every relevant item. Denominator: all relevant items of the user ("relevant"), or at
    most k of them ("min"), with which a perfect list reaches 1 whatever k is.

    Examples
    --------
    >>> relevant = RelevantItems(np.array([3, 5, 8]), np.array([0, 2, 3]))
    >>> top_items = np.array([[5, 1], [1, 2]])
    >>> recall_at(top_items, relevant).tolist()
    [0.5, 0.0]
    >>> recall_at(top_items, relevant, 1, denominator="min").tolist()
    [1.0, 0.0]
    """
    if denominator not in get_args(Denominator):
        raise ConfigError(unknown_name_message("denominator", denominator, get_args(Denominator)))
    gains, lengths = _gains_by_rank(top_items, relevant, k), relevant.lengths()
    n_reachable = np.minimum(lengths, gains.shape[1]) if denominator == "min" else lengths
    return _divide_where(lengths > 0, (gains > 0).sum(1), n_reachable)


def hit_at(top_items: Array, relevant: RelevantItems, k: int | None = None) -> Float64Array:
    """Return hit@k: 1 if any of the first k items is relevant, else 0.

    Gain: 1 for every relevant item. Denominator: 1 for each user.

    Examples
    --------
    >>> relevant = RelevantItems(np.array([3, 5, 8]), np.array([0, 2, 3]))
    >>> hit_at(np.array([[1, 5], [1, 2]]), relevant).tolist()
    [1.0, 0.0]
    """
    is_hit = (_gains_by_rank(top_items, relevant, k) > 0).max(1)
    return _divide_where(relevant.lengths() > 0, is_hit, np.ones(len(is_hit)))


def mrr_at(top_items: Array, relevant: RelevantItems, k: int | None = None) -> Float64Array:
    """Return the reciprocal rank@k: 1 / rank of the first relevant item, 0 if none is in the top k.

    Gain: 1 for every relevant item. Denominator: 1 for each user. The mean over users is the mean
    reciprocal rank.

    Examples
    --------
    >>> relevant = RelevantItems(np.array([3, 5, 8]), np.array([0, 2, 3]))
    >>> mrr_at(np.array([[1, 5], [1, 2]]), relevant).tolist()
    [0.5, 0.0]
    """
    is_relevant = _gains_by_rank(top_items, relevant, k) > 0
    return _divide_where(relevant.lengths() > 0, is_relevant.max(1), is_relevant.argmax(1) + 1)


def ndcg_at(top_items: Array, relevant: RelevantItems, k: int | None = None) -> Float64Array:
    """Return NDCG@k over the whole catalogue.

    NDCG@k = Σ_{r ≤ k} gain / log2(r + 1), divided by the same sum for the best list of min(k,
    relevant) items. Gain: `relevant.gains` as they are, 1 if there are none.

    Examples
    --------
    >>> relevant = RelevantItems(np.array([3, 5, 8]), np.array([0, 2, 3]))
    >>> ndcg_at(np.array([[5, 3], [1, 8]]), relevant).round(3).tolist()
    [1.0, 0.631]
    """
    gains = _gains_by_rank(top_items, relevant, k)
    width = gains.shape[1]
    dcg = gains @ _discount(np.arange(width), width)
    ideal = _ideal_dcg(relevant, width)
    return _divide_where(relevant.lengths() > 0, np.minimum(dcg, ideal), ideal)


def random_ndcg_at(relevant: RelevantItems, n_candidates: Array | int, k: int) -> Float64Array:
    """Return the expectation of `ndcg_at` for a random order of each user's candidates [U].

    Relevant items -1 are not among the candidates: they count in the denominator only.

    Examples
    --------
    >>> random_ndcg_at(RelevantItems(np.array([3]), np.array([0, 1])), 4, 1).tolist()
    [0.25]
    """
    _check_cutoff(k)
    counts = np.broadcast_to(np.asarray(n_candidates, np.int64), relevant.lengths().shape)
    owner, gains = _owners_and_gains(relevant)
    gains = np.where(np.asarray(relevant.items) >= 0, gains, 0.0)
    total_gain = sum_by_owner(owner, gains, len(counts))
    discount_sums = np.concatenate([[0.0], np.cumsum(_discount(np.arange(k), k))])
    mean_discount = discount_sums[np.minimum(k, counts)] / np.maximum(counts, 1)
    expected_dcg = total_gain * mean_discount
    return _divide_where(relevant.lengths() > 0, expected_dcg, _ideal_dcg(relevant, k))


def _gains_by_rank(top_items: Array, relevant: RelevantItems, k: int | None) -> Float64Array:
    """Return the gain of the item at each position of the lists, 0 if not relevant: [U, k]."""
    _, gains = _owners_and_gains(relevant)
    return np.append(gains, 0.0)[hit_rows(top_items, relevant, k)]


def hit_rows(top_items: Array, relevant: RelevantItems, k: int | None = None) -> Ints:
    """Return the row of `relevant.items` that each position of the lists hits [U, k], else -1.

    Examples
    --------
    >>> relevant = RelevantItems(np.array([3, 5, 8]), np.array([0, 2, 3]))
    >>> hit_rows(np.array([[5, 1], [1, 8]]), relevant).tolist()
    [[1, -1], [-1, 2]]
    """
    top_items = np.asarray(top_items)
    if top_items.ndim != 2 or not top_items.shape[1] or len(top_items) != len(relevant.offsets) - 1:
        raise DataError(
            f"top_items has shape {top_items.shape} for the relevant items of "
            f"{len(relevant.offsets) - 1} users: give one list per user, all of one width"
        )
    _check_cutoff(k)
    if k is not None and k > top_items.shape[1]:
        raise ConfigError(
            f"k is {k} and the lists hold {top_items.shape[1]} items: rank at least {k}"
        )
    top_items = top_items[:, :k].astype(np.int64)
    owner, _ = _owners_and_gains(relevant)
    items = np.asarray(relevant.items, np.int64)
    stride = 2 + max(int(items.max(initial=-1)), int(top_items.max(initial=-1)))
    keys = owner * stride + items + 1
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    if np.any((np.diff(keys) == 0) & (keys[1:] % stride > 0)):
        raise DataError("an item is relevant twice to one user: give each pair once")
    ranked_keys = np.arange(len(top_items))[:, None] * stride + top_items + 1
    position = np.searchsorted(keys, ranked_keys)
    is_relevant = (np.append(keys, -1)[position] == ranked_keys) & (top_items >= 0)
    if np.bincount(position[is_relevant]).max(initial=0) > 1:
        raise DataError("a list names the same item twice: rank distinct items")
    return np.where(is_relevant, np.append(order, -1)[position], -1)


def _owners_and_gains(relevant: RelevantItems) -> tuple[Ints, Float64Array]:
    """Return the user row and the gain of each relevant item, checked: [N] and [N]."""
    lengths = relevant.lengths()
    size = len(relevant.items)
    if lengths.min(initial=0) < 0 or relevant.offsets[0] or lengths.sum() != size:
        raise DataError(f"offsets do not rise from 0 to the {size} relevant items: give U + 1")
    owner = np.repeat(np.arange(len(lengths)), lengths)
    if relevant.gains is None:
        return owner, np.ones(len(owner))
    gains = check_columns(items=relevant.items, gains=relevant.gains)[1].astype(np.float64)
    if not np.all((gains > 0) & np.isfinite(gains)):
        raise DataError("a relevant item has a gain that is not above 0: leave that item out")
    return owner, gains


def _ideal_dcg(relevant: RelevantItems, k: int) -> Float64Array:
    """Return the DCG of the best list of k items of each user [U]."""
    owner, gains = _owners_and_gains(relevant)
    rank = np.arange(len(owner)) - np.asarray(relevant.offsets)[owner]
    best = gains[np.lexsort((-gains, owner))] * _discount(rank, k)
    return sum_by_owner(owner, best, len(relevant.offsets) - 1)


def _divide_where(defined: NDArray[np.bool_], numerator: Array, denominator: Array) -> Float64Array:
    """Return numerator / denominator, NaN where it is not defined [U]."""
    ratio = np.full(len(defined), np.nan)
    np.divide(numerator, denominator, out=ratio, where=defined)
    return ratio


def _gains_from_labels(label: Array, gain: str) -> Float64Array:
    """Return 2^label - 1 or the label [N], or raise an error for labels without a gain."""
    if gain not in get_args(Gain):
        raise ConfigError(unknown_name_message("gain", gain, get_args(Gain)))
    check_no_nan("label", label)
    label = label.astype(np.float64)
    if label.min(initial=0) < 0:
        raise DataError(f"label {label.min():g} is below 0 and has no gain: shift the labels")
    if label.max(initial=0) > MAX_LABEL[gain]:
        raise DataError(f"label {label.max():g} overflows the gain {gain!r}: rescale the labels")
    return np.exp2(label) - 1 if gain == "exp" else label


def _discount(rank: Ints, k: int | None) -> Float64Array:
    """Return 1 / log2(r + 1), 0 beyond k; `rank` is r - 1, counted from 0."""
    discount = 1 / np.log2(np.add(rank, 2, dtype=np.float64))
    return discount if k is None else np.where(rank < k, discount, 0.0)


def _check_cutoff(k: int | None) -> None:
    """Raise `ConfigError` if a cut-off is below 1."""
    if k is not None and k < 1:
        raise ConfigError(f"k is {k}: give a cut-off of at least 1, or None for the whole list")
