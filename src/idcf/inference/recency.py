"""How much more the later items of a history count: an option, because order is ignored by default.

With recency r, the weight of an item in the history that the take-up model reads is

    w_j ∝ (1 + number of items of the history later than j)^-r

with a mean of 1 over the history, so that the probabilities stay on their scale. Items of one time
weigh the same. The weights fall slowly: with a constant share per item, nothing but the last few
items of a long history would count.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Literal

import numpy as np

from idcf.data.interactions import Doubles, Floats, Ints, offsets_from_lengths
from idcf.errors import ConfigError, DataError

Recency = float | Literal["fitted"]
FITTED = "fitted"  # the value that `fit` chose


def check_recency(recency: Recency, fitted: float | None) -> float:
    """Return a valid recency; `fitted` is the value that the fit chose, None if it chose none.

    ConfigError: it is neither a number from 0 to below 1 nor "fitted", or none was fitted.
    """
    if isinstance(recency, str) and recency == FITTED:
        if fitted is None:
            raise ConfigError(
                "recency='fitted': this model was fitted without timestamps, so that no value was "
                "chosen; give a number, or fit it to a table with a column timestamp"
            )
        return fitted
    if not isinstance(recency, Real) or not 0 <= recency < 1:
        raise ConfigError(
            f"recency must be a number from 0 to below 1, or 'fitted', got {recency!r}"
        )
    return float(recency)


def recency_weights(n_later: Ints, recency: float) -> Floats:
    """Return the weights [n] of the items of one history; the mean is 1."""
    return stacked_recency_weights(n_later, [len(n_later)], [recency])


def stacked_recency_weights(
    n_later: Ints, lengths: Sequence[int], recency: Sequence[float]
) -> Floats:
    """Return `recency_weights` of several histories laid end to end, with a recency for each."""
    if not len(n_later):
        return np.empty(0, np.float32)
    weights: Doubles = (1.0 + n_later) ** -np.repeat(np.array(recency, np.float64), lengths)
    starts = offsets_from_lengths(lengths)[:-1]
    has_items = np.array(lengths) > 0
    total = np.ones(len(lengths))
    total[has_items] = np.add.reduceat(weights, starts[has_items])
    out: Floats = (weights * np.repeat(np.array(lengths) / total, lengths)).astype(np.float32)
    return out


def require_order(n_later: Ints | None) -> Ints:
    """Return the order of a history; DataError: there is none."""
    if n_later is None:
        raise DataError(
            "recency needs the order of the history, which is not known: give timestamps, or a "
            "list, oldest item first"
        )
    return n_later
