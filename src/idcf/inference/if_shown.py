"""The rating of an item that is put before a user, beside that of an item the user chose.

Ratings are not missing at random: users rate what they chose, and they choose what they expect to
like. If a rating that is higher by one makes a choice e^κ times as likely, then

    p(r | shown) ∝ p(r | chosen) · e^(-κ r).

p(r | chosen) is normal with the mean and the standard deviation of the model, rounded to the rating
levels. κ is estimated by `idcf.training.choice_slope` from how choice grows with the part of the
rating that the model sees; that it grows alike with the part that nobody sees is an assumption.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from idcf.data.interactions import Floats

_MAX_LEVELS = 64  # a finer scale is computed on so many levels


def rating_if_shown(rating: Floats, std: Floats, levels: Sequence[float], slope: float) -> Floats:
    """Return expected ratings if shown, from those if chosen; arrays of any one shape.

    The difference of the means of both distributions is added to the rating. The result is on the
    scale, and with κ = `slope` = 0 it is the rating, clipped to the scale.
    """
    grid = np.asarray(levels, np.float64)
    if len(grid) > _MAX_LEVELS:
        grid = np.linspace(grid[0], grid[-1], _MAX_LEVELS)
    middles = (grid[1:] + grid[:-1]) / 2
    z: NDArray[np.float64] = (middles - rating[..., None]) / np.maximum(std, 1e-6)[..., None]
    cumulative = np.concatenate(
        [np.zeros((*z.shape[:-1], 1)), ndtr(z), np.ones((*z.shape[:-1], 1))], -1
    )
    chosen = np.diff(cumulative)
    shown = chosen * np.exp(-slope * (grid - grid[0]))
    shown /= np.maximum(shown.sum(-1, keepdims=True), 1e-300)
    difference = (shown - chosen) @ grid
    out: Floats = np.clip(rating + difference, grid[0], grid[-1]).astype(np.float32)
    return out
