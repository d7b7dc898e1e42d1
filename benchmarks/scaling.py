"""Does training cost grow linearly with the ratings? Seconds of an epoch on 0.1 … 1.0 of ML-1M.

    python benchmarks/scaling.py [--quick] [--plot FILE]
prints {"measurements": [...], "notes": [...]}
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from adaption import Measurement, measurement

from idcf.data import batches
from idcf.data.datasets.catalog import find, load
from idcf.data.interactions import Interactions, Ints
from idcf.models.base import Model
from idcf.models.registry import configure, model_entry
from idcf.rng import stream
from idcf.testing.synthetic import at_scale
from idcf.training.loop import fit
from idcf.training.objectives import Ridge, adapt, factorise
from idcf.training.presets import setting
from idcf.types import Batch, Users

SHARES = tuple(n / 10 for n in range(1, 11))
THRESHOLD, DATASET = 30, "ml-1m"


def measure(quick: bool = False, plot: Path | None = None) -> tuple[list[Measurement], list[str]]:
    """All measurements, and remarks for the report; and the picture, where it is wanted."""
    torch.set_num_threads(1)
    name, table = _table(quick)
    shares, passes = (SHARES[1::4], 1) if quick else (SHARES, 2)
    jobs = {"pmf pretraining": pretraining, "idcf-dot adaption": adaption}
    order = np.argsort(stream(0, "scaling").random(len(table)))
    parts = [table.where(np.sort(order[: round(x * len(table))])) for x in shares]
    seconds = {job: [float("inf")] * len(shares) for job in jobs}
    for _ in range(passes):  # a busy spell of the machine falls on all sizes, and the best counts
        for at, part in enumerate(parts):
            for job, call in jobs.items():
                seconds[job][at] = min(seconds[job][at], call(part))
            print([round(x[at], 3) for x in seconds.values()], file=sys.stderr)
    rows = [len(x) for x in parts]
    out, notes = [], [f"scaling on {name}: {table!r}", "rows: " + ", ".join(map(str, rows))]
    for job, values in seconds.items():
        squared, exponent = fits(rows, values)
        out += [
            measurement(f"{job}, epoch on all rows", values[-1], "s", False),
            measurement(f"{job}, rows per second", rows[-1] / values[-1], "rows/s", True),
            measurement(f"{job}, R² of a straight line", squared, "R²", True),
            measurement(f"{job}, exponent of seconds ~ rows^x", exponent, "x", False),
        ]
        notes.append(f"seconds of an epoch, {job}: " + ", ".join(f"{x:.4g}" for x in values))
    if plot:
        draw(plot, name, rows, seconds)
    return out, notes


def fits(rows: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """R² of a straight line, and the slope between logarithms."""
    x, y = np.array(rows, float), np.array(seconds)
    left = y - np.polyval(np.polyfit(x, y, 1), x)
    exponent = np.polyfit(np.log(x), np.log(y), 1)[0]
    return float(1 - (left**2).sum() / ((y - y.mean()) ** 2).sum()), float(exponent)


def pretraining(table: Interactions) -> float:
    """Seconds of one epoch of PMF."""
    chosen = setting("pmf", dataset=DATASET)
    train = chosen.train
    counts = [torch.from_numpy(n).float() for n in (table.counts(), table.item_counts())]
    penalty = Ridge(*counts, train.reg, train.row_reg, train.bias_reg)

    def epoch(number: int) -> Iterator[Batch]:
        return batches.rows(table, None, size=train.batch_size, rng=stream(0, "pmf", number))

    return fit(_backbone(table), epoch, factorise(penalty), train, epochs=1).records[0]["seconds"]


def adaption(table: Interactions) -> float:
    """Seconds of one epoch of IDCF-dot; the weights before it are random, which costs the same."""
    chosen = setting("idcf-dot", dataset=DATASET)
    keys: Ints = np.flatnonzero(table.counts())
    people = Users(torch.from_numpy(keys), table.history(keys))
    config = configure("idcf-dot", chosen.options)
    model = model_entry("idcf-dot").model_class(config, _backbone(table), people)
    asked: dict[str, Any] = {"lengths": chosen.lengths, "targets": chosen.targets}

    def epoch(number: int) -> Iterator[Batch]:
        rng = stream(0, "idcf-dot", number)
        return batches.episodes(table, size=chosen.train.batch_size, rng=rng, **asked)

    objective = adapt(chosen.train.contrast)
    return fit(model, epoch, objective, chosen.train, epochs=1).records[0]["seconds"]


def draw(path: Path, name: str, rows: Sequence[int], seconds: dict[str, list[float]]) -> None:
    """Points and straight lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    x = np.array(rows, float)
    for job, values in seconds.items():
        squared, exponent = fits(rows, values)
        (points,) = axes.plot(
            x, values, "o", label=f"{job}: R² {squared:.3f}, ~ rows^{exponent:.2f}"
        )
        line = np.polyval(np.polyfit(x, values, 1), x)
        axes.plot(x, line, "-", linewidth=1, color=points.get_color())
    axes.set(xlabel=f"ratings ({name})", ylabel="seconds an epoch, one thread", ylim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _backbone(table: Interactions) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        options = setting("pmf", dataset=DATASET).options
        return model_entry("pmf").model_class(configure("pmf", options), table.domain())


def _table(quick: bool) -> tuple[str, Interactions]:
    """Key users' rows of ML-1M where it is at hand, else of a world of its size."""
    rng = stream(0, "world")
    if quick:
        name, table = "a small synthetic world", at_scale(5000, rng, users=200, items=200)
    elif find(DATASET) is None:
        name, table = "a synthetic world", at_scale(1_000_000, rng, users=6040, items=3706)
    else:
        name, table = DATASET, load(DATASET, progress=False).interactions
    return name, table.of(np.flatnonzero(table.counts() >= (5 if quick else THRESHOLD)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path)
    measurements, remarks = measure(**vars(parser.parse_args()))
    print(json.dumps({"measurements": measurements, "notes": remarks}))
