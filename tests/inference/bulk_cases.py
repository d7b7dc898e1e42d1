"""A small saved model, folders of histories, and engines whose processes die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from builders import board
from pyarrow import parquet

from idcf import Recommender
from idcf.inference.bulk import BulkWork, convert_part
from idcf.training.engine import LocalEngine, ProcessEngine


def save_model(folder: Path, seed: int = 0) -> Path:
    """Fit a small model and save it."""
    recommender = Recommender("als", embedding_size=4, key_threshold=15, device="cpu", seed=seed)
    return recommender.fit(board(60, 80, 9, 24)).save(folder)


def write_histories(
    folder: Path, n_files: int, n_users: int = 40, *, as_text: bool = False, first: int = 0
) -> Path:
    """Write files of users with some unknown items; users are numbered from `first` on."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(first)
    for number in range(n_files):
        users = first + np.arange(number * n_users, (number + 1) * n_users).repeat(5)
        columns = {
            "user_id": [f"u{x:06}" for x in users.tolist()] if as_text else users,
            "item_id": [f"i{x}" for x in rng.integers(0, 90, len(users)).tolist()],
            "rating": rng.integers(1, 6, len(users)).astype(np.float32),
        }
        parquet.write_table(pa.table(columns), folder / f"part-{first}-{number:03}.parquet")
    return folder


def digests(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all parts, by name; there must be nothing else but `_job.json`."""
    names = {x.name for x in folder.iterdir()}
    assert {x for x in names if not x.endswith(".parquet")} == {"_job.json"}
    assert not [x for x in names if x.startswith(".")]
    return {x: (folder / x).read_bytes() for x in sorted(names - {"_job.json"})}


def die_while_writing() -> None:
    """Make this process kill itself when it has written a table of a part."""
    write_table = parquet.ParquetWriter.write_table

    def write_and_die(self: Any, *arguments: Any) -> None:
        write_table(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    parquet.ParquetWriter.write_table = write_and_die


def convert_or_die(folder: Path, work: BulkWork, job: str, part: Any, state: Any) -> Any:
    """Write a part; the first process that writes every third one dies in the middle."""
    marker = folder / part.out.name
    if int(part.out.stem[-3:]) % 3 == 1 and not marker.exists():
        marker.touch()
        die_while_writing()
    return convert_part(work, job, part, state)


class DyingProcesses(ProcessEngine):
    """Processes that die, each part of `convert_or_die` once."""

    def __init__(self, n_workers: int, folder: Path) -> None:
        super().__init__(n_workers)
        self.folder = folder

    def map(self, call: Any, tasks: Any, state: Any) -> Iterator[tuple[int, Any]]:
        """Make the calls of `convert_or_die`."""
        return super().map(convert_or_die, [(self.folder, *x) for x in tasks], state)


class DyingDriver(LocalEngine):
    """Ends this process while it writes a part, after some results."""

    def __init__(self, n_results: int) -> None:
        super().__init__()
        self.n_results = n_results

    def map(self, call: Any, tasks: Any, state: Any) -> Iterator[tuple[int, Any]]:
        """Yield results until the process dies."""
        if not self.n_results:
            die_while_writing()
        for number, result in enumerate(super().map(call, tasks, state), 1):
            if number == self.n_results:
                die_while_writing()
            yield result
