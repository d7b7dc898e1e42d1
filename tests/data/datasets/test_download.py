"""Bringing files to the cache: given up quickly, checked, and never half-written."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from idcf.data.datasets import download
from idcf.errors import DataError


def test_the_network_is_given_up_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}

    class Closed:
        def __init__(self, **options: Any) -> None:
            made.update(options)

        def __call__(self, address: str, path: str, pooch: None) -> None:
            raise ConnectionError("refused")

    monkeypatch.setattr("pooch.HTTPDownloader", Closed)
    with pytest.raises(DataError, match=r"https://x.test/a is out of reach \(ConnectionError\)"):
        download.download("https://x.test/", {"b": "a"}, tmp_path, sha256=None, progress=True)
    assert made["timeout"][0] <= 5
    assert made["progressbar"] is True


def test_pip_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: a\nERROR: no such package\n")

    monkeypatch.setattr("subprocess.run", pip)
    with pytest.raises(DataError, match=r"pip download some==1 failed \(ERROR: no such package"):
        download.from_wheel("some==1", "", {}, tmp_path)

    def slow(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, 300)

    monkeypatch.setattr("subprocess.run", slow)
    with pytest.raises(DataError, match="took more than 300 s"):
        download.from_wheel("some==1", "", {}, tmp_path)


def test_members_get_names_of_ours(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("deep/a.txt", "hello")
    download.unpack(tmp_path / "x.zip", {"b.txt": "deep/a.txt"}, tmp_path)
    assert (tmp_path / "b.txt").read_text() == "hello"
    with pytest.raises(DataError, match="there is no item named 'c'"):
        download.unpack(tmp_path / "x.zip", {"c": "c"}, tmp_path)
    (tmp_path / "y.zip").write_text("no zip")
    with pytest.raises(DataError, match=r"y.zip: not the archive expected \(file is not a zip"):
        download.unpack(tmp_path / "y.zip", {"a": "a"}, tmp_path)


def test_what_breaks_half_way_leaves_nothing(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "one").write_text("whole")
        raise DataError("the line went dead")

    with pytest.raises(DataError, match="dead"):
        download.fill(tmp_path / "cache" / "name", broken)
    assert list((tmp_path / "cache").iterdir()) == []


def test_files_are_moved_into_a_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "mine").write_text("kept")
    download.fill(tmp_path / "name", lambda folder: (folder / "new").touch())
    assert sorted(x.name for x in (tmp_path / "name").iterdir()) == ["mine", "new"]
