"""Options that several verbs share, how options are declared, and the functions that read them.

Light to import: `idcf --help` must not import NumPy or torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.errors import ConfigError, require_extra, unknown_name_message

if TYPE_CHECKING:
    from idcf.data.datasets.catalog import Dataset

KEY_USER_CHOICES = ("threshold", "random", "informative")
_FLAG_BY_ARGUMENT = {
    x: f"--{x.replace('_', '-')}"
    for x in ("model", "key_threshold", "key_users", "preset", "seed", "device")
}


def argument(metavar: str, text: str) -> Any:
    """Declare an argument by its name in the usage line and its help text."""
    return typer.Argument(metavar=metavar, help=text)


def option(metavar: str, text: str, *names: str, **limits: Any) -> Any:
    """Declare an option with a value. `names`, such as "-n", are by default the parameter's."""
    return typer.Option(*names, metavar=metavar, help=text, **limits)


def switch(name: str, text: str) -> Any:
    """Declare an option without a value, such as "--json" or "--implicit/--no-implicit"."""
    return typer.Option(name, help=text)


def overrides(text: str) -> Any:
    """Declare --option NAME=VALUE (-o), whose values `parse_overrides` reads."""
    return option("NAME=VALUE", text, "--option", "-o")


DatasetArgument = Annotated[
    str,
    argument(
        "DATASET",
        "Dataset name (see `idcf data list`), path of a CSV or Parquet file of interactions, or of "
        "a folder of Parquet files or of shards (see `idcf shard`).",
    ),
]
ModelFolder = Annotated[Path, argument("MODEL_FOLDER", "Folder of a model saved by `idcf train`.")]
JsonSwitch = Annotated[bool, switch("--json", "Print the result as JSON.")]
ModelName = Annotated[str, option("NAME", "Name of the model, such as idcf-bayes or als.")]
ModelNames = Annotated[str, option("A,B", "Names of models, separated by commas.")]
PresetName = Annotated[
    str,
    option("NAME", "Set of default options: clean (recommended) or published (the paper's code)."),
]
KeyThreshold = Annotated[
    int | None, option("N", "Minimum number of training interactions of a key user.", min=1)
]
KeyUserChoice = Annotated[
    str,
    option(
        "CHOICE",
        "Which users above the threshold become key users: threshold (all), random (half) or "
        "informative (those that tell most about the items).",
    ),
]
KeyUserCount = Annotated[
    int | None, option("N", "Number of key users, with `--key-users informative`.", min=1)
]
Rate = Annotated[
    list[str] | None,
    option(
        "ITEM=RATING",
        "Item the user rated, by title or id, e.g. 'Toy Story (1995)=5'; repeatable. For a model "
        "of implicit feedback, only the title or id.",
    ),
]
UserFeature = Annotated[
    list[str] | None,
    option(
        "NAME=VALUE",
        "Feature of the user, e.g. age=30; repeatable. Needs a model that was trained with user "
        "features.",
    ),
]
ColumnMapping = Annotated[
    list[str] | None,
    option(
        "ROLE=NAME",
        "Column of your file that holds a role (user_id, item_id, rating or timestamp), e.g. "
        "user_id=uid; repeatable.",
    ),
]
HistoryColumns = Annotated[
    list[str] | None,
    option(
        "ROLE=NAME",
        "Column of the histories that holds a role, as for `idcf train`, whose names are known to "
        "the model; repeatable.",
        "--column",
    ),
]
DropMissingSwitch = Annotated[
    bool, switch("--drop-missing", "Leave out rows that lack an id, a rating or a time.")
]
ImplicitSwitch = Annotated[
    bool | None,
    switch(
        "--implicit/--no-implicit",
        "Treat as implicit feedback: ignore ratings. Default: implicit if there are none.",
    ),
]
WeightColumn = Annotated[
    str | None,
    option(
        "COLUMN",
        "Column of clicks that says how much each counts: a number, a time spent, an amount. "
        "Ratings are left aside.",
    ),
]
Duplicates = Annotated[
    str,
    option(
        "RULE",
        "Rows that repeat a user and an item: last (only the last is kept) or count (the click "
        "counts as often as it is repeated, or as much as the weights of the rows together).",
    ),
]
MemoryLimit = Annotated[
    str | None,
    option(
        "SIZE",
        "Memory that the fit may take, such as 4GiB; one that needs more ends before it begins. "
        "Default: half of what is free.",
    ),
]
EngineName = Annotated[
    str | None,
    option(
        "ENGINE",
        "Who computes: local (this process), processes (of this machine) or ray (a cluster).",
    ),
]
Workers = Annotated[
    int | None,
    option("N", "Number of workers of the engine; by default one for each processor.", min=1),
]
ClusterAddress = Annotated[
    str | None,
    option(
        "ADDRESS",
        "Ray cluster, such as auto (the one of this machine) or HOST:PORT; by default one is "
        "started on this machine.",
    ),
]
OverwriteParts = Annotated[
    bool,
    switch(
        "--overwrite",
        "Delete the results of an earlier run with another model, other options or other "
        "histories from the folder.",
    ),
]
Seed = Annotated[int, option("N", "Seed of the random numbers used in training.")]
SplitSeed = Annotated[int, option("N", "Seed of the random train/test split.")]
Jobs = Annotated[int, option("N", "Number of models to train in parallel.", min=1)]
Threads = Annotated[int, option("N", "Number of CPU threads.", min=1)]
Device = Annotated[str, option("DEVICE", "Where to compute: auto, cpu or cuda.")]


def parse_columns(column: list[str] | None) -> dict[str, str]:
    """Return {role: name} of the --column options."""
    from idcf.config import parse_overrides

    return {role: str(name) for role, name in parse_overrides(column or []).items()}


def refuse_arguments_as_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for arguments of `Recommender`, which have flags, among the options."""
    for name in (x for x in _FLAG_BY_ARGUMENT if x in options):
        raise ConfigError(f"{name} is no option of a model; use {_FLAG_BY_ARGUMENT[name]} instead")


def require_engine_extra(engine: str | None) -> None:
    """Raise ConfigError if --engine names one whose package is not installed, before any work."""
    if engine == "ray":
        require_extra("ray", "ray")


def limit_threads(threads: int) -> None:
    """Set the number of CPU threads of torch and NumPy; call it before NumPy is imported."""
    limit_numpy_threads(threads)
    import torch

    torch.set_num_threads(threads)


def limit_numpy_threads(threads: int) -> None:
    """Set the number of CPU threads of a verb that does without torch.

    The numerical libraries read these environment variables once, when they are loaded.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))


def open_dataset_argument(
    dataset: str,
    column: list[str] | None,
    implicit: bool | None,
    *,
    test: str | None = None,
    drop_missing: bool = False,
    weight: str | None = None,
    duplicates: Any = "last",
    progress: bool = True,
) -> Dataset:
    """Load the dataset or file that DATASET and the options of these names describe."""
    from idcf.evaluation.protocol import open_dataset

    return open_dataset(
        dataset,
        test=test,
        columns=parse_columns(column),
        implicit=implicit,
        missing="drop" if drop_missing else "error",
        weight=weight,
        duplicates=duplicates,
        progress=progress,
    )


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
