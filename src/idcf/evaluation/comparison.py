"""`idcf.evaluate`: compare models on a table in one call, and what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from idcf.data.datasets.catalog import Dataset
from idcf.data.inputs import InteractionsTable
from idcf.data.missing_values import MissingRule
from idcf.data.readers import DuplicateRule
from idcf.data.split import Split
from idcf.errors import ConfigError, DataError, require_extra, unknown_name_message
from idcf.evaluation import DEFAULT_MODELS, run, tables
from idcf.evaluation.groups import GROUP_DESCRIPTIONS
from idcf.evaluation.measure import metric_names
from idcf.evaluation.protocol import make_split, open_dataset
from idcf.evaluation.results import (
    LOWER_IS_BETTER,
    NOMINAL_VALUES,
    SIMPLE_BASELINES,
    TRIVIAL_BASELINES,
    ResultRow,
)
from idcf.metrics import Interval, PerUserMetric, mean_of_seeds, paired_difference
from idcf.models.registry import model_entry
from idcf.results import Tabular, TextTable
from idcf.rng import random_stream
from idcf.training.job import start_runtime
from idcf.training.train import MIN_KEY_USERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMN_TYPES = {"str": "string", "int": "int64", "float": "float64"}


class ModelDifference(NamedTuple):
    """One metric of a model less that of another, paired over the same users."""

    model: str
    baseline: str  # the other model
    metric: str
    users: str  # the group of users
    value: float  # the metric of `model` - that of `baseline`
    low: float  # bounds of the 95 % interval over users
    high: float
    n_users: int

    @property
    def interval(self) -> Interval:
        """The value and its bounds."""
        return Interval(self.value, self.low, self.high)

    def __repr__(self) -> str:
        difference = tables.format_interval(self.interval, sign="+")
        pair = f"{self.model} - {self.baseline}"
        return f"{self.metric}, {pair}: {difference}, {self.n_users:,} {self.users} users"


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabular):
    """Metrics of models on held-out interactions, as `idcf.evaluate` returns them.

    It is printed as one table for each group of users, with 95 % intervals, and one of the
    differences to the best simple baseline.

    Attributes
    ----------
    rows
        One `ResultRow` for each model, group of users, metric and seed.
    per_user
        The values that a row averages, by (group, metric, model, seed); metrics that are no average
        over users have none.
    """

    rows: tuple[ResultRow, ...]
    per_user: Mapping[tuple[str, str, str, int], PerUserMetric]

    @property
    def models(self) -> list[str]:
        """Names of the models, trivial baselines first."""
        return list(dict.fromkeys(row.model for row in self.rows))

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics."""
        return tables.ordered_metrics(self.rows)

    @property
    def groups(self) -> list[str]:
        """Names of the groups of users."""
        return list(dict.fromkeys(row.users for row in self.rows))

    def to_arrow(self) -> Any:
        """Return an Arrow table with one row for each model, group, metric and seed."""
        import pyarrow as pa

        types = [(x.name, _COLUMN_TYPES[str(x.type).partition(" ")[0]]) for x in fields(ResultRow)]
        return pa.Table.from_pylist([asdict(x) for x in self.rows], pa.schema(types))

    def compare(self, a: str, b: str, metric: str, *, group: str | None = None) -> ModelDifference:
        """Return the metric of model `a` less that of model `b`, paired over the same users.

        `group` is a group of users, by default the first. The interval is a bootstrap over users,
        averaged over seeds; one without 0 is a difference beyond chance. Raises ConfigError for an
        unknown name and for a metric that is no average over users, and DataError if the two were
        not measured on the same rows.
        """
        group = self._group_name(group)
        _require_name("metric", metric, self.metrics)
        for name in (a, b):
            _require_name("model", name, self.models)
        pairs = [
            (self.per_user.get((group, metric, a, seed)), self.per_user[group, metric, b, seed])
            for seed in sorted({row.seed for row in self.rows})
            if (group, metric, b, seed) in self.per_user
        ]
        intervals = [
            paired_difference(
                x,
                y,
                statistic="rmse" if metric == "rmse" else "mean-ratio",
                rng=random_stream(0, "bootstrap"),
            )
            for x, y in pairs
            if x is not None
        ]
        if not intervals:
            raise ConfigError(
                f"{metric} of {a} and {b} has no values per user, so it cannot be paired: take "
                "another metric, or compare the intervals"
            )
        return ModelDifference(a, b, metric, group, *mean_of_seeds(intervals), len(pairs[0][1]))

    def differences(self, *, group: str | None = None) -> list[ModelDifference]:
        """Return the difference of every model to the best simple baseline, by metric.

        `group` is a group of users, by default the first.
        Simple baselines are item-mean, popularity, bias, item-knn, ease and als. The best one is
        chosen by the metric itself, on the same rows, which favors it. Metrics that cannot be
        paired are left out.
        """
        return list(self._differences_by_group[self._group_name(group)])

    @cached_property
    def _differences_by_group(self) -> dict[str, list[ModelDifference]]:
        """The differences of each group, which take a bootstrap each."""
        return {group: self._compute_differences(group) for group in self.groups}

    def _compute_differences(self, group: str) -> list[ModelDifference]:
        """Return the differences of one group."""
        intervals = tables.intervals_by_cell(x for x in self.rows if x.users == group)
        differences = []
        for metric in self.metrics:
            values = {
                x: intervals[x, metric].value
                for x in self.models
                if x in SIMPLE_BASELINES and self._is_paired(group, metric, x, x)
            }
            if not values:
                continue
            best = tables.best_value(metric, values.values())
            baseline = next(x for x, value in values.items() if value == best)
            for model in self.models:
                is_other = model not in (baseline, *TRIVIAL_BASELINES)
                if is_other and self._is_paired(group, metric, model, baseline):
                    differences.append(self.compare(model, baseline, metric, group=group))
        return differences

    def plot(
        self, metric: str | None = None, *, group: str | None = None, ax: Axes | None = None
    ) -> Axes:
        """Draw the value and the 95 % interval of each model, the best one on top.

        `metric` and `group` are by default the first; `ax` are axes of matplotlib to draw in.
        Returns the axes. Raises ConfigError without matplotlib.
        """
        require_extra("plots", "matplotlib")
        from matplotlib import pyplot

        metric, group = metric or self.metrics[0], self._group_name(group)
        _require_name("metric", metric, self.metrics)
        cells = tables.intervals_by_cell(
            x for x in self.rows if (x.users, x.metric) == (group, metric)
        )
        is_lower_better = metric in LOWER_IS_BETTER
        models = sorted(cells, key=lambda cell: cells[cell].value, reverse=is_lower_better)
        if ax is None:
            size = (6.4, 0.4 * len(models) + 1.4)
            ax = pyplot.subplots(figsize=size, layout="constrained")[1]
        for position, cell in enumerate(models):
            value, low, high = cells[cell]
            color = "#7f7f7f" if cell[0] in ("random", *SIMPLE_BASELINES) else "#0072b2"
            ax.hlines(position, low, high, color=color, linewidth=2.2, alpha=0.6)
            ax.plot(value, position, "o", color=color)
        ax.set_yticks(range(len(models)), [model for model, _ in models])
        ax.set_ylim(-0.6, len(models) - 0.4)
        better = "lower is better" if is_lower_better else "higher is better"
        if metric in NOMINAL_VALUES:
            better = f"{NOMINAL_VALUES[metric]:g} is best"
        ax.set_xlabel(f"{metric} ({better}), 95 % interval over users")
        ax.set_title(f"{self.rows[0].dataset}: {group} users", loc="left")
        ax.grid(axis="x", color="#e6e6e6")
        ax.set_axisbelow(True)
        return ax

    def to_text(
        self, *, markdown: bool = False, reference: tables.ReferenceNumbers | None = None
    ) -> str:
        """Return the tables as text, or with `markdown` as Markdown.

        `reference`: published numbers, which stand beside ours.
        """
        form = tables.format_markdown_table if markdown else tables.format_text_table
        return "\n\n".join(form(x) for x in self._result_tables(reference))

    def __repr__(self) -> str:
        return self.to_text()

    def _text_tables(self) -> list[TextTable]:
        """Return the tables for HTML."""
        return [tables.to_text_table(x) for x in self._result_tables()]

    def _result_tables(
        self, reference: tables.ReferenceNumbers | None = None
    ) -> list[tables.ResultTable]:
        """Return the table of each group, followed by that of its differences."""
        result: list[tables.ResultTable] = []
        for group in self.groups:
            result += tables.make_tables([x for x in self.rows if x.users == group], reference)
            if differences := self.differences(group=group):
                result.append(_difference_table(differences, group))
        return result

    def _group_name(self, group: str | None) -> str:
        """Return the name of a group of users, by default the first."""
        if group is None:
            return self.groups[0]
        _require_name("group of users", group, self.groups)
        return group

    def _is_paired(self, group: str, metric: str, a: str, b: str) -> bool:
        """Return whether two models were measured on the same rows of two users or more."""
        for seed in {row.seed for row in self.rows}:
            x, y = (self.per_user.get((group, metric, model, seed)) for model in (a, b))
            if x is None or y is None or len(x) < 2:
                return False
            if not (np.array_equal(x.users, y.users) and np.array_equal(x.weight, y.weight)):
                return False
        return True


def evaluate(
    interactions: InteractionsTable,
    models: str | Sequence[str] | None = None,
    *,
    groups: str | Sequence[str] = ("new",),
    split: str = "standard",
    metrics: str | Sequence[str] = (),
    seeds: int = 1,
    test: InteractionsTable | None = None,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
    missing: MissingRule = "error",
    weight: str | None = None,
    duplicates: DuplicateRule = "last",
    key_threshold: int | None = None,
    key_users: str | int = "threshold",
    split_seed: int = 0,
    preset: str = "clean",
    options: Mapping[str, Any] | None = None,
    quality: float | None = None,
    jobs: int = 1,
    device: str = "auto",
    progress: bool = False,
) -> Comparison:
    """Compare models on users they were not trained on; what `idcf evaluate` does.

    Parameters
    ----------
    interactions
        Whatever `Recommender.fit` reads: a dataframe, the path of a file, `Interactions`; or the
        name of a public dataset.
    models
        Names of models. None: those of `idcf evaluate` that read this kind of feedback. Trivial
        baselines are added.
    groups
        Groups of users: "new" (absent from training), "few-shot", "all", "probe", "probe-new".
    split
        How rows are held out: "standard", "last" (the last row of each user in time), "temporal" or
        "strong" (whole users).
    metrics
        Names of metrics, or "all". (): a few.
    seeds
        Number of training runs of each model.
    split_seed
        Seed of the split.
    preset
        Set of default options, as for `Recommender`.
    test
        Held-out rows, as `interactions`. None: a random part.
    columns, implicit, missing, weight, duplicates
        As for `Recommender.fit`. Weights are read in training; metrics count every test row once.
    key_threshold, key_users
        As for `Recommender`, counted in training rows. If no user is left to be new, a random half
        of the users is.
    options
        Options of all models, such as {"embedding_size": 8}, or of one, {"als.reg": 5.0}.
    quality
        Order of the lists of idcf-bayes; see `Recommender.recommend`.
    jobs
        Number of models that are trained at the same time.
    progress
        Whether to show progress bars.

    Raises
    ------
    ConfigError
        If a name or an option does not exist, before anything is trained.
    DataError
        If the table cannot be read or split.

    Examples
    --------
    >>> import numpy as np, idcf
    >>> from idcf.testing.synthetic import checkerboard
    >>> table = checkerboard(60, 20, np.random.default_rng(0))
    >>> comparison = idcf.evaluate(table, ["als"], options={"reg": 5.0}, device="cpu")
    >>> comparison.models
    ['random', 'item-mean', 'popularity', 'als']
    >>> comparison.compare("als", "item-mean", "rmse").high < 0  # als is better
    True
    """
    names = None if models is None else _model_names(models)
    data = open_dataset(
        interactions,
        test=test,
        columns=columns,
        implicit=implicit,
        missing=missing,
        weight=weight,
        duplicates=duplicates,
        progress=progress,
    )
    is_implicit = data.interactions.implicit
    plan = run.EvaluationPlan(
        data,
        _default_models(is_implicit) if names is None else names,
        _names(groups),
        seeds,
        preset,
        options=options or {},
        metrics=metric_names(is_implicit) if metrics == "all" else _names(metrics),
        quality=quality,
    )
    result = run.run_plan(
        plan,
        split=_make_split(data, split, plan.groups, split_seed, key_threshold, key_users),
        runtime=start_runtime(device),
        n_jobs=jobs,
        progress=progress,
    )
    return Comparison(tuple(result.rows), result.per_user)


def _make_split(
    data: Dataset,
    protocol: str,
    groups: Sequence[str],
    seed: int,
    threshold: int | None,
    key_users: str | int,
) -> tuple[Split, str]:
    """Split a dataset; without a threshold, and if no query user has test rows, a random half of
    the users become query users, or all but a few of a handful."""
    split = make_split(data, protocol, seed=seed, threshold=threshold, key_users=key_users)
    is_default = threshold is None and key_users == "threshold" and protocol in ("standard", "last")
    if is_default and not {*groups}.isdisjoint({"new", "few-shot"}):
        rows, n_active = split[0].test, len(split[0].key_users)
        if n_active > MIN_KEY_USERS and not np.isin(rows.user, split[0].query_users).any():
            choice = "random" if n_active >= 2 * MIN_KEY_USERS else MIN_KEY_USERS
            split = make_split(data, protocol, seed=seed, key_users=choice)
    if len(split[0].key_users) < MIN_KEY_USERS:
        raise DataError(
            f"the split {split[1]!r} leaves {len(split[0].key_users)} key users to train on; at "
            f"least {MIN_KEY_USERS} are needed: lower the key threshold or give more data"
        )
    return split


def _default_models(implicit: bool) -> list[str]:
    """Return the default models that read this kind of feedback."""
    entries = {name: model_entry(name) for name in DEFAULT_MODELS}
    return [
        name for name, x in entries.items() if not (implicit and x.ratings_only) or x.implicit_model
    ]


def _names(names: str | Sequence[str]) -> list[str]:
    """Return names that may be given as one name."""
    return [names] if isinstance(names, str) else list(names)


def _model_names(models: Any) -> list[str]:
    """Return the names of models; ConfigError: one is no name, such as a Recommender."""
    names = [models] if isinstance(models, str) or not isinstance(models, Iterable) else [*models]
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"models are names, such as 'als', got {name!r:.80}; options of a model are set by "
                "options={'reg': 5.0}"
            )
    return names


def _require_name(kind: str, name: str, names: Sequence[str]) -> None:
    """Raise ConfigError, with the nearest name, unless a name is one of some."""
    if name not in names:
        raise ConfigError(unknown_name_message(kind, name, names))


def _difference_table(differences: Sequence[ModelDifference], group: str) -> tables.ResultTable:
    """Return the differences of one group as a table: models down, metrics across."""
    cells = {(x.model, x.metric): x for x in differences}
    baselines = {x.metric: x.baseline for x in differences}
    largest = {m: max(abs(x.value) for x in differences if x.metric == m) for m in baselines}
    header = [f"{m} {tables.direction_arrow(m)} vs {name}" for m, name in baselines.items()]
    lines = []
    for model in dict.fromkeys(x.model for x in differences):
        line = [model]
        for metric in baselines:
            cell = cells.get((model, metric))
            digits = 3 if largest[metric] >= 0.01 else 4
            line.append(tables.format_interval(cell.interval, digits, sign="+") if cell else "-")
        lines.append(tuple(line))
    return tables.ResultTable(
        f"differences to the best simple baseline: {GROUP_DESCRIPTIONS.get(group, group)}",
        ("paired over users, [95 % interval]; one without 0 is beyond chance",),
        ("model", *header),
        (),
        tuple(lines),
    )
