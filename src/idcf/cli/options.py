"""Arguments and options that several verbs share, and the functions that read them.

Light to import: `idcf --help` must not import NumPy or torch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.errors import ConfigError, unknown_name_message

if TYPE_CHECKING:
    from idcf.data.datasets.catalog import Dataset

KEY_USER_CHOICES = ("threshold", "random", "informative")

DatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help="Dataset name (see `idcf data list`) or path of a CSV or Parquet file of "
        "interactions.",
        show_default=False,
    ),
]
ModelFolder = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL_FOLDER",
        help="Folder of a model saved by `idcf train`.",
        show_default=False,
    ),
]
JsonSwitch = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ModelName = Annotated[
    str, typer.Option(metavar="NAME", help="Name of the model, such as idcf-bayes or als.")
]
ModelNames = Annotated[
    str, typer.Option(metavar="A,B", help="Names of models, separated by commas.")
]
PresetName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Set of default options: clean (recommended) or published (the paper's code).",
    ),
]
KeyThreshold = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Minimum number of training interactions of a key user.",
        show_default=False,
    ),
]
KeyUserChoice = Annotated[
    str,
    typer.Option(
        metavar="CHOICE",
        help="Which users above the threshold become key users: threshold (all), random (half) or "
        "informative (those that tell most about the items).",
    ),
]
KeyUserCount = Annotated[
    int | None,
    typer.Option(
        "--n-key-users",
        min=1,
        metavar="N",
        help="Number of key users, with `--key-users informative`.",
        show_default=False,
    ),
]
OptionOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Set a model or training option, e.g. -o heads=2; repeatable.",
        show_default=False,
    ),
]
ColumnMapping = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE=NAME",
        help="Column of your file that holds a role (user_id, item_id, rating or timestamp), e.g. "
        "user_id=uid; repeatable.",
        show_default=False,
    ),
]
ImplicitSwitch = Annotated[
    bool | None,
    typer.Option(
        "--implicit/--no-implicit",
        help="Treat as implicit feedback: ignore ratings. Default: implicit if there are none.",
        show_default=False,
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Seed of the random numbers used in training.")
]
SplitSeed = Annotated[int, typer.Option(metavar="N", help="Seed of the random train/test split.")]
Jobs = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of models to train in parallel.")
]
Threads = Annotated[int, typer.Option(min=1, metavar="N", help="Number of CPU threads.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="Where to compute: auto, cpu or cuda.")]


def limit_threads(threads: int) -> None:
    """Set the number of CPU threads; call it before NumPy is imported.

    The numerical libraries read these environment variables once, when they are loaded.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    import torch

    torch.set_num_threads(threads)


def open_dataset_argument(
    dataset: str,
    column: list[str] | None,
    implicit: bool | None,
    *,
    test: str | None = None,
    progress: bool = True,
) -> Dataset:
    """Load the dataset or file that DATASET, --column, --implicit and --test describe."""
    from idcf.config import parse_overrides
    from idcf.evaluation.protocol import open_dataset

    columns = {role: str(name) for role, name in parse_overrides(column or []).items()}
    return open_dataset(dataset, test=test, columns=columns, implicit=implicit, progress=progress)


def split_commas(text: str) -> list[str]:
    """Return the names in a text that separates them by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_key_users(key_users: str, n_key_users: int | None) -> str | int:
    """Return the value of `Recommender(key_users=...)` for --key-users and --n-key-users."""
    if key_users not in KEY_USER_CHOICES:
        raise ConfigError(unknown_name_message("choice of key users", key_users, KEY_USER_CHOICES))
    if n_key_users is None:
        return key_users
    if key_users != "informative":
        raise ConfigError(
            f"--n-key-users {n_key_users} needs --key-users informative, got {key_users!r}"
        )
    return n_key_users


def print_result(values: Any, text: str, as_json: bool) -> None:
    """Print the values as JSON, or the text."""
    typer.echo(json.dumps(values, indent=2, ensure_ascii=False) if as_json else text)
