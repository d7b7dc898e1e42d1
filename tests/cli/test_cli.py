"""The command line: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from idcf import __version__, cli
from idcf.cli import app, main
from idcf.evaluation import run

FIELDS = {
    *("dataset", "split", "model", "preset", "users", "metric", "value", "low", "high"),
    *("n_users", "n_ratings", "seed", "seconds"),
}


def call(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    """The one line of an error, told on stderr with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["idcf", *words])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("error: ")
    return said.err


def test_a_file_end_to_end(ratings_file: Callable[..., Path], tmp_path: Path) -> None:
    path, out = ratings_file(), tmp_path / "out" / "rows.json"
    words = ["evaluate", str(path), "--models", "bias,idcf-dot", "--users", "new,few-shot,all"]
    words += ["--seeds", "2", "--key-threshold", "15", "--json", str(out), "--device", "cpu"]
    said = call(*words)
    rows = json.loads(out.read_text())
    assert all(set(r) == FIELDS for r in rows)
    assert {r["users"] for r in rows} == {"new", "few-shot", "all"}
    assert {r["seed"] for r in rows} == {0, 1}
    assert {r["split"] for r in rows} == {"random-10%-seed0, delta=15"}
    for floor in ("random", "item-mean", "popularity"):
        assert said.count(f"\n{floor} ") == 3
    assert f"{len(rows)} rows written to" in said
    tested = {r["users"]: r["n_ratings"] for r in rows if r["metric"] == "rmse"}
    assert tested["new"] == tested["few-shot"] < tested["all"]


def test_other_columns_and_a_test_file(tmp_path: Path) -> None:
    users, items = range(12), range(8)
    rows = [(u, i, 5 if (u + i) % 2 else 1) for u in users for i in items if u < 8 or i < 3]
    for name, kept in (("a", rows), ("b", [(u, i + 4, 5) for u in range(8, 12) for i in (0, 1)])):
        text = "\n".join(f"u{u},i{i},{r}" for u, i, r in kept)
        (tmp_path / f"{name}.csv").write_text(f"who,what,stars\n{text}\n")
    said = call(
        *("evaluate", str(tmp_path / "a.csv"), "--test", str(tmp_path / "b.csv")),
        *("--models", "bias", "--key-threshold", "5", "--markdown"),
        *("--column", "user_id=who", "--column", "item_id=what", "--column", "rating=stars"),
    )
    assert "split given, delta=5; preset clean; 4 users, 8 test rows" in said
    assert "| item-mean |" in said


def test_implicit_feedback(ratings_file: Callable[..., Path]) -> None:
    path = str(ratings_file(implicit=True))
    said = call("evaluate", path, "--models", "ease", "--key-threshold", "10", "--threads", "1")
    assert "auc ↑" in said
    assert "item-mean" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--models", "idcf-mm"], "no model named 'idcf-mm'; did you mean 'idcf-nn'"),
        (["--users", "fewshot"], "no group of users named 'fewshot'; did you mean 'few-shot'"),
        (["--preset", "publish"], "no preset named 'publish'; did you mean 'published'"),
        (["--device", "gpu"], "device must be auto, cpu or cuda"),
        (["--models", "idcf-nn", "--set", "headz=2"], "did you mean 'heads'"),
        (["--set", "heads"], "an override is written name=value"),
        (["--key-threshold", "900"], "leaves no key user"),
        (["--json", "."], "is a folder"),
        (["--test", "none.csv"], "none.csv"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    says: str,
    ratings_file: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["evaluate", str(ratings_file()), *words]
    words += [] if "--key-threshold" in words else ["--key-threshold", "15"]
    assert says in refused(monkeypatch, capsys, *words)


def test_data_commands_are_reached_and_refuse_alike(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, "data", "fetch", "ml-10m")
    assert "no dataset named 'ml-10m'; did you mean 'ml-1m'" in said
    monkeypatch.setattr(sys, "argv", ["idcf", "data", "list", "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert {r["name"] for r in json.loads(capsys.readouterr().out)} >= {"ml-100k", "douban"}


def test_warnings_are_notes(capsys: pytest.CaptureFixture[str]) -> None:
    cli._note("2 rows twice", UserWarning, "x.py", 1)
    assert capsys.readouterr().err == "note: 2 rows twice\n"


def test_an_interrupt_ends_with_130(
    ratings_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "evaluate", stopped)
    done = CliRunner().invoke(app, ["evaluate", str(ratings_file()), "--key-threshold", "15"])
    assert done.exit_code == 130


def test_help_is_quick_and_needs_no_torch() -> None:
    code = (
        "import sys; from idcf.cli import app; app(['--help'], standalone_mode=False); "
        "print('heavy:', [m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "heavy: []" in done.stdout
    assert time.perf_counter() - began < 5
    for verb in ("evaluate", "demo", "data"):
        assert f" {verb} " in done.stdout


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "idcf", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"idcf {__version__}\n"
    words = [sys.executable, "-m", "idcf", "evaluate", "ml-100"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no dataset named 'ml-100'; did you mean 'ml-100k'?")
    assert "Traceback" not in done.stderr


def test_the_demo_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(folder: Path, runtime: object, *, jobs: int, say: Callable[[str], None]) -> Path:
        say("told on the way")
        (folder / "rows.json").write_text('[{"model": "bias"}]')
        return folder / "report.html"

    monkeypatch.setattr("idcf.paper.demo.show", show)
    words = ["demo", "--folder", str(tmp_path), "--device", "cpu", "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert json.loads(done.stdout) == {
        "report": str(tmp_path / "report.html"),
        "rows": [{"model": "bias"}],
    }
    assert "told on the way" in done.stderr
