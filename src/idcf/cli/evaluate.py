"""`idcf evaluate`: compare models on a dataset, floors and the paper's numbers beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

MODELS = "popularity,bias,item-knn,ease,als,idcf-dot,idcf-nn,idcf-gc,idcf-bayes"

Threads = Annotated[int, typer.Option(min=1, help="CPU threads; more help on idle cores only.")]
Jobs = Annotated[int, typer.Option(min=1, help="Systems to train at a time.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
KeyUsers = Annotated[
    str, typer.Option(help="All at the threshold, or fewer: random, informative, or a number.")
]


def evaluate(
    dataset: Annotated[
        str, typer.Argument(help="A name that `idcf data list` prints, or the path of a file.")
    ],
    models: Annotated[str, typer.Option(help="Names, separated by commas.")] = MODELS,
    users: Annotated[str, typer.Option(help="Any of new, few-shot, all.")] = "new",
    seeds: Annotated[int, typer.Option(min=1, help="How often each model is trained.")] = 1,
    preset: Annotated[str, typer.Option(help="clean or published.")] = "clean",
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
    device: Device = "auto",
    test: Annotated[str | None, typer.Option(help="The test rows of your file.")] = None,
    key_threshold: Annotated[
        int | None, typer.Option(min=1, help="Key users have at least that many training rows.")
    ] = None,
    key_users: KeyUsers = "threshold",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option, as in heads=2 or idcf-nn.train.epochs=5."),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="A column of your file, as in user_id=uid.")
    ] = None,
    implicit: Annotated[
        bool | None, typer.Option(help="Feedback without ratings, whatever the columns.")
    ] = None,
    split_seed: Annotated[int, typer.Option(help="Of a random split.")] = 0,
    jobs: Jobs = 1,
    threads: Threads = 1,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Train models on key users and measure them on people they have never met."""
    limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.experiment import run, tables
    from idcf.experiment.protocol import open_dataset, standard_split
    from idcf.experiment.rows import check_writable, write_json
    from idcf.train.runtime import start

    if json:
        check_writable(json)
    columns = {role: str(name) for role, name in parse_overrides(column or []).items()}
    data = open_dataset(dataset, test=test, columns=columns, implicit=implicit)
    rows = run.evaluate(
        data,
        _names(models),
        _names(users),
        seeds,
        preset,
        split=standard_split(
            data, seed=split_seed, threshold=key_threshold, key_users=which(key_users)
        ),
        options=parse_overrides(set_ or []),
        runtime=start(device),
        jobs=jobs,
        progress=True,
    )
    typer.echo(tables.markdown(rows) if markdown else tables.text(rows))
    if json:
        write_json(rows, json)
        typer.echo(f"\n{len(rows)} rows written to {json}")


def which(key_users: str) -> str | int:
    """A choice of key users as it was typed."""
    return int(key_users) if key_users.isdecimal() else key_users


def limit_threads(threads: int) -> None:
    """Before NumPy is imported: its libraries read the environment once."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    import torch

    torch.set_num_threads(threads)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
