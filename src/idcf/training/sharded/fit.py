"""Fit a model to a table in blocks by passes on an engine: `fit_artifact` for any size of table.

The artifact is the same to the last bit for every engine and any number of shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idcf.config import dataclass_to_dict
from idcf.data.attributes import ItemAttributes
from idcf.data.interactions import Floats, Ints
from idcf.data.shards import ShardedTable, UserBlock, UserBlocks
from idcf.data.split import DEFAULT_KEY_THRESHOLD, Split
from idcf.errors import ConfigError, DataError
from idcf.inference.artifact import Artifact, library_versions, make_contiguous
from idcf.inference.manifest import DomainInfo, Manifest, RecommenderConfig, TrainingData
from idcf.models.base import Model, resolve_device
from idcf.models.registry import MODELS, configure, model_entry, resolve_model
from idcf.rng import random_stream
from idcf.training.block_sums import BlockSum, Sums, fixed_point, from_fixed_point
from idcf.training.choice_slope import fit_choice_slope
from idcf.training.engine import Engine, State
from idcf.training.job import TrainingJob, TrainingResult, start_runtime
from idcf.training.presets import stage_configs
from idcf.training.sharded.cooccurrences import quantile_of_counts
from idcf.training.sharded.pass_store import PassStore
from idcf.training.sharded.passes import Histories, HistorySum
from idcf.training.sharded.training import ShardedTraining
from idcf.training.solvers import SolverContext
from idcf.training.train import MIN_KEY_USERS, fit_list_recency
from idcf.training.validation import grid_search_validation
from idcf.types import Domain, Ragged, rating_unit

_MAX_GRID_ROWS = 1_000_000  # of the key users on whom options are searched
_MAX_RECENCY_ROWS = 300_000
_N_SLOPE_USERS = 5_000  # users without training, and key users, of whom the slope is estimated
_MIN_SLOPE_ROWS = 4  # of such a user
_N_LENGTHS = 10_001  # quantiles of the lengths of users who are not trained on
_N_LEVELS = 101  # of ratings that have more than a hundred different values


@dataclass
class _Digest(BlockSum):
    """Add up the digests of the blocks, modulo 2^32: equal for equal tables."""

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return a digest of nothing."""
        return {"digest": np.zeros(8, np.int64)}

    def add(self, block: UserBlock, state: State, sums: Sums) -> None:
        """Add the digest of one block."""
        digest = hashlib.sha256(str(block.index).encode())
        for column in (block.offsets, block.items, block.ratings, block.times):
            if column is not None:
                digest.update(np.ascontiguousarray(column).data)
        sums["digest"] += np.frombuffer(digest.digest(), np.uint32)


@dataclass
class _RatingSums(HistorySum):
    """Sum the ratings, less a center and divided by a unit, both of the state, and squares."""

    def zeros(self, table: UserBlocks, state: State) -> Sums:
        """Return zero sums."""
        return {"sums": np.zeros(2, np.int64)}

    def add_histories(self, histories: Histories, state: State, sums: Sums) -> None:
        """Add the ratings of some users."""
        x = (np.asarray(histories.ratings, np.float64) - state["center"]) / state["unit"]
        sums["sums"] += fixed_point(np.array([x.sum(), x @ x]))


@dataclass(frozen=True)
class _Fit:
    """One fit: its arguments and its two views of the table."""

    config: RecommenderConfig
    table: UserBlocks
    all_users: ShardedTraining
    key_users: ShardedTraining

    def domain(self) -> Domain:
        """Return the facts of the key users' rows that models are built with."""
        mean, std = self._moments(self.key_users)
        raters = Ragged.empty(self.table.n_items)
        n_users, n_items, implicit = self.table.n_users, self.table.n_items, self.table.implicit
        return Domain(n_users, n_items, mean, self._levels(), implicit, raters, std=std)

    def _levels(self) -> tuple[float, ...]:
        """Return the rating levels."""
        if self.table.implicit:
            return (1.0,)
        if self.table.rating_levels:
            return self.table.rating_levels
        return tuple(np.linspace(*self.table.rating_range, _N_LEVELS).tolist())

    def _moments(self, training: ShardedTraining) -> tuple[float, float]:
        """Return mean and standard deviation of the ratings of some users."""
        if self.table.implicit:
            return 0.0, 1.0
        low, high = self.table.rating_range
        center, unit = (low + high) / 2, rating_unit((high - low) / 4)
        state = {"center": np.array(center), "unit": np.array(unit)}
        sums = training.sum("ratings", _RatingSums(training.users), state)["sums"]
        mean, square = from_fixed_point(sums) / max(training.n_rows, 1)
        return float(center + unit * mean), float(unit * max(square - mean**2, 0) ** 0.5)

    def domain_info(self, mean: float) -> DomainInfo:
        """Describe the table."""
        std = self._moments(self.all_users)[1]
        return DomainInfo(
            n_users=self.table.n_users, n_items=self.table.n_items, mean=mean,
            levels=self._levels(), implicit=self.table.implicit, std=std,
        )  # fmt: skip

    def training_data(self) -> TrainingData:
        """Describe the rows."""
        digest = self.all_users.sum("digest", _Digest())["digest"]
        return TrainingData(
            sha256=(digest % 2**32).astype(np.uint32).tobytes().hex(),
            n_rows=self.table.n_rows,
            n_users=self.table.n_users,
            n_key_users=self.key_users.n_users,
            key_threshold=self.key_users.users.min_rows,
        )

    def new_user_lengths(self) -> Ints:
        """Return numbers of rows of users who are not trained on: quantiles of all of them."""
        lengths, counts = self.all_users.length_counts
        is_new = lengths < self.key_users.users.min_rows
        lengths, counts = lengths[is_new], counts[is_new]
        n = min(int(counts.sum()), _N_LENGTHS)
        if not n:
            return lengths
        positions = np.linspace(0, counts.sum() - 1, n).astype(np.int64)
        quantiles: Ints = lengths[np.searchsorted(counts.cumsum(), positions, "right")]
        return quantiles

    def train(self, name: str, domain: Domain) -> TrainingResult:
        """Choose from the grid of a model on a sample of the key users, then solve on all."""
        entry = model_entry(name)
        options = self.config.options if name == self._name() else {}
        stage = stage_configs(
            name, options, preset=self.config.preset, dataset="", query_user_mode="new"
        )[name]
        context = SolverContext(
            seed=self.config.seed,
            device=resolve_device(self.config.device),
            progress_label=name if self.all_users.progress else None,
            new_user_lengths=self.new_user_lengths(),
        )
        candidates = entry.expand_grid(stage.options, domain.implicit)
        best = self._search(name, candidates, context) if len(candidates) > 1 else candidates[0]
        solver = entry.load_sharded_solver(name)
        model = solver(configure(name, best), self.key_users, domain, context)
        model = model.to(context.device).eval()
        return TrainingResult(model, model, domain.mean, best, details=context.details)

    def _name(self) -> str:
        """Return the name of the model that is fitted."""
        return resolve_model(self.config.model, self.table.implicit)

    def _search(
        self, name: str, candidates: list[dict[str, Any]], context: SolverContext
    ) -> dict[str, Any]:
        """Return the best of some options for held-out users of a sample."""
        entry = model_entry(name)
        sample = self.key_users.sample("search of options", max_rows=_MAX_GRID_ROWS)
        table = self.key_users.as_table(sample)
        metric = entry.implicit_grid_metric
        train_rows, validate = grid_search_validation(table, self.config.seed, metric)
        solver = entry.load_solver()
        errors = [validate(solver(configure(name, x), train_rows, context)) for x in candidates]
        return candidates[errors.index(min(errors))]

    def choice_slope(self, model: Model) -> float | None:
        """Return κ of `training.choice_slope`; None: the model has no standard deviations."""
        if not model.has_uncertainty:
            return None
        longest = self.key_users.users.min_rows - 1
        key = self.key_users.sample("choices of key users", max_users=_N_SLOPE_USERS)
        others = self.all_users.sample(
            "choices of other users", max_users=_N_SLOPE_USERS,
            user_rows=(_MIN_SLOPE_ROWS, longest),
        )  # fmt: skip
        n_key = len(key.users)
        table = self.all_users.as_table(join_histories(key, others))
        rng = random_stream(self.config.seed, "choice-slope")
        return fit_choice_slope(model, table, np.arange(n_key), rng)

    def recency(self, name: str, result: TrainingResult) -> float:
        """Return the recency that is best for the lists of held-out key users of a sample."""
        sample = self.key_users.sample("order of histories", max_rows=_MAX_RECENCY_ROWS)
        table = self.key_users.as_table(sample)
        no_rows = table.where(np.zeros(len(table), bool))
        split = Split(table, no_rows, np.arange(len(table.users)), np.empty(0, np.int64))
        job = TrainingJob(
            split, preset=self.config.preset, seed=self.config.seed,
            runtime=start_runtime(self.config.device),
        )  # fmt: skip
        return fit_list_recency(name, job, result)


def join_histories(first: Histories, second: Histories) -> Histories:
    """Return the users of two samples, one after the other."""

    def join(a: Any, b: Any) -> Any:
        """Return two arrays one after the other; None if there are none."""
        return None if a is None or b is None else np.concatenate([a, b])

    return Histories(
        join(first.users, second.users),
        join(first.offsets, second.offsets[1:] + first.offsets[-1]),
        join(first.items, second.items),
        join(first.ratings, second.ratings),
        join(first.times, second.times),
        0,
    )


def fit_sharded_artifact(
    config: RecommenderConfig,
    table: UserBlocks,
    titles: tuple[str | None, ...],
    engine: Engine,
    *,
    attributes: ItemAttributes | None = None,
    item_features: Floats | None = None,
    resume: Path | None = None,
    n_shards: int | None = None,
    progress: bool = False,
) -> Artifact:
    """Train a model by passes over a table in blocks and describe it.

    With `resume`, results of passes are kept in that folder until the fit ends, and a fit that was
    interrupted goes on from them. Raises ConfigError for a model or an option that needs the table
    in memory, and DataError if there are too few key users.
    """
    name = resolve_model(config.model, table.implicit)
    entry = model_entry(name)
    entry.load_sharded_solver(name)  # before the work begins
    if config.key_users != "threshold":
        raise ConfigError(
            f"key_users={config.key_users!r} needs the table in memory; leave out the engine"
        )
    store = None if resume is None else PassStore(resume, _description(config, table))
    all_users = ShardedTraining(
        table, engine, seed=config.seed, n_shards=n_shards, store=store, progress=progress
    )
    threshold = config.key_threshold or _default_key_threshold(all_users)
    key_users = all_users.of_users("key users", threshold, item_features)
    if key_users.n_users < MIN_KEY_USERS:
        raise DataError(
            f"only {key_users.n_users} of {table.n_users} users have {threshold} rows or more; at "
            f"least {MIN_KEY_USERS} key users are needed: lower key_threshold or give more data"
        )
    fit = _Fit(config, table, all_users, key_users)
    artifact = _fit(fit, name, titles, attributes)
    if store:
        store.clear()
    return artifact


def _fit(
    fit: _Fit, name: str, titles: tuple[str | None, ...], attributes: ItemAttributes | None
) -> Artifact:
    """Train the model, and the one of its lists if it has one."""
    entry, config = model_entry(name), fit.config
    domain = fit.domain()
    result, take_up, slope = fit.train(name, domain), None, None
    details = {name: dict(result.details)}
    if entry.take_up_model:
        implicit = replace(domain, implicit=True, mean=0.0, std=1.0, levels=(1.0,))
        take_up = fit.train(entry.take_up_model, implicit)
        details[entry.take_up_model] = dict(take_up.details)
        slope = fit.choice_slope(result.model)
    list_name, list_result = entry.take_up_model or name, take_up or result
    if fit.table.has_times and list_result.model.weighs_history:
        details[list_name]["recency"] = fit.recency(list_name, list_result)
    manifest = Manifest(
        model=config.model,
        options=_all_options(name, result.options),
        take_up_model=entry.take_up_model,
        take_up_options=_all_options(entry.take_up_model, take_up.options if take_up else {}),
        details={key: x for key, x in details.items() if x},
        choice_slope=slope,
        domain=fit.domain_info(result.mean_rating),
        training_data=fit.training_data(),
        preset=config.preset,
        seed=config.seed,
        versions=library_versions(),
    )
    take_up_model = make_contiguous(take_up.model) if take_up else None
    return Artifact(
        manifest, make_contiguous(result.model), fit.table.items, titles, take_up_model, attributes
    )


def _all_options(name: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model with its defaults, as JSON values; none without a name."""
    return dataclass_to_dict(configure(name, options)) if name else {}


def _default_key_threshold(all_users: ShardedTraining) -> int:
    """Return `data.split.default_key_threshold` of the counted numbers of rows."""
    median = quantile_of_counts(*all_users.length_counts, 0.5)
    return max(1, min(DEFAULT_KEY_THRESHOLD, median))


def _description(config: RecommenderConfig, table: UserBlocks) -> dict[str, Any]:
    """Return what tells an interrupted fit from others."""
    if not isinstance(table, ShardedTable):
        raise ConfigError("only fits of a folder of shards can be resumed; write one: idcf shard")
    files = [table.manifest.items_sha256, *(x.sha256 for x in table.shards)]
    return {
        "model": config.model,
        "options": dict(config.options),
        "key_threshold": config.key_threshold,
        "preset": config.preset,
        "seed": config.seed,
        "data": hashlib.sha256("".join(files).encode()).hexdigest(),
        "torch": torch.__version__,
    }


def models_over_shards() -> list[str]:
    """Return the names of the models that can be trained over shards."""
    return sorted(name for name, entry in MODELS.items() if entry.sharded_solver)
