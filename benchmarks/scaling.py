"""Time of a training epoch against the number of ratings: 0.1 … 1.0 of ML-1M, on one thread.

    python benchmarks/scaling.py [--quick] [--plot FILE]
prints {"measurements": [...], "notes": [...]}
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from adaption import train_backbone
from serving import Measurement, measurement

from idcf.data import batches
from idcf.data.datasets.catalog import find_dataset_folder, load_dataset
from idcf.data.interactions import Interactions, Ints
from idcf.models.base import Model
from idcf.models.registry import configure, model_entry
from idcf.rng import random_stream
from idcf.testing.synthetic import long_tailed
from idcf.training.loop import fit_by_gradient
from idcf.training.objectives import adaption_objective
from idcf.training.presets import stage_config
from idcf.types import Batch, Users

SHARES = tuple(n / 10 for n in range(1, 11))
KEY_THRESHOLD, DATASET = 30, "ml-1m"


def measure(
    quick: bool = False, plot_path: Path | None = None
) -> tuple[list[Measurement], list[str]]:
    """Return all measurements and notes for the report; draw a figure if a path is given."""
    torch.set_num_threads(1)
    name, table = _key_user_ratings(quick)
    shares, n_passes = (SHARES[1::4], 1) if quick else (SHARES, 2)
    stages = {"pmf pretraining": pretraining_seconds, "idcf-dot adaption": adaption_seconds}
    order = np.argsort(random_stream(0, "scaling").random(len(table)))
    tables = [table.where(np.sort(order[: round(x * len(table))])) for x in shares]
    seconds = {stage: [float("inf")] * len(shares) for stage in stages}
    for _ in range(n_passes):  # the best pass counts: other load would distort single times
        for at, part in enumerate(tables):
            for stage, time_epoch in stages.items():
                seconds[stage][at] = min(seconds[stage][at], time_epoch(part))
            print([round(x[at], 3) for x in seconds.values()], file=sys.stderr)
    n_rows = [len(x) for x in tables]
    measurements: list[Measurement] = []
    notes = [f"scaling on {name}: {table!r}", "rows: " + ", ".join(map(str, n_rows))]
    for stage, values in seconds.items():
        r_squared, exponent = fit_line(n_rows, values)
        measurements += [
            measurement(f"{stage}, epoch on all rows", values[-1], "s", False),
            measurement(f"{stage}, rows per second", n_rows[-1] / values[-1], "rows/s", True),
            measurement(f"{stage}, R² of a straight line", r_squared, "R²", True),
            measurement(f"{stage}, exponent of seconds ~ rows^x", exponent, "x", False),
        ]
        notes.append(f"seconds of an epoch, {stage}: " + ", ".join(f"{x:.4g}" for x in values))
    if plot_path:
        draw(plot_path, name, n_rows, seconds)
    return measurements, notes


def fit_line(n_rows: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return R² of a straight line, and the exponent x of seconds ~ rows^x."""
    x, y = np.array(n_rows, float), np.array(seconds)
    residuals = y - np.polyval(np.polyfit(x, y, 1), x)
    exponent = np.polyfit(np.log(x), np.log(y), 1)[0]
    return float(1 - (residuals**2).sum() / ((y - y.mean()) ** 2).sum()), float(exponent)


def pretraining_seconds(table: Interactions) -> float:
    """Return the seconds of one epoch of PMF."""
    train = stage_config("pmf", dataset=DATASET).train
    return train_backbone(_untrained_pmf(table), table, train, 1, stream="pmf")[0]["seconds"]


def adaption_seconds(table: Interactions) -> float:
    """Return the seconds of one epoch of IDCF-dot, on an untrained backbone."""
    config = stage_config("idcf-dot", dataset=DATASET)
    keys: Ints = np.flatnonzero(table.user_counts())
    key_users = Users(torch.from_numpy(keys), table.history(keys))
    options = configure("idcf-dot", config.options)
    model = model_entry("idcf-dot").build_around(options, _untrained_pmf(table), key_users)

    def epoch_batches(epoch: int) -> Iterator[Batch]:
        return batches.episode_batches(
            table,
            batch_size=config.train.batch_size,
            history_lengths=config.history_lengths,
            targets_per_episode=config.targets_per_episode,
            rng=random_stream(0, "idcf-dot", epoch),
        )

    objective = adaption_objective(config.train.contrast)
    log = fit_by_gradient(model, epoch_batches, objective, config.train, n_epochs=1)
    return log.records[0]["seconds"]


def draw(path: Path, name: str, n_rows: Sequence[int], seconds: dict[str, list[float]]) -> None:
    """Draw the times of each stage as points, with a straight line, and save the figure."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    x = np.array(n_rows, float)
    for stage, values in seconds.items():
        r_squared, exponent = fit_line(n_rows, values)
        label = f"{stage}: R² {r_squared:.3f}, ~ rows^{exponent:.2f}"
        (points,) = axes.plot(x, values, "o", label=label)
        line = np.polyval(np.polyfit(x, values, 1), x)
        axes.plot(x, line, "-", linewidth=1, color=points.get_color())
    axes.set(xlabel=f"ratings ({name})", ylabel="seconds an epoch, one thread", ylim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _untrained_pmf(table: Interactions) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        options = stage_config("pmf", dataset=DATASET).options
        return model_entry("pmf").build(configure("pmf", options), table.domain())


def _key_user_ratings(quick: bool) -> tuple[str, Interactions]:
    """Return key users' rows of ML-1M, or of synthetic data if it is not installed; and a name."""
    rng = random_stream(0, "world")
    if quick:
        name, table = "small synthetic data", long_tailed(5000, rng, n_users=200, n_items=200)
    elif find_dataset_folder(DATASET) is None:
        name, table = "synthetic data", long_tailed(1_000_000, rng, n_users=6040, n_items=3706)
    else:
        name, table = DATASET, load_dataset(DATASET, progress=False).interactions
    threshold = 5 if quick else KEY_THRESHOLD
    return name, table.for_users(np.flatnonzero(table.user_counts() >= threshold))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    measurements, notes = measure(options.quick, options.plot)
    print(json.dumps({"measurements": measurements, "notes": notes}))
