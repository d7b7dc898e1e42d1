"""The two cases of the paper's comparison of expressiveness, executed in small worlds.

`idcf.testing.expressiveness` has the worlds. A system that cannot tell the two kinds of users apart
gets half of the test ratings on the right side of the middle of the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from idcf.data.datasets.catalog import Dataset
from idcf.data.split import Split
from idcf.inference.scoring import score_interactions
from idcf.paper.figures import COLORS, make_subplots, with_style
from idcf.paper.studies.study import SYNTHETIC, FigureRow, Point, Study, select
from idcf.testing.expressiveness import same_features_world, same_subgraphs_world
from idcf.testing.worlds import train_on_small_split
from idcf.training.job import Runtime

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Contender:
    """A system of the comparison: a model with options."""

    model: str
    color: str
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 60


WORLDS: dict[str, Callable[[], Split]] = {
    "same features": same_features_world,
    "same subgraphs": same_subgraphs_world,
}
_FEATURES = {"user_features": True, "item_features": False, "feature_dropout": 0.0}
CONTENDERS = {
    "nimc (features)": Contender("nimc", "#7f7f7f", _FEATURES),
    "igmc (local graph)": Contender("igmc", COLORS["als"], {"residual": False, "layers": 4}, 40),
    "idcf-nn, d = Σ q (Eq. 4)": Contender("idcf-nn", COLORS["idcf-nn"], {"query": "items"}),
    "idcf-nn, d reads ratings": Contender("idcf-nn", COLORS["idcf-nn"], {"query": "ratings"}),
    "idcf-gc, d = Σ q (Eq. 4)": Contender("idcf-gc", COLORS["idcf-gc"], {"query": "items"}),
    "idcf-bayes": Contender("idcf-bayes", COLORS["idcf-bayes"]),
}
MIDDLE = 3.0  # of the rating scale 1..5


def expressiveness_points(dataset: str, n_seeds: int) -> list[Point]:
    """Return a point for each world, system and seed."""
    return [
        {"dataset": dataset, "world": world, "system": system, "seed": seed}
        for world in WORLDS
        for system in CONTENDERS
        for seed in range(n_seeds)
    ]


def measure_expressiveness(
    point: Point, dataset: Dataset | None, runtime: Runtime
) -> list[FigureRow]:
    """Train a system in a world; return its errors on the test ratings of new users."""
    split, contender = WORLDS[point["world"]](), CONTENDERS[point["system"]]
    model = train_on_small_split(
        contender.model,
        split,
        seed=point["seed"],
        epochs=contender.epochs,
        options=contender.options,
    ).model
    scores = score_interactions(model, split.test, split.train, anonymous=model.ignores_user_ids)
    is_right = (scores > MIDDLE) == (split.test.rating > MIDDLE)
    error = scores.astype(np.float64) - split.test.rating
    return [
        {
            "accuracy": float(is_right.mean()),
            "rmse": float(np.sqrt((error**2).mean())),
            "n_ratings": len(split.test),
        }
    ]


STUDY = Study("expressiveness", (SYNTHETIC,), expressiveness_points, measure_expressiveness)


def accuracies(rows: Sequence[FigureRow], world: str, system: str) -> list[float]:
    """Return the accuracy of a system in a world, for each seed."""
    return [row["accuracy"] for row in select(rows, world=world, system=system)]


@with_style
def plot_expressiveness(rows: Sequence[FigureRow]) -> Figure:
    """Draw the share of test ratings on the right side, one panel per world."""
    figure, axes = make_subplots(1, len(WORLDS), (10.0, 3.8))
    systems = list(CONTENDERS)[::-1]
    for axis, world in zip(axes[0], WORLDS, strict=True):
        for position, system in enumerate(systems):
            values = accuracies(rows, world, system)
            if values:
                color = CONTENDERS[system].color
                axis.barh(position, np.mean(values), color=color, alpha=0.75, height=0.62)
                axis.plot(values, [position] * len(values), "|", color="#222222", ms=10)
        axis.axvline(0.5, color="#222222", ls=":", lw=1.4)
        axis.set_yticks(range(len(systems)), systems if axis is axes[0][0] else [""] * len(systems))
        axis.set_xlim(0, 1.02)
        axis.grid(axis="y", visible=False)
        axis.set_title(f"New users with the {world}")
        axis.set_xlabel("test ratings on the right side (share; dotted: chance)")
    return figure


def describe_expressiveness(rows: Sequence[FigureRow]) -> str:
    """Return the accuracy of each system in both worlds, in sentences."""
    parts = []
    for world in WORLDS:
        values = {system: accuracies(rows, world, system) for system in CONTENDERS}
        cells = [f"{system} {np.mean(x):.2f}" for system, x in values.items() if x]
        parts.append(f"With the {world}: {'; '.join(cells)}")
    return f"Share of test ratings on the right side of 3 stars. {'. '.join(parts)}."
