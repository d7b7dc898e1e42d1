"""Random scores, for tests of what is measured on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

Array = NDArray[Any]
seeds = st.integers(0, 100_000)
few = settings(deadline=None, max_examples=40)


def rows(seed: int, n: int = 60, users: int = 9) -> tuple[Array, Array, Array]:
    """Scores on a coarse grid, so that many are tied."""
    rng = np.random.default_rng(seed)
    score = rng.integers(-3, 4, n) / 2 if seed % 2 else rng.normal(size=n)
    return rng.integers(0, users, n) * 5, score, rng.integers(0, 6, n)
