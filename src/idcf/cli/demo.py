"""`idcf demo`: from MovieLens-100K to a report on people the models have never met."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from idcf.cli import options as o


def demo(
    folder: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("runs/demo"),
    device: o.Device = "auto",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Systems to train at a time; all cores if not said.")
    ] = None,
    threads: o.Threads = 1,
    as_json: o.Json = False,
) -> None:
    """Get MovieLens-100K, train on key users, meet new ones, and write a report."""
    o.limit_threads(threads)
    from idcf.evaluation.parallel import cores
    from idcf.evaluation.results import check_writable
    from idcf.paper.demo import show
    from idcf.training.distributed import start

    check_writable(folder / "report.html")
    runtime = start(device)
    alone = runtime.device.type == "cuda" or runtime.world > 1
    say = partial(typer.echo, err=as_json)  # with --json, what is told goes beside it
    page = show(folder, runtime, jobs=jobs or (1 if alone else min(cores(), 4)), say=say)
    if as_json:
        rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
        typer.echo(json.dumps({"report": str(page), "rows": rows}, indent=1))
