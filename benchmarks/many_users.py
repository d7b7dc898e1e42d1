"""Users per second and peak memory of `idcf embed` and `idcf recommend` over folders of histories.

    python benchmarks/many_users.py --users 1e5,1e6 [--verbs embed,recommend] [--engine processes]
                                    [--workers N] [--model FOLDER] [--out FILE.jsonl]

Histories have 20 items, drawn by the popularity of the items of ML-100K; ids are integers. They are
written once to --folder, in files of 125,000 users. The model is the default, fitted to ML-100K,
unless a folder is given. Each run is a process of its own; a run over no more than one small file
is subtracted from its processor time, so that users per second leave out the start.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from idcf import Recommender
from idcf.data.datasets.catalog import load_dataset

_N_ITEMS, _USERS_PER_FILE, _USERS_PER_WRITE = 20, 125_000, 25_000


def write_histories(folder: Path, n_users: int) -> Path:
    """Write histories of some users, unless they are there."""
    if folder.exists():
        return folder
    table, rng = load_dataset("ml-100k").interactions, np.random.default_rng(0)
    ids, popularity = np.array(table.items.ids), np.bincount(table.item) / len(table)
    temporary = folder.with_name(f".{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for number, first in enumerate(range(0, n_users, _USERS_PER_FILE)):
        last, writer = min(first + _USERS_PER_FILE, n_users), None
        for start in range(first, last, _USERS_PER_WRITE):
            users = np.arange(start, min(start + _USERS_PER_WRITE, last)).repeat(_N_ITEMS)
            columns = {
                "user_id": users,
                "item_id": ids[rng.choice(len(ids), len(users), p=popularity)],
                "rating": rng.integers(1, 6, len(users)).astype(np.float32),
            }
            part = pa.table(columns)
            if writer is None:
                path = temporary / f"part-{number:05}.parquet"
                writer = parquet.ParquetWriter(path, part.schema)
            writer.write_table(part)
        if writer is not None:
            writer.close()
    temporary.rename(folder)
    return folder


def run(verb: str, model: Path, histories: Path, out: Path, engine: list[str]) -> dict[str, Any]:
    """Run a verb in a process of its own, and return its report and its costs."""
    shutil.rmtree(out, ignore_errors=True)
    paths = [str(histories)] if verb == "embed" else ["--histories", str(histories)]
    command = ["-m", "idcf", verb, str(model), *paths, "--out", str(out), "--json", *engine]
    code = (
        "import json, resource, subprocess, sys\n"
        "report = json.loads(subprocess.run(sys.argv[1:], check=True, stdout=-1).stdout)\n"
        "usage = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "report['processor_seconds'] = usage.ru_utime + usage.ru_stime\n"
        "report['peak_mib'] = usage.ru_maxrss // 1024\n"
        "print(json.dumps(report))\n"
    )
    start = time.perf_counter()
    arguments = [sys.executable, "-c", code, sys.executable, *command]
    output = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout
    report: dict[str, Any] = json.loads(output)
    return {**report, "wall_seconds": time.perf_counter() - start}


def main() -> None:
    """Run the verbs over folders of several sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", default="1e5,1e6")
    parser.add_argument("--verbs", default="embed,recommend")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--workers")
    parser.add_argument("--folder", type=Path, default=Path("runs/many_users"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    model: Path = arguments.model or arguments.folder / "model"
    if not model.exists():
        Recommender(device="cpu").fit(load_dataset("ml-100k").interactions).save(model)
    engine = ["--engine", arguments.engine]
    engine += ["--workers", arguments.workers] if arguments.workers else []
    small = write_histories(arguments.folder / "users-1000", 1000)
    for verb in arguments.verbs.split(","):
        base = run(verb, model, small, arguments.folder / "results", engine)
        for n_users in (int(float(x)) for x in arguments.users.split(",")):
            histories = write_histories(arguments.folder / f"users-{n_users}", n_users)
            report = run(verb, model, histories, arguments.folder / "results", engine)
            seconds = report["processor_seconds"] - base["processor_seconds"]
            row = {
                "verb": verb,
                "engine": arguments.engine,
                "users": n_users,
                "seconds": round(report["seconds"], 1),
                "processor_seconds": round(report["processor_seconds"], 1),
                "users_per_processor_second": round((n_users - base["n_users"]) / seconds),
                "peak_mib": report["peak_mib"],  # of the largest process
                "load": round(os.getloadavg()[0], 1),
            }
            print(json.dumps(row), flush=True)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    shutil.rmtree(arguments.folder / "results")


if __name__ == "__main__":
    main()
