"""Downloads into the cache: a short timeout, checksums, and no incomplete files."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from idcf.data.datasets import download
from idcf.errors import DataError


def test_the_connection_timeout_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloader_options: dict[str, Any] = {}

    class UnreachableDownloader:
        def __init__(self, **options: Any) -> None:
            downloader_options.update(options)

        def __call__(self, url: str, path: str, pooch: None) -> None:
            raise ConnectionError("refused")

    monkeypatch.setattr("pooch.HTTPDownloader", UnreachableDownloader)
    with pytest.raises(DataError, match=r"https://x.test/a is out of reach \(ConnectionError\)"):
        download.download_files("https://x.test/", {"b": "a"}, tmp_path, sha256=None, progress=True)
    assert downloader_options["timeout"][0] <= 5
    assert hasattr(downloader_options["progressbar"], "update")  # the bar of the package


def test_an_error_of_pip_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: a\nERROR: no such package\n")

    monkeypatch.setattr("subprocess.run", pip)
    with pytest.raises(DataError, match=r"pip download some==1 failed \(ERROR: no such package"):
        download.extract_from_wheel("some==1", "", {}, tmp_path)

    def slow(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, 300)

    monkeypatch.setattr("subprocess.run", slow)
    with pytest.raises(DataError, match="took more than 300 s"):
        download.extract_from_wheel("some==1", "", {}, tmp_path)


def test_members_get_local_names(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("deep/a.txt", "hello")
    download.extract_members(tmp_path / "x.zip", {"b.txt": "deep/a.txt"}, tmp_path)
    assert (tmp_path / "b.txt").read_text() == "hello"
    with pytest.raises(DataError, match="there is no item named 'c'"):
        download.extract_members(tmp_path / "x.zip", {"c": "c"}, tmp_path)
    (tmp_path / "y.zip").write_text("no zip")
    with pytest.raises(DataError, match=r"y.zip: not the archive expected \(file is not a zip"):
        download.extract_members(tmp_path / "y.zip", {"a": "a"}, tmp_path)


def test_a_failed_download_leaves_no_files(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "complete").write_text("text")
        raise DataError("connection lost")

    with pytest.raises(DataError, match="connection lost"):
        download.fill_folder(tmp_path / "cache" / "name", fail)
    assert list((tmp_path / "cache").iterdir()) == []


def test_files_are_added_to_an_existing_folder(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "old").write_text("text")
    download.fill_folder(tmp_path / "name", lambda folder: (folder / "new").touch())
    assert sorted(x.name for x in (tmp_path / "name").iterdir()) == ["new", "old"]
