"""Where verbs write is checked before the work, and no two of them write to one place."""

from __future__ import annotations

import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from calls import call_with_error
from pyarrow import parquet

from idcf.cli import main
from idcf.files import reserve

VERBS = {
    "train": ["train", "none.csv", "--out", "OUT"],
    "forget": ["forget", "none.csv", "u1", "--model", "none", "--out", "OUT"],
    "evaluate": ["evaluate", "none.csv", "--out", "OUT"],
    "tune": ["tune", "none.csv", "--model", "als", "--storage", "t.db", "--out", "OUT"],
    "tune --storage": ["tune", "none.csv", "--model", "als", "--storage", "OUT"],
    "shard": ["shard", "none.csv", "--out", "OUT"],
    "embed": ["embed", "none", "histories.csv", "--out", "OUT"],
    "embed a folder": ["embed", "MODEL", "folder", "--out", "OUT"],
    "recommend": ["recommend", "none", "--histories", "histories.csv", "--out", "OUT"],
    "export": ["export", "none", "--onnx", "OUT"],
    "demo": ["demo", "--out", "OUT"],
    "report": ["report", "--results", "folder", "--out", "OUT"],
    "reproduce": ["reproduce", "table4", "--models", "als", "--results", "OUT"],
}


@pytest.fixture
def arguments(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function (verb, out) that gives the arguments of a command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "histories.csv").touch()
    (tmp_path / "folder").mkdir()
    rows = {"user_id": ["u1"], "item_id": ["i1"], "rating": [3.0]}
    parquet.write_table(pa.table(rows), tmp_path / "folder" / "a.parquet")
    words = {"MODEL": str(model)}
    return lambda verb, out: [{**words, "OUT": out}.get(x, x) for x in VERBS[verb]]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("out", ["file/x.csv", "n" * 300 + ".csv", "/proc/x.csv"])
def test_a_place_that_cannot_be_written_is_told_before_the_work(
    verb: str, out: str, arguments: Callable[..., Any], monkeypatch: Any, capsys: Any
) -> None:
    code, text = call_with_error(monkeypatch, capsys, *arguments(verb, out))
    assert code == 2
    *before, line = text.splitlines()
    assert line.startswith("error: ")
    assert "cannot be" in line or "file name too long" in line
    assert "none" not in line
    assert not before or verb == "reproduce"  # which says first what is missing


@pytest.mark.parametrize("verb", VERBS)
def test_a_place_that_another_run_writes_is_refused(
    verb: str, arguments: Callable[..., Any], monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    if verb == "shard":
        pytest.skip("has a lock of its own: tests/data/test_shard_writer.py")
    place = tmp_path / ("x.csv/douban.jsonl" if verb == "reproduce" else "x.csv")
    with reserve(place):
        code, text = call_with_error(monkeypatch, capsys, *arguments(verb, "x.csv"))
    assert (code, "is being written by another run; wait until it ends" in text) == (2, True)


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow beyond 100 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def run_on_a_full_disk(
    monkeypatch: Any, capsys: Any, *arguments: str
) -> tuple[Any, str, list[str]]:
    """Run a command; return its exit code, its output and the lines of its errors."""
    monkeypatch.setattr("sys.argv", ["idcf", *arguments])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as stop, full_disk():
        main()
    output = capsys.readouterr()
    return stop.value.code, output.out, output.err.splitlines()


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
@pytest.mark.filterwarnings("ignore:.*not ordered by user")
def test_a_full_disk_is_one_sentence(
    ending: str, model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    ratings, out = model.parent / "ratings.csv", tmp_path / f"x.{ending}"
    out.write_text("old")
    embed = ("embed", str(model), str(ratings), "--out", str(out))
    code, _, errors = run_on_a_full_disk(monkeypatch, capsys, *embed)
    assert (code, len(errors)) == (2, 1), errors
    assert "too large" in errors[0]
    assert out.read_text() == "old"
    assert [x.name for x in tmp_path.iterdir()] == [out.name]


def test_a_full_disk_at_the_end_of_a_comparison(
    model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    arguments = ["evaluate", str(model.parent / "ratings.csv"), "--models", "bias"]
    arguments += ["--key-threshold", "12", "--out", str(tmp_path / "rows.json"), "--device", "cpu"]
    code, output, errors = run_on_a_full_disk(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "bias" in output  # the table is printed all the same
    assert errors[-1].startswith(f"error: {tmp_path / 'rows.json'}: file too large")
    assert list(tmp_path.iterdir()) == []
