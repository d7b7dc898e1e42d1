"""A table of the paper as data: `experiments/table*.toml`, read and checked.

The files are the only place where the paper's numbers are written down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from idcf.config import addressed, load_toml, read
from idcf.data.datasets.catalog import SOURCES
from idcf.errors import ConfigError, unknown
from idcf.evaluation.groups import GROUPS
from idcf.evaluation.measure import metrics_of
from idcf.evaluation.protocol import Cut, split_name
from idcf.evaluation.run import inductive
from idcf.models.registry import all_models, model_entry
from idcf.training.presets import preset_names

_FOLDER = Path(__file__).with_name("tables")
NONE = "-"  # a cell that the paper leaves empty


@dataclass(frozen=True, kw_only=True)
class Published:
    """A block of the paper's table. A column is a group of users and a metric: "new rmse"."""

    dataset: str
    columns: tuple[str, ...]
    systems: Mapping[str, tuple[float | str, ...]]
    split: str = ""  # one of `splits`, where the table has several

    def cells(self) -> Iterator[tuple[str, str, str, float]]:
        """(users, metric, model, value) of every number."""
        for model, values in self.systems.items():
            for column, value in zip(self.columns, values, strict=True):
                if not isinstance(value, str):
                    users, _, metric = column.partition(" ")
                    yield users, metric, model, value


class Column(NamedTuple):
    """What one column of numbers is about."""

    dataset: str
    split: str  # the label of a cut; "" is the standard one
    users: str
    metric: str


@dataclass(frozen=True, kw_only=True)
class Spec:
    """`settings`: options for a data set ("*": for all), written as `idcf evaluate --set` has
    them, for every system or (`name.option`) for one."""

    name: str
    title: str
    shows: str
    datasets: tuple[str, ...]
    groups: tuple[str, ...]
    metrics: tuple[str, ...]
    systems: Mapping[str, tuple[str, ...]]  # and the presets that each is run under
    paper: tuple[Published, ...] = ()
    seeds: int = 3
    splits: Mapping[str, Cut] = field(default_factory=lambda: {"": Cut()})
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    pairs_only: tuple[str, ...] = ()  # systems that never rank a whole catalogue
    not_run: Mapping[str, str] = field(default_factory=dict)  # why: see `why_not`

    def check(self) -> None:
        """Every name in it must exist."""
        for name in self.datasets:
            self._known("dataset", name, SOURCES)
        for group in self.groups:
            self._known("group of users", group, GROUPS)
        there = {m for name in self.datasets for m in metrics_of(SOURCES[name].implicit)}
        for metric in self.metrics:
            self._known("metric of these datasets", metric, there)
        for presets in self.systems.values():
            for preset in presets:
                self._known("preset", preset, preset_names())
        for name in self.pairs_only:
            self._known("system", name, self.systems)
        for name in self.settings:
            self._known("dataset", name, {*self.datasets, "*"})
        for name in (part for key in self.not_run for part in key.split()):
            self._known(
                "dataset, system or preset", name, {*self.datasets, *self.systems, *preset_names()}
            )
        if self.seeds < 1:
            raise ConfigError(f"{self.name}: seeds is {self.seeds}: give at least 1")
        for block in self.paper:
            self._check(block)

    def _check(self, block: Published) -> None:
        self._known("dataset", block.dataset, self.datasets)
        self._known("split", block.split, self.splits)
        known = [f"{group} {metric}" for group in self.groups for metric in self.metrics]
        for column in block.columns:
            self._known("column", column, known)
        for name, values in block.systems.items():
            self._known("system", name, self.systems)
            if len(values) != len(block.columns):
                raise ConfigError(
                    f"{self.name}: {name!r} has {len(values)} numbers of {block.dataset} for "
                    f"{len(block.columns)} columns; write {NONE!r} where the paper has none"
                )
            for value in values:
                if isinstance(value, str) and value != NONE:
                    raise ConfigError(f"{self.name}: {value!r} of {name!r} is no number")

    def _known(self, kind: str, name: str, names: Any) -> None:
        if name not in names:
            raise ConfigError(f"{self.name}: {unknown(kind, name, names)}")

    def columns(self) -> Iterator[Column]:
        """Every column of numbers, with the metrics that its data has."""
        for dataset in self.datasets:
            kind = metrics_of(SOURCES[dataset].implicit)
            for split in self.splits:
                for users in self.groups:
                    for metric in self.metrics:
                        if metric in kind:
                            yield Column(dataset, split, users, metric)

    def published(self, column: Column) -> Mapping[str, float]:
        """The paper's numbers of a column, by system."""
        return {
            model: value
            for block in self.paper
            if (block.dataset, block.split) == (column.dataset, column.split)
            for users, metric, model, value in block.cells()
            if (users, metric) == (column.users, column.metric)
        }

    def in_paper(self, column: Column) -> bool:
        """Has the paper such a column?"""
        return any(
            (b.dataset, b.split) == (column.dataset, column.split)
            and f"{column.users} {column.metric}" in b.columns
            for b in self.paper
        )

    def why_not(self, *names: str) -> str:
        """Why a run of this data set, system and preset was not made, where the file says so: of
        the keys that name nothing else, the one that names most of them."""
        keys = [key for key in self.not_run if {*key.split()} <= {*names}]
        return self.not_run[max(keys, key=lambda key: len(key.split()))] if keys else ""

    def split_name(self, dataset: str, label: str) -> str:
        """What rows of this cut call their split."""
        return split_name(SOURCES[dataset], self.splits[label])

    def options(self, dataset: str, model: str) -> dict[str, Any]:
        """The table's own overrides for this system."""
        found: dict[str, Any] = {}
        for place in ("*", dataset):
            for key, value in self.settings.get(place, {}).items():
                whose, option = addressed(key, self.systems)
                if whose in ("", model):
                    found[option] = value
        return found


def refusal(model: str, dataset: str, users: str, cut: Cut) -> str:
    """Why there can be no number, in a few words; "" where there can be one."""
    if users == "probe-new" and cut.gamma is not None:
        return "some are key users"
    if model == "random":
        return ""
    if model not in all_models():
        return "not built"
    found, implicit = model_entry(model), SOURCES[dataset].implicit
    if implicit and found.ratings_only and not found.implicit_model:
        return "refused: needs ratings"
    if not implicit and found.implicit_only:
        return "refused: takes no ratings"
    if GROUPS[users] == "new" and not inductive(model):
        return "inductive only"
    return ""


@cache
def load_all() -> Mapping[str, Spec]:
    """Every table, by name."""
    return {path.stem: load(path) for path in sorted(_FOLDER.glob("table*.toml"))}


def find(name: str) -> Spec:
    if name not in load_all():
        raise ConfigError(unknown("table", name, load_all()))
    return load_all()[name]


def load(path: Path) -> Spec:
    """One file. Unknown keys, names and metrics are errors that name the nearest known one."""
    values, where = load_toml(path), str(path)
    blocks = [read(Published, block, f"{where}, 'paper'") for block in values.pop("paper", [])]
    cuts = {
        label: read(Cut, cut, f"{where}, split {label!r}")
        for label, cut in values.pop("splits", {"": {}}).items()
    }
    spec = read(Spec, {**values, "name": path.stem, "paper": blocks, "splits": cuts}, where)
    spec.check()
    return spec
