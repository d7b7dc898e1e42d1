"""`idcf demo`: from MovieLens-100K to a report on people the models have never met."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idcf.cli.evaluate import Device, Threads, limit_threads


def demo(
    folder: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("runs/demo"),
    device: Device = "auto",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Systems to train at a time; all cores if not said.")
    ] = None,
    threads: Threads = 1,
) -> None:
    """Get MovieLens-100K, train on key users, meet new ones, and write a report."""
    limit_threads(threads)
    from idcf.experiment.demo import show
    from idcf.experiment.pool import cores
    from idcf.experiment.rows import check_writable
    from idcf.train.runtime import start

    check_writable(folder / "report.html")
    runtime = start(device)
    alone = runtime.device.type == "cuda" or runtime.world > 1
    show(folder, runtime, jobs=jobs or (1 if alone else min(cores(), 4)), say=typer.echo)
