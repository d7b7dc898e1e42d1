"""Read and write files: atomic writes of a file or a folder, and whole files as bytes or text.

An atomic write leaves the old content or the new one, also after a crash. What a process that was
killed left behind is removed by the next write of the same file or folder on the same machine.
"""

from __future__ import annotations

import ctypes
import gzip
import io
import os
import platform
import shutil
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from idcf.errors import ArtifactError, ConfigError, DataError

_MAX_UNPACKED_BYTES = 1 << 33  # of a gzipped file
_READ_BYTES = 1 << 24  # at once

# process numbers of other machines, which may share a folder with this one, say nothing here
_MACHINE = f"{zlib.crc32(platform.node().encode()):08x}"


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`, which it replaces when the block ends.

    A missing folder is created. If the block raises, `target` keeps its content.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    temporary = _temporary_path(target)
    try:
        yield temporary
        _fsync(temporary)
        temporary.replace(target)
    except OSError as error:
        if error.filename in (None, str(temporary)):
            error.filename = str(target)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, text.encode("utf-8"))


@contextmanager
def reserve_file(path: Path) -> Iterator[None]:
    """Keep a file for this process while it makes what it will write; see `reserve`.

    ConfigError: the file cannot be written.
    """
    check_writable(path)
    with reserve(path):
        yield


@contextmanager
def reserve_content(folder: Path) -> Iterator[None]:
    """Keep a folder, which may hold other files, for this process; see `reserve`.

    ConfigError: no file can be written in it.
    """
    check_content_writable(folder)
    with reserve(folder):
        yield


@contextmanager
def reserve(path: Path) -> Iterator[None]:
    """Keep a path for this process until the block ends.

    ConfigError: another process of this machine keeps it. Of the processes of `torchrun`, which
    write one result, the first one keeps it.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    path = path.expanduser().absolute()
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _open_locked(lock)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); choose another") from None
    if handle is None:
        raise ConfigError(f"{path} is being written by another run; wait until it ends")
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


def _open_locked(lock: Path) -> int | None:
    """Open and lock a file, which is made if there is none; None: another process has locked it."""
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        if not try_lock(handle):
            os.close(handle)
            return None
        try:
            if os.path.samestat(os.fstat(handle), lock.stat()):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # a process that has ended meanwhile removed the file


def try_lock(handle: int) -> bool:
    """Lock an open file until it is closed or the process ends; return False if it is locked."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def check_writable(path: Path) -> None:
    """Raise ConfigError if a file cannot be written; called before long work begins."""
    if _is_kind(path, Path.is_dir):
        raise ConfigError(f"{path} is a folder; give the name of a file in it")
    _check_beside(path)


def check_content_writable(folder: Path) -> None:
    """Raise ConfigError if no file can be written in a folder; it is made if there is none."""
    if _is_kind(folder, Path.is_file):
        raise ConfigError(f"{folder} is a file; give a folder")
    _check_beside(folder / "x")


def _is_kind(path: Path, is_kind: Callable[[Path], bool]) -> bool:
    """Return whether a path is a file, or a folder; ConfigError: that cannot be read."""
    try:
        return is_kind(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); choose another") from None


def check_folder_writable(target: Path, replaceable_names: Collection[str]) -> None:
    """Raise an error if `write_folder` could not write; called before long work begins.

    ArtifactError: `target` is a file, or holds a file not among `replaceable_names`. ConfigError:
    nothing can be written beside it.
    """
    try:
        require_replaceable(target, replaceable_names)
    except OSError as error:
        raise ConfigError(f"{target} cannot be read ({error.strerror}); choose another") from None
    _check_beside(target)


def _check_beside(path: Path) -> None:
    """Raise ConfigError unless a temporary file can be made beside a path; it is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary_path(path)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); choose another") from None


def write_folder(
    target: Path, write_files: Callable[[Path], None], *, replaceable_names: Collection[str]
) -> None:
    """Write a folder atomically; `write_files` fills the empty folder it is given.

    Raises ArtifactError if `target` is a file, or holds a file not among `replaceable_names`.
    """
    require_replaceable(target, replaceable_names)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    temporary = _temporary_path(target)
    temporary.mkdir()
    try:
        write_files(temporary)
        replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(temporary: Path, target: Path) -> None:
    """Give a folder of files the name `target`, in one step and through to the disk.

    If there is a folder `target`, `temporary` then holds the old files.
    """
    for path in (*temporary.iterdir(), temporary):
        _fsync(path)
    if target.exists():
        _swap_folders(temporary, target)
    else:
        temporary.rename(target)
    _fsync(target.parent)


def _temporary_path(target: Path) -> Path:
    """An unused hidden path in the folder of `target`, which names the machine and the process."""
    return target.with_name(f".{target.name}.{_MACHINE}-{os.getpid()}-{uuid.uuid4().hex}.part")


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files and folders of `target` whose process, on this machine, has ended."""
    prefix = f".{target.name}.{_MACHINE}-"
    for path in target.parent.iterdir():
        if not (path.name.startswith(prefix) and path.name.endswith(".part")):
            continue
        process = path.name.removeprefix(prefix).partition("-")[0]
        if not process.isdecimal() or _is_running(int(process)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Return whether there is a process of this number; True where that cannot be known."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def require_replaceable(target: Path, replaceable_names: Collection[str]) -> None:
    """Raise ArtifactError if replacing `target` would delete anything else."""
    if not target.exists():
        return
    if not target.is_dir():
        raise ArtifactError(f"{target} is a file; choose another folder")
    other_names = sorted({x.name for x in target.iterdir()} - set(replaceable_names))
    if other_names:
        raise ArtifactError(
            f"{target} holds {other_names[0]!r}, which would be lost; choose another folder or "
            "move it away"
        )


def _swap_folders(temporary: Path, target: Path) -> None:
    """Swap two folders in one step where the system supports it, else in two renames."""
    if _try_atomic_swap(temporary, target):
        return
    backup = temporary.with_suffix(".old")
    target.rename(backup)
    try:
        temporary.rename(target)
    except OSError:
        backup.rename(target)
        raise
    shutil.rmtree(backup, ignore_errors=True)


def _try_atomic_swap(temporary: Path, target: Path) -> bool:
    """Swap two folders by Linux's renameat2; return False where it is not available."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    cwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    status = renameat2(cwd, os.fsencode(temporary), cwd, os.fsencode(target), exchange)
    return bool(status == 0)


def _fsync(path: Path) -> None:
    """Write a file or folder through to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def expand_user(path: str | Path) -> Path:
    """Return a path with the home folder in place of `~`; DataError: there can be no such path."""
    try:
        expanded = Path(path).expanduser()
        expanded.stat()
    except FileNotFoundError:
        return expanded
    except (OSError, RuntimeError, ValueError) as error:  # too long, NUL, `~` of an unknown user
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise DataError(f"{path} cannot be read ({reason.lower()}); check the path") from None
    return expanded


def check_file(path: Path) -> None:
    """Raise DataError unless `path` is a file that is not empty."""
    if not path.exists():
        raise DataError(f"no file at {path}; check the path")
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the path of a file in it")
    if not path.is_file():
        raise DataError(f"{path} is neither a file nor a folder; give the path of a file")
    if not path.stat().st_size:
        raise DataError(f"{path}: the file is empty; give one with at least one interaction")


def read_bytes(path: Path) -> bytes:
    """Read a whole file and decompress it if it is gzipped.

    Raises DataError if the file is missing, empty, only white space, or damaged gzip.
    """
    check_file(path)
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        limit = int(os.environ.get("IDCF_MAX_UNPACKED_BYTES", _MAX_UNPACKED_BYTES))
        try:
            with gzip.open(io.BytesIO(data)) as file:
                data = _read_up_to(file, limit + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = str(error).lower()
            raise DataError(f"{path}: damaged gzip ({reason}); download or copy it again") from None
        if len(data) > limit:
            raise DataError(
                f"{path} unpacks to more than {limit:,} bytes; if that is right, raise the limit "
                "by the environment variable IDCF_MAX_UNPACKED_BYTES"
            )
    if not data or data.isspace():
        raise DataError(f"{path}: the file is empty; give one with at least one interaction")
    return data


def _read_up_to(file: gzip.GzipFile, n_bytes: int) -> bytes:
    """Return up to this many bytes of a file; memory is taken for those that there are."""
    parts = []
    while n_bytes > 0 and (part := file.read(min(n_bytes, _READ_BYTES))):
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a whole text file, gzipped or not, with `\\n` as line end and without a byte order mark.

    Raises DataError as `read_bytes` does, for a line that is not of this encoding, and for NUL.
    """
    data = read_bytes(path)
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{data[error.start]:02x} is not {encoding}"
        raise DataError(f"{path}, line {line}: {byte}; save the file as {encoding}") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DataError(f"{path}, line {line}: a NUL character; save the file as plain text")
    return text.replace("\r\n", "\n").replace("\r", "\n")
