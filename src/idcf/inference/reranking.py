"""Options of a list beside its scores: less popular items, and items that differ.

Damping d divides the scores by a power of the popularity: score / s^d. Popularity is relative to
the mean, s_i = (n_i + 10) / mean(n + 10), where n_i key users have the item. At 1 the order is that
of the lift: how much more likely this user takes an item up than another user.

Diversity λ re-ranks the best items, one after the other (maximal marginal relevance, Carbonell &
Goldstein 1998): the next item has the largest

    (1 - λ) · relevance - λ · mean similarity to the items before it.

The relevance is the position in the list that is re-ranked, the similarity that of `similar_items`,
both in standard deviations over these items. So λ means the same whatever a model's scores are. The
list that is re-ranked is the pool: see `pool_size`.
"""

from __future__ import annotations

from numbers import Real

import numpy as np
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.errors import ConfigError

_SMOOTHING = 10.0  # key users added to the number of every item
_POOL_PER_ITEM = 5  # items that are re-ranked for each item of the list
_MIN_POOL = 100
_MAX_SHARE_OF_MATCHES, _MIN_POOL_PER_ITEM = 0.1, 2  # of items that pass a filter by attributes
MIN_SCORE = 1e-30  # bounds the logarithm


def check_share(name: str, value: float) -> float:
    """Return the value of an option; ConfigError: it is not a number between 0 and 1."""
    if not isinstance(value, Real) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be between 0 and 1, got {value!r}")
    return float(value)


def log_popularity(n_users: Tensor) -> Floats:
    """Return log s of every item [I] from the number of its key users."""
    smoothed = n_users.double().cpu().numpy() + _SMOOTHING
    out: Floats = np.log(smoothed / smoothed.mean()).astype(np.float32)
    return out


def damp_scores(scores: Floats, damping: float | Floats, log_s: Floats) -> Floats:
    """Return score / s^d of every item [I], or of several users [B, I] with a damping [B, 1].

    A score of 0 or less counts as almost 0.
    """
    out: Floats = np.exp(np.log(np.maximum(scores, MIN_SCORE)) - damping * log_s)
    return out


def pool_size(n: int, diversity: float, n_matches: int = 0, n_items: int = 0) -> int:
    """Return how many items must be ranked, so that n can be chosen from them.

    A filter by attributes leaves `n_matches` of `n_items` items, 0 if there is none. Then the pool
    is a tenth of them (or the share that it would be of all items, if that is more): few items are
    left, and those far down among them are not what the user would take up.
    """
    size = max(_MIN_POOL, _POOL_PER_ITEM * n) if diversity else n
    if not diversity or not n_items:
        return size
    share = max(_MAX_SHARE_OF_MATCHES, size / n_items)
    return min(size, max(_MIN_POOL_PER_ITEM * n, int(share * n_matches)))


def diversify(similarity: Floats, n: int, diversity: float) -> Ints:
    """Return the positions of the n items chosen, in their order, from a list of m items.

    `similarity` is [m, m], with the best item of the list first.
    """
    chosen: Ints = diversify_batch(similarity[None], n, np.array([diversity], np.float32))[0]
    return chosen


def diversify_batch(similarity: Floats, n: int, diversity: Floats) -> Ints:
    """Return what `diversify` does for B lists of m items, [B, min(n, m)], each with a diversity.

    `similarity` is [B, m, m].
    """
    n_lists, m, _ = similarity.shape
    chosen = np.zeros((n_lists, min(n, m)), np.int64)
    if chosen.shape[1] < 2:
        return chosen
    similarity = (similarity + similarity.transpose(0, 2, 1)) / np.float32(2)
    penalty = (diversity * _inverse_deviation(similarity))[:, None]
    # positions from 0 to 1 have the standard deviation 1 / √12
    relevance = (1 - diversity[:, None]) * np.float32(12**0.5) * (1 - np.arange(m) / m)
    relevance = relevance.astype(np.float32)
    lists = np.arange(n_lists)
    relevance[:, 0] = -np.inf  # the best item is chosen first
    total = similarity[:, 0].copy()
    for k in range(1, chosen.shape[1]):
        # the mean similarity of the pool would shift all values alike
        best = (relevance - penalty / np.float32(k) * total).argmax(1)
        chosen[:, k] = best
        relevance[lists, best] = -np.inf
        total += similarity[lists, best]
    return chosen


def _inverse_deviation(similarity: Floats) -> Floats:
    """Return 1 / the standard deviation of similarities [B, m, m] over different items: [B].

    If all are equal it is 0, so that they change no order.
    """
    n_lists, m, _ = similarity.shape
    diagonal, n_pairs = np.einsum("bii->bi", similarity).astype(np.float64), m * (m - 1)
    flat = similarity.reshape(n_lists, -1)
    mean = (flat.sum(1, dtype=np.float64) - diagonal.sum(1)) / n_pairs
    squares = (flat**2).sum(1, dtype=np.float64) - (diagonal**2).sum(1)
    variance = squares / n_pairs - mean**2
    is_flat = variance <= 1e-6 * mean**2
    scale = np.where(is_flat, 1.0, variance) ** -0.5
    out: Floats = np.where(is_flat, 0.0, scale).astype(np.float32)
    return out
