"""From which sizes on the solvers save time and memory, and what they then leave out.

Without torch: `idcf estimate` reads them to say what a fit would need.
"""

from __future__ import annotations

from idcf.models.options import TakeUpConfig

# of idcf-bayes
LARGE_TABLE = 1_200_000  # rows; a larger table gets `LARGE_TABLE_SWEEPS` of the sweeps
LARGE_TABLE_SWEEPS = 0.3
MIN_SAMPLED_ROWS, SAMPLED_ROWS_PER_ITEM = 1_000_000, 50  # a large table may be cut to the greater
FOLD_SWEEPS_SHARE, MIN_FOLD_SWEEPS = 0.24, 6  # further sweeps, which calibrate the intervals
# of idcf-takeup
_RANK, _MIN_RANK = 128, 64  # of the relation of low rank, S: with fewer it is left out
_MAX_FACTOR_CELLS = 6_000_000  # of the factors: a list adds their products to all items


def spectral_rank(config: TakeUpConfig, n_users: int, n_items: int) -> int:
    """Return the rank of S, 0 if it is left out because its factors would be too large."""
    rank = max(0, min(_RANK, n_users - 1, n_items - 1))
    if n_items <= config.max_dense_items:
        return rank
    max_rank = _MAX_FACTOR_CELLS // n_items
    return min(rank, max_rank) if max_rank >= _MIN_RANK else 0
