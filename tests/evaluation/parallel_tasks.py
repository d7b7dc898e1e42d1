"""Tasks of worker processes, and a program that runs some; light to import."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from idcf.evaluation.parallel import run_all


def kill_first(folder: Path, n: int, ballast: bytes) -> int:
    """Return a number; the first call for it kills its process instead."""
    marker = folder / str(n)
    if n % 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return n + len(ballast)


def kill_always(n: int) -> int:
    """Kill the process, or return the number 0."""
    if n:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def note_and_sleep(folder: Path, n: int) -> None:
    """Write down the number of the process and sleep for long."""
    (folder / f"{os.getpid()}").touch()
    time.sleep(600)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    run_all(note_and_sleep, {str(n): (place, n) for n in range(4)}, n_jobs=2)
