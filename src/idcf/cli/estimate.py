"""`idcf estimate`: say what a fit would need, without fitting."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from idcf.cli import options as o
from idcf.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from idcf.training.fit_cost import FitCost, TableSize

_GIB = 2**30


def estimate(
    dataset: Annotated[
        str | None,
        o.argument(
            "[DATASET]",
            "Dataset name, file or folder, as for `idcf train`; or give --users, --items, --rows.",
        ),
    ] = None,
    users: Annotated[
        float | None, o.option("N", "Number of users, instead of DATASET, e.g. 1e6.", min=1)
    ] = None,
    items: Annotated[float | None, o.option("N", "Number of items, e.g. 1e5.", min=1)] = None,
    rows: Annotated[float | None, o.option("N", "Number of rows, e.g. 2e7.", min=1)] = None,
    model: Annotated[
        str, o.option("NAME", "Name of the model: idcf-bayes, idcf-takeup or idcf-odds.")
    ] = "idcf-bayes",
    preset: o.PresetName = "clean",
    overrides: Annotated[
        list[str] | None,
        o.overrides("Set a model option, e.g. -o sweeps=60; repeatable."),
    ] = None,
    column: o.ColumnMapping = None,
    implicit: o.ImplicitSwitch = None,
    key_threshold: o.KeyThreshold = None,
    card_metrics: Annotated[
        bool,
        o.switch(
            "--card-metrics/--no-card-metrics", "As for `idcf train`: a model is fitted twice."
        ),
    ] = True,
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Estimate the memory and the time that `idcf train` would need.

    Of Parquet files only the ids are read.
    """
    from idcf.config import parse_overrides
    from idcf.training.fit_cost import estimate_fit
    from idcf.training.memory import free_memory

    numbers = {"--users": users, "--items": items, "--rows": rows}
    size = _table_size(dataset, numbers, column, implicit, key_threshold)
    cost = estimate_fit(
        model,
        size,
        parse_overrides(overrides or []),
        preset=preset,
        threads=threads,
        card_metrics=card_metrics,
    )
    if cost is None:
        raise ConfigError(
            f"the cost of model {model!r} is not known; idcf-bayes, idcf-takeup and idcf-odds have "
            "estimates"
        )
    o.print_result(*_describe(cost, free_memory()), as_json)


def _table_size(
    dataset: str | None,
    numbers: Mapping[str, float | None],
    column: list[str] | None,
    implicit: bool | None,
    key_threshold: int | None,
) -> TableSize:
    """Return the size of a dataset, or the size that the numbers of users, items and rows give."""
    from idcf.data.split import default_key_threshold
    from idcf.training.fit_cost import TableSize

    given = [name for name, x in numbers.items() if x is not None]
    if dataset is None:
        missing = [name for name in numbers if name not in given]
        if missing:
            raise ConfigError(f"give DATASET, or also {' and '.join(missing)}")
        n_users, n_items, n_rows = (int(x or 0) for x in numbers.values())
        return TableSize.from_numbers(n_rows, n_users, n_items, bool(implicit))
    if given:
        raise ConfigError(f"{given[0]} and DATASET exclude each other; leave one of them out")
    counts, n_items, is_implicit = _count_rows(dataset, column, implicit)
    threshold = default_key_threshold(counts) if key_threshold is None else key_threshold
    return TableSize.from_user_counts(counts, n_items, threshold, is_implicit)


def _count_rows(
    dataset: str, column: list[str] | None, implicit: bool | None
) -> tuple[Any, int, bool]:
    """Return the rows of each user, the number of items, and whether the feedback is implicit."""
    from idcf.data.parquet_reader import count_ids
    from idcf.data.shards import ShardedTable, is_sharded_folder
    from idcf.files import expand_user

    path = expand_user(dataset)
    if is_sharded_folder(path) and not column:
        shards = ShardedTable.open(path)
        if implicit is None or implicit == shards.implicit:
            return shards.user_counts(), shards.n_items, shards.implicit
    elif path.is_dir() or path.suffix.lower() == ".parquet":
        counted = count_ids(path, o.parse_columns(column), implicit)
        if counted is not None:
            return counted
    table = o.open_dataset_argument(dataset, column, implicit).interactions
    return table.user_counts(), len(table.items), table.implicit


def _describe(cost: FitCost, free: int | None) -> tuple[dict[str, Any], str]:
    """Return the values that --json prints, and the text."""
    values = {
        "model": cost.model,
        **asdict(cost.size),
        "memory_bytes": cost.memory,
        "seconds": round(cost.seconds, 1),
        "free_bytes": free,
    }
    lines = [str(cost)]
    if free is not None:
        enough = "enough" if cost.memory <= free / 2 else "a fit would be refused without --memory"
        lines.append(f"free memory: {free / _GIB:.1f} GiB, of which a fit takes half; {enough}")
    return values, "\n".join(lines)
