"""`idcf train`: train a model on a dataset or a file and save it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idcf.cli import options as o

if TYPE_CHECKING:
    from idcf.inference.manifest import NewUserCurve
    from idcf.recommender import Recommender


@dataclass(frozen=True)
class TrainingSummary:
    """Result of a training, as `idcf train --json` prints it."""

    folder: str  # where the model was saved
    model: str
    n_items: int
    n_rows: int  # training rows, of key users and query users
    n_users: int
    n_key_users: int
    key_threshold: int  # rows that make a user a key user (the paper's δ)
    key_user_choice: str | int  # threshold, random, informative, or a number of informative users
    seed: int
    card_metrics: NewUserCurve | None  # None: not measured
    seconds: float  # duration of the training


def train(
    dataset: o.DatasetArgument,
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder to save the model in.", show_default=False),
    ],
    model: o.ModelName = "idcf-bayes",
    preset: o.PresetName = "clean",
    seed: o.Seed = 0,
    overrides: o.OptionOverrides = None,
    column: o.ColumnMapping = None,
    implicit: o.ImplicitSwitch = None,
    user_features: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV or Parquet table: user_id and one column per user feature.",
            show_default=False,
        ),
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV or Parquet table: item_id, optional title, and one column per item feature.",
            show_default=False,
        ),
    ] = None,
    key_threshold: o.KeyThreshold = None,
    key_users: o.KeyUserChoice = "threshold",
    n_key_users: o.KeyUserCount = None,
    card_metrics: Annotated[
        bool,
        typer.Option(
            "--card-metrics/--no-card-metrics",
            help="Train a second model without some key users to measure quality for new users in "
            "the model card.",
        ),
    ] = True,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write training curves for TensorBoard.", show_default=False
        ),
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Log training curves to this MLflow tracking server.",
            show_default=False,
        ),
    ] = None,
    device: o.Device = "auto",
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Train a model on all interactions of a dataset and save it.

    The saved folder is the MODEL_FOLDER of `idcf recommend`, `embed`, `export` and `serve`.
    """
    o.limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.recommender import Recommender
    from idcf.training import trackers

    start = time.perf_counter()
    options = parse_overrides(overrides or [])
    recommender = Recommender(
        model,
        key_threshold=key_threshold,
        key_users=o.parse_key_users(key_users, n_key_users),
        preset=preset,
        seed=seed,
        device=device,
        **options,
    )
    data = o.open_dataset_argument(dataset, column, implicit, progress=not as_json)
    with ExitStack() as stack:
        callbacks: list[Any] = []
        if tensorboard:
            callbacks.append(stack.enter_context(trackers.TensorBoard(tensorboard)))
        if mlflow:
            logged = {"model": model, "dataset": dataset, **options}
            callbacks.append(stack.enter_context(trackers.MLflow(mlflow, options=logged)))
        recommender.fit(
            data.interactions,
            users=user_features,
            items=items,
            titles=data.titles or None,
            card_metrics=card_metrics,
            progress=not as_json,
            callback=trackers.combine_callbacks(callbacks),
        )
    recommender.save(out)
    summary = _training_summary(recommender, out, time.perf_counter() - start)
    o.print_result(asdict(summary), _format_summary(summary), as_json)


def _training_summary(recommender: Recommender, out: Path, seconds: float) -> TrainingSummary:
    """Return the summary of a trained model that was saved in the folder `out`."""
    manifest = recommender.manifest
    data = manifest.training_data
    return TrainingSummary(
        folder=str(out),
        model=manifest.model,
        n_items=manifest.domain.n_items,
        n_rows=data.n_rows,
        n_users=data.n_users,
        n_key_users=data.n_key_users,
        key_threshold=data.key_threshold,
        key_user_choice=data.key_user_rule,
        seed=manifest.seed,
        card_metrics=manifest.new_user_curve,
        seconds=round(seconds, 1),
    )


def _format_summary(summary: TrainingSummary) -> str:
    """Return the text that `idcf train` prints at the end."""
    x = summary
    choice = "" if x.key_user_choice == "threshold" else f", chosen by {x.key_user_choice}"
    return (
        f"{x.model}: {x.n_rows:,} rows of {x.n_users:,} users ({x.n_key_users:,} key users with at "
        f"least {x.key_threshold} rows{choice}), {x.n_items:,} items; {x.seconds:.0f} s\n"
        f"{_format_card_metrics(x.card_metrics)}saved in {x.folder}"
    )


def _format_card_metrics(curve: NewUserCurve | None) -> str:
    """Return the quality at the longest measured history as one line, or nothing."""
    if curve is None:
        return ""
    last = curve.points[-1]
    return (
        f"quality for new users with {last.history_length} interactions ({curve.n_users:,} key "
        f"users were held out): {curve.metric} {last.value:.3f} "
        f"({curve.baseline}: {last.baseline:.3f})\n"
    )
