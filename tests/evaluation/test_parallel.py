"""Tasks in this process: their order, their results and their errors."""

from __future__ import annotations

import pytest

from idcf.errors import ConfigError
from idcf.evaluation.parallel import available_cores, run_all, run_as_completed


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
