"""Run the attacks and write a report: `python tests/campaign/campaign.py --seed 1 --out FILE.json`.

An attack is a module of this folder with a function `run(folder, seed, share)`. A share of 1 is the
whole attack; `make test` runs a small share of each.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS), str(TESTS / "server")]  # for modules that the attacks share with tests

from attack import Tally  # noqa: E402

ATTACKS: tuple[str, ...] = (
    "http_requests",
    "http_sockets",
    "kills",
    "overload",
    "hot_swaps",
    "save_races",
    "signals",
    "numerical_worlds",
    "hostile_options",
    "soak",
    "page_titles",
    "artifact_mutations",
    "hostile_files",
    "full_disk",
    "training_rows",
)
"""The modules, in the order in which they run."""


def run_attack(name: str, seed: int, share: float) -> Tally:
    """Run one attack in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix=f"idcf-{name}-") as folder:
        tally: Tally = importlib.import_module(name).run(Path(folder), seed, share)
    return tally


def report(names: list[str], seed: int, share: float) -> dict[str, Any]:
    """Run attacks one after another; return what was tried, how often, and every failure."""
    attacks: dict[str, Any] = {}
    for name in names:
        start = time.perf_counter()
        tally = run_attack(name, seed, share)
        seconds = round(time.perf_counter() - start, 1)
        attacks[name] = {**tally.to_json(), "seconds": seconds}
        print(
            f"{name}: {sum(tally.tried.values())} cases, {len(tally.failures)} failures, "
            f"{seconds:.0f} s",
            flush=True,
        )
        for failure in tally.failures:
            print(f"  {failure.kind} [{failure.case}]: {failure.what}", flush=True)
    return {
        "seed": seed,
        "share": share,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "attacks": attacks,
    }


def main() -> None:
    """Run what the command line names; exit with 1 if there was a failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="part of the cases to try")
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--out", type=Path, help="JSON file for the report")
    options = parser.parse_args()
    result = report(options.only, options.seed, options.share)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(x["failures"] for x in result["attacks"].values()))


if __name__ == "__main__":
    main()
