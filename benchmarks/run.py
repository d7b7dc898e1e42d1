"""All speed measurements in one run, and a dated report with the hardware beside it.

    python benchmarks/run.py                         everything, some ten minutes
    python benchmarks/run.py --only adaption,serving
    python benchmarks/run.py --quick --out FOLDER    that it works, no figures to quote

Writes FOLDER/latest.json, FOLDER/YYYY-MM-DD.md and a picture. Knows no model: each part runs in a
process of its own, one after the other, with one thread.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import peers
import serving

HERE = Path(__file__).resolve().parent
VERSIONS = ("idcf", "torch", "numpy", "scipy", "implicit")
Measurement = dict[str, Any]
Found = tuple[list[Measurement], list[str]]  # and remarks


def adaption(quick: bool, plot: Path) -> Found:
    return _worker("adaption.py", ["--quick"] if quick else [])


def serve(quick: bool, plot: Path) -> Found:
    return serving.measure(1 if quick else 2), []


def beside(quick: bool, plot: Path) -> Found:
    worlds = {peers.catalogue(): 0} if quick else None
    return peers.measure(1 if quick else 2, worlds), []


def scaling(quick: bool, plot: Path) -> Found:
    return _worker("scaling.py", [*(["--quick"] if quick else []), "--plot", str(plot)])


PARTS: dict[str, Callable[[bool, Path], Found]] = {
    "adaption": adaption,
    "serving": serve,
    "peers": beside,
    "scaling": scaling,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure speed and write a report.")
    parser.add_argument("--quick", action="store_true", help="small worlds: that it works")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--out", type=Path, default=HERE / "reports", help="where reports go")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",")
    if wrong := [x for x in chosen if x not in PARTS]:
        parser.error(f"no part called {', '.join(wrong)}; there are {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    today, machine = date.today().isoformat(), hardware()
    plot = options.out / f"{today}-scaling.png"
    found: dict[str, Found] = {}
    began = time.perf_counter()
    for name in chosen:
        print(f"measuring {name}", file=sys.stderr)
        found[name] = PARTS[name](options.quick, plot)
    machine["seconds of the run"] = f"{time.perf_counter() - began:.0f}"
    every = [row for rows, _ in found.values() for row in rows]
    text = report(today, machine, found, plot.name if "scaling" in found else None)
    _write(options.out / "latest.json", json.dumps(every, indent=2, ensure_ascii=False) + "\n")
    _write(options.out / f"{today}.md", text)
    for row in every:
        print(f"{row['name']:<60} {row['value']:>10g} {row['unit']}")
    print(f"report: {options.out / today}.md")


def hardware() -> dict[str, str]:
    """The machine, what else it was doing at the start, and the software."""
    facts = {"processor": _line("/proc/cpuinfo", "model name") or platform.processor()}
    facts["cores"] = str(os.cpu_count())
    if memory := _line("/proc/meminfo", "MemTotal"):
        facts["memory"] = f"{int(memory.split()[0]) / 2**20:.1f} GiB"
    facts["load average at the start"] = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    facts["system"] = (
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    )
    facts["versions"] = ", ".join(f"{name} {_version(name)}" for name in VERSIONS)
    facts["command"] = f"`{shlex.join(['python', *sys.argv])}`, one thread in every process"
    return facts


def report(today: str, machine: dict[str, str], found: dict[str, Found], plot: str | None) -> str:
    """Markdown with all figures."""
    lines = [f"# Speed, {today}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.items()]
    for name, (rows, notes) in found.items():
        lines += ["", f"## {name.capitalize()}", "", "| measurement | value | unit | better |"]
        lines.append("|---|---:|---|---|")
        for row in rows:
            better = "higher" if row["higher_is_better"] else "lower"
            lines.append(f"| {row['name']} | {row['value']:g} | {row['unit']} | {better} |")
        lines += ["", *(f"- {note}" for note in notes)] if notes else []
        if name == "scaling" and plot:
            lines += ["", f"![seconds of an epoch against ratings]({plot})"]
    return "\n".join(lines) + "\n"


def _worker(script: str, arguments: Sequence[str]) -> Found:
    """Threads of the numeric libraries are chosen before they are loaded: a process of its own."""
    command = [sys.executable, str(HERE / script), *arguments]
    environment = {**os.environ, **serving.ONE_THREAD}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"{script} failed with exit status {done.returncode}; nothing was written")
    found = json.loads(done.stdout)
    return found["measurements"], found["notes"]


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".part")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _line(path: str, field: str) -> str:
    """The value of the first `field : value` of a file, or nothing."""
    if not Path(path).exists():
        return ""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith(field)), "")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "–"


if __name__ == "__main__":
    main()
