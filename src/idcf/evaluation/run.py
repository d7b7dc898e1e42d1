"""Train systems on one split and measure each on the groups of users that were asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from idcf.config import addressed
from idcf.data.datasets.catalog import Dataset
from idcf.data.interactions import Ints
from idcf.data.split import Split
from idcf.errors import ConfigError, DataError, unknown
from idcf.evaluation import parallel
from idcf.evaluation.groups import GROUPS, PROBE_ROWS
from idcf.evaluation.measure import Exam, Measured, Part, chance, measure
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.results import FLOORS, Row
from idcf.metrics import PerUser
from idcf.models.registry import all_models, configure, model_entry, resolve_model
from idcf.training.distributed import LOCAL, Runtime
from idcf.training.presets import stages
from idcf.training.train import Job, QueryUsers, Trained, train

Keep = Callable[[str, str, int, Trained], None]  # model, users, seed


@dataclass(frozen=True)
class Plan:
    """What is to be compared, checked: a name that does not exist is found before any training."""

    dataset: Dataset
    models: Sequence[str]
    users: Sequence[str] = ("new",)
    seeds: int = 1
    preset: str = "clean"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        implicit = self.dataset.interactions.implicit
        if not self.models or not self.users:
            raise ConfigError("nothing to compare: name at least one model and one group of users")
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}: give at least 1")
        for group in self.users:
            if group not in GROUPS:
                raise ConfigError(unknown("group of users", group, GROUPS))
        for name in self.models:
            options = self.options_of(name)
            name = resolve_model(name, implicit)
            where = {"preset": self.preset, "dataset": self.dataset.name}
            for group in self.users:
                for stage, chosen in stages(name, options, **where, users=GROUPS[group]).items():
                    configure(stage, chosen.options)

    def names(self) -> list[str]:
        """The floors that this data allows, then the models asked for, each once."""
        implicit = self.dataset.interactions.implicit
        floors = [
            n
            for n in FLOORS
            if n in all_models() and not (implicit and model_entry(n).ratings_only)
        ]
        return list(dict.fromkeys([*floors, *self.models]))

    def options_of(self, name: str) -> dict[str, Any]:
        """`heads=2` is for every model asked for, `idcf-nn.heads=2` for one of them."""
        found = {}
        for key, value in self.options.items():
            whose, option = addressed(key, all_models())
            if whose and whose not in self.models:
                raise ConfigError(f"option {key!r} is for {whose!r}, which is not among the models")
            if name in self.models and whose in ("", name):
                found[option] = value
        return found


def evaluate(
    plan: Plan,
    *,
    split: tuple[Split, str] | None = None,
    runtime: Runtime = LOCAL,
    jobs: int = 1,
    progress: bool = False,
    keep: Keep | None = None,
) -> list[Row]:
    """Rows of every model, group and seed, floors first. `jobs` systems are trained at a time;
    `keep` is shown each of them."""
    data, preset = plan.dataset, plan.preset
    chosen, name = split or standard_split(data)
    exams = exams_of(chosen, plan.users)
    blank = Row(data.name, name, "", preset, "", "", 0, 0, 0, 0, 0, 0, 0)
    rows: list[Row] = []
    for group, exam in exams.items():
        for seed, found in enumerate([chance(exam)] * plan.seeds):
            rows += _rows(replace(blank, model="random", users=group, seed=seed), found)
    job = Job(chosen, preset=preset, dataset=data.name, runtime=runtime)
    job = replace(job, progress=progress and jobs == 1)  # bars of several processes would mix
    steps = list(_steps(plan, exams))
    tasks = {
        f"{model}, {who} users, seed {seed}": (
            replace(blank, model=model, seed=seed),
            replace(job, users=who, seed=seed),
            plan.options_of(model),
            {group: exam for group, exam in exams.items() if GROUPS[group] == who},
            keep is not None,
        )
        for model, who, seed in steps
    }
    done = parallel.each(examine, tasks, jobs=jobs, progress=progress)
    for (model, who, seed), examined in zip(steps, done, strict=True):
        rows += examined.rows
        if keep and examined.trained:
            keep(model, who, seed, examined.trained)
    return rows


class Examined(NamedTuple):
    """What came out of one training."""

    rows: list[Row]
    each: Mapping[tuple[str, str], PerUser]  # by group and metric
    trained: Trained | None


def examine(
    stamp: Row,
    job: Job,
    options: Mapping[str, Any],
    exams: Mapping[str, Exam],
    keep: bool = False,
    lists: bool = True,
) -> Examined:
    """Train one system and put it through its exams. `random` is chance itself; the model comes
    back only if it is to be kept, as the way may lead from another process."""
    began, trained = time.perf_counter(), None
    if stamp.model != "random":
        trained = train(stamp.model, job, options=options)
        stamp = replace(stamp, seconds=time.perf_counter() - began)
    rows: list[Row] = []
    each: dict[tuple[str, str], PerUser] = {}
    for group, exam in exams.items():
        parts = trained and _parts(trained, job.split)
        found = measure(exam, parts, lists=lists) if parts else chance(exam)
        rows += _rows(replace(stamp, users=group), found)
        each |= {(group, metric): m.each for metric, m in found.items() if m.each is not None}
    return Examined(rows, each, trained if keep else None)


def exams_of(split: Split, groups: Iterable[str]) -> dict[str, Exam]:
    """An examination for each group of users."""
    return {group: Exam.of(split, _asked(split, group)) for group in dict.fromkeys(groups)}


def _steps(plan: Plan, groups: Iterable[str]) -> Iterable[tuple[str, QueryUsers, int]]:
    """Every training that is needed: `few-shot` and `all` share theirs."""
    for name in plan.names():
        for who in dict.fromkeys(GROUPS[group] for group in groups):
            if who == "new" and not inductive(name):
                _note(f"{name} knows only the users it was trained on: no rows for new users")
                continue
            for seed in range(plan.seeds):
                yield name, who, seed


def _asked(split: Split, group: str) -> Ints:
    if group == "all":
        return np.arange(len(split.test.users))
    if not group.startswith("probe"):
        return split.query_users
    light = np.flatnonzero(split.train.counts() < PROBE_ROWS)
    if group == "probe-new" and not np.isin(light, split.query_users).all():
        raise DataError(
            f"some users with fewer than {PROBE_ROWS} training rows are key users here, so they "
            "are not new; ask for the group 'probe'"
        )
    return light


def inductive(name: str) -> bool:
    """Does this row answer for people it was not trained on?"""
    return bool(getattr(model_entry(name).model_class, "inductive", True))


def _parts(trained: Trained, split: Split) -> list[Part]:
    """Key users have a row of their own in the backbone; everybody else is for the model."""
    return [Part(trained.known, split.key_users), Part(trained.model, split.query_users)]


def _rows(stamp: Row, found: Mapping[str, Measured]) -> list[Row]:
    return [
        replace(
            stamp,
            metric=metric,
            value=m.interval.value,
            low=m.interval.low,
            high=m.interval.high,
            n_users=m.n_users,
            n_ratings=m.n_ratings,
        )
        for metric, m in found.items()
        if m.n_users
    ]


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
