"""The three attentions: scaled dot product, additive, and Eq. 4 as it is printed.

Eq. 4 divides scores eᵀ[W_q d ⊕ W_k p] by their sum, without an exponential: the sum can vanish, and
the query adds one number to all scores of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from idcf.data.datasets.catalog import Dataset
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.results import RunKey
from idcf.evaluation.run import Measurement, make_evaluation_sets, train_and_evaluate
from idcf.paper.figures import COLORS, make_subplots, with_style
from idcf.paper.studies.study import FigureRow, Point, Study, require_dataset, select
from idcf.training.job import Runtime
from idcf.training.train import TrainingJob

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {  # model -> label
    "idcf-nn": "scaled dot product",
    "idcf-nn-additive": "additive",
    "idcf-nn-literal": "literal (Eq. 4)",
}
BASELINE = "bias"
PRESETS = ("clean", "published")
GROUPS = ("new", "few-shot")
_MEASUREMENT = Measurement(("rmse", "ndcg"), rank_catalog=False)


def attention_kinds_points(dataset: str, n_seeds: int) -> list[Point]:
    """Return a point for each attention, preset, group of users and seed, and for the baseline."""
    systems = [(BASELINE, "clean"), *((m, p) for p, m in product(PRESETS, KINDS))]
    return [
        {"dataset": dataset, "model": model, "preset": preset, "users": users, "seed": seed}
        for seed, users, (model, preset) in product(range(n_seeds), GROUPS, systems)
    ]


def measure_attention_kinds(
    point: Point, dataset: Dataset | None, runtime: Runtime
) -> list[FigureRow]:
    """Train IDCF-NN with one attention; return RMSE and NDCG of the query users."""
    data = require_dataset(dataset, point)
    split, split_label = standard_split(data)
    run_key = RunKey(data.name, split_label, point["model"], point["preset"], point["seed"])
    job = TrainingJob(
        split, point["users"], point["preset"], data.name, point["seed"], runtime
    )  # fmt: skip
    sets = make_evaluation_sets(split, [point["users"]])
    result = train_and_evaluate(run_key, job, {}, sets, False, _MEASUREMENT)
    return [
        {
            "metric": row.metric,
            "value": row.value,
            "low": row.low,
            "high": row.high,
            "n_users": row.n_users,
            "split": row.split,
        }
        for row in result.rows
    ]


STUDY = Study("attention-kinds", ("ml-100k",), attention_kinds_points, measure_attention_kinds)


@with_style
def plot_attention_kinds(rows: Sequence[FigureRow]) -> Figure:
    """Draw the RMSE of each attention, one panel per group of users; a dot per seed."""
    figure, axes = make_subplots(1, len(GROUPS), (10.0, 3.6))
    systems = [(model, preset) for model in KINDS for preset in PRESETS][::-1]
    for axis, users in zip(axes[0], GROUPS, strict=True):
        shown = select(rows, users=users, metric="rmse")
        limit = 1.25 * float(np.median([row["high"] for row in shown]))
        for row in shown:
            if (system := (row["model"], row["preset"])) in systems:
                _plot_interval(axis, row, systems.index(system), limit)
        axis.set_xlim(right=limit)
        for row in select(rows, model=BASELINE, users=users, metric="rmse", seed=0):
            axis.axvline(row["value"], color="#444444", ls=":", lw=1.3)
        labels = [f"{KINDS[model]}, {preset}" for model, preset in systems]
        axis.set_yticks(range(len(systems)), labels if axis is axes[0][0] else [""] * len(systems))
        axis.set_ylim(-0.6, len(systems) - 0.4)
        axis.set_title(f"{users.capitalize()} users: RMSE by attention")
        axis.set_xlabel("test RMSE (stars); dotted: bias")
    return figure


def _plot_interval(axis: Axes, row: FigureRow, position: int, limit: float) -> None:
    """Plot a value with its interval; beyond the limit, its number and an arrow."""
    color = COLORS["idcf-nn"] if row["preset"] == "clean" else COLORS["idcf-dot"]
    if row["value"] > limit:
        axis.text(limit, position, f"{row['value']:.1f} →", ha="right", va="center", color=color)
        return
    axis.hlines(position, row["low"], min(row["high"], limit), color=color, lw=2, alpha=0.45)
    axis.plot(row["value"], position, "o", color=color, ms=6)


def describe_attention_kinds(rows: Sequence[FigureRow]) -> str:
    """Return the mean RMSE of each attention, in sentences."""
    parts = []
    for users, preset in product(GROUPS, PRESETS):
        means = {
            label: np.mean([row["value"] for row in chosen])
            for model, label in KINDS.items()
            if (chosen := select(rows, model=model, preset=preset, users=users, metric="rmse"))
        }
        if means:
            cells = "; ".join(f"{label} {value:.3f}" for label, value in means.items())
            parts.append(f"RMSE of {users} users under {preset}: {cells}.")
    return " ".join(parts)


def tabulate_attention_kinds(rows: Sequence[FigureRow]) -> Mapping[str, list[str]]:
    """Return column -> cells for the page: one line per system, preset, group and metric."""
    keys = list(
        dict.fromkeys((row["model"], row["preset"], row["users"], row["metric"]) for row in rows)
    )
    names = ("model", "preset", "users", "metric")
    chosen = [select(rows, **dict(zip(names, key, strict=True))) for key in keys]
    means = [{k: float(np.mean([r[k] for r in x])) for k in ("value", "low", "high")}
             for x in chosen]  # fmt: skip
    return {
        "system": [key[0] for key in keys],
        "preset": [key[1] for key in keys],
        "users": [key[2] for key in keys],
        "metric": [key[3] for key in keys],
        "mean over seeds": [f"{x['value']:.3f} [{x['low']:.3f}, {x['high']:.3f}]" for x in means],
        "seeds": [str(len(x)) for x in chosen],
    }
