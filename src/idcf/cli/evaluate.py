"""`idcf evaluate`: compare models on the held-out interactions of a dataset."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idcf.cli import options as o
from idcf.errors import ConfigError
from idcf.evaluation import DEFAULT_MODELS

if TYPE_CHECKING:
    from idcf.evaluation.results import ResultRow

_DEFAULT_MODELS = ",".join(DEFAULT_MODELS)


def evaluate(
    dataset: o.DatasetArgument,
    models: o.ModelNames = _DEFAULT_MODELS,
    groups: Annotated[
        str,
        o.option(
            "A,B",
            "User groups to report, separated by commas: new (users absent from training), "
            "few-shot (query users whose few interactions are trained on), all, probe (users with "
            "fewer than 20 training interactions) or probe-new (these, absent from training). The "
            "dataset ml-1m-cold also has cold-0, cold-1, cold-2, cold-5, cold-10 and cold-all.",
        ),
    ] = "new",
    seeds: Annotated[
        int, o.option("N", "Number of training runs per model, with different seeds.", min=1)
    ] = 1,
    test: Annotated[
        str | None,
        o.option("FILE", "File of held-out test interactions. Default: a random part of DATASET."),
    ] = None,
    split: Annotated[
        str,
        o.option(
            "NAME",
            "How rows are held out: standard (test rows of the dataset or at random), temporal "
            "(the last fifth of the rows in time; users first seen then are new) or strong (a "
            "fifth of the users, who show 80 % of their items). Needs timestamps: temporal.",
        ),
    ] = "standard",
    metrics: Annotated[
        str,
        o.option("A,B", "Metrics to report, separated by commas, or all. Default: a few."),
    ] = "",
    quality: Annotated[
        float | None,
        o.option(
            "Q",
            "Order of the lists of idcf-bayes: 0, what users take up, to 1, the highest expected "
            "ratings. Default: that of `recommend`.",
            min=0,
            max=1,
        ),
    ] = None,
    preset: o.PresetName = "clean",
    overrides: Annotated[
        list[str] | None,
        o.overrides(
            "Set a model or training option of all models, e.g. -o heads=2, or of one model, e.g. "
            "-o idcf-nn.train.epochs=5; repeatable."
        ),
    ] = None,
    column: o.ColumnMapping = None,
    implicit: o.ImplicitSwitch = None,
    key_threshold: o.KeyThreshold = None,
    key_users: o.KeyUserChoice = "threshold",
    n_key_users: o.KeyUserCount = None,
    split_seed: o.SplitSeed = 0,
    out: Annotated[
        Path | None,
        o.option("FILE", "Write the result rows as JSON to this file; .jsonl: a row per line."),
    ] = None,
    markdown: Annotated[bool, o.switch("--markdown", "Print the table as Markdown.")] = False,
    jobs: o.Jobs = 1,
    device: o.Device = "auto",
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Compare models on users they were not trained on.

    Every model is trained on the key users and tested on held-out interactions.
    For the paper's datasets the table also shows the published numbers.
    """
    if as_json and markdown:
        raise ConfigError("--json and --markdown exclude each other; give one of them")
    o.limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.evaluation import run
    from idcf.evaluation.measure import metric_names
    from idcf.evaluation.protocol import make_split
    from idcf.evaluation.results import write_json
    from idcf.files import check_writable
    from idcf.training.job import start_runtime

    chosen_key_users = o.parse_key_users(key_users, n_key_users)
    if out:
        check_writable(out)
    data = o.open_dataset_argument(dataset, column, implicit, test=test, progress=not as_json)
    plan = run.EvaluationPlan(
        data,
        o.split_commas(models),
        o.split_commas(groups),
        seeds,
        preset,
        options=parse_overrides(overrides or []),
        metrics=(
            metric_names(data.interactions.implicit)
            if metrics == "all"
            else o.split_commas(metrics)
        ),
        quality=quality,
    )
    chosen_split = make_split(
        data, split, seed=split_seed, threshold=key_threshold, key_users=chosen_key_users
    )
    rows = run.evaluate(
        plan, split=chosen_split, runtime=start_runtime(device), n_jobs=jobs, progress=not as_json
    )
    has_paper_numbers = split == "standard"
    text = "" if as_json else _format_table(data.name, rows, markdown, has_paper_numbers)
    o.print_result([asdict(row) for row in rows], text, as_json)
    if out:
        write_json(rows, out)
        typer.echo(f"\n{len(rows)} rows written to {out}", err=as_json)


def _format_table(
    dataset_name: str, rows: list[ResultRow], markdown: bool, has_paper_numbers: bool
) -> str:
    """Return the table of results, with the paper's numbers for its datasets and splits."""
    from idcf.data.datasets.catalog import DATASET_SOURCES
    from idcf.evaluation import tables
    from idcf.paper.table_spec import paper_numbers

    is_public = dataset_name in DATASET_SOURCES
    reference = paper_numbers() if is_public and has_paper_numbers else None
    format_table = tables.format_markdown if markdown else tables.format_text
    return format_table(rows, reference)
