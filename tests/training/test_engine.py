"""Engines: results, errors, and workers that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from idcf import ConfigError
from idcf.errors import EngineError
from idcf.training.engine import Engine, LocalEngine, ProcessEngine, open_engine

STATE = {"factor": np.arange(5.0)}


def multiply(number: int, state) -> float:
    """Return a number times the sum of the state."""
    return number * float(state["factor"].sum())


def fail_at_three(number: int, state) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def die_once(number: int, folder: Path, state) -> int:
    """Kill this process in the first call of one number."""
    marker = folder / str(number)
    if number == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_always(number: int, state) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def write_and_wait(folder: Path, state) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(60)


@pytest.fixture(scope="module", params=["local", "processes"])
def engine(request) -> Iterator[Engine]:
    opened = open_engine(request.param, 2 if request.param == "processes" else None)
    yield opened
    opened.close()


def test_every_task_has_one_result(engine: Engine) -> None:
    results = list(engine.map(multiply, [(n,) for n in range(20)], STATE))
    assert sorted(results) == [(n, 10.0 * n) for n in range(20)]
    assert list(engine.map(multiply, [], STATE)) == []


def test_what_a_call_raises_is_raised(engine: Engine) -> None:
    with pytest.raises(ValueError, match="three"):
        list(engine.map(fail_at_three, [(n,) for n in range(6)], {}))
    assert sorted(engine.map(fail_at_three, [(1,), (2,)], {})) == [(0, 1), (1, 2)]


def test_calls_of_dead_processes_are_made_again(tmp_path: Path) -> None:
    engine = ProcessEngine(2)
    results = sorted(engine.map(die_once, [(n, tmp_path) for n in range(9)], {}))
    assert results == [(n, n) for n in range(9)]
    assert [x.name for x in tmp_path.iterdir()] == ["3"]
    engine.close()


def test_a_call_that_always_kills_its_process_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr("idcf.training.engine._MAX_DEATHS", 2)
    engine = ProcessEngine(1)
    with pytest.raises(EngineError, match="worker processes died 2 times in a row; if memory"):
        list(engine.map(die_always, [(0,), (1,), (2,)], {}))
    engine.close()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_no_process_outlives_the_first_one(tmp_path: Path, number: int, code: int) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from test_engine import write_and_wait\n"
        "from idcf.training.engine import ProcessEngine\n"
        "if __name__ == '__main__':\n"
        f"    list(ProcessEngine(1).map(write_and_wait, [(Path({str(tmp_path)!r}),)], {{}}))\n"
    )
    first = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (names := [x.name for x in tmp_path.iterdir()]):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(number)
    assert first.wait(60) == code
    while Path(f"/proc/{names[0]}").exists():
        state = Path(f"/proc/{names[0]}/stat").read_text().split()[2]
        if state == "Z":
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_results_that_are_not_read_belong_to_no_other_call() -> None:
    engine = ProcessEngine(2)
    results = engine.map(multiply, [(n,) for n in range(6)], STATE)
    next(results)
    with pytest.raises(EngineError, match="one call at a time"):
        list(engine.map(multiply, [(9,)], STATE))
    results.close()
    assert list(engine.map(multiply, [(9,)], STATE)) == [(0, 90.0)]
    engine.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("spark",), "no engine named 'spark'"),
        (("local", 2), "engine 'local' has one worker, not 2; take 'processes'"),
        (("processes", 0), "workers must be a whole number from 1, got 0"),
        (("processes", 1, "auto"), "an address .auto. is for engine='ray', not for 'processes'"),
    ],
)
def test_arguments_of_engines(arguments: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_engine(*arguments)


def test_the_local_engine_leaves_the_number_of_threads() -> None:
    import torch

    before = torch.get_num_threads()
    assert list(LocalEngine().map(multiply, [(1,)], STATE)) == [(0, 10.0)]
    assert torch.get_num_threads() == before
