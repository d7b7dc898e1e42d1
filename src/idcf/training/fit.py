"""What `Recommender.fit` does: read the tables, and train in memory or by passes over shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from idcf.data.interactions import Floats, Interactions, Vocab, titles_by_row
from idcf.data.missing_values import MissingRule
from idcf.data.readers import DuplicateRule, read_interactions
from idcf.data.shards import ShardedTable, columns_of_shards, is_sharded_folder
from idcf.data.side_tables import EnrichedInteractions, add_side_tables
from idcf.errors import ConfigError
from idcf.inference.artifact import Artifact
from idcf.inference.manifest import FitRecord, RecommenderConfig
from idcf.models.registry import has_option, require_option, resolve_model
from idcf.training.checkpoint import EpochCallback
from idcf.training.engine import Engine, open_engine
from idcf.training.presets import check_options
from idcf.training.train import fit_artifact


@dataclass(frozen=True, kw_only=True)
class FitArguments:
    """The arguments of `Recommender.fit` but for the interactions."""

    users: Any = None
    items: Any = None
    columns: Mapping[str, str] | None = None
    implicit: bool | None = None
    missing: MissingRule = "error"
    weight: str | None = None
    duplicates: DuplicateRule = "last"
    titles: Mapping[Any, str] | None = None
    attributes: Any = None
    card_metrics: bool = False
    progress: bool = False
    callback: EpochCallback | None = None
    memory: int | float | str | None = None
    engine: str | Engine | None = None
    resume: str | Path | None = None

    @property
    def side_tables(self) -> tuple[str, ...]:
        """Names of the arguments that are tables beside the interactions."""
        names = ("users", "items", "titles", "attributes")
        given = (getattr(self, name) for name in names)
        return tuple(
            name
            for name, x in zip(names, given, strict=True)
            if x is not None and not (isinstance(x, Mapping) and not x)
        )


def fit(
    config: RecommenderConfig, interactions: Any, arguments: FitArguments
) -> tuple[Artifact, Interactions | None]:
    """Train a model; return it with its training table, if that was read into memory."""
    check_options(config.model, config.options)
    if arguments.engine is not None:
        artifact = _fit_over_shards(config, interactions, arguments)
        return _with_record(artifact, config, arguments, weighted=False), None
    table = read_interactions(
        interactions,
        columns=arguments.columns,
        implicit=arguments.implicit,
        missing=arguments.missing,
        weight=arguments.weight,
        duplicates=arguments.duplicates,
    )
    arguments = replace(arguments, columns=arguments.columns or columns_of_shards(interactions))
    enriched_config, data = _add_side_tables(config, table, arguments)
    artifact = fit_artifact(
        replace(enriched_config, card_metrics=arguments.card_metrics),
        data,
        _titles(table.items, data, arguments),
        progress=arguments.progress,
        callback=arguments.callback,
        memory=arguments.memory,
        resume=None if arguments.resume is None else Path(arguments.resume).expanduser(),
    )
    artifact = _with_record(artifact, config, arguments, table.weight is not None)
    return _remember_columns(artifact, arguments), data.interactions


def _remember_columns(artifact: Artifact, arguments: FitArguments) -> Artifact:
    """Return the artifact with the names of columns, by which later tables are read."""
    manifest = replace(artifact.manifest, columns=dict(arguments.columns or {}))
    return replace(artifact, manifest=manifest)


def _with_record(
    artifact: Artifact, config: RecommenderConfig, arguments: FitArguments, weighted: bool
) -> Artifact:
    """Return the artifact with the arguments of its fit in the manifest."""
    record = FitRecord(
        options=dict(config.options),
        key_threshold=config.key_threshold,
        card_metrics=arguments.card_metrics,
        side_tables=arguments.side_tables,
        weighted=weighted,
        over_shards=arguments.engine is not None,
    )
    return replace(artifact, manifest=replace(artifact.manifest, fit=record))


def _add_side_tables(
    config: RecommenderConfig, table: Interactions, arguments: FitArguments
) -> tuple[RecommenderConfig, EnrichedInteractions]:
    """Return the table with its side tables, and the options that read them."""
    name = resolve_model(config.model, table.implicit)
    data = add_side_tables(
        table,
        arguments.users,
        arguments.items,
        attributes=arguments.attributes,
        columns=arguments.columns,
        reads_item_features=has_option(name, "item_features"),
    )
    for option in data.feature_fields:
        if table.implicit and not has_option(name, option):
            kind = option.removesuffix("_features")
            raise ConfigError(
                f"{name!r}, fitted on clicks, reads no features of {kind}s; leave them out, or fit "
                "idcf-bayes on a table with ratings"
            )
        require_option(config.model, option)
    return config.with_default_options(dict.fromkeys(data.feature_fields, True)), data


def _titles(
    items: Vocab, data: EnrichedInteractions, arguments: FitArguments
) -> tuple[str | None, ...]:
    """Return the title of each item."""
    return titles_by_row(items, data.titles if arguments.titles is None else arguments.titles)


def _fit_over_shards(
    config: RecommenderConfig, interactions: Any, arguments: FitArguments
) -> Artifact:
    """Train by passes over a folder of shards."""
    from idcf.training.sharded.fit import fit_sharded_artifact

    table = _open_shards(interactions, arguments)
    no_rows = np.empty(0, np.int64)
    catalogue = Interactions(
        Vocab(()), table.items, no_rows, no_rows, np.empty(0, np.float32), None, table.implicit
    )
    arguments = replace(arguments, columns=arguments.columns or columns_of_shards(table))
    config, data = _add_side_tables(config, catalogue, arguments)
    features: Floats | None = data.interactions.item_features
    engine = arguments.engine
    opened = open_engine(engine) if isinstance(engine, str) else engine
    assert opened is not None
    try:
        artifact = fit_sharded_artifact(
            config,
            table,
            _titles(table.items, data, arguments),
            opened,
            attributes=data.attributes,
            item_features=features,
            resume=None if arguments.resume is None else Path(arguments.resume),
            progress=arguments.progress,
        )
        return _remember_columns(artifact, arguments)
    finally:
        if isinstance(engine, str):
            opened.close()


def _open_shards(interactions: Any, arguments: FitArguments) -> ShardedTable:
    """Open a folder of shards; raises ConfigError for arguments that need the table in memory."""
    given = {
        "users": arguments.users is not None,
        "weight": arguments.weight is not None,
        "duplicates='count'": arguments.duplicates != "last",
        "card_metrics": arguments.card_metrics,
        "callback": arguments.callback is not None,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise ConfigError(f"{name} needs the table in memory; leave it out, or the engine")
    if isinstance(interactions, ShardedTable):
        table = interactions
    else:
        is_path = isinstance(interactions, str | Path)
        if not is_path or not is_sharded_folder(Path(interactions).expanduser()):
            source = interactions if is_path else type(interactions).__name__
            raise ConfigError(
                f"an engine trains on a folder of shards, not on {source}; write one by `idcf "
                "shard`, or leave out the engine"
            )
        table = ShardedTable.open(interactions)
    if arguments.implicit is False and table.implicit:
        raise ConfigError(f"{table.folder} has no ratings; leave out implicit=False")
    return table.as_implicit() if arguments.implicit else table
