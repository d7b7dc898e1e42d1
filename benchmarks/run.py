"""Run all speed benchmarks and write a dated report with the hardware and software.

    python benchmarks/run.py                         all parts, about ten minutes
    python benchmarks/run.py --only adaption,serving
    python benchmarks/run.py --quick --out FOLDER    a check that it works; do not quote its figures

The script writes FOLDER/latest.json, FOLDER/YYYY-MM-DD.md and a figure. It knows no model: each
part runs in its own process, one after the other, with one thread.
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

import peers
import serving

from idcf.files import write_text

FOLDER = Path(__file__).resolve().parent
PACKAGES = ("idcf", "torch", "numpy", "scipy", "implicit")
PartResult = tuple[list[serving.Measurement], list[str]]  # measurements, and notes for the report


def run_adaption(quick: bool, plot_path: Path) -> PartResult:
    """Time the adaption stage against a plain implementation."""
    return _run_script("adaption.py", ["--quick"] if quick else [])


def run_serving(quick: bool, plot_path: Path) -> PartResult:
    """Time recommendations to new users."""
    return serving.measure(1 if quick else 2), []


def run_peers(quick: bool, plot_path: Path) -> PartResult:
    """Time recommendations to new users beside those of other libraries."""
    catalogs = {peers.catalog_name(): 0} if quick else None
    return peers.measure(1 if quick else 2, catalogs), []


def run_scaling(quick: bool, plot_path: Path) -> PartResult:
    """Time training against the number of ratings."""
    return _run_script("scaling.py", [*(["--quick"] if quick else []), "--plot", str(plot_path)])


PARTS: dict[str, Callable[[bool, Path], PartResult]] = {
    "adaption": run_adaption,
    "serving": run_serving,
    "peers": run_peers,
    "scaling": run_scaling,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmarks that the command line names, and write the report."""
    parser = argparse.ArgumentParser(description="Measure speed and write a report.")
    parser.add_argument("--quick", action="store_true", help="small data: a check that it works")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--out", type=Path, default=FOLDER / "reports", help="folder of reports")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"no part named {', '.join(unknown)}; known: {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    today, machine = date.today().isoformat(), hardware()
    plot_path = options.out / f"{today}-scaling.png"
    results: dict[str, PartResult] = {}
    began = time.perf_counter()
    for name in names:
        print(f"measuring {name}", file=sys.stderr)
        results[name] = PARTS[name](options.quick, plot_path)
    machine["seconds of the run"] = f"{time.perf_counter() - began:.0f}"
    measurements = [row for rows, _ in results.values() for row in rows]
    text = report(today, machine, results, plot_path.name if "scaling" in results else None)
    json_text = json.dumps(measurements, indent=2, ensure_ascii=False)
    write_text(options.out / "latest.json", json_text + "\n")
    write_text(options.out / f"{today}.md", text)
    for row in measurements:
        print(f"{row['name']:<60} {row['value']:>10g} {row['unit']}")
    print(f"report: {options.out / today}.md")


def hardware() -> dict[str, str]:
    """Describe the machine, its load at the start, the software and the command."""
    facts = {"processor": _read_field("/proc/cpuinfo", "model name") or platform.processor()}
    facts["cores"] = str(os.cpu_count())
    if memory := _read_field("/proc/meminfo", "MemTotal"):
        facts["memory"] = f"{int(memory.split()[0]) / 2**20:.1f} GiB"
    facts["load average at the start"] = ", ".join(f"{x:.2f}" for x in os.getloadavg())
    facts["system"] = (
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    )
    facts["versions"] = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    facts["command"] = f"`{shlex.join(['python', *sys.argv])}`, one thread in every process"
    return facts


def report(
    today: str, machine: dict[str, str], results: dict[str, PartResult], plot_name: str | None
) -> str:
    """Return the report as Markdown."""
    lines = [f"# Speed, {today}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.items()]
    for name, (rows, notes) in results.items():
        lines += ["", f"## {name.capitalize()}", "", "| measurement | value | unit | better |"]
        lines.append("|---|---:|---|---|")
        for row in rows:
            better = "higher" if row["higher_is_better"] else "lower"
            lines.append(f"| {row['name']} | {row['value']:g} | {row['unit']} | {better} |")
        lines += ["", *(f"- {note}" for note in notes)] if notes else []
        if name == "scaling" and plot_name:
            lines += ["", f"![seconds of an epoch against ratings]({plot_name})"]
    return "\n".join(lines) + "\n"


def _run_script(script: str, arguments: Sequence[str]) -> PartResult:
    """Run a benchmark in its own process, since numeric libraries read their threads at import."""
    command = [sys.executable, str(FOLDER / script), *arguments]
    environment = {**os.environ, **serving.ONE_THREAD}
    process = subprocess.run(command, env=environment, stdout=subprocess.PIPE)
    if process.returncode:
        raise SystemExit(f"{script} failed with exit status {process.returncode}; no report")
    result = json.loads(process.stdout)
    return result["measurements"], result["notes"]


def _read_field(path: str, field: str) -> str:
    """Return the value of the first line `field : value` of a file, or ""."""
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
