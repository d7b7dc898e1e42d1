"""Tables with unusual numbers and shapes, for every model of the registry.

A model gives finite scores and intervals on the scale that it learnt, or refuses the table in a
sentence. A warning of the arithmetic counts as a failure.
"""

from __future__ import annotations

import random
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from attack import Tally

from idcf import Recommender
from idcf.errors import ColdUserError, IdcfError
from idcf.models.registry import all_models, has_option, model_entry

_BLOWN_UP = 1e3  # a score beyond so many times the largest rating
_FAST = {"epochs": 2, "sweeps": 6, "burn_in": 2, "validation": 0.1}
World = Callable[[np.random.Generator], pa.Table]


def run(folder: Path, seed: int, share: float) -> Tally:
    """Fit a share of all pairs of a table and a model."""
    tally, rng = Tally(), random.Random(f"numerical worlds {seed}")
    pairs = [(world, model) for world in WORLDS for model in sorted(all_models())]
    pairs = rng.sample(pairs, max(1, round(share * len(pairs))))
    slowest = 0.0
    for world, model in sorted(pairs):
        begin = time.process_time()
        check_pair(world, model, seed, tally)
        slowest = max(slowest, time.process_time() - begin)
    tally.measured["slowest_cpu_s"] = round(slowest, 1)
    return tally


def check_pair(world: str, model: str, seed: int, tally: Tally) -> None:
    """Fit a model to a table and ask it about a new user; note what should not be."""
    table = WORLDS[world](np.random.default_rng(seed))
    case = f"seed {seed}, {world}, {model}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)
        try:
            problems = ask(fit(model, table, seed), table)
        except IdcfError as error:
            tally.count("refused")
            if not str(error).strip() or "\n" in str(error):
                tally.fail("message", case, repr(error))
            return
        except Exception:
            tally.count("failed")
            tally.fail("traceback", case, traceback.format_exc()[-1200:])
            return
    tally.count("finite" if not problems else "not finite")
    for problem in problems:
        tally.fail("numbers", case, problem)


def fit(name: str, table: pa.Table, seed: int) -> Recommender:
    """Fit a model with options that make it quick."""
    entry = model_entry(name)
    options = dict(entry.check_options)
    if entry.solver is None:
        options["epochs"] = _FAST["epochs"]
    options |= {x: _FAST[x] for x in ("sweeps", "burn_in") if has_option(name, x)}
    sides = {}
    if entry.learns_from_features or name == "idcf-bayes-features":
        for side in ("user", "item"):
            ids = table[f"{side}_id"].unique()
            values = np.arange(len(ids)) % 3
            sides[f"{side}s"] = pa.table({f"{side}_id": ids, "kind": values.astype(float)})
    model = Recommender(name, seed=seed, device="cpu", **options)
    return model.fit(table, **sides)


def ask(model: Recommender, table: pa.Table) -> list[str]:
    """Ask for lists, scores and intervals; return what is wrong with the answers."""
    items = table["item_id"].unique().to_pylist()
    implicit = model.manifest.domain.implicit
    history: Any = items[:2]
    if not implicit:
        ratings = [float(x) for x in table["rating"].to_pylist()[:2]]
        history = dict(zip(history, ratings, strict=False))
    problems = []
    try:
        for given in (history, [] if implicit else {}):
            found = model.recommend(given, n=5)
            problems += not_finite("list", [x.score for x in found])
            problems += off_scale("list", [x.rating for x in found if x.rating is not None], table)
        problems += blown_up(model.predict(history, items), table)
        if model.artifact.model.has_uncertainty:
            interval = model.predict_interval(history, items)
            problems += not_finite("interval", [*interval.low, *interval.high, *interval.std])
            problems += off_scale("interval", [*interval.low, *interval.high], table)
            if (np.asarray(interval.low) > np.asarray(interval.high)).any():
                problems.append("an interval ends before it begins")
    except ColdUserError:  # a model without new users
        users = table["user_id"].to_pylist()[:1]
        found = model.recommend(users=users, n=5)[0]
        problems += not_finite("list of a known user", [x.score for x in found])
    return problems


def not_finite(what: str, values: Sequence[float]) -> list[str]:
    """Return a sentence if a number is not finite."""
    return [] if np.isfinite(np.asarray(values, float)).all() else [f"{what}: {values!r:.200}"]


def off_scale(what: str, values: Sequence[float], table: pa.Table) -> list[str]:
    """Return a sentence if a rating is not on the scale of a table."""
    if "rating" not in table.column_names or not len(values):
        return []
    ratings = np.asarray(table["rating"].to_pylist(), float)
    slack = 1e-5 * np.abs(ratings).max()
    numbers = np.asarray(values, float)
    if numbers.min() >= ratings.min() - slack and numbers.max() <= ratings.max() + slack:
        return []
    return [f"{what}: {values!r:.200} on a scale from {ratings.min():g} to {ratings.max():g}"]


def blown_up(scores: Any, table: pa.Table) -> list[str]:
    """Return a sentence if a score is not finite or far from all ratings."""
    values = np.asarray(scores, float)
    limit = np.inf
    if "rating" in table.column_names:
        limit = _BLOWN_UP * (1 + np.abs(np.asarray(table["rating"].to_pylist(), float)).max())
    if np.isfinite(values).all() and np.abs(values).max() <= limit:
        return []
    return [f"scores: {values!r:.200}"]


def ratings_of(pairs: Any, values: Any) -> pa.Table:
    """Return a table of (user, item) pairs and ratings."""
    user, item = np.asarray(pairs).T
    return pa.table({"user_id": user, "item_id": item, "rating": np.asarray(values, float)})


def drawn(rng: np.random.Generator, n_users: int = 24, n_items: int = 15) -> Any:
    """Return the pairs of a table that is half full; every user has at least two items."""
    mask = rng.random((n_users, n_items)) < 0.5
    mask[:, 0] |= mask.sum(1) < 2
    mask[:, -1] |= mask.sum(1) < 2
    return np.argwhere(mask)


def stars(rng: np.random.Generator, n: int) -> Any:
    """Return ratings from 1 to 5."""
    return rng.integers(1, 6, n)


def scaled(low: float, high: float) -> World:
    """Return how to make a table of ratings between two numbers, both of which occur."""

    def make(rng: np.random.Generator) -> pa.Table:
        pairs = drawn(rng)
        values = low + (high - low) * rng.random(len(pairs))
        values[:2] = low, high
        return ratings_of(pairs, values)

    return make


def block(n_users: int, n_items: int) -> World:
    """Return how to make a table in which everybody rated everything."""

    def make(rng: np.random.Generator) -> pa.Table:
        pairs = np.argwhere(np.ones((n_users, n_items)))
        return ratings_of(pairs, stars(rng, len(pairs)))

    return make


def constant(value: float) -> World:
    """Return how to make a table of one rating."""

    def make(rng: np.random.Generator) -> pa.Table:
        pairs = drawn(rng)
        return ratings_of(pairs, np.full(len(pairs), value))

    return make


def one_outlier(rng: np.random.Generator) -> pa.Table:
    """Ratings from 1 to 5, and one of 1e6."""
    pairs = drawn(rng)
    values = stars(rng, len(pairs)).astype(float)
    values[7] = 1e6
    return ratings_of(pairs, values)


def decades(rng: np.random.Generator) -> pa.Table:
    """Ratings from 1e-5 to 1e5 on a logarithmic scale."""
    pairs = drawn(rng)
    return ratings_of(pairs, 10.0 ** rng.uniform(-5, 5, len(pairs)))


def text_ids(rng: np.random.Generator) -> pa.Table:
    """Integers as text: ids and ratings."""
    pairs = drawn(rng)
    values = stars(rng, len(pairs))
    columns = {"user_id": pairs[:, 0], "item_id": pairs[:, 1], "rating": values}
    return pa.table({name: [str(x) for x in column] for name, column in columns.items()})


def item_of_all(rng: np.random.Generator) -> pa.Table:
    """One item rated by everybody, and otherwise items of one rating each."""
    pairs = [(u, i) for u in range(20) for i in (0, 2 * u + 1, 2 * u + 2)]
    return ratings_of(pairs, stars(rng, len(pairs)))


def duplicated(rng: np.random.Generator) -> pa.Table:
    """Every row three times, with other ratings."""
    pairs = np.repeat(drawn(rng), 3, axis=0)
    return ratings_of(pairs, stars(rng, len(pairs)))


def user_of_all(rng: np.random.Generator) -> pa.Table:
    """A user with everything, and others with two items."""
    pairs = [(0, i) for i in range(40)] + [(u, i) for u in range(1, 20) for i in (u, u + 20)]
    return ratings_of(pairs, stars(rng, len(pairs)))


def disconnected(rng: np.random.Generator) -> pa.Table:
    """Four blocks of users and items that share nothing."""
    pairs = [(u, 6 * (u % 4) + i) for u in range(24) for i in range(6)]
    return ratings_of(pairs, stars(rng, len(pairs)))


def one_row_each(rng: np.random.Generator) -> pa.Table:
    """Users with one rating each, on one item each."""
    return ratings_of([(n, n) for n in range(12)], stars(rng, 12))


def heavy_tail(rng: np.random.Generator) -> pa.Table:
    """Few items with most of the ratings."""
    pairs = {(int(rng.integers(30)), int(min(rng.pareto(0.6), 60))) for _ in range(400)}
    return ratings_of(sorted(pairs), stars(rng, len(pairs)))


def clicks(n_users: int, n_items: int, density: float = 0.4) -> World:
    """Return how to make a table without ratings."""

    def make(rng: np.random.Generator) -> pa.Table:
        mask = rng.random((n_users, n_items)) < density
        mask[np.arange(n_users), np.arange(n_users) % n_items] = True
        user, item = np.argwhere(mask).T
        return pa.table({"user_id": user, "item_id": item})

    return make


WORLDS: dict[str, World] = {
    "one user": block(1, 12),
    "two users": block(2, 12),
    "two items": block(20, 2),
    "one item": block(20, 1),
    "3 users x 2 items": block(3, 2),
    "everybody rated everything": block(15, 8),
    "all ratings 3": constant(3.0),
    "all ratings 0": constant(0.0),
    "from 0 to 1": scaled(0.0, 1.0),
    "from -10 to 10": scaled(-10.0, 10.0),
    "from -5 to -1": scaled(-5.0, -1.0),
    "1e-5 to 1e5": decades,
    "0 to 1e5": scaled(0.0, 1e5),
    "0 to 1e8": scaled(0.0, 1e8),
    "0 to 1e-8": scaled(0.0, 1e-8),
    "1e6 to 1e6 + 4": scaled(1e6, 1e6 + 4),
    "an outlier of 1e6": one_outlier,
    "integers as text": text_ids,
    "an item of all users": item_of_all,
    "duplicated rows": duplicated,
    "a user of all items": user_of_all,
    "disconnected blocks": disconnected,
    "one row each": one_row_each,
    "heavy tail": heavy_tail,
    "clicks": clicks(24, 15),
    "clicks on one item": clicks(20, 1),
    "clicks on two items": clicks(20, 2),
    "clicks on everything": clicks(12, 10, 1.0),
}
