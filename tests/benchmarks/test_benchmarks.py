"""The benchmarks run on small data and write their reports."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `benchmarks/scaling.py`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("scaling")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `benchmarks/run.py` in its own process."""
    command = [sys.executable, str(FOLDER / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_quick_run_writes_figures_report_and_picture(tmp_path: Path) -> None:
    process = run("--quick", "--only", "adaption,scaling", "--out", str(tmp_path))
    assert process.returncode == 0, process.stderr
    measurements = json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))
    assert all({*x} == {"name", "value", "unit", "higher_is_better"} for x in measurements)
    values = {x["name"]: x["value"] for x in measurements}
    assert len(values) == len(measurements)
    assert values["adaption epoch, 256 users a step, speed-up"] > 0
    assert values["adaption epoch, 256 rows a step, speed-up"] > 0
    assert values["time to best validation RMSE, ours"] > 0
    assert values["pmf pretraining, rows per second"] > 0
    (report,) = tmp_path.glob("*.md")
    text = report.read_text(encoding="utf-8")
    assert all(f"| {name} |" in text for name in values)
    assert "processor" in text
    assert "torch" in text
    (picture,) = tmp_path.glob("*.png")
    assert picture.name in text
    assert not [*tmp_path.glob("*.part"), *tmp_path.glob(".*")]


def test_an_unknown_part_is_an_error(tmp_path: Path) -> None:
    process = run("--only", "speed", "--out", str(tmp_path / "reports"))
    assert process.returncode == 2
    assert "no part named speed; known: adaption, serving, peers, scaling" in process.stderr
    assert not (tmp_path / "reports").exists()


def test_the_fit_of_a_line_and_of_a_parabola(scaling: ModuleType) -> None:
    rows = [100, 200, 300, 400]
    r_squared, exponent = scaling.fit_line(rows, [0.2, 0.4, 0.6, 0.8])
    assert r_squared == pytest.approx(1)
    assert exponent == pytest.approx(1)
    r_squared, exponent = scaling.fit_line(rows, [x**2 for x in rows])
    assert r_squared < 1
    assert exponent == pytest.approx(2)
