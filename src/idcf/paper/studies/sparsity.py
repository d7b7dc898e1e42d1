"""RMSE with ever fewer training ratings, and by the number of a user's training ratings.

Key users and query users are those of the full data, so that every share is measured on the same
users; the training ratings of a smaller share are among those of a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from idcf.data.datasets.catalog import Dataset
from idcf.data.split import Split
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.results import RunKey
from idcf.evaluation.run import Measurement, make_evaluation_sets, train_and_evaluate
from idcf.paper.figures import COLORS, make_subplots, with_style
from idcf.paper.studies.study import FigureRow, Point, Study, require_dataset, select
from idcf.rng import random_stream
from idcf.training.job import Runtime
from idcf.training.train import TrainingJob

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.5, 0.2, 0.1, 0.05, 0.01, 0.001)  # of the training ratings
LENGTHS_SHARE = 0.5  # at which users are grouped by their number of training ratings
LENGTH_BINS = ((0, 4), (5, 9), (10, 19), (20, 29), (30, 49), (50, 99), (100, 10**9))
SYSTEMS = ("bias", "nnmf", "gcmc", "idcf-nn", "idcf-gc", "idcf-bayes")
SYSTEM_COLORS = {**COLORS, "nnmf": "#e69f00", "gcmc": "#56b4e9"}
_TRANSDUCTIVE = ("nnmf", "gcmc")  # drawn dashed
_MEASUREMENT = Measurement(("rmse",), rank_catalog=False)


def sparsity_points(dataset: str, n_seeds: int) -> list[Point]:
    """Return a point for each share, system and seed; few-shot users are trained on."""
    return [
        {
            "dataset": dataset,
            "share": share,
            "model": model,
            "preset": "clean",
            "users": "few-shot",
            "seed": seed,
        }
        for share, model, seed in product(SHARES, SYSTEMS, range(n_seeds))
    ]


def thin_split(split: Split, share: float) -> Split:
    """Return the split with a random share of its training rows, and the users in their roles."""
    order = random_stream(0, "sparsity").permutation(len(split.train))
    rows = np.sort(order[: round(share * len(split.train))])
    return replace(split, train=split.train.where(rows))


def length_label(low: int, high: int) -> str:
    """Return the label of users with `low` to `high` training ratings."""
    return f"{low}+" if high >= 10**9 else f"{low}-{high}"


def measure_sparsity(point: Point, dataset: Dataset | None, runtime: Runtime) -> list[FigureRow]:
    """Train one system on a share of the ratings; return its RMSE for each group of users."""
    data = require_dataset(dataset, point)
    split, split_label = standard_split(data)
    thin = thin_split(split, point["share"])
    sets = make_evaluation_sets(thin, ["few-shot", "all"])
    if point["share"] == LENGTHS_SHARE:
        sets |= _sets_by_length(thin)
    run_key = RunKey(data.name, split_label, point["model"], point["preset"], point["seed"])
    job = TrainingJob(thin, "few-shot", point["preset"], data.name, point["seed"], runtime)
    result = train_and_evaluate(run_key, job, {}, sets, False, _MEASUREMENT)
    return [
        {
            "group": row.users,
            "rmse": row.value,
            "low": row.low,
            "high": row.high,
            "n_users": row.n_users,
            "n_ratings": row.n_ratings,
            "n_training_ratings": len(thin.train),
            "split": row.split,
            "seconds": round(row.seconds, 1),
        }
        for row in result.rows
    ]


def _sets_by_length(split: Split) -> dict[str, EvaluationSet]:
    """Return an evaluation set for each number of training ratings that has test rows."""
    counts, sets = split.train.user_counts(), {}
    for low, high in LENGTH_BINS:
        users = np.flatnonzero((counts >= low) & (counts <= high))
        if len(split.test.for_users(users)):
            sets[length_label(low, high)] = EvaluationSet.from_split(split, users)
    return sets


STUDY = Study("sparsity", ("ml-1m",), sparsity_points, measure_sparsity)


def mean_over_seeds(rows: Sequence[FigureRow], **values: Any) -> dict[str, float] | None:
    """Return the mean over seeds of "rmse", "low" and "high" of the rows with these values."""
    chosen = select(rows, **values)
    keys = ("rmse", "low", "high")
    return {k: float(np.mean([r[k] for r in chosen])) for k in keys} if chosen else None


@with_style
def plot_sparsity(rows: Sequence[FigureRow]) -> Figure:
    """Draw RMSE against the share of training ratings, for few-shot users and for all users."""
    figure, axes = make_subplots(1, 2, (10.0, 4.4))
    for axis, group, title in zip(
        axes[0], ("few-shot", "all"), ("Few-shot users", "All users"), strict=True
    ):
        for model in SYSTEMS:
            cells = [(s, mean_over_seeds(rows, group=group, model=model, share=s)) for s in SHARES]
            points = [(100 * s, cell["rmse"]) for s, cell in cells if cell]
            if points:
                style = "s--" if model in _TRANSDUCTIVE else "o-"
                color = SYSTEM_COLORS[model]
                axis.plot(*zip(*points, strict=True), style, color=color, ms=4.5, label=model)
        shares = sorted({100 * row["share"] for row in rows})
        axis.set_xscale("log")
        axis.invert_xaxis()
        axis.set_xticks(shares, [f"{share:g}" for share in shares])
        axis.minorticks_off()
        axis.set(title=title, xlabel="training ratings used (%)", ylabel="test RMSE (stars)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(SYSTEMS))
    return figure


@with_style
def plot_history_length(rows: Sequence[FigureRow]) -> Figure:
    """Draw RMSE by the number of a user's training ratings, with the users' intervals."""
    figure, axes = make_subplots(1, 1, (8.4, 4.4))
    axis = axes[0][0]
    labels = _length_labels(rows)
    models = [model for model in SYSTEMS if select(rows, model=model)]
    for number, model in enumerate(models):
        cells = [mean_over_seeds(rows, group=label, model=model) for label in labels]
        positions = np.arange(len(labels)) + (number - (len(models) - 1) / 2) * 0.11
        values = [(x, *(cell[k] for k in ("rmse", "low", "high")))
                  for x, cell in zip(positions, cells, strict=True) if cell]  # fmt: skip
        x, rmse, low, high = np.array(values).T
        axis.vlines(x, low, high, color=SYSTEM_COLORS[model], alpha=0.4, lw=2.5)
        marker = "s" if model in _TRANSDUCTIVE else "o"
        axis.plot(x, rmse, marker, color=SYSTEM_COLORS[model], ms=5, label=model)
    ticks = [f"{label}\n{_n_users(rows, label):,} users" for label in labels]
    axis.set_xticks(range(len(labels)), ticks)
    axis.grid(axis="x", visible=False)
    axis.set(xlabel="training ratings of the user", ylabel="test RMSE (stars)")
    axis.set_title("RMSE by number of training ratings, with half of them")
    axis.legend(ncols=3, loc="upper right")
    return figure


def _length_labels(rows: Sequence[FigureRow]) -> list[str]:
    """Return the groups by number of training ratings that have rows, in order."""
    labels = [length_label(low, high) for low, high in LENGTH_BINS]
    return [label for label in labels if select(rows, group=label)]


def _n_users(rows: Sequence[FigureRow], group: str) -> int:
    """Return the number of users of a group."""
    return int(select(rows, group=group)[0]["n_users"])


def describe_sparsity(rows: Sequence[FigureRow]) -> str:
    """Return what the rows say: the loss of each system from the largest share to a small one."""
    shares = sorted({row["share"] for row in rows})
    most = shares[-1]
    least = next((share for share in shares if share >= 0.01), shares[0])
    parts = []
    for model in SYSTEMS:
        first = mean_over_seeds(rows, group="few-shot", model=model, share=most)
        last = mean_over_seeds(rows, group="few-shot", model=model, share=least)
        if first and last:
            rise = last["rmse"] - first["rmse"]
            parts.append(f"{model} {first['rmse']:.3f} to {last['rmse']:.3f} ({rise:+.3f})")
    return (
        f"RMSE of few-shot users with {100 * most:g} % and with {100 * least:g} % of the training "
        f"ratings: {'; '.join(parts)}."
    )


def describe_history_length(rows: Sequence[FigureRow]) -> str:
    """Return what the rows say of the users with the fewest training ratings."""
    label = _length_labels(rows)[0]
    cells = {m: mean_over_seeds(rows, group=label, model=m) for m in SYSTEMS}
    parts = [
        f"{model} {cell['rmse']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"
        for model, cell in cells.items()
        if cell
    ]
    text = f"Users with {label} training ratings ({_n_users(rows, label):,}): {'; '.join(parts)}."
    inductive, transductive = cells.get("idcf-gc"), cells.get("gcmc")
    if inductive and transductive:
        change = inductive["rmse"] / transductive["rmse"] - 1
        text += f" idcf-gc against gcmc: {100 * change:+.1f} % in RMSE."
    return text


def tabulate_groups(rows: Sequence[FigureRow]) -> Mapping[str, list[str]]:
    """Return column -> cells for the page: RMSE of each system, share and group."""
    groups = ["few-shot", "all", *_length_labels(rows)]
    keys = [
        (share, group)
        for share, group in product(SHARES, groups)
        if select(rows, share=share, group=group)
    ]
    columns: dict[str, list[str]] = {
        "training ratings": [f"{100 * share:g} %" for share, _ in keys],
        "users": [group for _, group in keys],
    }
    for model in SYSTEMS:
        cells = [mean_over_seeds(rows, share=s, group=g, model=model) for s, g in keys]
        columns[model] = [f"{cell['rmse']:.3f}" if cell else "-" for cell in cells]
    return columns
