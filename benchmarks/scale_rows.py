"""Rows of the benchmarks of scale: what each of them says of the machine, and of its processes."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from idcf.evaluation.source_commit import source_commit

_PACKAGES = ("idcf", "numpy", "scipy", "torch", "pyarrow", "ray")
_TICKS = os.sysconf("SC_CLK_TCK")


def append_row(path: Path | None, row: dict[str, Any]) -> None:
    """Print a row with the facts of this run, and append it to a file."""
    load = [round(x, 1) for x in os.getloadavg()]
    row = {**row, "load": load[0], "load_15_min": load[2], **machine_facts()}
    print(json.dumps(row), flush=True)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@cache
def machine_facts() -> dict[str, Any]:
    """Return processor, cores, memory, versions and commit."""
    processor = _field("/proc/cpuinfo", "model name") or platform.processor()
    memory = int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]) / 2**20
    return {
        "machine": f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB",
        "versions": {"python": platform.python_version(), **dict(_versions())},
        "commit": source_commit(),
    }


def _versions() -> Iterator[tuple[str, str]]:
    """Yield the packages that are installed, with their versions."""
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _field(path: str, name: str) -> str | None:
    """Return the first value of a name in a file of `name: value` lines."""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def peak_gib(pid: int | str = "self") -> float:
    """Return the peak resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def processor_seconds() -> float:
    """Return the processor time of this process, of those that it started, and of theirs."""
    return sum(_own_seconds(pid) for pid in (os.getpid(), *descendants(os.getpid())))


def descendants(pid: int) -> list[int]:
    """Return the processes that a process and its children started, and that still run."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and (fields := _stat(int(path.name))):
            children.setdefault(int(fields[1]), []).append(int(path.name))
    generation, all_pids = [pid], list[int]()
    while generation:
        generation = [child for parent in generation for child in children.get(parent, [])]
        all_pids += generation
    return all_pids


def _own_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that have ended."""
    return sum(int(x) for x in (_stat(pid) or ["0"] * 15)[11:15]) / _TICKS


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat behind the name: the state, the parent and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None


def command_of(pid: int) -> bytes:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
