"""Download files into the cache: by URL, from a zip archive, or from a wheel.

A file gets its final name only when it is complete. The datasets are in `catalog`.
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

from idcf.data.progress import progress_bar
from idcf.errors import DataError


def cache_folder() -> Path:
    """Folder of downloaded files: $XDG_CACHE_HOME/idcf or ~/.cache/idcf."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "idcf"


def fill_folder(target: Path, write_files: Callable[[Path], None]) -> Path:
    """Add files to a folder, each complete or not at all, and return the folder. `write_files`
    writes them into the empty folder it is given. Raises DataError if `target` cannot be
    written."""
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
    """Download files into a folder, from a `.zip` archive or one by one from below a URL.
    `remote_names` maps each file name to its name in the archive or below the URL. Raises DataError
    if a URL is out of reach, or the archive has not the SHA-256 given."""
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
    bar = progress_bar(path.name if progress else None, unit="B", unit_scale=True)
    download = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=(5, 60))
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
    """Extract members {file name: name in the archive} of a zip archive or wheel into a folder.
    Raises DataError if the file is no zip archive, or a member is missing."""
    try:
        with zipfile.ZipFile(archive) as file:
            for local_name, member in members.items():
                (folder / local_name).write_bytes(file.read(member))
    except (zipfile.BadZipFile, KeyError) as error:
        reason = str(error.args[0]).lower()
        raise DataError(f"{archive.name}: not the archive expected ({reason})") from None


def extract_from_wheel(package: str, sha256: str, members: Mapping[str, str], folder: Path) -> None:
    """Extract files from a wheel that pip downloads, for machines that reach only a package index.
    The wheel is named by a requirement, such as "recbole==1.2.1". Raises DataError if pip fails or
    the wheel has another SHA-256."""
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
