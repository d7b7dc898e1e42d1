"""The tables of the paper, and further ones, as data, loaded from `idcf/paper/tables/*.toml`.

These files are the only place where the paper's numbers are written. This module knows nothing of
our own results: see `results_store`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

from idcf.config import dataclass_from_dict, load_toml
from idcf.data.datasets.catalog import DATASET_SOURCES
from idcf.errors import ConfigError, unknown_name_message
from idcf.evaluation.groups import USER_GROUPS
from idcf.evaluation.measure import metric_names
from idcf.evaluation.protocol import SplitRule, split_name
from idcf.evaluation.tables import CellKey, ReferenceNumbers
from idcf.models.registry import all_models, model_entry
from idcf.training.presets import preset_names

_FOLDER = Path(__file__).with_name("tables")
EMPTY_CELL = "-"  # stands for a cell that the paper leaves empty
_PAPER_SPLITS = {  # dataset -> how the name of the paper's split begins, and its δ
    "douban": ("official", 30),
    "ml-100k": ("u1", 30),
    "ml-1m": ("random-10%", 30),
    "amazon-beauty": ("random-10-per-user", 20),
}  # Amazon-Books is not listed: our copy has a quarter of the paper's users, on another split


@dataclass(frozen=True, kw_only=True)
class PublishedBlock:
    """The numbers that the paper prints for one dataset, and one split where there are several."""

    dataset: str
    columns: tuple[str, ...]  # "<user group> <metric>", for instance "new rmse"
    systems: Mapping[str, tuple[float | str, ...]]  # system -> one number or "-" per column
    split: str = ""  # a key of `TableSpec.splits`

    def cells(self) -> Iterator[tuple[str, str, str, float]]:
        """Yield (user group, metric, system, value) for each number of the block."""
        for model, values in self.systems.items():
            for column, value in zip(self.columns, values, strict=True):
                if not isinstance(value, str):
                    users, _, metric = column.partition(" ")
                    yield users, metric, model, value


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """How often the runs of one dataset are made: on random splits, or with several seeds."""

    draws: int = 0  # random splits, of the seeds 1 to `draws`; 0: the splits of the table
    seeds: int = 1  # runs on each split of the table
    test_to_train: float = 0.0  # ratio of test to training rows of a draw

    def validate(self, where: str) -> None:
        """Raise ConfigError if the numbers are out of range or exclude each other."""
        if self.draws < 0 or self.seeds < 1:
            raise ConfigError(f"{where}: {self}: give draws or seeds of at least 1")
        if self.draws and self.seeds > 1:
            raise ConfigError(f"{where}: {self}: give draws or several seeds, not both")
        if (self.draws > 0) != (self.test_to_train > 0):
            raise ConfigError(
                f"{where}: {self}: draws need the ratio test_to_train of test to training rows, "
                "and seeds have none"
            )


class TableColumn(NamedTuple):
    """The key of one column of numbers of a table."""

    dataset: str
    split: str  # a key of `TableSpec.splits`; "" is the standard split
    users: str  # the user group
    metric: str


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """One table: what it compares, and the numbers that the paper prints. The fields are the keys
    of the TOML file, except `name`, which is the file's stem.

    A table with a `reference` shows means over the repeats of each dataset and compares this system
    with every other one, see `split_comparisons`; the paper has no such table.
    """

    name: str
    title: str
    shows: str  # a paragraph for the page: what the numbers are
    datasets: tuple[str, ...]
    groups: tuple[str, ...]  # user groups
    metrics: tuple[str, ...]
    systems: Mapping[str, tuple[str, ...]]  # system -> the presets that it is run under
    paper: tuple[PublishedBlock, ...] = ()  # the numbers that the paper prints
    seeds: int = 3  # number of runs of each system, where `repeats` does not say it
    repeats: Mapping[str, Repeats] = field(default_factory=dict)  # by dataset
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # system -> its datasets
    reference: str = ""  # the system that all others are compared with, or none
    splits: Mapping[str, SplitRule] = field(default_factory=lambda: {"": SplitRule()})
    pairs_only: tuple[str, ...] = ()  # systems too slow to rank a whole catalogue
    not_run: Mapping[str, str] = field(default_factory=dict)  # see `not_run_reason`

    def validate(self) -> None:
        """Raise ConfigError if a name does not exist, there are no seeds or a block has a number
        too few or too many."""
        self._require_known("dataset", self.datasets, DATASET_SOURCES)
        feedback = {DATASET_SOURCES[name].implicit for name in self.datasets}
        metrics = {metric for implicit in feedback for metric in metric_names(implicit)}
        self._require_known("group of users", self.groups, USER_GROUPS)
        self._require_known("metric of these datasets", self.metrics, metrics)
        self._require_known("preset", chain(*self.systems.values()), preset_names())
        self._require_known("system", self.pairs_only, self.systems)
        self._require_known("system", self.only, self.systems)
        self._require_known("dataset", chain(*self.only.values(), self.repeats), self.datasets)
        self._require_known("system", [self.reference] if self.reference else [], self.systems)
        for dataset, repeats in self.repeats.items():
            repeats.validate(f"{self.name}, {dataset!r}")
        self._require_known(
            "dataset, system or preset",
            " ".join(self.not_run).split(),
            {*self.datasets, *self.systems, *preset_names()},
        )
        if self.seeds < 1:
            raise ConfigError(f"{self.name}: seeds is {self.seeds}: give at least 1")
        for block in self.paper:
            self._validate_block(block)

    def _validate_block(self, block: PublishedBlock) -> None:
        """Raise ConfigError for an unknown name, a wrong count of numbers, or a cell of text."""
        self._require_known("dataset", [block.dataset], self.datasets)
        self._require_known("split", [block.split], self.splits)
        columns = [f"{group} {metric}" for group in self.groups for metric in self.metrics]
        self._require_known("column", block.columns, columns)
        self._require_known("system", block.systems, self.systems)
        for name, values in block.systems.items():
            if len(values) != len(block.columns):
                raise ConfigError(
                    f"{self.name}: {name!r} has {len(values)} numbers of {block.dataset} for "
                    f"{len(block.columns)} columns; write {EMPTY_CELL!r} where the paper has none"
                )
            for text in (x for x in values if isinstance(x, str) and x != EMPTY_CELL):
                raise ConfigError(
                    f"{self.name}: {text!r} of {name!r} is not a number; "
                    f"write {EMPTY_CELL!r} where the paper has none"
                )

    def _require_known(self, kind: str, names: Iterable[str], known: Collection[str]) -> None:
        """Raise ConfigError for the first of `names` that is not known."""
        for name in names:
            if name not in known:
                raise ConfigError(f"{self.name}: {unknown_name_message(kind, name, known)}")

    def columns(self) -> Iterator[TableColumn]:
        """Yield each column of numbers; a metric is left out where its dataset does not have it."""
        for dataset in self.datasets:
            for column in product(self.split_rules(dataset), self.groups, self.metrics):
                if column[-1] in metric_names(DATASET_SOURCES[dataset].implicit):
                    yield TableColumn(dataset, *column)

    def split_rules(self, dataset: str) -> Mapping[str, SplitRule]:
        """Return label -> rule of the splits of a dataset: its random draws, or `splits`."""
        n_draws = self.repeats[dataset].draws if dataset in self.repeats else 0
        draws = {f"draw {n}": SplitRule(draw=n) for n in range(1, n_draws + 1)}
        return draws or self.splits

    def n_seeds(self, dataset: str) -> int:
        """Return the number of runs of a system on each split of a dataset."""
        return self.repeats[dataset].seeds if dataset in self.repeats else self.seeds

    def systems_on(self, dataset: str) -> list[str]:
        """Return the systems that are run on a dataset, in the order of `systems`."""
        return [x for x in self.systems if dataset in self.only.get(x, self.datasets)]

    def published_values(self, column: TableColumn) -> Mapping[str, float]:
        """Return system -> the paper's number, for one column."""
        return {
            model: value
            for block in self.paper
            if (block.dataset, block.split) == (column.dataset, column.split)
            for users, metric, model, value in block.cells()
            if (users, metric) == (column.users, column.metric)
        }

    def not_run_reason(self, dataset: str, model: str, preset: str) -> str:
        """Return why a run was not made, or "" where the table gives no reason. A key of `not_run`
        names one or more of dataset, system and preset, separated by spaces, and applies to runs
        that have all of them; the key with the most names decides."""
        keys = [key for key in self.not_run if {*key.split()} <= {dataset, model, preset}]
        return self.not_run[max(keys, key=lambda key: len(key.split()))] if keys else ""

    def split_name(self, dataset: str, label: str) -> str:
        """Return the split name that result rows carry, for a label of `split_rules`."""
        return split_name(DATASET_SOURCES[dataset], self.split_rules(dataset)[label])

    def split_names(self, dataset: str) -> list[str]:
        """Return the names of all splits of a dataset that result rows carry."""
        return [self.split_name(dataset, label) for label in self.split_rules(dataset)]


def refusal_reason(model: str, dataset: str, users: str, split_rule: SplitRule) -> str:
    """Return in a few words why a system cannot be measured on a user group, or "" if it can."""
    if users == "probe-new" and split_rule.gamma is not None:
        return "some are key users"
    if model == "random":
        return ""
    if model not in all_models():
        return "not built"
    entry = model_entry(model)
    implicit = DATASET_SOURCES[dataset].implicit
    if implicit and entry.ratings_only and not entry.implicit_model:
        return "refused: needs ratings"
    if not implicit and entry.implicit_only:
        return "refused: takes no ratings"
    if USER_GROUPS[users] == "new" and not entry.inductive:
        return "inductive only"
    return ""


@cache
def load_tables() -> Mapping[str, TableSpec]:
    """Load every table by name: those of the paper, "table2", …, and ours, "splits", …"""
    return {path.stem: load_table(path) for path in sorted(_FOLDER.glob("*.toml"))}


def find_table(name: str) -> TableSpec:
    """Return a table by its name; ConfigError names the nearest one if there is none."""
    if name not in load_tables():
        raise ConfigError(unknown_name_message("table", name, load_tables()))
    return load_tables()[name]


def table_metrics(dataset: str) -> set[str]:
    """Return the metrics that any table prints for a dataset."""
    return {
        metric
        for table in load_tables().values()
        if dataset in table.datasets
        for metric in table.metrics
    }


def load_table(path: Path) -> TableSpec:
    """Read one table from a TOML file and validate it; ConfigError names the file and the fault."""
    values, where = load_toml(path), str(path)
    blocks = [
        dataclass_from_dict(PublishedBlock, block, f"{where}, 'paper'")
        for block in values.pop("paper", [])
    ]
    rules = {
        label: dataclass_from_dict(SplitRule, rule, f"{where}, split {label!r}")
        for label, rule in values.pop("splits", {"": {}}).items()
    }
    repeats = {
        dataset: dataclass_from_dict(Repeats, numbers, f"{where}, repeats of {dataset!r}")
        for dataset, numbers in values.pop("repeats", {}).items()
    }
    objects = {"name": path.stem, "paper": blocks, "splits": rules, "repeats": repeats}
    table = dataclass_from_dict(TableSpec, {**values, **objects}, where)
    table.validate()
    return table


def is_paper_split(dataset: str, split: str) -> bool:
    """Return whether a split is the paper's split of the dataset, or a random draw like it."""
    start, delta = _PAPER_SPLITS.get(dataset, ("", 0))
    return bool(start) and split.startswith(start) and split.endswith(f"delta={delta}")


@cache
def paper_numbers() -> ReferenceNumbers:
    """Return the numbers that the paper prints for its standard splits."""
    blocks = [block for spec in load_tables().values() for block in spec.paper if not block.split]
    numbers = {
        CellKey(block.dataset, users, metric, model): value
        for block in blocks
        for users, metric, model, value in block.cells()
    }
    return ReferenceNumbers(numbers, is_paper_split)
