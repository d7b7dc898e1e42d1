"""Write a folder in one step: whoever is killed leaves the old one, the new one, or none."""

from __future__ import annotations

import ctypes
import os
import shutil
import uuid
from collections.abc import Callable, Collection
from pathlib import Path

from idcf.errors import ArtifactError


def write_folder(
    target: Path, write: Callable[[Path], None], *, instead_of: Collection[str]
) -> None:
    """Let `write` fill a fresh folder, which takes the place of `target` once it is on disk.

    A folder that is there may hold nothing but files of the names `instead_of`.
    """
    _require_replaceable(target, instead_of)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    fresh.mkdir()
    try:
        write(fresh)
        for path in (*fresh.iterdir(), fresh):
            _sync(path)
        if target.exists():
            _exchange(fresh, target)  # what was there is now `fresh`, and goes
        else:
            fresh.rename(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _require_replaceable(target: Path, names: Collection[str]) -> None:
    """Never put a folder in the place of something else."""
    if not target.exists():
        return
    if not target.is_dir():
        raise ArtifactError(f"{target} is a file; choose another folder")
    strange = sorted({x.name for x in target.iterdir()} - set(names))
    if strange:
        raise ArtifactError(
            f"{target} holds {strange[0]!r}, which would be lost; choose another folder or move "
            "it away"
        )


def _exchange(one: Path, two: Path) -> None:
    """Swap two folders in one step where the system can, in two where it cannot."""
    if _swapped(one, two):
        return
    aside = one.with_suffix(".old")
    two.rename(aside)
    try:
        one.rename(two)
    except OSError:
        aside.rename(two)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _swapped(one: Path, two: Path) -> bool:
    """Linux's renameat2 with RENAME_EXCHANGE; False where it is not to be had."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2
    return bool(swap(here, os.fsencode(one), here, os.fsencode(two), exchange) == 0)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
