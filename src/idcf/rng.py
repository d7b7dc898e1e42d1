"""One seed becomes any number of named, independent streams.

A stream depends on the seed and on its names alone, never on what was drawn before: a run that
resumes at epoch 7 draws what an uninterrupted run drew there, on any machine.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """The generator of this seed and these names."""
    return np.random.Generator(np.random.PCG64(_digest(seed, names)))


def derive(seed: int, *names: str | int) -> int:
    """A seed for a library that wants a number of its own (63 bits)."""
    return _digest(seed, names) >> 65


def _digest(seed: int, names: tuple[str | int, ...]) -> int:
    text = "\x1f".join([str(int(seed)), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
