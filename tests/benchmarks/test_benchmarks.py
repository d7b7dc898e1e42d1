"""The benchmarks run, on small worlds, and write what they promise."""

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
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("scaling")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_quick_run_writes_figures_report_and_picture(tmp_path: Path) -> None:
    done = run("--quick", "--only", "adaption,scaling", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))
    assert all({*x} == {"name", "value", "unit", "higher_is_better"} for x in found)
    values = {x["name"]: x["value"] for x in found}
    assert len(values) == len(found)
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
    assert not [*tmp_path.glob("*.part")]


def test_an_unknown_part_is_named(tmp_path: Path) -> None:
    done = run("--only", "speed", "--out", str(tmp_path / "never"))
    assert done.returncode == 2
    assert "no part called speed; there are adaption, serving, peers, scaling" in done.stderr
    assert not (tmp_path / "never").exists()


def test_fits_of_known_curves(scaling: ModuleType) -> None:
    rows = [100, 200, 300, 400]
    squared, exponent = scaling.fits(rows, [0.2, 0.4, 0.6, 0.8])
    assert squared == pytest.approx(1)
    assert exponent == pytest.approx(1)
    squared, exponent = scaling.fits(rows, [x**2 for x in rows])
    assert squared < 1
    assert exponent == pytest.approx(2)
