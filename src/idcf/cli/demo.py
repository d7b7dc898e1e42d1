"""`idcf demo`: train models on MovieLens-100K and write an HTML report on new users."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from idcf.cli import options as o
from idcf.errors import require_extra

_MAX_DEFAULT_JOBS = 4


def demo(
    out: Annotated[Path, o.option("FOLDER", "Folder for the report.")] = Path("runs/demo"),
    jobs: Annotated[
        int | None,
        o.option(
            "N",
            "Number of models to train in parallel. Default: the number of CPU cores, at most 4; "
            "on a GPU 1.",
            min=1,
        ),
    ] = None,
    device: o.Device = "auto",
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Train on MovieLens-100K and write an HTML report on users that were not in the training."""
    require_extra("plots", "matplotlib")  # before long work whose end is a figure
    o.limit_threads(threads)
    from idcf.evaluation.parallel import available_cores
    from idcf.files import reserve_content
    from idcf.paper.demo import run_demo
    from idcf.training.job import start_runtime

    runtime = start_runtime(device)
    if jobs is None:
        single = runtime.device.type == "cuda" or runtime.world_size > 1
        jobs = 1 if single else min(available_cores(), _MAX_DEFAULT_JOBS)
    echo = partial(typer.echo, err=as_json)  # with --json, stdout is for the result alone
    with reserve_content(out):
        report = run_demo(out, runtime, n_jobs=jobs, echo=echo)
    if as_json:
        rows = json.loads((out / "rows.json").read_text(encoding="utf-8"))
        o.print_result({"report": str(report), "rows": rows}, "", as_json)
