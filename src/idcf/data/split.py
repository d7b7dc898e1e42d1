"""Who is trained on, who is met only later, and what is held out of each.

The same seed gives the same split anywhere: draws depend on nothing but the generator given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from idcf.data.interactions import Interactions, Ints, Mask, group
from idcf.errors import ConfigError, DataError, unknown

PRIOR = 5.0  # raters that what is known of any item is worth
ROUNDS = 64
LEFT = 0.005


@dataclass(frozen=True)
class Split:
    """Roles, not tuples. `train` holds the histories of query users too: who may train on
    them is the recipe's choice, and in the *new user* setting nobody may."""

    train: Interactions
    test: Interactions
    key_users: Ints  # many ratings: the backbone is trained on these
    query_users: Ints  # few ratings: the relation model must answer for these


@dataclass(frozen=True)
class Task:
    """Rows to predict, and what may be read of their users while doing so."""

    seen: Interactions
    rows: Interactions


def by_threshold(train: Interactions, test: Interactions, threshold: int) -> Split:
    """Key users have at least `threshold` training ratings (the paper's δ)."""
    counts = train.counts()
    return _split(train, test, counts >= threshold, f"threshold {threshold}")


def at_random(
    train: Interactions, test: Interactions, gamma: float, rng: np.random.Generator
) -> Split:
    """Each user is a key user with probability `gamma` (the paper's random split)."""
    if not 0 < gamma < 1:
        raise DataError(f"gamma must lie strictly between 0 and 1, got {gamma}")
    return _split(train, test, rng.random(len(train.users)) < gamma, f"gamma {gamma}")


def among(
    train: Interactions, test: Interactions, threshold: int, keys: str | int, seed: int = 0
) -> Split:
    """Key users by threshold, or fewer of those: "random" takes half of them, "informative" as
    many as leave the items nearly as well known, a number that many informative ones."""
    split = by_threshold(train, test, threshold)
    if keys == "threshold":
        return split
    found = split.key_users
    if keys == "random":
        chosen = sample_users(found, 0.5, np.random.default_rng(seed))
    elif keys == "informative" or (isinstance(keys, int) and not isinstance(keys, bool)):
        if isinstance(keys, int) and not 1 <= keys <= len(found):
            raise DataError(
                f"key_users is {keys}, but {len(found)} users have {threshold} rows or more: give "
                f"a number from 1 to {len(found)}, or another threshold"
            )
        chosen = informative(train, found, keys if isinstance(keys, int) else None)
    else:
        known = ("threshold", "random", "informative")
        raise ConfigError(f"{unknown('choice of key users', str(keys), known)}; or give a number")
    mask = np.zeros(len(train.users), bool)
    mask[chosen] = True
    return _split(train, test, mask, f"key_users {keys}")


def informative(train: Interactions, users: Ints, budget: int | None = None) -> Ints:
    """The users who together leave least unknown of the items that people ask for.

    An item with n raters is known to about 1 / (n + PRIOR); it is asked for as often as it is
    rated. Users are added where they lower the sum most, in up to ROUNDS helpings. Without a
    `budget`, until what is left to gain is a LEFT-th of what all of them gain.
    """
    table = train.of(users)
    place = np.full(len(train.users), -1)
    place[users] = np.arange(len(users))
    owner, demand = place[table.user], table.item_counts().astype(np.float64)
    raters, taken = np.zeros(len(demand)), np.zeros(len(users), bool)
    most = len(users) if budget is None else budget
    helping = max(1, most // ROUNDS)

    def unknown_of(n: np.typing.NDArray[np.float64]) -> float:
        return float((demand / (n + PRIOR)).sum())

    none, all_ = unknown_of(raters), unknown_of(demand)
    while (n := int(taken.sum())) < most:
        if budget is None and unknown_of(raters) - all_ <= LEFT * (none - all_):
            break
        worth = demand / ((raters + PRIOR) * (raters + 1 + PRIOR))
        gain = np.bincount(owner, worth[table.item], len(users))
        gain[taken] = -1
        more = np.argsort(-gain, kind="stable")[: min(helping, most - n)]
        taken[more] = True
        added = np.zeros(len(users), bool)
        added[more] = True
        raters += np.bincount(table.item[added[owner]], minlength=len(demand))
    return users[taken]


def _split(train: Interactions, test: Interactions, key: Mask, how: str) -> Split:
    if not key.any():
        raise DataError(
            f"{how} leaves no key user: the most active has {train.counts().max()} rows"
        )
    return Split(train, test, np.flatnonzero(key), np.flatnonzero(~key))


def hold_out(
    data: Interactions, share: float, rng: np.random.Generator
) -> tuple[Interactions, Interactions]:
    """Exactly that share of the rows, at random, becomes test."""
    if not 0 < share < 1:
        raise DataError(f"the share to hold out must lie strictly between 0 and 1, got {share}")
    test = np.zeros(len(data), bool)
    test[rng.permutation(len(data))[round((1 - share) * len(data)) :]] = True
    return data.where(~test), data.where(test)


def last_n(
    data: Interactions, n: int, rng: np.random.Generator | None = None
) -> tuple[Interactions, Interactions]:
    """The last n rows of each user become test: by time, by table order where there is none,
    or n random ones where an `rng` is given. Users with n rows or fewer keep them all."""
    if n < 1:
        raise DataError(f"the number of rows to hold out must be positive, got {n}")
    if rng is not None:
        rank = _rank_in_user(data, rng.random(len(data)))
    elif data.time is not None:
        rank = _rank_in_user(data, data.time)
    else:
        rank = _rank_in_user(data, np.arange(len(data)))
    counts = data.counts()[data.user]
    test = (rank >= counts - n) & (counts > n)
    return data.where(~test), data.where(test)


def hold_out_users(
    data: Interactions,
    users: Ints,
    lengths: tuple[int, int],
    rng: np.random.Generator,
) -> tuple[Interactions, Task]:
    """Strong generalization: these users leave the training table whole. Of each, a random
    history of `lengths[0]` to `lengths[1]` rows may be read and the rest is to be predicted."""
    low, high = lengths
    if not 0 <= low <= high:
        raise DataError(f"history lengths must satisfy 0 <= low <= high, got {lengths}")
    away = np.zeros(len(data.users), bool)
    away[users] = True
    theirs = data.where(away[data.user])
    rank = _rank_in_user(theirs, rng.random(len(theirs)))
    # somebody with few rows still keeps one to be asked about
    cut = low + np.floor(rng.random(len(data.users)) * (high - low + 1)).astype(np.int64)
    cut = np.minimum(cut, np.maximum(theirs.counts() - 1, 0))
    read = rank < cut[theirs.user]
    return data.where(~away[data.user]), Task(theirs.where(read), theirs.where(~read))


def first(table: Interactions, n: int, rng: np.random.Generator) -> Interactions:
    """n random rows of each user; of one generator a longer cut holds the shorter one."""
    return table.where(_rank_in_user(table, rng.random(len(table))) < n)


def sample_users(users: Ints, share: float, rng: np.random.Generator) -> Ints:
    """That share of the users (at least one), at random."""
    return np.sort(users[_shuffled(len(users), rng)[: max(1, round(share * len(users)))]])


def lightest_users(data: Interactions, share: float, rng: np.random.Generator) -> Ints:
    """That share of the users who have rows, those with fewest: the nearest there is to newcomers
    who have just come. Among equals chance decides."""
    users, counts = np.flatnonzero(data.counts()), data.counts()
    order = np.lexsort((rng.random(len(users)), counts[users]))
    return np.sort(users[order[: round(share * len(users))]])


def _shuffled(n: int, rng: np.random.Generator) -> Ints:
    return np.argsort(rng.random(n), kind="stable")


def _rank_in_user(data: Interactions, by: np.typing.NDArray[np.generic]) -> Ints:
    """Place of each row among its user's rows when they are sorted by `by`."""
    order = np.lexsort((by, data.user))
    _, start = group(data.user, len(data.users))
    rank = np.empty(len(data), np.int64)
    rank[order] = np.arange(len(data)) - start[data.user[order]]
    return rank
