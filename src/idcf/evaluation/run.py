"""Train models on one split and measure each of them on groups of users."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from idcf.config import split_option_key
from idcf.data.datasets.catalog import Dataset
from idcf.data.datasets.cold_start import SUPPORT_SIZES
from idcf.data.interactions import Ints
from idcf.data.split import Split
from idcf.errors import ConfigError, DataError, unknown_name_message
from idcf.evaluation import parallel
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.groups import PROBE_ROWS, USER_GROUPS
from idcf.evaluation.measure import (
    MetricResult,
    ModelAssignment,
    compute_metrics,
    default_metric_names,
    expected_random_metrics,
    metric_names,
    reads_lists,
)
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.results import TRIVIAL_BASELINES, ResultRow, RunKey
from idcf.evaluation.source_commit import source_commit
from idcf.inference.benefit import BenefitOrder, check_quality
from idcf.inference.manifest import DomainInfo
from idcf.metrics import PerUserMetric
from idcf.models.registry import all_models, configure, model_entry, resolve_model
from idcf.training.checkpoint import recorded_seconds
from idcf.training.job import LOCAL_RUNTIME, Runtime
from idcf.training.presets import stage_configs
from idcf.training.train import (
    QueryUserMode,
    TrainingJob,
    TrainingResult,
    train,
    train_take_up_model,
)

# (model, query-user mode, seed, result) -> None
TrainedCallback = Callable[[str, str, int, TrainingResult], None]


@dataclass(frozen=True)
class EvaluationPlan:
    """The models and groups of users to compare, validated before any training.

    Raises `ConfigError` if a name does not exist, an option has a wrong type, or nothing is left to
    compare.
    """

    dataset: Dataset
    models: Sequence[str]  # names of the registry
    groups: Sequence[str] = ("new",)  # names of `groups.USER_GROUPS`
    n_seeds: int = 1  # training runs of each model, with seeds 0..n_seeds-1
    preset: str = "clean"  # where the options of every model start from
    options: Mapping[str, Any] = field(default_factory=dict)  # see `options_of`
    metrics: Sequence[str] = ()  # names of `measure.metric_names`; () is the default of the split
    quality: float | None = None  # of lists by expected benefit; None: that of `recommend`

    def __post_init__(self) -> None:
        implicit = self.dataset.interactions.implicit
        check_quality(self.quality)
        for metric in self.metrics:
            if metric not in (known_names := metric_names(implicit)):
                kind = "implicit feedback" if implicit else "ratings"
                raise ConfigError(unknown_name_message(f"metric of {kind}", metric, known_names))
        if not self.models or not self.groups:
            raise ConfigError("nothing to compare: name at least one model and one group of users")
        if self.n_seeds < 1:
            raise ConfigError(f"the number of seeds is {self.n_seeds}: give at least 1")
        for group in self.groups:
            if group not in USER_GROUPS:
                raise ConfigError(unknown_name_message("group of users", group, USER_GROUPS))
        for name in self.models:
            options = self.options_of(name)
            name = resolve_model(name, implicit)
            for group in self.groups:
                stages = stage_configs(
                    name,
                    options,
                    preset=self.preset,
                    dataset=self.dataset.name,
                    query_user_mode=USER_GROUPS[group],
                )
                for stage, stage_config in stages.items():
                    configure(stage, stage_config.options)
        names = [resolve_model(name, implicit) for name in self.models]
        if self.quality is not None and not any(model_entry(x).take_up_model for x in names):
            raise ConfigError(
                f"quality is {self.quality:g}, and no model orders lists by it: add idcf-bayes, on "
                "ratings, or leave it out"
            )

    def model_names(self) -> list[str]:
        """Return the trivial baselines that this dataset allows, then the models, each once."""
        implicit = self.dataset.interactions.implicit
        baselines = [
            name
            for name in TRIVIAL_BASELINES
            if name in all_models() and not (implicit and model_entry(name).ratings_only)
        ]
        return list(dict.fromkeys([*baselines, *self.models]))

    def options_of(self, model: str) -> dict[str, Any]:
        """Return the options of one model: `heads=2` is for all, `idcf-nn.heads=2` for one."""
        model_options = {}
        for key, value in self.options.items():
            target, option = split_option_key(key, all_models())
            if target and target not in self.models:
                raise ConfigError(
                    f"option {key!r} is for {target!r}, which is not among the models"
                )
            if model in self.models and target in ("", model):
                model_options[option] = value
        return model_options


PerUserKey = tuple[str, str, str, int]  # group of users, metric, model and seed


class PlanResult(NamedTuple):
    """The result rows of a plan, and the values per user that they average."""

    rows: list[ResultRow]  # of all models, groups, seeds and metrics, trivial baselines first
    per_user: dict[PerUserKey, PerUserMetric]


def evaluate(plan: EvaluationPlan, **options: Any) -> list[ResultRow]:
    """Return the rows of `run_plan`, which has the same parameters."""
    return run_plan(plan, **options).rows


def run_plan(
    plan: EvaluationPlan,
    *,
    split: tuple[Split, str] | None = None,
    runtime: Runtime = LOCAL_RUNTIME,
    n_jobs: int = 1,
    progress: bool = False,
    on_trained: TrainedCallback | None = None,
) -> PlanResult:
    """Train and measure every model of a plan.

    `split` is a split with its name, `standard_split` by default. `n_jobs` models are trained at
    the same time, each in a process of its own. `on_trained` is called with (model, query-user
    mode, seed, result) for every training run, in order.
    """
    chosen_split, split_name = split or standard_split(plan.dataset)
    evaluation_sets = make_evaluation_sets(chosen_split, plan.groups)

    def run_key(model: str, seed: int) -> RunKey:
        """Return the identity of the run of a model and a seed."""
        return RunKey(plan.dataset.name, split_name, model, plan.preset, seed)

    result = PlanResult([], {})
    names = plan.metrics or default_metric_names(
        plan.dataset.interactions.implicit, chosen_split.protocol
    )
    for group, evaluation_set in evaluation_sets.items():
        expected = expected_random_metrics(evaluation_set, names)
        for seed in range(plan.n_seeds):
            result.rows.extend(_make_result_rows(run_key("random", seed), group, 0, expected))
    job = TrainingJob(chosen_split, preset=plan.preset, dataset=plan.dataset.name, runtime=runtime)
    job = replace(job, progress=progress and n_jobs == 1)  # bars of several processes would mix
    runs = list(_planned_runs(plan, evaluation_sets))
    tasks = {
        f"{model}, {mode} users, seed {seed}": (
            run_key(model, seed),
            replace(job, query_user_mode=mode, seed=seed),
            plan.options_of(model),
            {group: x for group, x in evaluation_sets.items() if USER_GROUPS[group] == mode},
            on_trained is not None,
            Measurement(names, check_quality(plan.quality)),
        )
        for model, mode, seed in runs
    }
    results = parallel.run_all(train_and_evaluate, tasks, n_jobs=n_jobs, progress=progress)
    for (model, mode, seed), of_run in zip(runs, results, strict=True):
        result.rows.extend(of_run.rows)
        for (group, metric), values in of_run.per_user.items():
            result.per_user[group, metric, model, seed] = values
        if on_trained and of_run.trained:
            on_trained(model, mode, seed, of_run.trained)
    return result


class RunResult(NamedTuple):
    """Result rows of one training run, per-user values of its metrics, and the trained model."""

    rows: list[ResultRow]  # one for each group and metric
    per_user: Mapping[tuple[str, str], PerUserMetric]  # by group and metric
    trained: TrainingResult | None  # None unless `return_trained`


class Measurement(NamedTuple):
    """What is measured of a trained model."""

    names: Sequence[str] | None = None  # of metrics; None: `measure.default_metric_names`
    quality: float = 1.0  # of lists; at 1 they are ordered by the scores of the model alone
    rank_catalog: bool = True  # whether metrics of lists are computed


OWN_SCORES = Measurement()  # the default metrics, with lists ordered by the scores of the model


def train_and_evaluate(
    run_key: RunKey,
    job: TrainingJob,
    options: Mapping[str, Any],
    evaluation_sets: Mapping[str, EvaluationSet],
    return_trained: bool = False,
    measurement: Measurement = OWN_SCORES,
) -> RunResult:
    """Train one model and measure it on the evaluation sets, which are given by group of users.

    The model "random" is not trained: its metrics are expectations. `options` are over those of the
    preset. `return_trained` sends the model back, perhaps from another process. Where a model has a
    take-up model and the quality of lists is below 1, that is trained too.
    """
    seconds, trained, order = 0.0, None, None
    if run_key.model != "random":
        if model_entry(resolve_model(run_key.model, job.split.train.implicit)).solver:
            job = replace(job, folder=None)  # the time of a solver that is resumed is not recorded
        began = time.perf_counter()
        seconds = recorded_seconds(job.folder)  # of a training that is resumed
        trained = train(run_key.model, job, options=options)
        order = _train_order(run_key.model, job, trained, measurement)
        seconds += time.perf_counter() - began
    rows: list[ResultRow] = []
    per_user: dict[tuple[str, str], PerUserMetric] = {}
    for group, evaluation_set in evaluation_sets.items():
        if trained is None:
            results = expected_random_metrics(evaluation_set, measurement.names)
        else:
            assignments = [  # the key users to the model that has parameters for them
                ModelAssignment(trained.key_user_model, job.split.key_users, order),
                ModelAssignment(trained.model, job.split.query_users, order),
            ]
            results = compute_metrics(
                evaluation_set,
                assignments,
                names=measurement.names,
                rank_catalog=measurement.rank_catalog,
            )
        rows += _make_result_rows(run_key, group, seconds, results)
        for metric, result in results.items():
            if result.per_user is not None:
                per_user[group, metric] = result.per_user
    return RunResult(rows, per_user, trained if return_trained else None)


def _train_order(
    name: str, job: TrainingJob, trained: TrainingResult, measurement: Measurement
) -> BenefitOrder | None:
    """Train the take-up model of a model, for the lists that `Recommender.recommend` serves; None
    if the model has none, or lists are not measured or ordered by its scores alone."""
    table = job.training_table()
    take_up_name = model_entry(resolve_model(name, table.implicit)).take_up_model
    quality, names = measurement.quality, measurement.names
    is_measured = measurement.rank_catalog and (names is None or reads_lists(names))
    if take_up_name is None or quality == 1 or not is_measured:
        return None
    take_up = train_take_up_model(take_up_name, job)
    if take_up is None:
        return None
    return BenefitOrder(take_up.model, DomainInfo.from_table(table, trained.mean_rating), quality)


def make_evaluation_sets(split: Split, groups: Iterable[str]) -> dict[str, EvaluationSet]:
    """Return the evaluation set of each group of users."""
    sets: dict[str, EvaluationSet] = {}
    for group in dict.fromkeys(groups):
        task = split.tasks.get(group)
        if task is None:
            sets[group] = EvaluationSet.from_split(split, _users_in_group(split, group))
        else:  # the histories of query users are those of the task
            rows = split.train.for_users(split.key_users).concat(task.history_table)
            part = replace(split, train=rows, test=task.target_table)
            sets[group] = EvaluationSet.from_split(part, split.query_users)
    return sets


def _planned_runs(
    plan: EvaluationPlan, groups: Iterable[str]
) -> Iterable[tuple[str, QueryUserMode, int]]:
    """Yield (model, query-user mode, seed) of every training run; groups of one mode share it."""
    modes = dict.fromkeys(USER_GROUPS[group] for group in groups)
    for name in plan.model_names():
        for mode in modes:
            if mode == "new" and not model_entry(name).inductive:
                note = f"{name} knows only the users it was trained on: no rows for new users"
                print(f"note: {note}", file=sys.stderr)
                continue
            for seed in range(plan.n_seeds):
                yield name, mode, seed


def _users_in_group(split: Split, group: str) -> Ints:
    """Return the users of a group, with or without test rows."""
    if group == "all":
        return np.arange(len(split.test.users))
    if group in SUPPORT_SIZES:
        raise DataError(f"only the dataset ml-1m-cold has the group {group!r}; leave it out")
    if not group.startswith("probe"):
        return split.query_users
    light_users = np.flatnonzero(split.train.user_counts() < PROBE_ROWS)
    if group == "probe-new" and not np.isin(light_users, split.query_users).all():
        raise DataError(
            f"some users with fewer than {PROBE_ROWS} training rows are key users of this split, "
            "so they are not new; ask for the group 'probe'"
        )
    return light_users


def _make_result_rows(
    run_key: RunKey, group: str, seconds: float, metric_results: Mapping[str, MetricResult]
) -> list[ResultRow]:
    """Return a row for each metric that has users."""
    return [
        ResultRow(
            **asdict(run_key),
            users=group,
            metric=metric,
            **result.interval._asdict(),
            n_users=result.n_users,
            n_ratings=result.n_ratings,
            seconds=seconds,
            quality=result.quality,
            commit=source_commit(),
        )
        for metric, result in metric_results.items()
        if result.n_users
    ]
