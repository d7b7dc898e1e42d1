"""`idcf tune`: search the options of a model on held-out key users of a dataset."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from idcf.cli import options as o
from idcf.errors import require_extra

if TYPE_CHECKING:
    from idcf.evaluation.tune import Trial, TuningResult


def tune(
    dataset: o.DatasetArgument,
    model: o.ModelName,
    storage: Annotated[
        Path, o.option("FILE", "SQLite file of trials; an existing one is continued.")
    ],
    trials: Annotated[
        int, o.option("N", "Total number of trials, including those in the file.", min=1)
    ] = 20,
    out: Annotated[
        Path | None,
        o.option(
            "FILE", "TOML file for the best options. Default: the name of --storage with .toml."
        ),
    ] = None,
    preset: o.PresetName = "clean",
    seed: o.Seed = 0,
    split_seed: o.SplitSeed = 0,
    overrides: Annotated[
        list[str] | None,
        o.overrides(
            "Fix a model or training option, e.g. -o heads=2; it is not searched; repeatable."
        ),
    ] = None,
    column: o.ColumnMapping = None,
    implicit: o.ImplicitSwitch = None,
    drop_missing: o.DropMissingSwitch = False,
    weight: o.WeightColumn = None,
    duplicates: o.Duplicates = "last",
    key_threshold: o.KeyThreshold = None,
    device: o.Device = "auto",
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Search model options on held-out key users; resumes when run again."""
    require_extra("tune", "optuna")
    o.limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.evaluation import tune as tuning
    from idcf.evaluation.protocol import standard_split
    from idcf.files import reserve_file, write_text
    from idcf.training.job import start_runtime

    toml_file = out or storage.with_suffix(".toml")
    with reserve_file(storage), reserve_file(toml_file):
        data = o.open_dataset_argument(
            dataset,
            column,
            implicit,
            drop_missing=drop_missing,
            weight=weight,
            duplicates=duplicates,
            progress=not as_json,
        )
        start = time.perf_counter()
        result = tuning.tune(
            data,
            model,
            trials,
            storage,
            split=standard_split(data, seed=split_seed, threshold=key_threshold),
            preset=preset,
            fixed_options=parse_overrides(overrides or []),
            seed=seed,
            runtime=start_runtime(device),
            progress=not as_json,
            on_trial=partial(_print_trial, trials),
        )
        write_text(toml_file, result.to_toml(preset, data.name))
    values = {
        "model": result.model,
        "metric": result.metric,
        "n_users": result.n_users,
        "n_trials": len(result.trials),
        "best_trial": result.best_trial._asdict(),
        "default_trial": result.trials[0]._asdict(),
        "command_options": result.command_line_options(),
        "file": str(toml_file),
        "seconds": round(time.perf_counter() - start, 1),
    }
    o.print_result(values, _format_text(result, toml_file), as_json)


def _print_trial(n_trials: int, trial: Trial) -> None:
    """Print the value and the options of a finished trial to stderr."""
    from tqdm import tqdm

    text = f"trial {trial.number} of {n_trials}: {trial.value:.4f}, {trial.options}"
    tqdm.write(text, file=sys.stderr)  # above the progress bar


def _format_text(result: TuningResult, toml_file: Path) -> str:
    """Return the text that `idcf tune` prints: the best trial next to the default options."""
    best, default = result.best_trial, result.trials[0]
    return (
        f"{result.model}: {result.metric} {best.value:.4f} on {result.n_users} held-out users in "
        f"trial {best.number} of {len(result.trials)} (default options: {default.value:.4f})\n"
        f"{result.command_line_options()}\nwritten to {toml_file}"
    )
