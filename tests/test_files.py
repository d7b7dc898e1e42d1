"""Atomic writes leave the old content or the new one, and reads reject incomplete files."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from idcf import files
from idcf.errors import ArtifactError, ConfigError, DataError
from idcf.files import (
    atomic_path,
    check_folder_writable,
    check_writable,
    read_bytes,
    read_text,
    reserve,
    reserve_content,
    reserve_file,
    write_bytes,
    write_folder,
    write_text,
)


def test_a_file_is_written_into_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    write_text(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert [x.name for x in path.parent.iterdir()] == ["b.txt"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("incomplete")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert [x.name for x in tmp_path.iterdir()] == ["x"]


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "x.json")
    with pytest.raises(ConfigError, match="is a folder; give the name of a file in it"):
        check_writable(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable(tmp_path / "file" / "x.json")


@pytest.mark.parametrize("can_swap", [True, False])
def test_a_folder_is_replaced(
    can_swap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_swap:
        monkeypatch.setattr("idcf.files._try_atomic_swap", lambda temporary, target: False)
    target = tmp_path / "model"
    for text in ("old", "new"):
        write_folder(
            target, lambda folder, t=text: (folder / "a").write_text(t), replaceable_names=["a"]
        )
        assert (target / "a").read_text() == text
    assert [x.name for x in tmp_path.iterdir()] == ["model"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(ArtifactError, match=r"holds 'notes.txt', which would be lost"):
        write_folder(tmp_path, lambda folder: None, replaceable_names=["a"])
    with pytest.raises(ArtifactError, match="is a file"):
        write_folder(tmp_path / "notes.txt", lambda folder: None, replaceable_names=["a"])


def test_reading_decompresses_and_normalizes(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress("\ufeffa\r\nb".encode()))
    assert read_text(path) == "a\nb"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged gzip"):
        read_bytes(path)
    path.write_bytes(b"  \n")
    with pytest.raises(DataError, match="the file is empty"):
        read_bytes(path)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_writer_left_is_removed_by_the_next_write(tmp_path: Path, kind: str) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    target = tmp_path / "model"
    for process in (ended.pid, os.getpid()):
        temporary = files._temporary_path(target)
        name = temporary.name.replace(f"-{os.getpid()}-", f"-{process}-")
        left = temporary.with_name(name)
        if kind == "folder":
            left.mkdir()
            (left / "x").write_text("incomplete")
        else:
            left.write_text("incomplete")
    other = tmp_path / ".model.another-machine-1-abc.part"
    other.touch()
    if kind == "folder":
        write_folder(target, lambda new: (new / "x").write_text("x"), replaceable_names=["x"])
    else:
        write_text(target, "x")
    left_over = sorted(x.name for x in tmp_path.iterdir() if x.name.endswith(".part"))
    assert len(left_over) == 2  # of a process that runs, and of another machine
    assert not any(f"-{ended.pid}-" in x for x in left_over)


def test_a_folder_is_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(ArtifactError, match="is a file"):
        check_folder_writable(tmp_path / "file", ["x"])
    with pytest.raises(ArtifactError, match=r"thesis\.txt"):
        check_folder_writable(tmp_path / "full", ["x"])
    with pytest.raises(ConfigError, match="cannot be"):
        check_folder_writable(tmp_path / "file" / "model", ["x"])
    with pytest.raises(ConfigError, match="cannot be"):
        check_folder_writable(tmp_path / ("n" * 300), ["x"])
    with pytest.raises(ConfigError, match="cannot be written"):
        check_folder_writable(Path("/proc/idcf-model"), ["x"])
    check_folder_writable(tmp_path / "new" / "model", ["x"])
    assert [x.name for x in (tmp_path / "new").iterdir()] == []


def test_a_path_is_kept_for_one_process(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.csv"
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from idcf.errors import ConfigError\n"
        "from idcf.files import reserve\n"
        "try:\n"
        "    with reserve(Path(sys.argv[1])):\n"
        "        print('kept', flush=True)\n"
        "        sys.stdin.read(1)\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "kept\n"
        with pytest.raises(ConfigError, match=r"out\.csv is being written by another run; wait"):
            reserve_file(path).__enter__()
        with reserve_file(path.with_name("other.csv")):
            pass
        first.kill()
    assert [x.name for x in path.parent.iterdir()] == [".out.csv.lock"]
    with reserve(path), pytest.raises(ConfigError, match="another run"):
        reserve(path).__enter__()
    assert list(path.parent.iterdir()) == []


def test_processes_of_torchrun_share_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reserve(tmp_path / "m"):
        monkeypatch.setenv("RANK", "1")
        with reserve(tmp_path / "m"):
            pass


def test_a_folder_of_several_files_is_checked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/pages", "n" * 300, "/proc/pages"):
        with pytest.raises(ConfigError, match=r"is a file|cannot be"):
            reserve_content(tmp_path / name).__enter__()
    with reserve_content(tmp_path / "pages"):
        assert (tmp_path / ".pages.lock").is_file()
    assert list((tmp_path / "pages").iterdir()) == []


def test_a_file_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be"):
        check_writable(tmp_path / ("n" * 300))
