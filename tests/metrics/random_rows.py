"""Random rows of users, scores and labels for the tests of the metrics."""

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
    """User, score and label of n rows; with an odd seed many scores are equal."""
    rng = np.random.default_rng(seed)
    score = rng.integers(-3, 4, n) / 2 if seed % 2 else rng.normal(size=n)
    return rng.integers(0, users, n) * 5, score, rng.integers(0, 6, n)
