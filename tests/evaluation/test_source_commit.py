"""The commit in result rows: of a checkout, of a changed one, of none, and as a variable."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from idcf.errors import ConfigError
from idcf.evaluation import source_commit as module
from idcf.evaluation.results import ResultRow, write_json
from idcf.evaluation.source_commit import COMMIT_VARIABLE, commit_of, source_commit


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Determine the commit anew in each test, without the variable."""
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    source_commit.cache_clear()
    yield
    source_commit.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    author = [
        *("-c", "user.name=a", "-c", "user.email=a@example.org"),
        *("-c", "commit.gpgsign=false"),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", *author, "-C", str(folder), *arguments]
    process = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return process.stdout.strip()


def make_checkout(folder: Path) -> Path:
    """Make a checkout with a package in `src/package`; return the folder of the package."""
    package = folder / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (folder / "notes.txt").write_text("a")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x")
    return package


def test_changes_of_the_package_make_a_commit_dirty(tmp_path: Path) -> None:
    package = make_checkout(tmp_path)
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    assert commit_of(package) == commit
    (tmp_path / "notes.txt").write_text("b")  # not of the package
    assert commit_of(package) == commit
    (package / "new.py").write_text("")
    assert commit_of(package) == f"{commit}-dirty"
    (package / "new.py").unlink()
    (package / "__init__.py").write_text("x = 1\n")
    assert commit_of(package) == f"{commit}-dirty"


def test_files_that_git_does_not_track_have_no_commit(tmp_path: Path) -> None:
    make_checkout(tmp_path)
    installed = tmp_path / "site-packages" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert commit_of(installed) is None
    assert commit_of(tmp_path / "no-such-folder") is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = make_checkout(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(package) is None


def test_the_commit_is_determined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(module, "commit_of", lambda folder: calls.append(folder) or "abc1234")
    assert [source_commit(), source_commit()] == ["abc1234"] * 2
    [folder] = calls
    assert (folder / "evaluation" / "source_commit.py").exists()


def test_a_variable_names_the_commit_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, "0123abc-dirty")
    assert source_commit() == "0123abc-dirty"
    source_commit.cache_clear()
    monkeypatch.setenv(COMMIT_VARIABLE, "/home/me")
    with pytest.raises(ConfigError, match="IDCF_COMMIT is '/home/me': give what"):
        source_commit()


def test_rows_are_written_as_a_list_or_as_lines(tmp_path: Path) -> None:
    row = ResultRow(
        "d", "s", "bias", "clean", "new", "rmse", 1.0, 0.9, 1.1, 5, 9, 0, 0.1, commit="0123abc"
    )
    write_json([row, row], tmp_path / "rows.json")
    write_json([row, row], tmp_path / "rows.jsonl")
    as_list = json.loads((tmp_path / "rows.json").read_text())
    as_lines = [json.loads(x) for x in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert as_list == as_lines == [asdict(row)] * 2
    assert as_list[0]["commit"] == "0123abc"
