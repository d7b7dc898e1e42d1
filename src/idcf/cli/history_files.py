"""The results of `idcf embed` and `idcf recommend --histories`: of one file or of a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from idcf.cli import options as o
from idcf.errors import ConfigError, DataError
from idcf.files import reserve_file

if TYPE_CHECKING:
    from idcf.inference.predictor import Predictor
    from idcf.inference.ranking_query import ListOptions

HISTORIES_HELP = (
    "histories: user_id, item_id, rating; or folder of Parquet files of them, sorted by user_id, "
    "or of `idcf shard`."
)


class BulkOptions(NamedTuple):
    """Options of `idcf embed` and `idcf recommend --histories` that say how to compute."""

    device: str
    engine: str | None
    workers: int | None
    address: str | None
    overwrite: bool
    threads: int
    progress: bool
    columns: Mapping[str, str]

    def check_folder_options(self) -> None:
        """Raise ConfigError for options that do not go with a folder of histories."""
        if self.threads != 1:
            raise ConfigError(
                f"--threads {self.threads} is for one file; for a folder take --engine processes "
                f"--workers {self.threads}"
            )
        for name in ("workers", "address") if self.engine is None else ():
            if getattr(self, name) is not None:
                raise ConfigError(f"--{name} needs --engine; give one, or leave it out")

    def refuse_folder_options(self, reason: str) -> None:
        """Raise ConfigError for options that go with a folder of histories only."""
        for name in ("engine", "workers", "address", "overwrite"):
            if getattr(self, name):
                raise ConfigError(f"--{name} is for a folder of histories; {reason}")


def convert_histories(
    model_folder: Path,
    histories: Path,
    out: Path,
    options: BulkOptions,
    read_list_options: Callable[[Predictor], ListOptions] | None = None,
) -> tuple[dict[str, Any], int]:
    """Write the results of a file of histories to a file, or those of a folder to a folder.

    Without `read_list_options` they are embeddings. Returns what `--json` prints (counts of users
    and of unknown items, where the result is, and seconds), and the embedding size or 0.
    """
    from idcf.data.table_writer import check_table_ending
    from idcf.data.user_chunks import HistoryFile
    from idcf.inference.bulk import BulkWork, load_converter
    from idcf.inference.bulk_folder import convert_folder
    from idcf.models.base import resolve_device
    from idcf.training.engine import open_engine

    if not histories.exists():
        raise DataError(
            f"{histories} cannot be read: there is no file or folder there; check the path"
        )
    start, is_folder = time.perf_counter(), histories.is_dir()
    with ExitStack() as stack:
        if is_folder:
            options.check_folder_options()
            name = options.engine or "local"
            engine = open_engine(name, options.workers, options.address, options.device)
            stack.callback(engine.close)
            device = engine.device
        else:
            options.refuse_folder_options(f"{histories} is no folder: leave it out")
            stack.enter_context(reserve_file(out))
            check_table_ending(out)
            device = resolve_device(options.device).type
        work = BulkWork.of_model(model_folder, device)
        predictor = work.load_predictor()
        if read_list_options is not None:
            work = replace(work, list_options=read_list_options(predictor))
        converter = load_converter(work)
        if is_folder:
            values = convert_folder(
                work, histories, out, engine,
                columns=options.columns, overwrite=options.overwrite, progress=options.progress,
            )  # fmt: skip
        else:
            names = (predictor.artifact.manifest.columns, options.columns)
            file = HistoryFile(histories, None, *names, may_be_unsorted=True)
            counts = converter.convert(file, out)
            seconds = round(time.perf_counter() - start, 2)
            values = {**counts._asdict(), "file": str(out), "seconds": seconds}
    return values, converter.embedding_size


def print_conversion(values: dict[str, Any], detail: str, as_json: bool) -> None:
    """Print the result of `convert_histories`; `detail` says what every user got."""
    text = (
        f"{{n_users:,}} users, {detail}; {{n_users_without_known_items:,}} users without a known "
        "item, {n_unknown_items:,} unknown items; {seconds:.1f} s"
    )
    if "folder" in values:
        text += (
            ", {users_per_second:,} users/s\n{n_files:,} files in {folder}, "
            "{n_files_of_earlier_runs:,} of them from an earlier run"
        )
    else:
        text += "\nwritten to {file}"
    o.print_result(values, text.format_map(values), as_json)
