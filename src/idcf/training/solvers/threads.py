"""Blocks of work computed by several threads, PyTorch with one thread in each.

PyTorch solves many small equations in one thread, and NumPy and SciPy have one; all three compute
without the interpreter lock. Threads that wait for work would take the processor from those that
have some, so PyTorch gets one thread while there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
BlockMap = Callable[..., list[Any]]  # of a function and its arguments, as `map` has them


def map_blocks(function: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
    """Call a function for each block, and return the results in order."""
    return list(map(function, *arguments))


@contextmanager
def threads_over_blocks(n_threads: int | None = None) -> Iterator[BlockMap]:
    """Yield `map_blocks`, computed by `n_threads` threads; None: as many as PyTorch uses.

    The results do not depend on their number, if no block reads what another one writes.
    """
    n_torch_threads = torch.get_num_threads()
    n_threads = n_torch_threads if n_threads is None else n_threads
    if n_threads == 1:
        yield map_blocks
        return

    def map_in_threads(function: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
        """Call the function for each block in the pool."""
        return list(pool.map(function, *arguments))

    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(
            n_threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            yield map_in_threads
    finally:
        torch.set_num_threads(n_torch_threads)
