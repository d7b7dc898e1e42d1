"""How well a user's items are ordered.

Two settings. *Rated lists*: flat rows `user, score, label`, each user's own test items put in order
of score; `ndcg`, `auc_per_user`. *Full catalogue*: `top` [U, k], the best items of all (-1 = empty
place) from any ranker, against the user's relevant items; `recall_at`, `hit_at`, `mrr_at`,
`ndcg_at`.
Discount of rank r = 1, 2, ...: 1 / log2(r + 1), and 0 beyond the cut-off.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from idcf.errors import ConfigError, DataError, unknown
from idcf.metrics.auc import binary, no_nan
from idcf.metrics.stats import Array, Floats, Ints, PerUser, columns, sum_by

Gain = Literal["exp", "linear"]
Denominator = Literal["relevant", "min"]


class Relevant(NamedTuple):
    """What each of U users should be shown, CSR style, in the order of the rows of `top`.

    An item -1 (unknown to the ranker) can never be found, and still counts as relevant.
    """

    items: Ints  # [N], none twice for one user
    offsets: Ints  # [U + 1]
    gains: Floats | None = None  # [N], > 0, used as they are; 1 where there are none

    def lengths(self) -> Ints:
        return np.diff(self.offsets)


def ndcg(
    user: Array,
    score: Array,
    label: Array,
    *,
    gain: Gain = "exp",
    k: int | None = None,
    min_rows: int = 2,
    rng: np.random.Generator | None = None,
) -> PerUser:
    """DCG of the order by score / DCG of the best order, DCG = Σ_r gain / log2(r + 1), r ≤ k.

    Gain 2^label - 1 (`exp`) or label (`linear`), of labels ≥ 0. Left out: users with fewer than
    `min_rows` rows, and users without any gain. Equal scores share the mean discount of their
    places: the exact expectation over random orders, so a constant scorer gets what chance gets
    and the order of rows decides nothing. With `rng`, ties are broken by one random draw instead.
    """
    user, score, label = columns(user=user, score=score, label=label)
    no_nan(score, "score")
    gained = _gains(label, gain)
    _cut(k)
    # ties by gain: of no weight in the expectation, but the same sum to the last bit
    tied = gained if rng is None else rng.random(len(user))
    order = np.lexsort((tied, -score.astype(np.float64), user))
    users, start, rank = _groups(user[order])
    discount = _discount(rank, k)
    if rng is None:
        discount = _shared(discount, rank, score[order])
    dcg = _sums(gained[order] * discount, start)
    best = np.lexsort((-gained, user))
    ideal = _sums(gained[best] * _discount(rank, k), start)
    kept = (np.diff(start) >= min_rows) & (ideal > 0)
    # rounding may leave a perfect list an ulp above 1
    value = np.minimum(dcg[kept] / ideal[kept], 1.0)
    return PerUser(users[kept], value, np.ones(len(value)))


def random_ndcg(
    user: Array, label: Array, *, gain: Gain = "exp", k: int | None = None, min_rows: int = 2
) -> PerUser:
    """The floor of `ndcg`: its exact expectation for items in random order."""
    return ndcg(user, np.zeros(len(label)), label, gain=gain, k=k, min_rows=min_rows)


def auc_per_user(user: Array, score: Array, positive: Array) -> PerUser:
    """P(a positive row scores above a negative row of the same user), ties half.

    Each user counts once; users whose rows are all positive or all negative are left out.
    """
    user, score, positive = binary(user, score, positive)
    order = np.lexsort((score, user))
    users, start, rank = _groups(user[order])
    middle = _shared(np.add(rank, 1, dtype=np.float64), rank, score[order])
    hit = positive[order]
    ones = _sums(hit.astype(np.float64), start)
    pairs = ones * (np.diff(start) - ones)
    above = _sums(middle * hit, start) - ones * (ones + 1) / 2
    kept = pairs > 0
    return PerUser(users[kept], above[kept] / pairs[kept], np.ones(int(kept.sum())))


def recall_at(
    top: Array, relevant: Relevant, k: int | None = None, *, denominator: Denominator = "relevant"
) -> Floats:
    """Relevant items among the first k / all relevant items (`min`: / min(k, relevant)).

    [U]; NaN for a user without relevant items.
    """
    if denominator not in get_args(Denominator):
        raise ConfigError(unknown("denominator", denominator, get_args(Denominator)))
    found, lengths = _found(top, relevant, k), relevant.lengths()
    below = np.minimum(lengths, found.shape[1]) if denominator == "min" else lengths
    return _where(lengths > 0, (found > 0).sum(1), below)


def hit_at(top: Array, relevant: Relevant, k: int | None = None) -> Floats:
    """1 if any of the first k is relevant, else 0 [U]; NaN for a user without relevant items."""
    hit = (_found(top, relevant, k) > 0).max(1)
    return _where(relevant.lengths() > 0, hit, np.ones(len(hit)))


def mrr_at(top: Array, relevant: Relevant, k: int | None = None) -> Floats:
    """1 / rank of the first relevant item, 0 if not among the first k [U]; NaN without any."""
    found = _found(top, relevant, k) > 0
    return _where(relevant.lengths() > 0, found.max(1), found.argmax(1) + 1)


def ndcg_at(top: Array, relevant: Relevant, k: int | None = None) -> Floats:
    """Σ_{r ≤ k} gain / log2(r + 1), over the same of the best list of min(k, relevant) items.

    Gains are taken as they are, 1 if there are none [U]; NaN for a user without relevant items.
    """
    found = _found(top, relevant, k)
    width = found.shape[1]
    dcg = found @ _discount(np.arange(width), width)
    ideal = _ideal(relevant, width)
    return _where(relevant.lengths() > 0, np.minimum(dcg, ideal), ideal)


def random_ndcg_at(relevant: Relevant, candidates: Array | int, k: int) -> Floats:
    """The floor of `ndcg_at`: its expectation for a random order of the candidates.

    `candidates`: how many items may be shown (to each user, or to all); -1s are not among them.
    """
    _cut(k)
    counts = np.broadcast_to(np.asarray(candidates, np.int64), relevant.lengths().shape)
    owner, gains = _owner_gains(relevant)
    gains = np.where(np.asarray(relevant.items) >= 0, gains, 0.0)
    total = sum_by(owner, gains, len(counts))
    places = np.concatenate([[0.0], np.cumsum(_discount(np.arange(k), k))])
    mean = places[np.minimum(k, counts)] / np.maximum(counts, 1)
    return _where(relevant.lengths() > 0, total * mean, _ideal(relevant, k))


def _found(top: Array, relevant: Relevant, k: int | None) -> Floats:
    """Gain of the item in each place of the lists, 0 where it is not relevant [U, k]."""
    top = np.asarray(top)
    if top.ndim != 2 or not top.shape[1] or len(top) != len(relevant.offsets) - 1:
        raise DataError(
            f"top has shape {top.shape} for the relevant items of {len(relevant.offsets) - 1} "
            "users: give one list per user, all of one width"
        )
    _cut(k)
    if k is not None and k > top.shape[1]:
        raise ConfigError(f"k is {k} and the lists hold {top.shape[1]} items: rank at least {k}")
    top = top[:, :k].astype(np.int64)
    owner, gains = _owner_gains(relevant)
    items = np.asarray(relevant.items, np.int64)
    stride = 2 + max(int(items.max(initial=-1)), int(top.max(initial=-1)))
    keys = owner * stride + items + 1
    order = np.argsort(keys, kind="stable")
    keys, gains = keys[order], gains[order]
    if np.any((np.diff(keys) == 0) & (keys[1:] % stride > 0)):
        raise DataError("an item is relevant twice to one user: give each pair once")
    wanted = np.arange(len(top))[:, None] * stride + top + 1
    place = np.searchsorted(keys, wanted)
    keys, gains = np.append(keys, -1), np.append(gains, 0.0)
    hit = (keys[place] == wanted) & (top >= 0)
    if np.bincount(place[hit]).max(initial=0) > 1:
        raise DataError("a list names the same item twice: rank distinct items")
    return np.where(hit, gains[place], 0.0)


def _owner_gains(relevant: Relevant) -> tuple[Ints, Floats]:
    lengths = relevant.lengths()
    size = len(relevant.items)
    if lengths.min(initial=0) < 0 or relevant.offsets[0] or lengths.sum() != size:
        raise DataError(f"offsets do not rise from 0 to the {size} relevant items: give U + 1")
    owner = np.repeat(np.arange(len(lengths)), lengths)
    if relevant.gains is None:
        return owner, np.ones(len(owner))
    gains = columns(items=relevant.items, gains=relevant.gains)[1].astype(np.float64)
    if not np.all((gains > 0) & np.isfinite(gains)):
        raise DataError("a relevant item has a gain that is not above 0: leave that item out")
    return owner, gains


def _ideal(relevant: Relevant, k: int) -> Floats:
    owner, gains = _owner_gains(relevant)
    rank = np.arange(len(owner)) - np.asarray(relevant.offsets)[owner]
    best = gains[np.lexsort((-gains, owner))] * _discount(rank, k)
    return sum_by(owner, best, len(relevant.offsets) - 1)


def _where(defined: NDArray[np.bool_], above: Array, below: Array) -> Floats:
    out = np.full(len(defined), np.nan)
    np.divide(above, below, out=out, where=defined)
    return out


def _gains(label: Array, gain: str) -> Floats:
    if gain not in get_args(Gain):
        raise ConfigError(unknown("gain", gain, get_args(Gain)))
    no_nan(label, "label")
    label = label.astype(np.float64)
    if label.min(initial=0) < 0:
        raise DataError(f"label {label.min():g} is below 0 and has no gain: shift the labels")
    if gain == "exp" and label.max(initial=0) > 900:
        raise DataError(f"label {label.max():g} overflows 2^label: rescale it or use gain='linear'")
    return np.exp2(label) - 1 if gain == "exp" else label


def _groups(user: Array) -> tuple[Ints, Ints, Ints]:
    """Of sorted keys: the unique ones, where each begins (and the end), and each row's place."""
    users, first, counts = np.unique(user, return_index=True, return_counts=True)
    start = np.append(first, len(user))
    return users, start, np.arange(len(user)) - np.repeat(first, counts)


def _shared(x: Floats, rank: Ints, score: Array) -> Floats:
    """Each entry replaced by the mean over its run of equal scores of one user."""
    new = rank == 0
    new[1:] |= score[1:] != score[:-1]
    start = np.append(np.flatnonzero(new), len(x))
    return np.repeat(_sums(x, start) / np.diff(start), np.diff(start))


def _sums(x: Floats, start: Ints) -> Floats:
    return np.add.reduceat(x, start[:-1]) if len(x) else np.zeros(0)


def _discount(rank: Ints, k: int | None) -> Floats:
    """1 / log2(r + 1) of ranks counted from 0 here."""
    discount = 1 / np.log2(np.add(rank, 2, dtype=np.float64))
    return discount if k is None else np.where(rank < k, discount, 0.0)


def _cut(k: int | None) -> None:
    if k is not None and k < 1:
        raise ConfigError(f"k is {k}: give a cut-off of at least 1, or None for the whole list")
