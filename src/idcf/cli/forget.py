"""`idcf forget`: train a model again without some users, and remove their rows from files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from idcf.cli import options as o
from idcf.cli.train import open_engine_options, save_or_keep
from idcf.errors import ConfigError
from idcf.files import reserve, reserve_file

if TYPE_CHECKING:
    from idcf.recommender import Recommender

_MAX_LINES = 20  # of a file of ids that an error message names

_OTHER_TRACES = (
    "the table itself, unless it is a folder of shards, and copies of it",
    "the old model and copies of it (servers, MLflow, the Hugging Face Hub, ONNX files)",
    "folders of --resume, and hidden files .NAME.*.part of commands that were killed",
    "results of `idcf embed` and `recommend --histories` that --outputs did not name",
    "caches of datasets in the folder IDCF_DATA, and the history of the shell",
)


def forget(
    dataset: o.DatasetArgument,
    user_ids: Annotated[
        list[str] | None, o.argument("[USER]...", "Ids of users; or give --user-file.")
    ] = None,
    user_file: Annotated[
        Path | None,
        o.option("FILE", "File of ids, one per line; - for standard input, which nothing records."),
    ] = None,
    model: Annotated[
        Path | None, o.option("FOLDER", "Folder of a model that was trained on DATASET.")
    ] = None,
    out: Annotated[
        Path | None, o.option("FOLDER", "Folder for the new model; may be that of --model.")
    ] = None,
    user_features: Annotated[
        Path | None, o.option("FILE", "Table of user features, if `idcf train` had one.")
    ] = None,
    items: Annotated[
        Path | None, o.option("FILE", "Table of items, if `idcf train` had one.")
    ] = None,
    weight: o.WeightColumn = None,
    duplicates: o.Duplicates = "last",
    outputs: Annotated[
        list[Path] | None,
        o.option(
            "FILE",
            "Remove the users from a file of `idcf embed` or `recommend --histories`; repeatable.",
        ),
    ] = None,
    allow_training_rows: Annotated[
        bool,
        o.switch("--allow-training-rows", "Save a model that holds what its key users rated."),
    ] = False,
    memory: o.MemoryLimit = None,
    engine: o.EngineName = None,
    workers: o.Workers = None,
    address: o.ClusterAddress = None,
    device: o.Device = "auto",
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Train a model again on its table without some users.

    The new model is that of `idcf train` with the same options on a table which never had them.
    If DATASET is a folder of shards, it is written again without them.
    No user id is printed or written.
    """
    o.limit_threads(threads)
    start = time.perf_counter()
    lines = _read_ids(user_ids or [], user_file)
    ids = list(lines)
    _check_arguments(dataset, model, out)
    with ExitStack() as stack:
        for path in filter(None, [out]):
            stack.enter_context(reserve(path))
        for path in outputs or []:
            _check_output(path)
            stack.enter_context(reserve_file(path))
        values: dict[str, Any] = {"n_users": len(ids)}
        if model is None or out is None:
            rewrite = partial(_rewrite_shards, dataset, ids, progress=not as_json)
            _forget_known(rewrite, outputs or [], lines, user_file)
        else:
            recommender = _load(model, out, device, allow_training_rows)
            arguments: dict[str, Any] = {"users": user_features, "items": items, "memory": memory}
            arguments["engine"] = stack.enter_context(open_engine_options(engine, workers, address))
            rules = {"weight": weight, "duplicates": duplicates}
            fit_again = partial(
                _fit_again, recommender, dataset, ids, arguments, rules, progress=not as_json
            )
            _forget_known(fit_again, outputs or [], lines, user_file)
            save_or_keep(recommender, out, allow_training_rows)
            values |= {"folder": str(out), "n_rows": recommender.manifest.training_data.n_rows}
        values["removed_rows"] = _remove_rows(outputs or [], ids)
        values["may_hold_traces"] = list(_OTHER_TRACES)
    values["seconds"] = round(time.perf_counter() - start, 1)
    o.print_result(values, _describe(values), as_json)


def _read_ids(user_ids: Sequence[str], user_file: Path | None) -> dict[str, int | None]:
    """Return the line of the file of each user; None: the user is an argument."""
    lines: list[str] = []
    if user_file is not None:
        from idcf.files import read_text

        is_stdin = str(user_file) == "-"
        lines = (sys.stdin.read() if is_stdin else read_text(user_file)).splitlines()
    ids: dict[str, int | None] = dict.fromkeys(x for x in user_ids if x.strip())
    for number, x in enumerate(lines, 1):
        if x.strip():
            ids.setdefault(x, number)
    if not ids:
        raise ConfigError("no user to forget was given; give USER or --user-file")
    return ids


def _check_output(path: Path) -> None:
    """Raise an error unless a file of --outputs may be one of results."""
    from idcf.data.user_removal import check_results_file

    check_results_file(path)


def _forget_known(
    forget_users: Callable[..., None],
    outputs: Sequence[Path],
    lines: Mapping[str, int | None],
    user_file: Path | None,
) -> None:
    """Call a function that forgets users, who need rows in the table or in one of the outputs.

    UsersWithoutRowsError: some have none; it says on which lines of the file they are.
    """
    from idcf.data.user_removal import UsersWithoutRowsError, users_in_file

    try:
        forget_users()
        return
    except UsersWithoutRowsError as error:
        missing = set(map(str, error.user_ids))
    for path in outputs:
        missing -= users_in_file(path, missing)
    if missing:
        advice = _missing_advice([lines[x] for x in lines if x in missing], user_file)
        raise UsersWithoutRowsError(missing, len(lines), advice)
    forget_users(ignore_missing=True)


def _missing_advice(numbers: Sequence[int | None], user_file: Path | None) -> str:
    """Return what to check: the lines of the file, without the ids."""
    known = sorted(x for x in numbers if x is not None)
    if not known:
        return "check the ids"
    shown = [str(x) for x in known[:_MAX_LINES]]
    if len(known) > _MAX_LINES:
        shown.append(f"{len(known) - _MAX_LINES:,} more")
    text = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
    name = "standard input" if str(user_file) == "-" else user_file
    return f"check line{'s' if len(known) > 1 else ''} {text} of {name}"


def _check_arguments(dataset: str, model: Path | None, out: Path | None) -> None:
    """Raise ConfigError for arguments that do not go together."""
    if (model is None) != (out is None):
        raise ConfigError("--model FOLDER and --out FOLDER go together: give both or neither")
    if model is None and not _is_shards(dataset):
        raise ConfigError(f"{dataset} is no folder of shards: give --model and --out")


def _rewrite_shards(
    dataset: str, ids: Sequence[str], *, progress: bool, ignore_missing: bool = False
) -> None:
    """Write a folder of shards again without the users."""
    from idcf.data.user_removal import remove_users_from_shards

    folder = Path(dataset).expanduser()
    remove_users_from_shards(folder, ids, ignore_missing=ignore_missing, progress=progress)


def _load(model: Path, out: Path, device: str, allow_training_rows: bool) -> Recommender:
    """Load a model to fit again on a device, after checking that the new one can be saved."""
    from idcf.inference.artifact import check_save_folder, require_training_rows_allowed
    from idcf.recommender import Recommender

    check_save_folder(out)
    recommender = Recommender.load(model)
    manifest = recommender.manifest
    require_training_rows_allowed(manifest.model, manifest.user_data, allow_training_rows)
    recommender.config = manifest.config(device)
    return recommender


def _is_shards(dataset: str) -> bool:
    """Return whether a dataset is a folder of shards."""
    from idcf.data.shards import is_sharded_folder

    return is_sharded_folder(Path(dataset).expanduser())


def _fit_again(
    recommender: Recommender,
    dataset: str,
    ids: Sequence[str],
    arguments: dict[str, Any],
    rules: dict[str, Any],
    *,
    progress: bool,
    ignore_missing: bool = False,
) -> None:
    """Fit the model again on the dataset, which is read by these rules, without the users."""
    from idcf.evaluation.protocol import open_dataset

    manifest = recommender.manifest
    interactions: Any = dataset
    if not _is_shards(dataset):
        data = open_dataset(
            dataset,
            columns=manifest.columns or None,
            implicit=manifest.domain.implicit or None,
            missing="drop",
            progress=progress,
            **rules,
        )
        interactions = data.interactions
        arguments = arguments | {
            "titles": data.titles or None,
            "attributes": data.attributes or None,
        }
    recommender.forget(
        interactions, ids, ignore_missing=ignore_missing, progress=progress, **arguments
    )


def _remove_rows(paths: Sequence[Path], ids: Sequence[str]) -> dict[str, int]:
    """Remove the users from files of results; return the number of rows of each file."""
    from idcf.data.user_removal import remove_users_from_file

    return {str(path): remove_users_from_file(path, ids) for path in paths}


def _describe(values: dict[str, Any]) -> str:
    """Return the text that the command prints."""
    n_users = values["n_users"]
    lines = [f"{n_users} user{'s' if n_users != 1 else ''} forgotten; {values['seconds']:.1f} s"]
    lines += [f"{n:,} rows removed from {path}" for path, n in values["removed_rows"].items()]
    if "folder" in values:
        lines.append(f"new model of {values['n_rows']:,} rows saved in {values['folder']}")
    lines.append("traces may also be in:")
    return "\n".join([*lines, *(f"- {x}" for x in values["may_hold_traces"])])
