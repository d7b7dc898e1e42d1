"""The training runs that the paper's tables need, and whether stored rows cover them.

A run is one training with one seed. This module neither trains (`reproduce`) nor touches files
(`results_store`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING, asdict, fields
from itertools import product
from typing import Any, NamedTuple

from idcf.data.datasets.catalog import DATASET_SOURCES
from idcf.errors import ConfigError, unknown_name_message
from idcf.evaluation.groups import USER_GROUPS
from idcf.evaluation.protocol import SplitRule
from idcf.models.registry import all_models, configure, model_entry, resolve_model
from idcf.paper.results_store import StoredRow
from idcf.paper.table_spec import TableSpec, load_tables, refusal_reason
from idcf.training.presets import has_preset_row, stage_configs
from idcf.training.train import QueryUserMode


class Revision(NamedTuple):
    """A change of the code that changed what some settings of a model give: older rows of a run
    with all of these options on are outdated."""

    model: str
    options: tuple[str, ...]


REVISIONS = (
    # a hidden edge left the sums with weight 1, whatever weight dropout had given it
    Revision("gcmc", ("hide_target", "edge_dropout")),
)


class Run(NamedTuple):
    """One training of one system with one seed, which serves all tables. It is measured on every
    user group that any table asks of its split."""

    dataset: str
    split: str  # the split name that result rows carry
    split_rule: SplitRule  # the rule behind `split`
    model: str
    preset: str
    users: QueryUserMode  # how query users are trained on: "new" or "few-shot"
    seed: int

    def __str__(self) -> str:
        """Return a one-line description, unique within a plan."""
        is_drawn = self.split_rule.draw is not None
        split_label = self.split if is_drawn else self.split.rpartition(", ")[2]
        return (
            f"{self.dataset} {split_label}: {self.model} ({self.preset}), {self.users}, "
            f"seed {self.seed}"
        )

    def key(self) -> tuple[str, str, str, str, str, int]:
        """Return what identifies the run; equal to `StoredRow.run_key` of its rows."""
        return self.dataset, self.split, self.model, self.preset, self.users, self.seed

    def groups(self) -> list[str]:
        """Return the user groups that the run is measured on, in the order of the tables."""
        groups = [
            group
            for table in load_tables().values()
            if self.dataset in table.datasets and self.split in table.split_names(self.dataset)
            for group in table.groups
            if USER_GROUPS[group] == self.users
            and not refusal_reason(self.model, self.dataset, group, self.split_rule)
        ]
        return list(dict.fromkeys(groups))

    def serves(self, table: TableSpec) -> bool:
        """Return whether a table shows the run, whatever the number of its seeds."""
        return (
            self.dataset in table.datasets
            and self.model in table.systems_on(self.dataset)
            and self.preset in table.systems[self.model]
            and self.split in table.split_names(self.dataset)
            and self.users in {USER_GROUPS[group] for group in table.groups}
        )

    def ranks_catalog(self) -> bool:
        """Return whether the run is also measured by ranking the whole catalogue."""
        return not any(self.model in table.pairs_only for table in load_tables().values())

    def fingerprint(self) -> str:
        """Return the fingerprint of the run's current settings (`settings_fingerprint`)."""
        return settings_fingerprint(self.model, self.preset, self.dataset, self.users)


def plan_runs(
    tables: Iterable[TableSpec],
    *,
    datasets: Collection[str] = (),
    models: Collection[str] = (),
    presets: Collection[str] = (),
    n_seeds: int | None = None,
    n_draws: int | None = None,
) -> list[Run]:
    """List the runs that some tables need, each once. Empty collections keep every dataset, model
    and preset; names that no table has raise ConfigError. `n_seeds` replaces the number of seeds of
    the tables, and `n_draws` keeps the first random splits of a dataset."""
    tables = list(tables)
    for kind, names, known_names in (
        ("dataset", datasets, {d for table in tables for d in table.datasets}),
        ("system", models, {m for table in tables for m in table.systems}),
        ("preset", presets, {p for table in tables for ps in table.systems.values() for p in ps}),
    ):
        for name in names:
            if name not in known_names:
                raise ConfigError(unknown_name_message(f"{kind} of the table", name, known_names))
    runs = [
        run
        for table in tables
        for run in _table_runs(table, n_seeds)
        if (not datasets or run.dataset in datasets)
        and (not models or run.model in models)
        and (not presets or run.preset in presets)
        and (n_draws is None or (run.split_rule.draw or 0) <= n_draws)
    ]
    return list({run.key(): run for run in runs}.values())


def _table_runs(table: TableSpec, n_seeds: int | None) -> Iterator[Run]:
    """Yield the runs of one table, without systems that refuse the data or lack the preset."""
    for dataset in table.datasets:
        rules = table.split_rules(dataset)
        for label, model in product(rules, table.systems_on(dataset)):
            split, rule = table.split_name(dataset, label), rules[label]
            groups = [g for g in table.groups if not refusal_reason(model, dataset, g, rule)]
            modes = dict.fromkeys(USER_GROUPS[g] for g in groups)
            presets = [p for p in table.systems[model] if not lacks_preset(model, p)]
            seeds = range(1 if model == "random" else n_seeds or table.n_seeds(dataset))
            for preset, mode, seed in product(presets, modes, seeds):
                yield Run(dataset, split, rule, model, preset, mode, seed)


def lacks_preset(model: str, preset: str) -> bool:
    """Return whether a preset has no settings for a model. `clean` never lacks them: a model
    without a row there is trained with its default options."""
    return preset != "clean" and model in all_models() and not has_preset_row(preset, model)


def is_done(run: Run, rows: Sequence[StoredRow]) -> bool:
    """Return whether rows are complete for a run and were made with its current settings."""
    fingerprint = run.fingerprint()
    return (
        bool(rows)
        and len(rows) == rows[0].of
        and all(row.options == fingerprint for row in rows)
        and {row.users for row in rows} >= set(run.groups())
    )


def settings_fingerprint(model: str, preset: str, dataset: str, users: str) -> str:
    """Return ten hex digits that identify the settings of a system. They cover every setting that
    differs from the default in the code, by name and value, so an added option that is not used
    changes nothing; and the `REVISIONS` of the code that concern them. `users` is the training
    mode, "new" or "few-shot"."""
    if model == "random":
        return "none"
    implicit = DATASET_SOURCES[dataset].implicit
    name = resolve_model(model, implicit)
    stages = stage_configs(name, {}, preset=preset, dataset=dataset, query_user_mode=users)
    settings = [
        {
            **_changed_fields(stage),
            "options": _changed_fields(configure(stage_name, stage.options)),
            "train": _changed_fields(stage.train),
            **_revisions(stage_name, configure(stage_name, stage.options)),
        }
        for stage_name, stage in stages.items()
    ]
    grid = model_entry(name).grid_for(implicit)
    text = json.dumps([name, settings, {k: list(v) for k, v in grid.items()}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _revisions(model: str, config: Any) -> dict[str, int]:
    """Return the number of revisions of the code that concern a model's options, if any does."""
    concerned = [
        revision
        for revision in REVISIONS
        if revision.model == model and all(getattr(config, name) for name in revision.options)
    ]
    return {"revisions": len(concerned)} if concerned else {}


def _changed_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults, as JSON values."""
    defaults = {
        f.name: f.default_factory() if f.default_factory is not MISSING else f.default
        for f in fields(config)
    }
    changed = {k: v for k, v in asdict(config).items() if v != defaults[k]}
    json_values: dict[str, Any] = json.loads(json.dumps(changed, default=str))
    return json_values
