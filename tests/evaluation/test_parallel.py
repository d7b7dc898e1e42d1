"""Tasks in this process and in others: order, results, errors, and what becomes of workers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import parallel_tasks
import pytest
from tqdm import tqdm

from idcf.errors import ConfigError
from idcf.evaluation.parallel import available_cores, run_all, run_as_completed
from idcf.training import worker_pool


def divide(a: int, b: int) -> float:
    return a / b


def test_results_come_in_the_order_of_the_tasks() -> None:
    assert run_all(divide, {"a": (1, 2), "b": (3, 1), "c": (0, 5)}) == [0.5, 3, 0]
    assert run_all(divide, {"only": (1, 4)}, n_jobs=3) == [0.25]  # in this process
    assert run_all(divide, {}) == run_all(divide, {}, n_jobs=2) == []


def test_an_error_is_a_result_until_all_are_wanted() -> None:
    tasks = {"a": (1, 1), "bad": (1, 0), "c": (4, 2)}
    results = dict(run_as_completed(divide, tasks))
    assert list(results) == ["a", "bad", "c"]
    assert (results["a"], results["c"]) == (1, 2)
    assert isinstance(results["bad"], ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        run_all(divide, tasks)


def test_tasks_after_an_error_are_not_started() -> None:
    called = []

    def task(name: str) -> None:
        called.append(name)
        if name == "b":
            raise ConfigError("stop")

    with pytest.raises(ConfigError, match="stop"):
        run_all(task, {x: (x,) for x in "abc"})
    assert called == ["a", "b"]


def test_an_interrupt_is_no_result() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_as_completed(interrupted, {"a": ()}))


def test_there_is_a_core() -> None:
    assert available_cores() >= 1


def test_a_dead_worker_is_replaced_and_its_task_done_again(tmp_path: Path) -> None:
    ballast = bytes(1 << 20)  # more than a pipe holds
    tasks = {str(n): (tmp_path, n, ballast) for n in range(5)}
    results = run_all(parallel_tasks.kill_first, tasks, n_jobs=2)
    assert results == [n + len(ballast) for n in range(5)]


def test_a_task_that_kills_its_worker_again_is_an_error_of_that_task() -> None:
    tasks = {"good": (0,), "bad": (1,), "also good": (0,)}
    results = dict(run_as_completed(parallel_tasks.kill_always, tasks, n_jobs=2))
    assert (results["good"], results["also good"]) == (0, 0)
    assert isinstance(results["bad"], ConfigError)
    assert "a worker process died" in str(results["bad"])


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
def test_no_worker_outlives_the_first_process(tmp_path: Path, number: int, code: int) -> None:
    program = [sys.executable, parallel_tasks.__file__, str(tmp_path)]
    with subprocess.Popen(program, stderr=subprocess.DEVNULL) as first:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        first.send_signal(number)
        assert first.wait(60) == code
    workers = [int(x.name) for x in tmp_path.iterdir()]
    wait_until(lambda: not any(map(is_running, workers)))


def test_ctrl_c_does_not_reach_a_worker_that_imports_modules() -> None:
    worker = worker_pool._start_worker(1)
    try:
        status = Path(f"/proc/{worker.process.pid}/status").read_text()
    finally:
        worker_pool._end(worker)
    [blocked] = [int(x.split()[1], 16) for x in status.splitlines() if x.startswith("SigBlk")]
    assert blocked >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; a minute of it not holding is an error."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(process: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def show_a_bar(path: str) -> None:
    """Show a progress bar in a worker."""
    with Path(path).open("w", encoding="utf-8") as file:
        list(tqdm(range(3), file=file))


def test_a_worker_that_shows_a_bar_leaves_no_semaphore(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from idcf.evaluation.parallel import run_all\n"
        "from test_parallel import show_a_bar\n"
        "if __name__ == '__main__':\n"
        f"    run_all(show_a_bar, {{x: ({str(tmp_path)!r} + '/' + x,) for x in 'ab'}}, n_jobs=2)\n"
    )
    program = tmp_path / "program.py"
    program.write_text(code, encoding="utf-8")
    result = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert "leaked" not in result.stderr
    assert (tmp_path / "a").read_text(encoding="utf-8")
