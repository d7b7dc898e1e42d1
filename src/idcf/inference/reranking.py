"""Options of a list beside its scores: less popular items, and items that differ.

Damping d divides the scores by a power of the popularity: score / s^d. Popularity is relative to
the mean, s_i = (n_i + 10) / mean(n + 10), where n_i key users have the item. At 1 the order is that
of the lift: how much more likely this user takes an item up than another user.

Diversity λ re-ranks the best items, one after the other (maximal marginal relevance, Carbonell &
Goldstein 1998): the next item has the largest

    (1 - λ) · relevance - λ · mean similarity to the items before it.

The relevance is the position in the list that is re-ranked, the similarity that of `similar_items`,
both in standard deviations over these items. So λ means the same whatever a model's scores are.
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


def pool_size(n: int, diversity: float) -> int:
    """Return how many items must be ranked, so that n can be chosen from them."""
    return max(_MIN_POOL, _POOL_PER_ITEM * n) if diversity else n


def diversify(similarity: Floats, n: int, diversity: float) -> Ints:
    """Return the positions of the n items chosen, in their order, from a list of m items.

    `similarity` is [m, m], with the best item of the list first.
    """
    m = len(similarity)
    chosen = np.zeros(min(n, m), np.int64)
    if len(chosen) < 2:
        return chosen
    penalty = diversity * _standardized(similarity)
    # positions from 0 to 1 have the standard deviation 1 / √12
    relevance = (1 - diversity) * 12**0.5 * (1 - np.arange(m) / m)
    relevance[0] = -np.inf  # the best item is chosen first
    total = penalty[0].copy()
    for k in range(1, len(chosen)):
        best = int((relevance - total / k).argmax())
        chosen[k] = best
        relevance[best] = -np.inf
        total += penalty[best]
    return chosen


def _standardized(similarity: Floats) -> Floats:
    """Return symmetric similarities with mean 0 and deviation 1 over different items: [m, m].

    If all are equal they are 0, so that they change no order.
    """
    m = len(similarity)
    similarity = (similarity + similarity.T).astype(np.float32) / np.float32(2)
    np.fill_diagonal(similarity, 0)
    mean = similarity.sum(dtype=np.float64) / (m * (m - 1))
    variance = (similarity**2).sum(dtype=np.float64) / (m * (m - 1)) - mean**2
    scale = variance**-0.5 if variance > 1e-6 * mean**2 else 0.0
    out: Floats = ((similarity - mean) * scale).astype(np.float32)
    return out
