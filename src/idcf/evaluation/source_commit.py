"""The commit of the code that makes a result row."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

from idcf.errors import ConfigError

COMMIT_VARIABLE = "IDCF_COMMIT"  # names the commit of a copy of a checkout that has no git
_PACKAGE_FOLDER = Path(__file__).resolve().parents[1]


@cache
def source_commit() -> str | None:
    """Return the commit of the running code: the short hash, with "-dirty" if files of the package
    differ from it. None if they are not in a git checkout, unless `COMMIT_VARIABLE` is set. It is
    determined once in a process."""
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        if not re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", named):
            raise ConfigError(
                f"{COMMIT_VARIABLE} is {named!r}: give what `git rev-parse --short HEAD` prints"
            )
        return named
    return commit_of(_PACKAGE_FOLDER)


def commit_of(folder: Path) -> str | None:
    """Return the commit of a folder of Python files; None if git does not track `__init__.py`
    there, as where the package is installed inside another checkout."""
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "--short", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--", ".")
    if commit is None or changes is None:
        return None
    return f"{commit}-dirty" if changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what a git command prints, or None if it fails or there is no git. It writes nothing:
    `git status` would refresh the index, and a full disk leave its lock."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if process.returncode else process.stdout.strip()
