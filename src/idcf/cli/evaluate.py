"""`idcf evaluate`: compare models on a dataset, floors and the paper's numbers beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idcf.cli import options as o

MODELS = "popularity,bias,item-knn,ease,als,idcf-dot,idcf-nn,idcf-gc,idcf-bayes"


def evaluate(
    dataset: o.Source,
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = MODELS,
    users: Annotated[str, typer.Option(help="Any of new, few-shot, all.")] = "new",
    seeds: Annotated[int, typer.Option(min=1, help="How often each model is trained.")] = 1,
    preset: o.Preset = "clean",
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    device: o.Device = "auto",
    test: Annotated[str | None, typer.Option(help="The test rows of your file.")] = None,
    key_threshold: o.KeyThreshold = None,
    key_users: o.KeyUsers = "threshold",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option, as in heads=2 or idcf-nn.train.epochs=5."),
    ] = None,
    column: o.Column = None,
    implicit: o.Implicit = None,
    split_seed: o.SplitSeed = 0,
    jobs: o.Jobs = 1,
    threads: o.Threads = 1,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Train models on key users and measure them on people they have never met."""
    o.limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.data.datasets.catalog import SOURCES
    from idcf.evaluation import run, tables
    from idcf.evaluation.protocol import standard_split
    from idcf.evaluation.results import check_writable, write_json
    from idcf.paper.published_numbers import paper_numbers
    from idcf.training.distributed import start

    if json:
        check_writable(json)
    data = o.opened(dataset, column, implicit, test=test)
    rows = run.evaluate(
        run.Plan(
            data,
            o.names(models),
            o.names(users),
            seeds,
            preset,
            options=parse_overrides(set_ or []),
        ),
        split=standard_split(
            data, seed=split_seed, threshold=key_threshold, key_users=o.which(key_users)
        ),
        runtime=start(device),
        jobs=jobs,
        progress=True,
    )
    reference = paper_numbers() if data.name in SOURCES else None
    layout = tables.markdown if markdown else tables.text
    typer.echo(layout(rows, reference))
    if json:
        write_json(rows, json)
        typer.echo(f"\n{len(rows)} rows written to {json}")
