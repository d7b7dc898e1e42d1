"""Split interactions into training and test data, and users into key users and query users.

A split depends on the table and on the generator or seed only, so a seed gives the same split on
any machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from idcf.data.interactions import Doubles, Interactions, Ints, Mask, group_rows_by_key
from idcf.errors import ConfigError, DataError, unknown_name_message

# constants of `select_informative_users`
PRIOR_RATERS = 5.0  # number of raters that prior knowledge of an item is worth
MAX_ROUNDS = 64  # rounds in which users are added
MAX_REMAINING_GAIN = 0.005  # share of the whole gain at which adding users stops

SplitProtocol = Literal["standard", "temporal", "strong"]

DEFAULT_KEY_THRESHOLD = 30  # the paper's δ for MovieLens
_KEY_USER_RULES = ("threshold", "random", "informative")


@dataclass(frozen=True)
class PredictionTask:
    """Rows to predict, and the histories of their users that a model may use for it."""

    history_table: Interactions  # rows that a model may read
    target_table: Interactions  # rows to predict, disjoint from the histories


@dataclass(frozen=True)
class Split:
    """Training and test table, and the roles of the users. `train` holds the rows of query users
    too. The training setting decides whether they are used; in the *new user* setting they are
    not."""

    train: Interactions
    test: Interactions  # rows to predict, of both kinds of users
    key_users: Ints  # users with many ratings, on whom the backbone is trained
    query_users: Ints  # users with few ratings, whose embeddings the relation model computes
    protocol: SplitProtocol = "standard"  # how rows and users were held out
    # further rows of query users to predict, by user group, with histories that replace `train`
    tasks: Mapping[str, PredictionTask] = field(default_factory=dict)


def split_by_threshold(train: Interactions, test: Interactions, threshold: int) -> Split:
    """Split users by activity: key users have at least `threshold` training rows (paper's δ)."""
    return _split_by_mask(train, test, train.user_counts() >= threshold, f"threshold {threshold}")


def split_at_random(
    train: Interactions, test: Interactions, gamma: float, rng: np.random.Generator
) -> Split:
    """Split users at random: each is a key user with probability `gamma` (the paper's γ)."""
    if not 0 < gamma < 1:
        raise DataError(f"gamma must lie strictly between 0 and 1, got {gamma}")
    return _split_by_mask(train, test, rng.random(len(train.users)) < gamma, f"gamma {gamma}")


def split_by_key_users(
    train: Interactions, test: Interactions, threshold: int, key_users: str | int, seed: int = 0
) -> Split:
    """Split users by activity and a rule that selects key users among the active ones. The rule
    `key_users` is "threshold" (all of them), "random" (half), "informative" (enough to know the
    items nearly as well, see `select_informative_users`), or a number of informative ones."""
    split = split_by_threshold(train, test, threshold)
    if key_users == "threshold":
        return split
    active = split.key_users
    if key_users == "random":
        selected = sample_users(active, 0.5, np.random.default_rng(seed))
    elif key_users == "informative":
        selected = select_informative_users(train, active)
    elif not isinstance(key_users, int) or isinstance(key_users, bool):
        message = unknown_name_message("choice of key users", str(key_users), _KEY_USER_RULES)
        raise ConfigError(f"{message}; or give a number")
    elif 1 <= key_users <= len(active):
        selected = select_informative_users(train, active, key_users)
    else:
        raise DataError(
            f"key_users is {key_users}, but {len(active)} users have {threshold} rows or more: "
            f"give a number from 1 to {len(active)}, or another threshold"
        )
    return _split_by_mask(train, test, train.user_mask(selected), f"key_users {key_users}")


def select_informative_users(
    train: Interactions, users: Ints, n_selected: int | None = None
) -> Ints:
    """Select users greedily so that the items in demand have many raters among them.

    The uncertainty about an item with n selected raters is 1 / (n + PRIOR_RATERS), and its demand
    d_i is its number of raters among all `users`. The selection lowers Σ_i d_i / (n_i +
    PRIOR_RATERS), in up to MAX_ROUNDS rounds that each add the users with the largest gain. By
    default it ends when the remaining gain is a share of MAX_REMAINING_GAIN of that of all users.
    """
    table = train.for_users(users)
    position = np.full(len(train.users), -1)
    position[users] = np.arange(len(users))
    owner = position[table.user]
    demand = table.item_counts().astype(np.float64)
    n_raters = np.zeros(len(demand))
    is_selected = np.zeros(len(users), bool)
    max_selected = len(users) if n_selected is None else n_selected
    users_per_round = max(1, max_selected // MAX_ROUNDS)

    def uncertainty(n: Doubles) -> float:
        """Return the demand for items that is not yet met, if item i has n[i] raters."""
        return float((demand / (n + PRIOR_RATERS)).sum())

    lowest = uncertainty(demand)
    min_gain = MAX_REMAINING_GAIN * (uncertainty(n_raters) - lowest)
    while (n := int(is_selected.sum())) < max_selected:
        if n_selected is None and uncertainty(n_raters) - lowest <= min_gain:
            break
        gain_per_row = demand / ((n_raters + PRIOR_RATERS) * (n_raters + 1 + PRIOR_RATERS))
        gain = np.bincount(owner, gain_per_row[table.item], len(users))
        gain[is_selected] = -1
        added = np.argsort(-gain, kind="stable")[: min(users_per_round, max_selected - n)]
        is_selected[added] = True
        n_raters += np.bincount(table.item[np.isin(owner, added)], minlength=len(demand))
    return users[is_selected]


def _split_by_mask(train: Interactions, test: Interactions, is_key_user: Mask, rule: str) -> Split:
    """Split users by a mask [U]; raise DataError, which names the rule, if no user is in it."""
    if not is_key_user.any():
        raise DataError(
            f"{rule} leaves no key user: the most active has {train.user_counts().max()} rows"
        )
    return Split(train, test, np.flatnonzero(is_key_user), np.flatnonzero(~is_key_user))


def hold_out_rows(
    data: Interactions, share: float, rng: np.random.Generator
) -> tuple[Interactions, Interactions]:
    """Split rows at random into training and test table; `share` of them become test rows."""
    if not 0 < share < 1:
        raise DataError(f"the share to hold out must lie strictly between 0 and 1, got {share}")
    is_test = np.zeros(len(data), bool)
    is_test[rng.permutation(len(data))[round((1 - share) * len(data)) :]] = True
    return data.where(~is_test), data.where(is_test)


def hold_out_last_rows(
    data: Interactions, n: int, rng: np.random.Generator | None = None
) -> tuple[Interactions, Interactions]:
    """Split rows into training and test table: the last n rows of each user become test rows. All
    rows of a user with n rows or fewer are training rows. The order is that of time or, without
    times, of the table; with a generator it is random."""
    if n < 1:
        raise DataError(f"the number of rows to hold out must be positive, got {n}")
    sort_key = np.arange(len(data)) if data.time is None else data.time
    rank = rank_in_user(data, sort_key if rng is None else rng.random(len(data)))
    counts = data.user_counts()[data.user]
    is_test = (rank >= counts - n) & (counts > n)
    return data.where(~is_test), data.where(is_test)


def hold_out_users(
    data: Interactions,
    users: Ints,
    history_lengths: tuple[int, int],
    rng: np.random.Generator,
    n_targets: int | None = None,
) -> tuple[Interactions, PredictionTask]:
    """Hold out whole users (strong generalization); return the table of the others, and the task.
    Between the lowest and the highest of `history_lengths`, random rows of a held-out user become
    the history; at least one row of each remains to be predicted. With `n_targets`, so many random
    rows are to be predicted (all, if there are fewer), and the history is shorter if need be."""
    low, high = history_lengths
    if n_targets is not None and n_targets < 1:
        raise DataError(f"the number of targets must be positive, got {n_targets}")
    if not 0 <= low <= high:
        raise DataError(f"history lengths must satisfy 0 <= low <= high, got {history_lengths}")
    is_held_out = data.user_mask(users)[data.user]
    held_out = data.where(is_held_out)
    rank = rank_in_user(held_out, rng.random(len(held_out)))
    lengths = low + np.floor(rng.random(len(data.users)) * (high - low + 1)).astype(np.int64)
    counts = held_out.user_counts()
    lengths = np.minimum(lengths, np.maximum(counts - (n_targets or 1), 0))
    in_history = rank < lengths[held_out.user]
    last = lengths + n_targets if n_targets else counts
    is_target = ~in_history & (rank < last[held_out.user])
    task = PredictionTask(held_out.where(in_history), held_out.where(is_target))
    return data.where(~is_held_out), task


def split_in_time(data: Interactions, share: float) -> Split:
    """Split at one point in time: the last `share` of the rows, and rows of that time, are later.

    Key users have an earlier row; their later rows are test rows. Query users are first seen later:
    the first half of their rows in time, rounded down but at least one, is the history, the others
    are test rows. Rows of one user at one time are in the order of the table. Raises `DataError`
    if there are no times, or if all users are on one side.
    """
    if not 0 < share < 1:
        raise DataError(f"the share to hold out must lie strictly between 0 and 1, got {share}")
    if data.time is None:
        raise DataError(
            "the temporal split needs a time of every interaction, and this table has none: name "
            "the column (--column timestamp=NAME) or choose --split strong"
        )
    first_rows = data.time[np.argsort(data.time, kind="stable")]
    is_later = data.time >= first_rows[min(round((1 - share) * len(data)), len(data) - 1)]
    is_key_user = np.bincount(data.user[~is_later], minlength=len(data.users)) > 0
    n_history = np.maximum(data.user_counts() // 2, 1)
    in_history = rank_in_user(data, data.time) < n_history[data.user]
    is_train = np.where(is_key_user[data.user], ~is_later, in_history)
    split = _split_by_mask(data.where(is_train), data.where(~is_train), is_key_user, "the time")
    if not len(split.test.for_users(split.query_users)):
        raise DataError(
            f"no user with two rows or more is first seen in the last {share:.0%} of the rows, so "
            "that there are no new users: choose --split strong"
        )
    return replace(split, protocol="temporal")


def split_strong(
    data: Interactions, user_share: float, target_share: float, rng: np.random.Generator
) -> Split:
    """Hold out whole users (strong generalization, Liang et al. 2018): they are the query users.

    A random `user_share` of the users with rows is held out; the others are key users. Rows of
    held-out users with items of no key user are dropped. Of the n rows of a held-out user, ⌊n ·
    `target_share`⌋ random ones are test rows and the others the history. Key users have no test
    rows.
    """
    for label, share in (("users", user_share), ("rows", target_share)):
        if not 0 < share < 1:
            raise DataError(f"the share of {label} to hold out must be between 0 and 1: {share}")
    held_out = sample_users(np.flatnonzero(data.user_counts()), user_share, rng)
    is_key_user = ~data.user_mask(held_out) & (data.user_counts() > 0)
    of_key_user = is_key_user[data.user]
    is_known = np.bincount(data.item[of_key_user], minlength=len(data.items))[data.item] > 0
    data = data.where(of_key_user | is_known)
    n_targets = np.floor(data.user_counts() * target_share).astype(np.int64)
    rank = rank_in_user(data, rng.random(len(data)))
    is_test = ~is_key_user[data.user] & (rank < n_targets[data.user])
    split = _split_by_mask(data.where(~is_test), data.where(is_test), is_key_user, "the share")
    return replace(split, protocol="strong")


def sample_rows_per_user(table: Interactions, n: int, rng: np.random.Generator) -> Interactions:
    """Sample n rows of each user; with one seed, a larger n gives a superset of the rows."""
    return table.where(rank_in_user(table, rng.random(len(table))) < n)


def sample_users(users: Ints, share: float, rng: np.random.Generator) -> Ints:
    """Sample a share of the users, at least one, sorted."""
    order = np.argsort(rng.random(len(users)), kind="stable")
    return np.sort(users[order[: max(1, round(share * len(users)))]])


def least_active_users(data: Interactions, share: float, rng: np.random.Generator) -> Ints:
    """The share of users with the fewest rows, sorted; ties are broken at random. Users without
    rows do not count. These users resemble new users most."""
    counts = data.user_counts()
    users = np.flatnonzero(counts)
    order = np.lexsort((rng.random(len(users)), counts[users]))
    return np.sort(users[order[: round(share * len(users))]])


def rows_of_sampled_users(
    data: Interactions, max_rows: int, rng: np.random.Generator
) -> Interactions:
    """Return all rows of randomly drawn users, at most `max_rows` in all if more than one user is
    left; the table itself if it has no more rows."""
    if len(data) <= max_rows:
        return data
    counts = data.user_counts()
    users = rng.permutation(np.flatnonzero(counts))
    n_drawn = max(1, int(np.searchsorted(np.cumsum(counts[users]), max_rows, "right")))
    is_drawn = np.zeros(len(data.users), bool)
    is_drawn[users[:n_drawn]] = True
    return data.where(is_drawn[data.user])


def rank_in_user(data: Interactions, sort_key: np.typing.NDArray[np.generic]) -> Ints:
    """Rank of each row among the rows of its user, when they are sorted by `sort_key`."""
    order = np.lexsort((sort_key, data.user))
    _, start = group_rows_by_key(data.user, len(data.users))
    rank = np.empty(len(data), np.int64)
    rank[order] = np.arange(len(data)) - start[data.user[order]]
    return rank


def default_key_threshold(counts: Ints) -> int:
    """Return the default threshold of key users: 30 rows, or the median over the users with rows if
    that is less."""
    return max(1, min(DEFAULT_KEY_THRESHOLD, int(np.median(counts[counts > 0]))))
