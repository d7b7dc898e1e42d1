"""How much memory there is, and the check of a fit against a limit."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from idcf.errors import ConfigError

if TYPE_CHECKING:
    from idcf.training.fit_cost import FitCost

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{x}i": 1024**n for n, x in enumerate("kmgt", 1)}
_GIB = 2**30
_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def parse_memory(value: int | float | str) -> int:
    """Return a number of bytes, given as such or as text.

    Examples
    --------
    >>> parse_memory("4GiB"), parse_memory("1.5 GB"), parse_memory(1e9)
    (4294967296, 1500000000, 1000000000)
    """
    text = str(value).strip().lower()
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?i?)b?", text)
    try:
        n_bytes = float(match[1]) * _UNITS[match[2]] if match else 0.0
    except (ValueError, KeyError):
        n_bytes = 0.0
    if not 1 <= n_bytes < float("inf"):
        raise ConfigError(
            f"memory must be a number of bytes or a text such as '4GiB' or '500MB', got {value!r}"
        )
    return int(n_bytes)


def free_memory() -> int | None:
    """Return the bytes that this process could still take without swapping: what the system has
    available, or what the control group (a container's limit) leaves. None: not known."""
    amounts = [x for x in (_available(), _cgroup_rest()) if x is not None]
    return min(amounts) if amounts else None


def check_memory(cost: FitCost, memory: int | float | str | None) -> None:
    """Raise ConfigError if a fit needs more than `memory` bytes.

    None: half of what is free, and what this process holds already.
    """
    if memory is not None:
        limit, source = parse_memory(memory), "the limit"
    else:
        free = free_memory()
        if free is None:
            return
        limit, source = _resident() + free // 2, "half of what is free"
    if cost.memory > limit:
        raise ConfigError(
            f"the fit of {cost.model} on {cost.size.key_rows:,} rows of {cost.size.key_users:,} "
            f"key users and {cost.size.items:,} items needs about {cost.memory / _GIB:.1f} GiB, "
            f"more than {source}, {limit / _GIB:.1f} GiB; raise it (memory='"
            f"{cost.memory * 1.2 / _GIB:.1f}GiB', --memory), lower key_users or raise "
            "key_threshold, or leave out items with few rows"
        )


def _available() -> int | None:
    """Return MemAvailable of Linux, in bytes."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", _read(_PROC / "meminfo"))
    return int(match[1]) * 1024 if match else None


def _cgroup_rest() -> int | None:
    """Return how much the limit of the control group exceeds its use; files in the page cache that
    may be dropped do not count. None: there is no limit."""
    match = re.search(r"^0::(/.*)$", _read(_PROC / "self" / "cgroup"), re.MULTILINE)
    own_folder = _CGROUP / match[1].strip("/") if match else _CGROUP
    for folder, limit, use in (
        (own_folder, "memory.max", "memory.current"),
        (_CGROUP, "memory.max", "memory.current"),
        (_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit_text, use_text = _read(folder / limit).strip(), _read(folder / use).strip()
        if limit_text.isdecimal() and use_text.isdecimal():
            cache = re.search(
                r"^(?:total_)?inactive_file (\d+)$", _read(folder / "memory.stat"), re.M
            )
            return max(0, int(limit_text) - int(use_text) + (int(cache[1]) if cache else 0))
    return None


def _resident() -> int:
    """Return the bytes of memory that this process holds."""
    fields = _read(_PROC / "self" / "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _read(path: Path) -> str:
    """Return the text of a file, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
