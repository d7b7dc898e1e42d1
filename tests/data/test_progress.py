"""Progress bars: which fits show one, and where."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import idcf
from idcf import Recommender
from idcf.data.progress import progress_bar
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.evaluation.tune import tune
from idcf.testing.synthetic import checkerboard


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


OPTIONS = {"idcf-bayes": {"sweeps": 4, "burn_in": 1}}


@pytest.mark.parametrize(
    ("model", "implicit", "labels"),
    [
        ("idcf-bayes", False, ["idcf-bayes", "idcf-takeup"]),
        ("idcf-bayes", True, ["idcf-takeup"]),
        ("idcf-odds", True, ["idcf-odds"]),
        ("ease", False, ["ease: options"]),
        ("als", False, ["als: options", "als"]),
        ("item-knn", True, ["item-knn: options"]),
        ("slim", True, ["slim: options", "slim"]),
    ],
)
def test_a_fit_shows_bars_on_a_terminal(
    model: str, implicit: bool, labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)  # here, as pytest sets it again after fixtures
    table = checkerboard(40, 16, np.random.default_rng(0))
    table = table.as_implicit() if implicit else table
    options = OPTIONS.get(model if not implicit else "", {})
    Recommender(model, device="cpu", **options).fit(table, progress=True)
    text = terminal.getvalue()
    for label in labels:
        assert f"\r{label}: 100%" in text
    terminal.truncate(0)
    Recommender(model, device="cpu", **options).fit(table)
    assert not terminal.getvalue().strip("\0")


def test_an_evaluation_shows_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    table = checkerboard(40, 16, np.random.default_rng(0))
    options = {"als.reg": 5.0, "als.embedding_size": 8}
    idcf.evaluate(table, ["als"], options=options, device="cpu", progress=True)
    text = terminal.getvalue()
    assert "als, new users, seed 0: 100%" in text  # all runs
    assert "\rals: 100%" in text  # the sweeps of one
    terminal.truncate(0)
    idcf.evaluate(table, ["als"], options=options, device="cpu")
    assert not terminal.getvalue().strip("\0")


def test_a_search_shows_a_bar_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    data = open_dataset(checkerboard(40, 16, np.random.default_rng(0)))
    storage = tmp_path / "trials.db"
    tune(data, "bias", 2, storage, split=standard_split(data), progress=True)
    text = terminal.getvalue()
    assert "tune bias: 100%" in text
    assert "2/2" in text
    terminal.truncate(0)
    tune(data, "bias", 3, storage, split=standard_split(data))
    assert not terminal.getvalue().strip("\0")


def test_no_bar_where_the_output_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for _ in progress_bar("label", steps=range(3)):
        pass
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


@pytest.mark.parametrize("has_widgets", [False, True])
def test_a_notebook_shows_bars(
    has_widgets: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    found = object() if has_widgets else None
    monkeypatch.setattr("idcf.data.progress.find_spec", lambda name: found)
    made: list[dict[str, Any]] = []

    class Widget:
        """In place of the bar that needs a browser."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            made.append(options)

    monkeypatch.setitem(sys.modules, "tqdm.notebook", SimpleNamespace(tqdm=Widget))  # type: ignore[arg-type]
    bar = progress_bar("label", total=2)
    if has_widgets:
        assert (made[0]["desc"], made[0]["disable"]) == ("label", False)
    else:
        bar.close()
        assert "label:   0%" in capsys.readouterr().out
    assert progress_bar(None, total=2).disable
