"""The evaluation protocol: which rows of a dataset are held out, and which users are new.

The split depends on its seed only; the seeds of the models never change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from idcf.data.datasets.catalog import DATASET_SOURCES, Dataset, DatasetSource, load_dataset
from idcf.data.interactions import Interactions
from idcf.data.missing_values import MissingRule
from idcf.data.readers import DuplicateRule, read_interactions, read_train_test
from idcf.data.split import (
    DEFAULT_KEY_THRESHOLD,
    Split,
    SplitProtocol,
    default_key_threshold,
    hold_out_last_rows,
    hold_out_rows,
    split_at_random,
    split_by_key_users,
    split_in_time,
    split_strong,
)
from idcf.errors import ConfigError, DataError, unknown_name_message
from idcf.rng import random_stream

TEST_SHARE = 0.1  # of the ratings, held out where there is no official split
TEST_SHARE_BY_DATASET = {"ml-100k": 0.2}  # a copy without u1 gets a test part of the size of u1's
TEST_POSITIVES_PER_USER = 10  # held out of implicit feedback; fewer in files of short histories
LAST_ROWS_PER_USER = 1  # held out by the split "last"
TEMPORAL_SHARE = 0.2  # of the rows, the last ones in time
STRONG_USER_SHARE = 0.2  # of the users, held out whole
STRONG_TARGET_SHARE = 0.2  # of a held-out user's rows, to be predicted
PROTOCOLS: tuple[str, ...] = (*get_args(SplitProtocol), "last")
IMPLICIT_SUFFIX = "-had"  # names a rated dataset that is read as implicit feedback


@dataclass(frozen=True)
class SplitRule:
    """What the standard splits of one dataset differ in."""

    threshold: int | None = None  # training rows of a key user (δ); that of the dataset by default
    gamma: float | None = None  # probability of being a key user; replaces the threshold
    # seed of test rows that are drawn at random, also where the dataset has official ones
    draw: int | None = None

    def label(self, default_threshold: int) -> str:
        """Return how key users are chosen, "gamma=0.5" or "delta=30", the end of a split's name; a
        rule without gamma or threshold has `default_threshold`, that of the dataset."""
        if self.gamma is not None:
            return f"gamma={self.gamma:g}"
        return f"delta={default_threshold if self.threshold is None else self.threshold}"


def open_dataset(
    source: Any,
    *,
    test: Any = None,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
    missing: MissingRule = "error",
    weight: str | None = None,
    duplicates: DuplicateRule = "last",
    progress: bool = True,
) -> Dataset:
    """Open a public dataset by name, or a file or table of interactions.

    A table is whatever `read_interactions` reads, with its `missing`, `weight` and `duplicates`. It
    may come with one of `test` rows and with `columns` (our names -> those in the table).
    `implicit`: True ignores ratings, False requires them. Raises `DataError` if there is no such
    dataset or file, or an option does not fit it.
    """
    name = str(source) if isinstance(source, str | Path) else "table"
    if isinstance(source, str) and source in DATASET_SOURCES:
        has_table_options = test is not None or bool(columns)
        has_table_options |= weight is not None or duplicates != "last"
        return _open_public_dataset(source, has_table_options, implicit, progress)
    if isinstance(source, str) and not Path(source).suffix and not Path(source).exists():
        message = unknown_name_message("dataset", source, DATASET_SOURCES)
        raise DataError(f"{message}; or give the path of a file")
    if test is None:
        table = read_interactions(
            source,
            columns=columns,
            implicit=implicit,
            missing=missing,
            weight=weight,
            duplicates=duplicates,
        )
        return Dataset(name, table, None, None, {}, DEFAULT_KEY_THRESHOLD)
    if weight is not None or duplicates != "last":
        raise ConfigError("weights are for a table without test rows; leave them out, or the test")
    train, test_rows = read_train_test(
        source, test, columns=columns, implicit=implicit, missing=missing
    )
    whole = train.concat(test_rows)
    return Dataset(name, whole, train, test_rows, {}, DEFAULT_KEY_THRESHOLD)


def standard_split(
    dataset: Dataset,
    *,
    seed: int = 0,
    threshold: int | None = None,
    key_users: str | int = "threshold",
    gamma: float | None = None,
    draw: int | None = None,
) -> tuple[Split, str]:
    """Split a dataset as every evaluation does; return the split and its name, such as
    "random-10%-seed0, delta=30".

    Test rows: the official ones where the dataset has them. Otherwise a random share of the ratings
    or, for implicit feedback, `TEST_POSITIVES_PER_USER` random positives of each user; where half
    the users of a file have no more than that, half the median. Key users: `threshold`, `gamma` and
    `draw` are those of `SplitRule`, and `draw` replaces `seed`; the threshold of a file is by
    default that of `fit`. `key_users` says how many of the users above the threshold are key users,
    as in `split_by_key_users`, the others being treated as new users.
    """
    seed = seed if draw is None else draw
    table, rng = dataset.interactions, np.random.default_rng(seed)
    is_official = dataset.train is not None and draw is None
    n_positives = _n_positives(dataset)
    if dataset.train is not None and dataset.test is not None and draw is None:
        train, test = dataset.train, dataset.test
    elif table.implicit:
        train, test = hold_out_last_rows(table, n_positives, rng)
    else:
        train, test = hold_out_rows(table, TEST_SHARE_BY_DATASET.get(dataset.name, TEST_SHARE), rng)
    holdout = _holdout_label(dataset.name, table.implicit, is_official, seed, n_positives)
    if gamma is not None:
        split = split_at_random(train, test, gamma, random_stream(seed, "key users"))
        return split, f"{holdout}, {SplitRule(threshold, gamma).label(dataset.key_threshold)}"
    return _split_key_users(dataset, train, test, holdout, threshold, key_users, seed)


def make_split(
    dataset: Dataset,
    protocol: str = "standard",
    *,
    seed: int = 0,
    threshold: int | None = None,
    key_users: str | int = "threshold",
) -> tuple[Split, str]:
    """Split a dataset by a protocol of `PROTOCOLS`; return the split and its name.

    "standard" is `standard_split`, with its options. "temporal" is `data.split.split_in_time`, with
    the name "temporal-20%". "strong" is `data.split.split_strong`, with a name such as
    "strong-20%-seed0". Both make key users of all users that are not held out. "last" holds out the
    last row of each user in time, with the key users of "standard" and a name such as
    "last-1, delta=30". All three split all rows of the dataset, also where it has official test
    rows.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(unknown_name_message("split", protocol, PROTOCOLS))
    if protocol == "standard":
        return standard_split(dataset, seed=seed, threshold=threshold, key_users=key_users)
    if protocol != "last" and (threshold is not None or key_users != "threshold"):
        raise ConfigError(
            f"the split {protocol!r} makes key users of all users that are not held out: leave out "
            "--key-threshold and --key-users, or choose --split standard"
        )
    if dataset.test is not None and not _is_public(dataset):
        raise ConfigError(
            f"the split {protocol!r} chooses the test rows itself: leave out --test, or choose "
            "--split standard"
        )
    if protocol == "last":
        train, test = _hold_out_last_in_time(dataset.interactions)
        holdout = f"last-{LAST_ROWS_PER_USER}"
        return _split_key_users(dataset, train, test, holdout, threshold, key_users, seed)
    if protocol == "temporal":
        split = split_in_time(dataset.interactions, TEMPORAL_SHARE)
        return split, f"temporal-{TEMPORAL_SHARE:.0%}"
    rng = random_stream(seed, "strong generalization")
    split = split_strong(dataset.interactions, STRONG_USER_SHARE, STRONG_TARGET_SHARE, rng)
    return split, f"strong-{STRONG_USER_SHARE:.0%}-seed{seed}"


def split_name(source: DatasetSource, rule: SplitRule) -> str:
    """Return the name that `standard_split` gives with seed 0, without reading the dataset."""
    is_official = bool(source.expected_counts[0].train) and rule.draw is None
    holdout = _holdout_label(source.name, source.implicit, is_official, rule.draw or 0)
    return f"{holdout}, {rule.label(source.key_threshold)}"


def _open_public_dataset(
    name: str, has_file_options: bool, implicit: bool | None, progress: bool
) -> Dataset:
    """Load a dataset of the catalogue, as implicit feedback if asked for."""
    has_ratings = not DATASET_SOURCES[name].implicit
    if has_file_options:
        raise DataError(
            f"{name} has its own split and columns; give the path of a file to choose yours"
        )
    if implicit is False and not has_ratings:
        raise DataError(f"{name} has no ratings; leave out --no-implicit")
    dataset = load_dataset(name, progress=progress)
    return _as_implicit(dataset) if implicit and has_ratings else dataset


def _as_implicit(dataset: Dataset) -> Dataset:
    """Drop the ratings of a dataset and mark its name."""
    return replace(
        dataset,
        name=dataset.name + IMPLICIT_SUFFIX,
        interactions=dataset.interactions.as_implicit(),
        train=None if dataset.train is None else dataset.train.as_implicit(),
        test=None if dataset.test is None else dataset.test.as_implicit(),
    )


def _is_public(dataset: Dataset) -> bool:
    """Return whether a dataset is one of the catalogue."""
    return dataset.name.removesuffix(IMPLICIT_SUFFIX) in DATASET_SOURCES


def _n_positives(dataset: Dataset) -> int:
    """Return how many positives of each user are held out of implicit feedback."""
    counts = dataset.interactions.user_counts()
    median = int(np.median(counts[counts > 0])) if len(dataset.interactions) else 0
    if _is_public(dataset) or median > TEST_POSITIVES_PER_USER:
        return TEST_POSITIVES_PER_USER
    return max(1, median // 2)


def _hold_out_last_in_time(table: Interactions) -> tuple[Interactions, Interactions]:
    """Split rows into training and test table: the last rows of each user in time are held out."""
    if table.time is None:
        raise DataError(
            "the split 'last' needs a time of every interaction, and this table has none: name the "
            "column (--column timestamp=NAME) or choose --split standard"
        )
    return hold_out_last_rows(table, LAST_ROWS_PER_USER)


def _split_key_users(
    dataset: Dataset,
    train: Interactions,
    test: Interactions,
    holdout: str,
    threshold: int | None,
    key_users: str | int,
    seed: int,
) -> tuple[Split, str]:
    """Split users by activity; return the split and its name, which begins with `holdout`."""
    if threshold is None:
        threshold = dataset.key_threshold
        if not _is_public(dataset) and len(train):
            threshold = min(threshold, default_key_threshold(train.user_counts()))
    split = split_by_key_users(train, test, threshold, key_users, seed)
    name = f"{holdout}, {SplitRule(threshold).label(dataset.key_threshold)}"
    name = name if key_users == "threshold" else f"{name}, key_users={key_users}"
    return replace(split, tasks=dataset.tasks), name


def _holdout_label(
    name: str,
    implicit: bool,
    is_official: bool,
    seed: int,
    n_positives: int = TEST_POSITIVES_PER_USER,
) -> str:
    """Return how test rows were chosen, as it is written in the name of a split."""
    if is_official:
        name = name.removesuffix(IMPLICIT_SUFFIX)
        return {"ml-100k": "u1"}.get(name, "official" if name in DATASET_SOURCES else "given")
    if implicit:
        return f"random-{n_positives}-per-user-seed{seed}"
    return f"random-{TEST_SHARE_BY_DATASET.get(name, TEST_SHARE):.0%}-seed{seed}"
