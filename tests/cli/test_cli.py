"""The command line: output, files written and error messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from calls import call, call_with_error
from typer.testing import CliRunner

from idcf import __version__, cli
from idcf.cli import app
from idcf.errors import DataError
from idcf.evaluation import run

FIELDS = {
    *("dataset", "split", "model", "preset", "users", "metric", "value", "low", "high"),
    *("n_users", "n_ratings", "seed", "seconds", "quality", "commit"),
}


def error_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    """Run a command that fails with exit code 2; return the one line that it prints."""
    code, output = call_with_error(monkeypatch, capsys, *arguments)
    assert code == 2
    assert output.count("\n") == 1
    assert output.startswith("error: ")
    return output


def test_evaluate_a_file(ratings_file: Callable[..., Path], tmp_path: Path) -> None:
    path, out = ratings_file(), tmp_path / "out" / "rows.json"
    arguments = ["evaluate", str(path), "--models", "bias,idcf-dot", "--seeds", "2"]
    arguments += ["--groups", "new,few-shot,all", "--key-threshold", "15", "--device", "cpu"]
    output = call(*arguments, "--out", str(out))
    rows = json.loads(out.read_text())
    assert all(set(r) == FIELDS for r in rows)
    assert {r["users"] for r in rows} == {"new", "few-shot", "all"}
    assert {r["seed"] for r in rows} == {0, 1}
    assert {r["split"] for r in rows} == {"random-10%-seed0, delta=15"}
    for baseline in ("random", "item-mean", "popularity"):
        assert output.count(f"\n{baseline} ") == 3
    assert f"{len(rows)} rows written to" in output
    n_ratings = {r["users"]: r["n_ratings"] for r in rows if r["metric"] == "rmse"}
    assert n_ratings["new"] == n_ratings["few-shot"] < n_ratings["all"]


def test_evaluate_takes_a_table_without_a_threshold(ratings_file: Callable[..., Path]) -> None:
    """Nobody has 30 rows: the threshold is the median of the training rows, as in `train`."""
    output = call("evaluate", str(ratings_file()), "--models", "als,bias", "--device", "cpu")
    assert re.search(r"split random-10%-seed0, delta=[12]\d; preset clean; ", output)
    assert "differences to the best simple baseline: new users" in output
    clicks = str(ratings_file("clicks.csv", implicit=True))
    output = call("evaluate", clicks, "--models", "ease,popularity", "--markdown")
    assert "split random-10-per-user-seed0, delta=" in output
    assert "| ease |" in output


def test_evaluate_prints_its_rows_as_json(
    ratings_file: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "rows.json"
    arguments = ["evaluate", str(ratings_file()), "--models", "bias", "--key-threshold", "15"]
    rows = json.loads(call(*arguments, "--device", "cpu", "--json", "--out", str(out)))
    assert all(set(row) == FIELDS for row in rows)
    assert json.loads(out.read_text()) == rows


def test_other_columns_and_a_test_file(tmp_path: Path) -> None:
    users, items = range(12), range(8)
    rows = [(u, i, 5 if (u + i) % 2 else 1) for u in users for i in items if u < 8 or i < 3]
    for name, file_rows in (
        ("a", rows),
        ("b", [(u, i + 4, 5) for u in range(8, 12) for i in (0, 1)]),
    ):
        text = "\n".join(f"u{u},i{i},{r}" for u, i, r in file_rows)
        (tmp_path / f"{name}.csv").write_text(f"uid,film,stars\n{text}\n")
    output = call(
        *("evaluate", str(tmp_path / "a.csv"), "--test", str(tmp_path / "b.csv")),
        *("--models", "bias", "--key-threshold", "5", "--markdown"),
        *("--column", "user_id=uid", "--column", "item_id=film", "--column", "rating=stars"),
    )
    assert "split given, delta=5; preset clean; 4 users, 8 test rows" in output
    assert "| item-mean |" in output


def test_implicit_feedback(ratings_file: Callable[..., Path]) -> None:
    path = str(ratings_file(implicit=True))
    output = call("evaluate", path, "--models", "ease", "--key-threshold", "10", "--threads", "1")
    assert "auc ↑" in output
    assert "item-mean" not in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "idcf-mm"], "no model named 'idcf-mm'; did you mean 'idcf-nn'"),
        (["--groups", "fewshot"], "no group of users named 'fewshot'; did you mean 'few-shot'"),
        (["--preset", "publish"], "no preset named 'publish'; did you mean 'published'"),
        (["--device", "gpu"], "device must be auto, cpu or cuda"),
        (["--models", "idcf-nn", "-o", "headz=2"], "did you mean 'heads'"),
        (["--option", "heads"], "an override is written name=value"),
        (["--key-threshold", "900"], "leaves no key user"),
        (["--out", "."], "is a folder"),
        (["--json", "--markdown"], "exclude each other"),
        (["--key-users", "informativ"], "did you mean 'informative'"),
        (["--key-users", "random", "--n-key-users", "9"], "needs --key-users informative"),
        (["--test", "none.csv"], "none.csv"),
        (["--split", "temporary"], "no split named 'temporary'; did you mean 'temporal'"),
        (["--split", "strong"], "leave out --key-threshold"),
        (["--metrics", "recal@20"], "no metric of ratings named 'recal@20'; did you mean"),
    ],
)
def test_an_error_is_one_line(
    options: list[str],
    message: str,
    ratings_file: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["evaluate", str(ratings_file()), *options]
    arguments += [] if "--key-threshold" in options else ["--key-threshold", "15"]
    assert message in error_line(monkeypatch, capsys, *arguments)


def test_splits_in_time_and_by_users(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["user_id,item_id,rating,timestamp"]
    for user in range(40):  # user n is first seen at day n
        for item in rng.permutation(30)[:10]:
            lines.append(f"u{user},i{item},{1 + (user + item) % 5},{user * 86_400 + item}")
    path = tmp_path / "timed.csv"
    path.write_text("\n".join(lines) + "\n")
    arguments = ["evaluate", str(path), "--models", "bias", "--device", "cpu"]
    output = call(*arguments, "--split", "temporal", "--metrics", "rmse,coverage@20")
    assert "split temporal-20%; preset clean; 8 users, 40 test rows" in output
    assert "coverage@20 ↑" in output
    assert "recall@20" not in output
    for options, metric in ((["--implicit", "--models", "popularity"], "auc"), ([], "rmse")):
        rows = json.loads(call(*arguments, *options, "--split", "strong", "--json"))
        assert {row["split"] for row in rows} == {"strong-20%-seed0"}
        assert {(r["n_users"], r["n_ratings"]) for r in rows if r["metric"] == metric} == {(8, 16)}
        assert {"recall@20", "recall@50", "ndcg@100"} <= {row["metric"] for row in rows}
    path.write_text("\n".join(x.rpartition(",")[0] for x in lines) + "\n")
    with pytest.raises(DataError, match="the temporal split needs a time of every interaction"):
        call(*arguments, "--split", "temporal")


def test_the_quality_of_lists_is_chosen_and_reported(ratings_file: Callable[..., Path]) -> None:
    arguments = ["evaluate", str(ratings_file()), "--models", "idcf-bayes", "--device", "cpu"]
    arguments += ["--key-threshold", "15", "--metrics", "rmse,recall@20"]
    text = call(*arguments, "--quality", "0.2")
    assert "lists of idcf-bayes: by expected benefit, quality 0.2" in text
    assert "expected benefit" not in call(*arguments, "--quality", "1")


def test_data_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    message = error_line(monkeypatch, capsys, "data", "fetch", "ml-10m")
    assert "no dataset named 'ml-10m'; did you mean 'ml-1m'" in message
    rows = json.loads(call("data", "list", "--json"))
    assert {row["name"] for row in rows} >= {"ml-100k", "douban"}
    assert {"n_users", "n_items", "n_rows", "key_threshold", "license", "url"} <= set(rows[0])
    assert "ml-100k" in call("data", "list")


def test_warnings_are_notes(capsys: pytest.CaptureFixture[str]) -> None:
    cli._show_warning("2 rows twice", UserWarning, "x.py", 1)
    assert capsys.readouterr().err == "note: 2 rows twice\n"


def test_an_interrupt_ends_with_130(
    ratings_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_plan", interrupt)
    result = CliRunner().invoke(app, ["evaluate", str(ratings_file()), "--key-threshold", "15"])
    assert result.exit_code == 130


def test_help_is_quick_and_needs_no_torch() -> None:
    program = (
        "import sys; from idcf.cli import app; app(['--help'], standalone_mode=False); "
        "app(['data', '--help'], standalone_mode=False); "
        "print('heavy:', [m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    )
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "heavy: []" in result.stdout
    assert time.perf_counter() - start < 5
    for verb in ("evaluate", "demo", "data", "describe"):
        assert f" {verb} " in result.stdout


def test_every_option_has_a_help_text() -> None:
    """Every verb, argument and option says what it does."""
    commands = dict(typer.main.get_command(app).commands)
    data_group = commands.pop("data")
    commands |= {f"data {name}": command for name, command in data_group.commands.items()}
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.name == "help" or parameter.help, f"{name}: {parameter.name}"


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "idcf"]
    result = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"idcf {__version__}\n"
    result = subprocess.run([*command, "evaluate", "ml-100"], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("error: no dataset named 'ml-100'; did you mean 'ml-100k'?")
    assert "Traceback" not in result.stderr


def test_the_demo_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_demo(
        folder: Path, runtime: object, *, n_jobs: int, echo: Callable[[str], None]
    ) -> Path:
        echo("a progress message")
        (folder / "rows.json").write_text('[{"model": "bias"}]')
        return folder / "report.html"

    monkeypatch.setattr("idcf.paper.demo.run_demo", fake_demo)
    arguments = ["demo", "--out", str(tmp_path), "--device", "cpu", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert json.loads(result.stdout) == {
        "report": str(tmp_path / "report.html"),
        "rows": [{"model": "bias"}],
    }
    assert "a progress message" in result.stderr
