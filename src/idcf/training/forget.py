"""What `Recommender.forget` does: fit a model again on its table without some users.

The new model is that of a fit on a table which never had them, to the last bit, on the same machine
and with the same versions. Nothing is subtracted: a model holds what was solved and shrunk, not the
sums before, and options that a fit chooses may depend on any user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from idcf.data.columns import warn_about_data
from idcf.data.interactions import Interactions
from idcf.data.readers import read_interactions
from idcf.data.shards import is_sharded_folder
from idcf.data.user_removal import remove_users_from_shards, without_users
from idcf.errors import ConfigError, unknown_name_message
from idcf.inference.artifact import Artifact
from idcf.inference.manifest import FitRecord, Manifest, RecommenderConfig, table_sha256
from idcf.training.fit import FitArguments, fit

_TABLES = ("users", "items", "titles", "attributes", "weight", "duplicates")
_ARGUMENTS = (*_TABLES, "engine", "memory", "progress")


def fit_without(
    manifest: Manifest,
    interactions: Any,
    user_ids: Sequence[Any],
    arguments: Mapping[str, Any],
    device: str,
    *,
    ignore_missing: bool = False,
) -> tuple[Artifact, Interactions | None]:
    """Fit the model of a manifest again without some users; see `Recommender.forget`."""
    record = check_refit(manifest, arguments)
    if not len(user_ids):
        raise ConfigError("no user to forget was given")
    config = RecommenderConfig(
        manifest.model,
        record.options,
        record.key_threshold,
        manifest.training_data.key_user_rule,
        manifest.preset,
        manifest.seed,
        device,
    )
    fit_arguments = FitArguments(**arguments, card_metrics=record.card_metrics)
    removal = {"ignore_missing": ignore_missing, "progress": fit_arguments.progress}
    if record.over_shards:
        source = _open_shards(interactions)
        remove_users_from_shards(source, user_ids, **removal)
        implicit = manifest.domain.implicit or None
        engine = fit_arguments.engine or "local"
        return fit(config, source, replace(fit_arguments, engine=engine, implicit=implicit))
    is_sharded = isinstance(interactions, str | Path) and is_sharded_folder(
        Path(interactions).expanduser()
    )
    table = read_interactions(
        interactions,
        columns=None if is_sharded else manifest.columns or None,
        implicit=manifest.domain.implicit or None,
        missing="drop",  # without missing values that changes nothing
        weight=fit_arguments.weight,
        duplicates=fit_arguments.duplicates,
    )
    if (table.weight is not None) != record.weighted:
        raise ConfigError("give the weight and duplicates of the first fit, and no others")
    if table_sha256(table) != manifest.training_data.sha256:
        warn_about_data(
            "the table is not the one that the model was fitted to, or has changed since; the new "
            "model is fitted to what it holds now"
        )
    reduced = without_users(table, user_ids, ignore_missing=ignore_missing)
    if is_sharded:
        remove_users_from_shards(Path(interactions).expanduser(), user_ids, **removal)
    return fit(
        config,
        reduced,
        replace(fit_arguments, columns=manifest.columns or None, weight=None, duplicates="last"),
    )


def check_refit(manifest: Manifest, arguments: Mapping[str, Any]) -> FitRecord:
    """Return the arguments of the fit of a manifest; ConfigError: it cannot be made again."""
    record = manifest.fit
    if record is None:
        raise ConfigError(
            "the model was not made by fit alone (but by from_factors or partial_fit_items), so it "
            "cannot be made again; train on the table without the users"
        )
    for name in arguments:
        if name not in _ARGUMENTS:
            raise ConfigError(unknown_name_message("argument of forget", name, _ARGUMENTS))
    given = FitArguments(**arguments).side_tables
    if given != record.side_tables:
        raise ConfigError(
            "the model was fitted with other tables beside the interactions: "
            f"{', '.join(record.side_tables) or 'none'}; now {', '.join(given) or 'none'} given"
        )
    if arguments.get("engine") is not None and not record.over_shards:
        raise ConfigError("no engine fitted the model; leave out the engine")
    return record


def _open_shards(interactions: Any) -> Path:
    """Return the folder of shards; raises ConfigError for anything else."""
    if isinstance(interactions, str | Path):
        path = Path(interactions).expanduser()
        if is_sharded_folder(path):
            return path
    raise ConfigError("the model was fitted over a folder of shards; give that folder")
