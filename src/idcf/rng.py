"""Named, independent random streams from one seed.

A stream depends on the seed and its labels only, not on earlier draws: a training run that resumes
at epoch 7 draws the numbers that an uninterrupted run draws there, on any machine.
"""

from __future__ import annotations

import hashlib

import numpy as np


def random_stream(seed: int, *labels: str | int) -> np.random.Generator:
    """Generator of a seed and labels, such as `random_stream(seed, "epoch", 7)`."""
    return np.random.Generator(np.random.PCG64(_digest(seed, labels)))


def derive_seed(seed: int, *labels: str | int) -> int:
    """Integer seed (63 bits) of a seed and labels, for a library with its own generator."""
    return _digest(seed, labels) >> 65


def _digest(seed: int, labels: tuple[str | int, ...]) -> int:
    """First 128 bits of the SHA-256 digest of seed and labels."""
    text = "\x1f".join([str(int(seed)), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
