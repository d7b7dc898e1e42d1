"""Does it pay to ask the right questions? An interview of people whom the model has never met.

A quarter of ML-1M's people are kept from training, and 600 more to try things on. Of each person's
ratings a fifth are guessed afterwards; the rest is what they know. Five questions are asked, one
after the other: by `next_question`, the most popular, or at random.

- *anything*: any item may be asked about; who has not rated it cannot answer, and that question
  is gone.
- *known*: only items that they know are asked about (`next_question(candidates=...)`).

RMSE after the answers, each person counting once and each rating counting once; differences are
paired over people.

    python benchmarks/interview.py [--people tried|test] [--model FOLDER]      prints JSON
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from idcf.data.datasets.catalog import load
from idcf.data.history_reader import Read, as_users
from idcf.data.interactions import Interactions
from idcf.inference.explain import gains
from idcf.metrics import PerUser, bootstrap, difference
from idcf.models.bayes import Bayes
from idcf.recommender import Recommender
from idcf.training.presets import setting

ASKED, AT_ONCE, TEST, TRIED = 5, 25, 1500, 600
Grid = NDArray[np.float32]  # [people, items]
Worth = Callable[[slice, list[Read]], Grid]  # of every item, to some people who told so much


class People(NamedTuple):
    """Ratings in the rows of the model's items; 0 is none."""

    answers: Grid  # what they could tell
    hidden: Grid  # what is guessed


def main(which: str, folder: Path | None) -> list[dict[str, Any]]:
    table = load("ml-1m", progress=False).interactions
    order = np.random.default_rng(0).permutation(len(table.users))
    test, tried, rest = np.split(order, [TEST, TEST + TRIED])
    model = trained(table.of(np.sort(rest)), folder)
    people = met(table, np.sort(test if which == "test" else tried), model)
    print(f"{len(people.answers):,} people, {which}", file=sys.stderr)
    return report(people, model)


def trained(table: Interactions, folder: Path | None) -> Recommender:
    if folder is not None and folder.exists():
        return Recommender.load(folder)
    options = setting("idcf-bayes", dataset="ml-1m").options
    made = Recommender("idcf-bayes", key_threshold=1, **options).fit(table)
    if folder is not None:
        made.save(folder)
    return made


def met(table: Interactions, users: NDArray[np.int64], model: Recommender) -> People:
    ids, rng = model.desk.reader, np.random.default_rng(1)
    row = np.array([ids.row(x) if ids.knows(x) else -1 for x in table.items.ids])
    order, start = table.by_user
    answers, hidden = (np.zeros((len(users), len(model.desk.ids)), np.float32) for _ in range(2))
    for n, user in enumerate(users):
        own = order[start[user] : start[user + 1]]
        own = rng.permutation(own[row[table.item[own]] >= 0])
        cut = max(1, len(own) // 5)
        for grid, rows in ((hidden, own[:cut]), (answers, own[cut:])):
            grid[n, row[table.item[rows]]] = table.rating[rows]
    return People(answers, hidden)


def report(people: People, model: Recommender) -> list[dict[str, Any]]:
    bayes = model.desk.index.model
    assert isinstance(bayes, Bayes)
    known = people.answers > 0
    chance = np.random.default_rng(2).random(known.shape, np.float32)
    popular = bayes.raters.numpy()
    out = []
    for pool, may in (("anything", np.ones_like(known)), ("known", known)):

        def told(some: slice, reads: list[Read], sure: bool = pool == "known") -> Grid:
            found: Grid = gains(bayes, as_users(reads), known=sure).numpy()
            return found

        ways: Mapping[str, Worth] = {
            "next_question": told,
            "popular": lambda some, reads: np.broadcast_to(popular, (len(reads), len(popular))),
            "random": lambda some, reads: chance[some],
        }
        after = {name: interview(people, way, may) for name, way in ways.items()}
        after["nothing"] = np.zeros_like(known)
        errors = {name: wrong(people, x, model) for name, x in after.items()}
        for name, x in after.items():
            out.append({"pool": pool, "asked": name, "answers": float(x.sum(1).mean())})
            out[-1] |= _measured(errors[name], errors["next_question"])
            print(out[-1], file=sys.stderr)
    return out


def interview(people: People, worth: Worth, may: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which items each person told of in the end."""
    left, told = may.copy(), np.zeros_like(may)
    for _ in range(ASKED):
        for some, reads in _parts(people.answers * told):
            best = np.where(left[some], worth(some, reads), -np.inf).argmax(1)
            left[some][np.arange(len(best)), best] = False
            told[some][np.arange(len(best)), best] = (
                people.answers[some][np.arange(len(best)), best] > 0
            )
    return told


def wrong(people: People, told: NDArray[np.bool_], model: Recommender) -> Grid:
    """Sum of squared errors and number of guesses of each person: [people, 2]."""
    parts = []
    for some, reads in _parts(people.answers * told):
        truth = people.hidden[some]
        off = (model.desk.index.scores(as_users(reads)).numpy() - truth) * (truth > 0)
        parts.append(np.stack([(off**2).sum(1), (truth > 0).sum(1)], 1))
    return np.concatenate(parts)


def _parts(told: Grid) -> Iterator[tuple[slice, list[Read]]]:
    """Some people at a time, so that memory stays bounded."""
    for start in range(0, len(told), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        yield some, [Read(np.flatnonzero(x), x[x > 0]) for x in told[some]]


def _measured(mine: Grid, ours: Grid) -> dict[str, Any]:
    """RMSE, and by how much that after our questions is lower."""
    out: dict[str, Any] = {}
    for unit in ("people", "ratings"):
        (a, n), (b, _) = _weighted(mine, unit), _weighted(ours, unit)
        rng, who = np.random.default_rng(0), np.arange(len(n))
        value = bootstrap(a, n, statistic="rmse", rng=rng)
        gap = difference(PerUser(who, b, n), PerUser(who, a, n), statistic="rmse", rng=rng)
        out[f"rmse, {unit} alike"] = [round(float(x), 4) for x in value]
        out[f"next_question less this, {unit} alike"] = [round(float(x), 4) for x in gap]
    return out


def _weighted(found: Grid, unit: str) -> tuple[Any, Any]:
    total, n = found.astype(np.float64).T
    return (total / n, np.ones_like(n)) if unit == "people" else (total, n)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ask newcomers five questions.")
    parser.add_argument("--people", choices=("tried", "test"), default="test")
    parser.add_argument("--model", type=Path, help="where the trained model is kept, or goes")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(main(asked.people, asked.model), indent=2))
