"""What several verbs ask for in the same words, and what they do with it. Light to import."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from idcf.data.datasets.catalog import Dataset

Source = Annotated[
    str, typer.Argument(help="A name that `idcf data list` prints, or a file (CSV, Parquet).")
]
Folder = Annotated[Path, typer.Argument(help="A saved model: the folder that train wrote.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Model = Annotated[str, typer.Option(help="Which model.")]
Preset = Annotated[str, typer.Option(help="clean or published.")]
KeyThreshold = Annotated[
    int | None, typer.Option(min=1, help="Key users have at least that many training rows.")
]
KeyUsers = Annotated[
    str, typer.Option(help="All at the threshold, or fewer: random, informative, or a number.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="An option, as in heads=2; may be repeated.")
]
Column = Annotated[list[str] | None, typer.Option(help="A column of your file, as in user_id=uid.")]
Implicit = Annotated[
    bool | None, typer.Option(help="Who had what; leave ratings aside, if there are any.")
]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
SplitSeed = Annotated[int, typer.Option(help="Of a random split.")]
Jobs = Annotated[int, typer.Option(min=1, help="Systems to train at a time.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads; more help on idle cores only.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def limit_threads(threads: int) -> None:
    """Before NumPy is imported: its libraries read the environment once."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    import torch

    torch.set_num_threads(threads)


def opened(
    source: str,
    column: list[str] | None,
    implicit: bool | None,
    *,
    test: str | None = None,
    progress: bool = True,
) -> Dataset:
    """The dataset, or the file with its columns named as they were typed."""
    from idcf.config import parse_overrides
    from idcf.evaluation.protocol import open_dataset

    columns = {role: str(name) for role, name in parse_overrides(column or []).items()}
    return open_dataset(source, test=test, columns=columns, implicit=implicit, progress=progress)


def names(text: str) -> list[str]:
    """What was separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def which(key_users: str) -> str | int:
    """A choice of key users as it was typed."""
    return int(key_users) if key_users.isdecimal() else key_users
