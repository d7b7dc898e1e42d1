"""Ctrl-C, SIGTERM and a killed worker for every verb that runs for long.

The verb ends within seconds with the exit code of the signal, leaves no process behind and prints
no traceback; a killed worker is replaced, and the verb ends well.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from attack import Tally
from forked import Call, ForkServer
from small_world import FLAGS, SmallWorld

QUIET_S, BUSY_S = 5.0, 20.0  # how long a verb may take to end; on a machine under load
START_S, END_S = 240.0, 400.0
INTERRUPT, TERMINATE, KILL_WORKER = "Ctrl-C", "SIGTERM", "killed worker"
CODES = {INTERRUPT: (130, -signal.SIGINT), TERMINATE: (143, -signal.SIGTERM)}
Start = Callable[[ForkServer, SmallWorld, Path], Call]


def run(folder: Path, seed: int, share: float) -> Tally:
    """Send signals to verbs, in this Python and, if it is whole, in others."""
    tally, rng = Tally(), random.Random(f"signals {seed}")
    alone = [(name, x) for name in ALONE for x in (INTERRUPT, TERMINATE)]
    shared = [(name, x) for name in WITH_WORKERS for x in (INTERRUPT, TERMINATE, KILL_WORKER)]
    for cases in (alone, shared):
        rng.shuffle(cases)
        n = max(1, round(share * len(cases)))
        del cases[n:]
    world = SmallWorld(folder / "world", seed % 1000)
    with ForkServer(folder / "calls", ("duckdb",)) as server:
        for number, (name, kind) in enumerate([*alone, *shared]):
            send_one(server, world, folder / str(number), name, kind, rng, seed, tally)
    for python in ("python3.12", "python3.13"):
        path = other_python(python)
        if path is None:
            tally.left_out[python] = "no interpreter with the packages that idcf needs"
        elif share == 1:
            with ForkServer(folder / python, (), path) as server:
                for number, kind in enumerate((INTERRUPT, TERMINATE, KILL_WORKER)):
                    place = folder / f"{python}-{number}"
                    case = ("evaluate --jobs 2", kind)
                    send_one(server, world, place, *case, rng, seed, tally, f", {python}")
    return tally


def other_python(name: str) -> str | None:
    """Return an interpreter that can run idcf, from `IDCF_OTHER_PYTHONS` or the search path."""
    given = os.environ.get("IDCF_OTHER_PYTHONS", "").split(os.pathsep)
    for path in (*(x for x in given if name in x), shutil.which(name)):
        check = "import torch, pyarrow, narwhals, safetensors, typer, pydantic, pooch, scipy, tqdm"
        if path and not subprocess.run([path, "-c", check], capture_output=True).returncode:
            return path
    return None


def send_one(
    server: ForkServer,
    world: SmallWorld,
    place: Path,
    name: str,
    kind: str,
    rng: random.Random,
    seed: int,
    tally: Tally,
    label: str = "",
) -> None:
    """Start a verb, send one signal when it works, and note what should not be."""
    place.mkdir(parents=True, exist_ok=True)
    start = WITH_WORKERS.get(name) or ALONE[name]
    delay = rng.random() * 1.5
    case = f"seed {seed}, {kind} after {delay:.2f} s"
    call = start(server, world, place)
    if not is_working(call, name):
        tally.fail(name + label, case, f"it did not begin: {call.code}: {call.text()}")
        call.send_to_all(signal.SIGKILL)
        return
    call.wait(delay)
    if call.code is not None:
        tally.count("ended before its signal")
        return
    tally.count(f"{name}, {kind}{label}")
    begin, allowed = time.monotonic(), allowed_seconds()
    if kind == KILL_WORKER:
        kill_worker(call, name, case, tally, label)
    else:
        call.send_to_all(signal.SIGINT) if kind == INTERRUPT else call.send(signal.SIGTERM)
        is_server = kind == INTERRUPT and name.startswith("serve")  # documented: 0
        check_end(call, (0,) if is_server else CODES[kind], begin, allowed, name, case, tally)
    key = f"slowest_end_after_{kind.replace(' ', '_')}_s"
    if kind != KILL_WORKER:
        seconds = time.monotonic() - begin
        tally.measured[key] = max(round(seconds, 2), tally.measured.get(key, 0.0))
    if "Traceback" in call.text():
        tally.fail(name + label, case, call.text()[-1500:])


def kill_worker(call: Call, name: str, case: str, tally: Tally, label: str) -> None:
    """Kill one worker; the verb ends well, or the server goes on until it is ended."""
    for worker in call.survivors()[-1:]:
        os.kill(worker, signal.SIGKILL)
    codes: tuple[int, ...] = (0,)
    if name.startswith("serve"):
        call.wait(1.0)
        call.send(signal.SIGTERM)
        codes = CODES[TERMINATE]
    check_end(call, codes, time.monotonic(), END_S, name + label, case, tally)


def check_end(
    call: Call,
    codes: tuple[int, ...],
    begin: float,
    allowed: float,
    name: str,
    case: str,
    tally: Tally,
) -> None:
    """Wait for the end of a verb and of its workers; note what is late or wrong."""
    code = call.wait(allowed)
    if code is None:
        tally.fail(name, case, f"still there after {allowed:.0f} s")
        call.send_to_all(signal.SIGKILL)
        call.wait(60)
        return
    if code not in codes:
        tally.fail(name, case, f"exit code {code}: {call.text()[-1500:]}")
    end = time.monotonic() + allowed_seconds()
    while (orphans := call.survivors()) and time.monotonic() < end:
        time.sleep(0.05)
    if orphans:
        tally.fail(name, case, f"{len(orphans)} processes are left")
        call.send_to_all(signal.SIGKILL)


def allowed_seconds() -> float:
    """Return how long a verb may take to end, on a machine with this load."""
    return QUIET_S if os.getloadavg()[0] < (os.cpu_count() or 1) else BUSY_S


def is_working(call: Call, name: str) -> bool:
    """Wait until a verb works: it has workers, or a server listens, or it prints something."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and call.code is None:
        if name.startswith("serve"):
            if "address" in call.text():
                return True
        elif name in ALONE or call.survivors():
            return True
        call.wait(0.05)
    return call.code == 0


def _verb(*words: str, function: str = "run") -> Start:
    """Return how to start a verb; words in capitals stand for paths."""

    def start(server: ForkServer, world: SmallWorld, place: Path) -> Call:
        paths = {"PLACE": lambda: place, "RATINGS": lambda: world.ratings}
        paths |= {"MODEL": lambda: world.model(1), "HISTORIES": lambda: world.histories}
        paths["SHARDS"] = lambda: _shards(server, world)
        given = []
        for word in words:
            head, _, rest = word.partition("/")
            given.append(str(Path(paths[head]()) / rest) if head in paths else word)
        return server.call(f"verbs:{function}", given)

    return start


def _shards(server: ForkServer, world: SmallWorld) -> Path:
    """Return a folder of shards, which is made first."""
    folder = world.folder / "shards"
    if not folder.exists():
        options = ("--shards", "4", "--block-users", "16")
        server.verb("shard", str(world.ratings), "--out", str(folder), *options).wait(START_S)
    return folder


_LONG = ("-o", "epochs=100000", "-o", "patience=0", "--no-card-metrics")
_ENGINE = ("--engine", "processes", "--workers", "2")
_OUT = ("--out", "PLACE/out")
ALONE: dict[str, Start] = {
    "train idcf-nn": _verb("train", "RATINGS", *_OUT, *FLAGS, "--model", "idcf-nn", *_LONG),
    "train idcf-bayes": _verb("train", "RATINGS", *_OUT, *FLAGS, "-o", "sweeps=100000"),
    "tune": _verb(
        *("tune", "RATINGS", "--model", "als", "--storage", "PLACE/trials.db"),
        *("--trials", "1000", *FLAGS),
    ),
    "evaluate": _verb(
        *("evaluate", "RATINGS", "--models", "idcf-nn", *FLAGS),
        *("-o", "train.epochs=100000", "-o", "train.patience=0"),
    ),
    "serve": _verb("serve", "MODEL", "--port", "0", "--json"),
}
WITH_WORKERS: dict[str, Start] = {
    "evaluate --jobs 2": _verb(
        *("evaluate", "RATINGS", "--models", "bias,als,idcf-nn", *FLAGS, "--jobs", "2"),
        *("-o", "idcf-nn.train.epochs=30", "-o", "idcf-nn.train.patience=0"),
    ),
    "reproduce --jobs 2": _verb(
        *("reproduce", "table2", "--datasets", "ml-100k", "--models", "bias,als,item-knn"),
        *("--seeds", "2", "--results", "PLACE/results", "--jobs", "2", "--device", "cpu"),
        function="run_on_small_datasets",
    ),
    "train --engine": _verb(
        *("train", "SHARDS", *_OUT, *FLAGS, *_ENGINE, "-o", "sweeps=60"),
    ),
    "embed --engine": _verb("embed", "MODEL", "HISTORIES", *_OUT, *_ENGINE, "--json"),
    "recommend --engine": _verb(
        "recommend", "MODEL", "--histories", "HISTORIES", *_OUT, *_ENGINE, "--json"
    ),
    "serve --workers 2": _verb("serve", "MODEL", "--port", "0", "--json", "--workers", "2"),
    "demo --jobs 2": _verb(
        *("demo", *_OUT, "--jobs", "2", "--device", "cpu"), function="run_on_small_datasets"
    ),
}
