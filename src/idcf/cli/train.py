"""`idcf train`: train a model on a dataset or a file and save it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from idcf.cli import options as o
from idcf.errors import ArtifactError, ConfigError, require_extra
from idcf.files import reserve

if TYPE_CHECKING:
    from idcf.inference.manifest import Manifest, NewUserCurve
    from idcf.recommender import Recommender
    from idcf.training.checkpoint import EpochCallback
    from idcf.training.engine import Engine


def train(
    dataset: o.DatasetArgument,
    out: Annotated[Path, o.option("FOLDER", "Folder to save the model in.")],
    model: o.ModelName = "idcf-bayes",
    preset: o.PresetName = "clean",
    seed: o.Seed = 0,
    overrides: Annotated[
        list[str] | None,
        o.overrides("Set a model or training option, e.g. -o heads=2; repeatable."),
    ] = None,
    column: o.ColumnMapping = None,
    implicit: o.ImplicitSwitch = None,
    drop_missing: o.DropMissingSwitch = False,
    weight: o.WeightColumn = None,
    duplicates: o.Duplicates = "last",
    user_features: Annotated[
        Path | None,
        o.option("FILE", "CSV or Parquet table: user_id and one column per user feature."),
    ] = None,
    items: Annotated[
        Path | None,
        o.option(
            "FILE",
            "CSV or Parquet table: item_id, optional title, and one column per item feature.",
        ),
    ] = None,
    key_threshold: o.KeyThreshold = None,
    key_users: o.KeyUserChoice = "threshold",
    n_key_users: o.KeyUserCount = None,
    card_metrics: Annotated[
        bool | None,
        o.switch(
            "--card-metrics/--no-card-metrics",
            "Train a second model without some key users to measure quality for new users in the "
            "model card. Default: yes, unless an engine trains.",
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None, o.option("FOLDER", "Write training curves for TensorBoard.")
    ] = None,
    mlflow: Annotated[
        str | None, o.option("URI", "Log training curves to this MLflow tracking server.")
    ] = None,
    memory: o.MemoryLimit = None,
    engine: o.EngineName = None,
    workers: o.Workers = None,
    address: o.ClusterAddress = None,
    resume: Annotated[
        Path | None,
        o.option(
            "FOLDER",
            "Folder of checkpoints (with --engine, of passes), from which an interrupted fit goes "
            "on. They are deleted when the model is saved.",
        ),
    ] = None,
    allow_training_rows: Annotated[
        bool,
        o.switch(
            "--allow-training-rows",
            "Save a model that holds what its key users rated, such as idcf-gc.",
        ),
    ] = False,
    device: o.Device = "auto",
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Train a model on all interactions of a dataset and save it.

    The saved folder is the MODEL_FOLDER of `idcf recommend`, `embed`, `export` and `serve`.
    With --engine, DATASET is a folder of `idcf shard`, which need not fit into memory.
    """
    _require_extras(tensorboard, mlflow, engine)
    o.limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.recommender import Recommender
    from idcf.training.checkpoint import remove_checkpoints

    start = time.perf_counter()
    options = parse_overrides(overrides or [])
    o.refuse_arguments_as_options(options)
    recommender = Recommender(
        model,
        key_threshold=key_threshold,
        key_users=o.parse_key_users(key_users, n_key_users),
        preset=preset,
        seed=seed,
        device=device,
        **options,
    )
    _check_arguments(model, options, out, allow_training_rows)
    with ExitStack() as stack:
        stack.enter_context(reserve(out))
        opened = stack.enter_context(open_engine_options(engine, workers, address))
        reading = {"drop_missing": drop_missing, "weight": weight, "duplicates": duplicates}
        if opened is None:
            data = _open_table(dataset, column, implicit, reading, progress=not as_json)
        else:
            data = _open_shards(dataset, column, reading)
        logged = {"model": model, "dataset": dataset, **options}
        recommender.fit(
            data.interactions,
            users=user_features,
            items=items,
            columns=None if opened else data.columns,
            titles=data.titles or None,
            implicit=implicit if opened else None,
            attributes=data.attributes,
            card_metrics=(opened is None) if card_metrics is None else card_metrics,
            progress=not as_json,
            callback=_open_trackers(tensorboard, mlflow, logged, stack),
            memory=memory,
            engine=opened,
            resume=resume,
        )
        save_or_keep(recommender, out, allow_training_rows)
        if resume:
            remove_checkpoints(resume)
    _print_summary(recommender.manifest, out, time.perf_counter() - start, as_json)


def _require_extras(tensorboard: Path | None, mlflow: str | None, engine: str | None) -> None:
    """Raise ConfigError if a tracker or an engine is asked for that is not installed."""
    o.require_engine_extra(engine)
    for package, value in (("tensorboard", tensorboard), ("mlflow", mlflow)):
        if value:
            require_extra(package, package)


def _check_arguments(
    model: str, options: dict[str, Any], out: Path, allow_training_rows: bool
) -> None:
    """Raise ConfigError for what would fail after the table is read, or after training."""
    from idcf.inference.artifact import check_save_folder, require_training_rows_allowed
    from idcf.models.registry import user_data_of
    from idcf.training.presets import check_options

    check_save_folder(out)
    check_options(model, options)
    require_training_rows_allowed(model, user_data_of(model, options), allow_training_rows)


def save_or_keep(recommender: Recommender, out: Path, allow_training_rows: bool) -> None:
    """Save a model; if the folder cannot be written, save it in a temporary folder and say where.

    ArtifactError: the folder cannot be written; the message names where the model is.
    """
    try:
        recommender.save(out, allow_training_rows=allow_training_rows)
    except ArtifactError as error:
        other = Path(tempfile.mkdtemp(prefix="idcf-")) / "model"
        try:
            recommender.save(other, allow_training_rows=allow_training_rows)
        except ArtifactError:
            raise error from None
        raise ArtifactError(f"{error}; the trained model was saved in {other}") from None


class _Data(NamedTuple):
    """What a fit reads."""

    interactions: Any
    titles: Any = None
    attributes: Any = None
    columns: Mapping[str, str] | None = None


@contextmanager
def open_engine_options(
    name: str | None, workers: int | None, address: str | None
) -> Iterator[Engine | None]:
    """Yield the engine of --engine, --workers and --address; None: no engine is named."""
    from idcf.training.engine import open_engine

    if name is None:
        given = {"--workers": workers, "--address": address}
        for option in (key for key, value in given.items() if value is not None):
            raise ConfigError(f"{option} needs --engine; give one, or leave it out")
        yield None
        return
    with closing(open_engine(name, workers, address)) as engine:
        yield engine


def _open_trackers(
    tensorboard: Path | None, mlflow: str | None, logged: dict[str, Any], stack: ExitStack
) -> EpochCallback | None:
    """Return a callback for what writes training curves, which ends with the stack, if any does."""
    from idcf.training import trackers

    callbacks: list[Any] = []
    if tensorboard:
        callbacks.append(stack.enter_context(trackers.TensorBoard(tensorboard)))
    if mlflow:
        callbacks.append(stack.enter_context(trackers.MLflow(mlflow, options=logged)))
    return trackers.combine_callbacks(callbacks)


def _open_table(
    dataset: str,
    column: list[str] | None,
    implicit: bool | None,
    reading: Mapping[str, Any],
    progress: bool,
) -> _Data:
    """Return the dataset or file, read by the options of `open_dataset_argument`."""
    from idcf.data.shards import columns_of_shards

    table = o.open_dataset_argument(dataset, column, implicit, **reading, progress=progress)
    columns = o.parse_columns(column) or columns_of_shards(dataset)
    return _Data(table.interactions, table.titles, table.attributes, columns)


def _open_shards(dataset: str, column: list[str] | None, reading: Mapping[str, Any]) -> _Data:
    """Return the path of a folder of shards, which an engine reads; raise ConfigError for an option
    of tables."""
    given = {"column": column, **reading, "duplicates": reading["duplicates"] != "last"}
    for name in (name for name, value in given.items() if value):
        option = f"--{name.replace('_', '-')}"
        raise ConfigError(f"{option} is for a table, not for a folder of shards: leave it out")
    return _Data(Path(dataset))


def _print_summary(manifest: Manifest, out: Path, seconds: float, as_json: bool) -> None:
    """Print what was trained, as text or as JSON."""
    values = _training_summary(manifest, out, seconds)
    o.print_result(values, _format_summary(values, manifest.new_user_curve), as_json)


def _training_summary(manifest: Manifest, out: Path, seconds: float) -> dict[str, Any]:
    """Return what `idcf train --json` prints of a model that was saved in the folder `out`."""
    data, curve = manifest.training_data, manifest.new_user_curve
    return {
        "folder": str(out),
        "model": manifest.fitted_model,
        "n_items": manifest.domain.n_items,
        "n_rows": data.n_rows,  # of key users and query users
        "n_users": data.n_users,
        "n_key_users": data.n_key_users,
        "key_threshold": data.key_threshold,
        "key_user_choice": data.key_user_rule,
        "seed": manifest.seed,
        "card_metrics": None if curve is None else asdict(curve),
        "seconds": round(seconds, 1),
    }


def _format_summary(values: dict[str, Any], curve: NewUserCurve | None) -> str:
    """Return the summary as text, with the quality at the longest measured history."""
    choice = values["key_user_choice"]
    lines = [
        "{model}: {n_rows:,} rows of {n_users:,} users ({n_key_users:,} key users with at least "
        "{key_threshold} rows{choice}), {n_items:,} items; {seconds:.0f} s".format(
            **values, choice="" if choice == "threshold" else f", chosen by {choice}"
        )
    ]
    if curve is not None:
        last = curve.points[-1]
        lines.append(
            f"quality for new users with {last.history_length} interactions ({curve.n_users:,} key "
            f"users were held out): {curve.metric} {last.value:.3f} "
            f"({curve.baseline}: {last.baseline:.3f})"
        )
    return "\n".join([*lines, f"saved in {values['folder']}"])
