"""A file system that fails once: the n-th write, open, rename or sync under a folder.

The functions of Python and of the native writers that this package writes files with are replaced,
in one place, while a block runs.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import safetensors.torch
from pyarrow import parquet

ERRORS = (errno.ENOSPC, errno.EACCES, errno.EIO)


class FaultyDisk:
    """Counts the operations that change what is under a folder, and fails one of them."""

    def __init__(self, folder: Path, nth: int | None = None, code: int = errno.ENOSPC) -> None:
        self.folder = str(folder)
        self.nth, self.code = nth, code
        self.steps: list[str] = []

    @property
    def has_failed(self) -> bool:
        """Whether the operation that fails was reached."""
        return self.nth is not None and len(self.steps) > self.nth

    def covers(self, path: Any) -> bool:
        """Return whether a path is under the folder."""
        if isinstance(path, int) or hasattr(path, "write"):
            return False
        return os.fsdecode(path).startswith(self.folder)

    def step(self, name: str, before: Callable[[], object] = lambda: None) -> None:
        """Count an operation; OSError if it is the one that fails, after a part of it was done."""
        self.steps.append(name)
        if self.nth is not None and len(self.steps) == self.nth + 1:
            before()
            raise OSError(self.code, os.strerror(self.code))

    def _paths(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of paths that may fail."""

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if self.covers(path):
                self.step(name)
            return function(path, *arguments, **options)

        return call

    def _open(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `open`, whose files may fail."""

        def call(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not self.covers(path) or not set(mode) & set("wax+"):
                return function(path, mode, *arguments, **options)
            self.step("open")
            return _File(function(path, mode, *arguments, **options), self)

        return call

    def _descriptor(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of a descriptor that may fail."""

        def call(descriptor: int, *arguments: Any) -> Any:
            try:
                path = str(Path(f"/proc/self/fd/{int(descriptor)}").readlink())
            except (OSError, TypeError, ValueError):
                path = ""
            if self.covers(path):
                self.step(name)
            return function(descriptor, *arguments)

        return call

    def _os_open(self, path: Any, flags: int, *arguments: Any, **options: Any) -> Any:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) and self.covers(path):
            self.step("open")
        return _OS_OPEN(path, flags, *arguments, **options)

    def _save_file(self, tensors: Any, path: Any, *arguments: Any, **options: Any) -> None:
        if self.covers(path):
            try:
                self.step("tensors", lambda: _PATH_WRITE(path, b"incomplete"))
            except OSError as error:
                text = f"I/O error: {error.strerror} (os error {error.errno})"
                raise safetensors.SafetensorError(f"Error while serializing: {text}") from None
        _SAVE_FILE(tensors, path, *arguments, **options)

    def _write_table(self, table: Any, where: Any, *arguments: Any, **options: Any) -> None:
        if self.covers(where):
            self.step("table", lambda: _PATH_WRITE(where, b"PAR1 incomplete"))
        _WRITE_TABLE(table, where, *arguments, **options)


_OS_OPEN, _SAVE_FILE, _WRITE_TABLE = os.open, safetensors.torch.save_file, parquet.write_table


def _PATH_WRITE(path: Any, content: bytes) -> None:
    with _BUILTIN_OPEN(path, "wb") as file:
        file.write(content)


_BUILTIN_OPEN = builtins.open


class _File:
    """A file whose writes may fail, half of the bytes being written."""

    def __init__(self, file: Any, disk: FaultyDisk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> Any:
        """Write, unless it is the operation that fails."""
        self._disk.step("write", lambda: self._file.write(data[: len(data) // 2]))
        return self._file.write(data)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Writer(parquet.ParquetWriter):
    """A writer of Parquet whose writes may fail."""

    disk: FaultyDisk

    def __init__(self, where: Any, *arguments: Any, **options: Any) -> None:
        if self.disk.covers(where):
            self.disk.step("open")
        super().__init__(where, *arguments, **options)

    def write_table(self, *arguments: Any, **options: Any) -> None:
        """Write a table, unless it is the operation that fails."""
        self.disk.step("table")
        super().write_table(*arguments, **options)


@contextmanager
def faulty(disk: FaultyDisk, *, can_swap: bool = True) -> Iterator[None]:
    """Let the disk fail while the block runs; without `can_swap` two folders cannot be swapped in
    one step, as on some systems."""
    writer = type("Writer", (_Writer,), {"disk": disk})
    replacements: dict[str, Any] = {
        "builtins.open": disk._open(builtins.open),
        "io.open": disk._open(io.open),
        "os.open": disk._os_open,
        "os.mkdir": disk._paths("mkdir", os.mkdir),
        "os.rename": disk._paths("rename", os.rename),
        "os.replace": disk._paths("rename", os.replace),
        "os.fsync": disk._descriptor("sync", os.fsync),
        "idcf.inference.artifact.save_file": disk._save_file,
        "idcf.training.checkpoint.save_file": disk._save_file,
        "pyarrow.parquet.write_table": disk._write_table,
        "pyarrow.parquet.ParquetWriter": writer,
        "pyarrow.OSFile": disk._open(pa.OSFile),
    }
    if not can_swap:
        replacements["idcf.files._try_atomic_swap"] = lambda temporary, target: False
    patches = [patch(name, function) for name, function in replacements.items()]
    try:
        for x in patches:
            x.start()
        yield
    finally:
        for x in reversed(patches):
            x.stop()


@contextmanager
def small_disk(folder: Path, n_bytes: int) -> Iterator[bool]:
    """Mount a file system of this size on a folder; False where this is not allowed."""
    options = ["-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs"]
    try:
        mounted = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)
    except FileNotFoundError:
        yield False
        return
    if mounted.returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
