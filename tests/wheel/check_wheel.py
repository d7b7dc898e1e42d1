"""Install the wheel without extras into an environment for each Python, and call everything.

    python tests/wheel/check_wheel.py python3.11 python3.12 python3.13

Each call must work, or end with a sentence that names the extra in at most two seconds of processor
time; for pieces of Python code, that of the import of torch is added. Warnings of deprecation are
errors in Python code, and are listed for commands. Needs a package index, or `--environment`: a
folder of an environment in which the wheel is installed already.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from calls import COMMANDS, EXTRAS, PYTHON, Call, write_table

ROOT = Path(__file__).parents[2]
MAX_SECONDS = 2.0  # of processor time, until an extra is named


class Outcome(NamedTuple):
    """What came of a call."""

    call: Call
    problem: str  # empty: it works, or names its extra
    cpu_seconds: float
    seconds: float
    warnings: tuple[str, ...]


def main() -> int:
    """Check every environment; return 1 if a call fails in any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="*", help="interpreters, such as python3.12")
    parser.add_argument("--environment", action="append", default=[], type=Path)
    arguments = parser.parse_args()
    n_problems = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environments = list(arguments.environment)
        wheel = build_wheel(folder / "wheel") if arguments.pythons else None
        for number, python in enumerate(arguments.pythons):
            environments.append(make_environment(python, folder / f"environment-{number}", wheel))
        for number, environment in enumerate(environments):
            n_problems += check_environment(environment, folder / f"work-{number}")
    return int(n_problems > 0)


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*pip, str(folder), str(ROOT)], check=True)
    [wheel] = folder.glob("idcf-*.whl")
    return wheel


def make_environment(python: str, folder: Path, wheel: Path | None) -> Path:
    """Make a virtual environment that has the wheel and what it requires, and no extra."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, str(wheel)], check=True)
    return folder


def check_environment(environment: Path, folder: Path) -> int:
    """Print the outcome of every call in an environment; return the number of problems."""
    folder.mkdir()
    (folder / "rows").mkdir()
    write_table(folder / "table.csv")
    python = environment / "bin" / "python"
    version = output_of(python, "import platform; print(platform.python_version())")
    code = f"from importlib.util import find_spec; print(*filter(find_spec, {modules()!r}))"
    print(f"Python {version}; of the extras there are: {output_of(python, code) or 'none'}")
    helps = [Call(f"{x} --help") for x in dict.fromkeys(x.text.split()[0] for x in COMMANDS[1:])]
    before = cpu_seconds()
    output_of(python, "import torch")
    import_seconds = cpu_seconds() - before
    calls = (*helps, *COMMANDS, *PYTHON)
    outcomes = [run(environment, folder, x, import_seconds) for x in calls]
    for x in outcomes:
        verdict = x.problem or (f"names idcf[{x.call.extra}]" if x.call.extra else "works")
        print(f"  {x.cpu_seconds:5.2f} s {x.seconds:6.2f} s  {x.call.text[:70]:70}  {verdict}")
        for text in x.warnings:
            print(f"{'':18}{text}")
    return sum(bool(x.problem) for x in outcomes)


def modules() -> list[str]:
    """Return the modules that no environment without extras has."""
    return [module for group in EXTRAS.values() for module in group]


def output_of(python: Path, code: str) -> str:
    """Return what a piece of code prints."""
    command = [str(python), "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(environment: Path, folder: Path, call: Call, import_seconds: float) -> Outcome:
    """Make a call in a process of its own."""
    scripts = environment / "bin"
    command = [str(scripts / "idcf"), *shlex.split(call.text)]
    if call.is_code:
        command = [str(scripts / "python"), "-W", "error::DeprecationWarning", "-c", call.text]
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "IDCF_DATA")}
    began, before = time.perf_counter(), cpu_seconds()
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**variables, "PYTHONWARNINGS": "default"},
        timeout=600,
    )
    used, seconds = cpu_seconds() - before, time.perf_counter() - began
    counted = max(0.0, used - import_seconds) if call.is_code else used
    warnings = [x for x in process.stderr.splitlines() if "DeprecationWarning" in x or "fork" in x]
    problem = find_problem(call, process.returncode, process.stderr, counted)
    return Outcome(call, problem, used, seconds, tuple(dict.fromkeys(warnings)))


def find_problem(call: Call, code: int, errors: str, used: float) -> str:
    """Return what is wrong with the outcome of a call, if anything is."""
    lines = [x for x in errors.splitlines() if x.strip()]
    last = lines[-1] if lines else ""
    if call.extra is None:
        return f"exit code {code}: {last}" if code else ""
    if f"pip install 'idcf[{call.extra}]'" not in last:
        return f"does not name idcf[{call.extra}] (exit code {code}): {last}"
    if "Traceback" in errors and not call.is_code:
        return "a traceback"
    return f"took {used:.1f} s of processor time" if used > MAX_SECONDS else ""


def cpu_seconds() -> float:
    """Return the processor time of the processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
