"""The nearest items that `BayesModel` corrects its scores by, and how much.

Items that more users have both rated than chance explains have something in common that the vectors
do not hold, most of all in small sparse tables. The weight of two items is the square of the excess
of their cooccurrences over independence, in units of the cosine:

    K_ij = (max(0, n_ij - n_i n_j / U) / √((n_i + s)(n_j + s)))²

How much a correction counts is chosen on the users who are held out for the intervals. It is the
smallest weight whose squared error is within one standard error of that of the best, so that it is
0 where they do not clearly prefer another.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from idcf.data.interactions import Doubles, Interactions, Ints
from idcf.models.layers.neighbors import Neighbors
from idcf.training.solvers.cooccurrences import MatrixSource

COUNT_SHRINKAGE = 2.0  # s
WEIGHTS = np.linspace(0, 3, 61)  # the weights that are compared


def find_neighbors(table: Interactions, n_neighbors: int) -> Neighbors:
    """Return at most `n_neighbors` nearest items of each item, from the users of a table."""
    shape = len(table.users), len(table.items)
    ones = np.ones(len(table), np.float32)
    rows = csr_array((ones, (table.user, table.item)), shape=shape)
    nearest = MatrixSource(rows).nearest_items(min(n_neighbors, max(shape[1] - 1, 0)))
    n_users = max(1, int((table.user_counts() > 0).sum()))
    items, counts = nearest.items.long(), nearest.n_users
    expected = counts[:, None] * counts[items] / n_users
    scale = (counts[:, None] + COUNT_SHRINKAGE) * (counts[items] + COUNT_SHRINKAGE)
    excess = (nearest.counts - expected).clamp(min=0)
    return Neighbors(items, excess.square() / scale)


def choose_weight(user: Ints, error: Doubles, correction: Doubles) -> float:
    """Return the weight w of `correction` in predictions whose error is `error` + w `correction`.

    The three arrays [N] are of held-out rows; standard errors are those of sums over users.
    """
    _, position = np.unique(user, return_inverse=True)
    cross, square = (np.bincount(position, x * correction) for x in (error, correction))
    n = len(cross)
    if n < 2:
        return 0.0
    losses = 2 * WEIGHTS[:, None] * cross + WEIGHTS[:, None] ** 2 * square  # less those of w = 0
    excess = losses - losses[losses.sum(1).argmin()]
    std_error = excess.std(1, ddof=1) * n**0.5
    return float(WEIGHTS[(excess.sum(1) <= std_error).argmax()])
