"""Which runs a table needs, and which of them are done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any, NamedTuple

from idcf.data.datasets.catalog import SOURCES
from idcf.errors import ConfigError, unknown
from idcf.evaluation.groups import GROUPS
from idcf.evaluation.protocol import Cut
from idcf.models.registry import all_models, configure, model_entry, resolve_model
from idcf.paper.results_store import Record
from idcf.paper.table_spec import Spec, load_all, refusal
from idcf.training.presets import Setting, has_row, stages
from idcf.training.train import QueryUsers


class Run(NamedTuple):
    """One training. What it is measured on follows from it: every group of users that any table
    asks of this split, so two tables never train the same thing twice."""

    dataset: str
    split: str  # its name, as rows have it
    cut: Cut
    model: str
    preset: str
    users: QueryUsers
    seed: int
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        cut = self.split.rpartition(", ")[2]
        return f"{self.dataset} {cut}: {self.model} ({self.preset}), {self.users}, seed {self.seed}"

    def plain(self) -> dict[str, Any]:
        """What tells it from other runs."""
        found = self._asdict()
        return {k: found[k] for k in ("dataset", "split", "model", "preset", "users", "seed")}

    def key(self) -> tuple[Any, ...]:
        return tuple(self.plain().values())

    def groups(self) -> list[str]:
        """The groups of users to be measured, in the tables' order."""
        wanted = [g for spec in load_all().values() for g in _asked(spec, self)]
        return list(dict.fromkeys(wanted))

    def lists(self) -> bool:
        """Is a whole catalogue to be ranked?"""
        return not any(self.model in spec.pairs_only for spec in load_all().values())

    def fingerprint(self) -> str:
        return fingerprint(self.model, self.preset, self.dataset, self.users, dict(self.options))


def runs_of(
    specs: Iterable[Spec],
    *,
    datasets: Collection[str] = (),
    models: Collection[str] = (),
    presets: Collection[str] = (),
    seeds: int | None = None,
) -> list[Run]:
    """Every run that can be made for these tables, each once; all, or those that are named."""
    specs = list(specs)
    for kind, named, known in (
        ("dataset", datasets, {d for spec in specs for d in spec.datasets}),
        ("system", models, {m for spec in specs for m in spec.systems}),
        ("preset", presets, {p for spec in specs for of in spec.systems.values() for p in of}),
    ):
        for name in named:
            if name not in known:
                raise ConfigError(unknown(f"{kind} of the table", name, known))
    found = [run for spec in specs for run in _runs(spec, seeds)]
    kept = [
        run
        for run in found
        if (not datasets or run.dataset in datasets)
        and (not models or run.model in models)
        and (not presets or run.preset in presets)
    ]
    return list({run.key(): run for run in kept}.values())


def _runs(spec: Spec, seeds: int | None) -> Iterator[Run]:
    for dataset in spec.datasets:
        for label, cut in spec.splits.items():
            for model, presets in spec.systems.items():
                able = [g for g in spec.groups if not refusal(model, dataset, g, cut)]
                for preset in presets:
                    if missing_preset(model, preset):
                        continue
                    options = tuple(sorted(spec.options(dataset, model).items()))
                    for who in dict.fromkeys(GROUPS[g] for g in able):
                        for seed in range(1 if model == "random" else seeds or spec.seeds):
                            name = spec.split_name(dataset, label)
                            yield Run(dataset, name, cut, model, preset, who, seed, options)


def _asked(spec: Spec, run: Run) -> list[str]:
    if run.dataset not in spec.datasets:
        return []
    names = {spec.split_name(run.dataset, label) for label in spec.splits}
    if run.split not in names:
        return []
    return [
        g
        for g in spec.groups
        if GROUPS[g] == run.users and not refusal(run.model, run.dataset, g, run.cut)
    ]


def missing_preset(model: str, preset: str) -> bool:
    """`clean` may rely on defaults; any other preset must say something of the model."""
    return preset != "clean" and model in all_models() and not has_row(preset, model)


def done(run: Run, rows: Sequence[Record]) -> bool:
    """Are these all that the run gives, under the settings of today?"""
    now = run.fingerprint()
    return (
        bool(rows)
        and len(rows) == rows[0].of
        and all(r.options == now for r in rows)
        and {r.users for r in rows} >= set(run.groups())
    )


def fingerprint(
    model: str, preset: str, dataset: str, users: str, options: Mapping[str, Any]
) -> str:
    """A short name of all settings that differ from the code's defaults: an option that is new
    and not used changes nothing. What it cannot see is a change of the code itself."""
    if model == "random":
        return "none"
    implicit = SOURCES[dataset].implicit
    name = resolve_model(model, implicit)
    found = stages(name, options, preset=preset, dataset=dataset, users=users)
    parts = [_settings(stage, chosen) for stage, chosen in found.items()]
    grid = model_entry(name).grid_for(implicit)
    text = json.dumps([name, parts, {k: list(v) for k, v in grid.items()}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _settings(name: str, chosen: Setting) -> dict[str, Any]:
    own = {k: v for k, v in _unusual(chosen).items() if k not in ("options", "train")}
    return {
        **own,
        "options": _unusual(configure(name, chosen.options)),
        "train": _unusual(chosen.train),
    }


def _unusual(config: Any) -> dict[str, Any]:
    """What differs from the defaults, as JSON can hold it."""
    usual = {
        f.name: f.default_factory() if f.default_factory is not MISSING else f.default
        for f in fields(config)
    }
    changed = {k: v for k, v in asdict(config).items() if v != usual[k]}
    found: dict[str, Any] = json.loads(json.dumps(changed, default=str))
    return found
