"""Coverage of the 90 % intervals of `idcf-bayes` on the public datasets and on small tables.

A small table is a part of a public one: some users at random, a random part of the rows of each (a
different part for each user, so that some have short histories), another rating scale. New users
are absent from training; few-shot users and all users are predicted by a model that is trained on
all training rows. `share` is the coverage pooled over rows, `std_error` what chance alone makes of
it, with users as clusters. Tables and seeds that the file of --out has are not measured again.

    python benchmarks/coverage.py [--seeds 1] [--out FILE.jsonl] small ml-100k douban ml-1m
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from idcf.data.interactions import Floats, Interactions
from idcf.data.split import Split, hold_out_rows, split_by_threshold
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.inference.scoring import interaction_std, score_interactions
from idcf.metrics.calibration import interval_coverage
from idcf.models.base import Model
from idcf.rng import random_stream
from idcf.training.train import TrainingJob, train

LEVEL, TEST_SHARE = 0.9, 0.2
Row = dict[str, object]


class SmallTable(NamedTuple):
    """How a small table is drawn."""

    dataset: str
    users: int
    rows: float  # mean share of a user's rows
    threshold: int  # training rows of a key user
    scale: str = "stars"
    seed: int = 0


SMALL_TABLES = (
    SmallTable("ml-100k", 200, 0.25, 10),
    SmallTable("ml-100k", 300, 0.4, 30),
    SmallTable("ml-100k", 400, 0.2, 10, "1 to 10"),
    SmallTable("ml-100k", 500, 0.15, 10),
    SmallTable("ml-100k", 600, 0.1, 5, "half stars"),
    SmallTable("ml-100k", 700, 0.2, 20, "1 to 10"),
    SmallTable("ml-100k", 800, 0.1, 5),
    SmallTable("ml-100k", 900, 0.4, 20),
    SmallTable("douban", 200, 1.0, 20, "half stars"),
    SmallTable("douban", 300, 1.0, 30),
    SmallTable("douban", 500, 0.7, 10, "1 to 10"),
    SmallTable("douban", 800, 0.5, 10),
    SmallTable("douban", 1200, 0.5, 5),
    SmallTable("douban", 2000, 0.3, 5, "half stars"),
    SmallTable("ml-1m", 250, 0.2, 10),
    SmallTable("ml-1m", 400, 0.15, 10, "half stars"),
    SmallTable("ml-1m", 700, 0.1, 5),
    SmallTable("ml-1m", 1000, 0.15, 20),
    SmallTable("ml-1m", 1500, 0.1, 10, "1 to 10"),
    SmallTable("ml-1m", 2000, 0.08, 5),
)


def main() -> None:
    """Print the rows of each table and seed, and append them to --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="+", help="small, or names of datasets")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured = _measured(arguments.out)
    for name in arguments.tables:
        for table, dataset, load in splits(name):
            for seed in range(arguments.seeds):
                if (table, seed) in measured:
                    continue
                for row in measure(load(), dataset, seed):
                    line = json.dumps({"table": table, "seed": seed, **row})
                    print(line, flush=True)
                    if arguments.out:
                        with arguments.out.open("a", encoding="utf-8") as file:
                            file.write(line + "\n")


def _measured(file: Path | None) -> set[tuple[str, int]]:
    """Return the tables and seeds whose last row is in a file."""
    if file is None or not file.exists():
        return set()
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {(x["table"], x["seed"]) for x in rows if x["group"] == "all"}


def splits(name: str) -> Iterator[tuple[str, str, Callable[[], Split]]]:
    """Yield name, dataset of the preset, and split of each table: a dataset, or all small ones."""
    if name != "small":
        yield name, name, lambda: standard_split(open_dataset(name, progress=False))[0]
        return
    for table in SMALL_TABLES:
        yield f"{'-'.join(map(str, table))}", "", lambda table=table: small_split(table)


def small_split(table: SmallTable) -> Split:
    """Draw a small table and split it."""
    rng = random_stream(table.seed, "-".join(map(str, table)))
    rows = open_dataset(table.dataset, progress=False).interactions
    users = rng.permutation(np.flatnonzero(rows.user_counts()))[: table.users]
    rows = rows.for_users(np.sort(users))
    share = np.minimum(1, rng.uniform(0, 2 * table.rows, len(rows.users)))
    rows = rows.where(rng.random(len(rows)) < share[rows.user])
    rows = replace(rows, rating=rescale(rows.rating, table.scale, rng))
    return split_by_threshold(*hold_out_rows(rows, TEST_SHARE, rng), table.threshold)


def rescale(stars: Floats, scale: str, rng: np.random.Generator) -> Floats:
    """Return ratings on another scale: a monotone function of the stars, noise, and rounding."""
    if scale == "stars":
        return stars
    if scale == "1 to 10":
        low = 10 * (stars / 5) ** 1.5 + rng.normal(0, 0.7, len(stars))
        return np.clip(np.rint(low), 1, 10).astype(np.float32)
    noisy = stars + rng.normal(0, 0.3, len(stars))
    return np.clip(np.rint(2 * noisy) / 2, 0.5, 5).astype(np.float32)


def measure(split: Split, dataset: str, seed: int) -> Iterator[Row]:
    """Yield the coverage for new users, few-shot users and all users."""
    query_rows = split.test.for_users(split.query_users)
    job = TrainingJob(split, "new", dataset=dataset, seed=seed)
    result = train("idcf-bayes", job)
    yield {"group": "new", **_coverage(result.model, split, query_rows, result.details)}
    job = TrainingJob(split, "few-shot", dataset=dataset, seed=seed)
    result = train("idcf-bayes", job)
    for group, rows in (("few-shot", query_rows), ("all", split.test)):
        yield {"group": group, **_coverage(result.model, split, rows, result.details)}


def _coverage(model: Model, split: Split, rows: Interactions, details: object) -> Row:
    """Return the share of rows inside the intervals, and what they rest on."""
    if not len(rows):
        return {"rows": 0}
    model = model.eval()
    score = score_interactions(model, rows, split.train, anonymous=True)
    std = interaction_std(model, rows, split.train, anonymous=True)
    inside = interval_coverage(
        rows.user, score, std * model.interval_ratio(LEVEL), rows.rating, LEVEL
    )
    share = inside.total.sum() / inside.weight.sum()
    error = np.sqrt(np.square(inside.total - share * inside.weight).sum()) / inside.weight.sum()
    rmse = float(np.sqrt(np.square(score - rows.rating).mean()))
    used = {key: x for key, x in dict(details).items() if key.startswith("interval")}  # type: ignore[call-overload]
    figures = {"share": share, "std_error": error, "rmse": rmse}
    return {
        "key_users": len(split.key_users), "users": len(inside), "rows": len(rows),
        **{key: round(float(x), 4) for key, x in figures.items()}, **used,
    }  # fmt: skip


if __name__ == "__main__":
    main()
