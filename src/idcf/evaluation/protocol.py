"""Which rows are held out of a dataset, and who counts as a newcomer.

The split is fixed by its own seed; the seeds of the models never change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from idcf.data.datasets.catalog import SOURCES, Dataset, Source, load
from idcf.data.readers import read_interactions, read_split
from idcf.data.split import Split, among, at_random, hold_out, last_n
from idcf.errors import DataError, unknown
from idcf.rng import stream

SHARE = 0.1  # of the ratings, held out where there is no official split
SHARES = {"ml-100k": 0.2}  # RecBole's copy has no u1: as large a test part as u1's
POSITIVES = 10  # of each user, held out of implicit feedback
HAD = "-had"  # a data set with ratings, of which only who had what is used; no preset is for it


@dataclass(frozen=True)
class Cut:
    """Who is a key user: whoever has `threshold` training rows, or each with chance `gamma`."""

    threshold: int | None = None  # None: the data set's own
    gamma: float | None = None

    def label(self, threshold: int) -> str:
        if self.gamma is not None:
            return f"gamma={self.gamma:g}"
        return f"delta={threshold if self.threshold is None else self.threshold}"


def open_dataset(
    source: str,
    *,
    test: str | None = None,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
    progress: bool = True,
) -> Dataset:
    """A dataset of the table by its name, or a person's own file, with a test file or without.
    `implicit` takes who had what of either, and leaves the ratings."""
    if source in SOURCES:
        if test or columns:
            raise DataError(f"{source} has its own split and columns; give a file to bring yours")
        if implicit is False and SOURCES[source].implicit:
            raise DataError(f"{source} has no ratings; leave out --no-implicit")
        found = load(source, progress=progress)
        return _had(found) if implicit and not SOURCES[source].implicit else found
    if not Path(source).suffix and not Path(source).exists():
        raise DataError(f"{unknown('dataset', source, SOURCES)}; or give the path of a file")
    if test is None:
        table = read_interactions(source, columns=columns, implicit=implicit)
        return Dataset(source, table, None, None, {}, _threshold(table.implicit))
    train, held = read_split(source, test, columns=columns, implicit=implicit)
    return Dataset(source, train.plus(held), train, held, {}, _threshold(train.implicit))


def standard_split(
    dataset: Dataset,
    *,
    seed: int = 0,
    threshold: int | None = None,
    key_users: str | int = "threshold",
    gamma: float | None = None,
) -> tuple[Split, str]:
    """The split everybody is measured on, and its name.

    The official one where there is one. Otherwise a random share of the ratings or, without
    ratings, ten random positives of each user. Key users have `threshold` training rows;
    `key_users` takes fewer of them, and the others are then met as newcomers. With `gamma`, each
    user is a key user with that probability.
    """
    table, rng = dataset.interactions, np.random.default_rng(seed)
    official = dataset.train is not None and dataset.test is not None
    how = _how(dataset.name, table.implicit, official, seed)
    if dataset.train is not None and dataset.test is not None:
        train, test = dataset.train, dataset.test
    elif table.implicit:
        train, test = last_n(table, POSITIVES, rng)
    else:
        train, test = hold_out(table, SHARES.get(dataset.name, SHARE), rng)
    name = f"{how}, {Cut(threshold, gamma).label(dataset.threshold)}"
    if gamma is not None:
        return at_random(train, test, gamma, stream(seed, "key users")), name
    delta = dataset.threshold if threshold is None else threshold
    split = among(train, test, delta, key_users, seed)
    return split, name if key_users == "threshold" else f"{name}, key_users={key_users}"


def _had(dataset: Dataset) -> Dataset:
    whole, train, test = (
        None if x is None else x.had() for x in (dataset.interactions, dataset.train, dataset.test)
    )
    assert whole is not None
    name = dataset.name + HAD
    return replace(dataset, name=name, interactions=whole, train=train, test=test)


def split_name(source: Source, cut: Cut) -> str:
    """The name that `standard_split` gives, known without the data (of its first edition)."""
    how = _how(source.name, source.implicit, bool(source.counts[0].train), 0)
    return f"{how}, {cut.label(source.threshold)}"


def _how(name: str, implicit: bool, official: bool, seed: int) -> str:
    if official:
        name = name.removesuffix(HAD)
        return {"ml-100k": "u1"}.get(name, "official" if name in SOURCES else "given")
    if implicit:
        return f"random-{POSITIVES}-per-user-seed{seed}"
    return f"random-{SHARES.get(name, SHARE):.0%}-seed{seed}"


def _threshold(implicit: bool) -> int:
    """The paper's δ."""
    return 20 if implicit else 30
