"""Seconds of a training epoch against the number of training ratings.

Each system is trained for three epochs with its own batch size, and the faster of the last two is
timed: the first also fills caches. An epoch includes the making of the batches. IDCF has an epoch
of pretraining and one of adaption. IGMC is timed on smaller shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from idcf.data.datasets.catalog import Dataset
from idcf.evaluation.protocol import standard_split
from idcf.models.registry import model_entry
from idcf.paper.figures import COLORS, make_subplots, use_log_scale, with_style
from idcf.paper.studies.sparsity import thin_split
from idcf.paper.studies.study import FigureRow, Point, Study, require_dataset, select
from idcf.training.checkpoint import TrainingLog
from idcf.training.gradient import fit_standalone
from idcf.training.job import Runtime
from idcf.training.presets import StageConfig, stage_configs
from idcf.training.train import TrainingJob
from idcf.training.two_stage import train_two_stage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = {  # system -> shares of the training ratings
    "gcmc": (0.1, 0.2, 0.4, 0.7, 1.0),
    "idcf-gc": (0.1, 0.2, 0.4, 0.7, 1.0),
    "igmc": (0.01, 0.03, 0.1),
}
N_EPOCHS = 3
SYSTEM_COLORS = {"gcmc": "#56b4e9", "idcf-gc": COLORS["idcf-gc"], "igmc": COLORS["idcf-nn"]}


def scalability_points(dataset: str, n_seeds: int) -> list[Point]:
    """Return a point for each system and share; seeds change nothing of interest."""
    return [
        {
            "dataset": dataset,
            "model": model,
            "share": share,
            "preset": "clean",
            "users": "new",
            "seed": 0,
        }
        for model, shares in SHARES.items()
        for share in shares
    ]


def measure_scalability(point: Point, dataset: Dataset | None, runtime: Runtime) -> list[FigureRow]:
    """Train one system for a few epochs; return the seconds of an epoch of each stage."""
    data, name = require_dataset(dataset, point), point["model"]
    split = thin_split(standard_split(data)[0], point["share"])
    job = TrainingJob(split, "new", point["preset"], data.name, point["seed"], runtime)
    configs = stage_configs(name, preset=point["preset"], dataset=data.name)
    brief = {stage: _brief(config) for stage, config in configs.items()}
    backbone = model_entry(name).backbone
    table = job.training_table()
    logs: Mapping[str, TrainingLog]
    with torch.random.fork_rng():
        if backbone is None:
            logs = {name: fit_standalone(name, job, brief[name], table).log}
        else:
            logs = train_two_stage(name, backbone, job, brief[name], brief[backbone]).logs
    return [
        {
            "stage": "adaption" if backbone and stage == name else "training",
            "seconds_per_epoch": min(log.column("seconds")[1:]),
            "n_ratings": len(table),
            "batch_size": brief[stage].train.batch_size,
        }
        for stage, log in logs.items()
    ]


def _brief(config: StageConfig) -> StageConfig:
    """Return a stage of `N_EPOCHS` epochs without validation."""
    train = replace(config.train, epochs=N_EPOCHS, patience=0)
    return replace(config, train=train, validation=0.0, refit_on_all=False, alternatives=())


STUDY = Study(
    "scalability", ("ml-1m",), scalability_points, measure_scalability, measures_time=True
)


def epoch_seconds(rows: Sequence[FigureRow], model: str) -> list[tuple[int, float]]:
    """Return (number of ratings, seconds of an epoch of all stages), by number of ratings."""
    totals: dict[int, float] = {}
    for row in select(rows, model=model):
        totals[row["n_ratings"]] = totals.get(row["n_ratings"], 0) + row["seconds_per_epoch"]
    return sorted(totals.items())


def microseconds_per_rating(rows: Sequence[FigureRow], model: str) -> float:
    """Return the time of an epoch per rating, at the largest number of ratings."""
    n_ratings, seconds = epoch_seconds(rows, model)[-1]
    return 1e6 * seconds / n_ratings


def log_slope(rows: Sequence[FigureRow], model: str) -> float:
    """Return the slope of log seconds against log ratings: 1 is linear."""
    n_ratings, seconds = np.log(np.array(epoch_seconds(rows, model))).T
    return float(np.polyfit(n_ratings, seconds, 1)[0])


@with_style
def plot_scalability(rows: Sequence[FigureRow]) -> Figure:
    """Draw seconds per epoch against the number of ratings, both on log axes."""
    figure, axes = make_subplots(1, 1, (6.4, 4.4))
    axis = axes[0][0]
    for model in (model for model in SHARES if select(rows, model=model)):
        n_ratings, seconds = zip(*epoch_seconds(rows, model), strict=True)
        label = f"{model} (both stages)" if model_entry(model).backbone else model
        axis.plot(n_ratings, seconds, "o-", color=SYSTEM_COLORS[model], ms=5, label=label)
    use_log_scale(axis, "x", "y")
    axis.set(xlabel="training ratings of key users", ylabel="seconds of a training epoch")
    axis.set_title("Time of an epoch against the number of ratings")
    axis.legend(loc="upper left")
    return figure


def describe_scalability(rows: Sequence[FigureRow]) -> str:
    """Return the time per rating of each system, its slope, and the ratios to GC-MC."""
    models = [model for model in SHARES if len(epoch_seconds(rows, model)) > 1]
    cost = {model: microseconds_per_rating(rows, model) for model in models}
    parts = [
        f"{model} {cost[model]:.1f} µs (slope of the logarithms {log_slope(rows, model):.2f})"
        for model in models
    ]
    text = f"Time of an epoch per rating, at the most ratings timed: {'; '.join(parts)}."
    if {"gcmc", "idcf-gc"} <= {*models}:
        text += f" An epoch of idcf-gc takes {cost['idcf-gc'] / cost['gcmc']:.1f} times that of "
        text += "gcmc"
        if "igmc" in models:
            text += f", one of igmc {cost['igmc'] / cost['idcf-gc']:.0f} times that of idcf-gc"
        text += "."
    return text


def tabulate_scalability(rows: Sequence[FigureRow]) -> Mapping[str, list[str]]:
    """Return column -> cells for the page: one line per system, share and stage."""
    return {
        "system": [row["model"] for row in rows],
        "ratings": [f"{row['n_ratings']:,}" for row in rows],
        "stage": [row["stage"] for row in rows],
        "batch": [f"{row['batch_size']:,}" for row in rows],
        "seconds per epoch": [f"{row['seconds_per_epoch']:.2f}" for row in rows],
    }
