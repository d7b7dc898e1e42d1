"""`idcf evaluate`: compare models on the held-out interactions of a dataset."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from idcf.cli import options as o
from idcf.errors import ConfigError
from idcf.evaluation import DEFAULT_MODELS

if TYPE_CHECKING:
    from idcf.data.readers import DuplicateRule
    from idcf.evaluation.tables import ReferenceNumbers

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
            "How rows are held out: standard (test rows of the dataset or at random), last (the "
            "last row of each user in time), temporal (the last fifth of the rows in time; users "
            "first seen then are new) or strong (a fifth of the users, who show 80 % of their "
            "items). Need timestamps: last and temporal.",
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
    drop_missing: o.DropMissingSwitch = False,
    weight: o.WeightColumn = None,
    duplicates: o.Duplicates = "last",
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

    Every model is trained on the key users and tested on held-out interactions. Below the table
    are the differences to the best simple baseline, paired over users. For the paper's datasets
    the table also shows the published numbers.
    """
    if as_json and markdown:
        raise ConfigError("--json and --markdown exclude each other; give one of them")
    o.limit_threads(threads)
    from idcf.config import parse_overrides
    from idcf.evaluation import comparison
    from idcf.evaluation.results import write_json
    from idcf.files import reserve_file

    with reserve_file(out) if out else nullcontext():
        result = comparison.evaluate(
            dataset,
            None if models == _DEFAULT_MODELS else o.split_commas(models),
            groups=o.split_commas(groups),
            split=split,
            metrics="all" if metrics == "all" else o.split_commas(metrics),
            seeds=seeds,
            test=test,
            columns=o.parse_columns(column),
            implicit=implicit,
            missing="drop" if drop_missing else "error",
            weight=weight,
            duplicates=cast("DuplicateRule", duplicates),
            key_threshold=key_threshold,
            key_users=o.parse_key_users(key_users, n_key_users),
            split_seed=split_seed,
            preset=preset,
            options=parse_overrides(overrides or []),
            quality=quality,
            jobs=jobs,
            device=device,
            progress=not as_json,
        )
        reference = _paper_numbers(result.rows[0].dataset) if split == "standard" else None
        text = "" if as_json else result.to_text(markdown=markdown, reference=reference)
        o.print_result([asdict(row) for row in result.rows], text, as_json)
        if out:
            write_json(result.rows, out)
            typer.echo(f"\n{len(result.rows)} rows written to {out}", err=as_json)


def _paper_numbers(dataset: str) -> ReferenceNumbers | None:
    """Return the paper's numbers, if they are for a dataset."""
    from idcf.data.datasets.catalog import DATASET_SOURCES
    from idcf.paper.table_spec import paper_numbers

    return paper_numbers() if dataset in DATASET_SOURCES else None
