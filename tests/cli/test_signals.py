"""Ctrl-C and SIGTERM end real processes of verbs: the exit code, no traceback, no process left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import board, write_csv
from pyarrow import csv, parquet

from idcf import Recommender


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small table, a large one, a folder of histories and a model."""
    folder = tmp_path_factory.mktemp("signals")
    table = board(60, 80, 9, 24)
    write_csv(table, folder / "small.csv")
    rng, n = np.random.default_rng(0), 1_000_000
    large = {"user_id": rng.integers(0, 1 << 20, n), "item_id": rng.integers(0, 1 << 20, n)}
    csv.write_csv(pa.table(large), folder / "large.csv")
    (folder / "histories").mkdir()
    for number in range(4):
        user = np.sort(rng.integers(0, 100_000, 400_000)) + number * 100_000
        items = pa.array([f"i{x}" for x in range(80)]).take(
            pa.array(rng.integers(0, 80, len(user)))
        )
        rows = pa.table({"user_id": user, "item_id": items, "rating": np.ones(len(user))})
        parquet.write_table(rows, folder / "histories" / f"part-{number}.parquet")
    Recommender("als", device="cpu").fit(table).save(folder / "model")
    return folder


VERBS: dict[str, tuple[list[str], Callable[[Path], bool]]] = {
    "train": (
        [
            *("train", "small.csv", "--model", "idcf-nn", "--out", "m", "--resume", "checkpoints"),
            *("-o", "epochs=100000", "-o", "patience=0", "--key-threshold", "15"),
        ],
        lambda folder: (folder / "checkpoints").is_dir(),
    ),
    "evaluate": (
        [
            *("evaluate", "small.csv", "--models", "idcf-nn,idcf-dot", "--jobs", "2"),
            *(
                "-o",
                "epochs=100000",
                "-o",
                "patience=0",
                "--key-threshold",
                "12",
                "--out",
                "r.json",
            ),
        ],
        lambda folder: (folder / ".r.json.lock").is_file(),
    ),
    "shard": (
        ["shard", "large.csv", "--out", "shards"],
        lambda folder: bool(list((folder / ".shards.idcf-shard").glob("rows-*.arrow"))),
    ),
    "embed": (
        [
            *("embed", "model", "histories", "--out", "vectors"),
            *("--engine", "processes", "--workers", "2"),
        ],
        lambda folder: bool(list((folder / "vectors").glob(".*.part"))),
    ),
}


def children(process: int) -> Iterator[int]:
    """Yield the processes that a process started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == process:
                yield int(path.parent.name)
        except FileNotFoundError:
            continue


def is_running(process: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("verb", "number"),
    [
        ("train", signal.SIGINT),
        ("train", signal.SIGTERM),
        ("evaluate", signal.SIGTERM),
        ("evaluate", signal.SIGINT),
        ("shard", signal.SIGINT),
        ("shard", signal.SIGTERM),
        ("embed", signal.SIGTERM),
        ("embed", signal.SIGINT),
    ],
)
def test_a_signal_ends_a_verb(verb: str, number: signal.Signals, files: Path) -> None:
    arguments, has_begun = VERBS[verb]
    program = [sys.executable, "-m", "idcf", *arguments, "--json"]
    with subprocess.Popen(
        program, cwd=files, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        wait_until(lambda: has_begun(files) or running.poll() is not None, 120)
        if verb == "evaluate":
            wait_until(lambda: len(list(children(running.pid))) >= 3, 60)  # with their tracker
        workers = list(children(running.pid))
        running.send_signal(number)
        output, errors = running.communicate(timeout=60)  # of a busy machine; 5 of an idle one
    assert (running.returncode, output) == (128 + number, ""), errors
    assert "Traceback" not in errors
    assert "Exception" not in errors
    wait_until(lambda: not any(map(is_running, workers)), 60)
    assert not list(files.glob(".*.lock"))


def test_a_computation_in_a_library_is_ended_too() -> None:
    program = (
        "import ctypes\n"
        "from idcf.cli import signals\n"
        "signals._SECONDS = 0.2\n"
        "with signals.exit_on_signals():\n"
        "    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)\n"
        "    lock(mutex)\n"
        "    print('ready', flush=True)\n"
        "    lock(mutex)  # waits for ever, and no handler of Python runs\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 143
