"""Synthetic datasets whose right answer is known, of any size, for tests and benchmarks.

The ids of user n and item n are "u{n}" and "i{n}". No Python loop runs over users, items or rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from idcf.data.interactions import Floats, Interactions, Ints, Vocab
from idcf.errors import DataError

_MEAN_RATING = 3.5


@dataclass(frozen=True, eq=False)
class LowRankRatings:
    """Ratings mean + user bias + item bias + p_u·q_i + noise, with their parameters."""

    interactions: Interactions
    user_bias: Floats = field(repr=False)  # [U]
    item_bias: Floats = field(repr=False)  # [I]
    user_factors: Floats = field(repr=False)  # [U, rank]
    item_factors: Floats = field(repr=False)  # [I, rank]

    def true_rating(self, user: Ints, item: Ints) -> Floats:
        """Return the rating without noise of each pair of a user and an item."""
        product: Floats = (self.user_factors[user] * self.item_factors[item]).sum(-1)
        return np.float32(_MEAN_RATING) + self.user_bias[user] + self.item_bias[item] + product


@dataclass(frozen=True, eq=False)
class ClusteredRatings:
    """Ratings that are high between users and items of one group, and low elsewhere."""

    interactions: Interactions
    user_group: Ints = field(repr=False)  # [U]
    item_group: Ints = field(repr=False)  # [I]


def checkerboard(
    n_users: int,
    n_items: int,
    rng: np.random.Generator,
    *,
    light_share: float = 1 / 3,
    rows_per_light_user: int = 8,
    rows_per_heavy_user: int = 40,
    implicit: bool = False,
) -> Interactions:
    """Return a checkerboard: even users rate even items 5 and odd items 1, odd users the reverse.

    Users rate items that they like eight times as often as the others; numbers of rows vary by 2. A
    threshold between those of light and heavy users makes light users query users. Implicit
    feedback holds the liked pairs only.
    """
    n_light_users = round(light_share * n_users)
    light_users = np.argsort(rng.random(n_users), kind="stable")[:n_light_users]
    count = np.full(n_users, rows_per_heavy_user)
    count[light_users] = rows_per_light_user
    count = count + rng.integers(-2, 3, n_users)
    count = np.clip(count, 2, max(2, n_items * 2 // 3))
    blocks = np.array_split(np.arange(n_users), 1 + n_users * n_items // 10**7)
    drawn = [_sample_mostly_liked(block, n_items, count[block], rng) for block in blocks]
    user, item = (np.concatenate(x) for x in zip(*drawn, strict=True))
    liked = user % 2 == item % 2
    if implicit:
        user, item, liked = user[liked], item[liked], liked[liked]
    return _make_interactions(n_users, n_items, user, item, np.where(liked, 5, 1), implicit)


def low_rank(
    n_users: int,
    n_items: int,
    rank: int,
    rng: np.random.Generator,
    *,
    density: float = 0.1,
    noise: float = 0.1,
    round_ratings: bool = False,
    implicit: bool = False,
) -> LowRankRatings:
    """Return n = `density` · U · I ratings of a bilinear model with biases and normal `noise`;
    implicit feedback is the best n of 3n drawn pairs. `round_ratings` rounds and clips to 1..5."""
    spread = rank**-0.25
    user_bias, item_bias = rng.normal(0, 0.4, n_users), rng.normal(0, 0.5, n_items)
    user_factors = rng.normal(0, spread, (n_users, rank))
    item_factors = rng.normal(0, spread, (n_items, rank))
    parameters = (x.astype(np.float32) for x in (user_bias, item_bias, user_factors, item_factors))
    n_rows = max(1, round(density * n_users * n_items))
    n_pairs = min(n_rows * (3 if implicit else 1), n_users * n_items)
    user, item = _sample_pairs(n_users, n_items, n_pairs, rng)
    unrated = _make_interactions(n_users, n_items, user, item, np.zeros(len(user)), implicit)
    world = LowRankRatings(unrated, *parameters)
    rating = world.true_rating(user, item) + rng.normal(0, noise, len(user))
    if round_ratings:
        rating = np.clip(np.rint(rating), 1, 5)
    best = np.sort(np.argsort(-rating, kind="stable")[:n_rows]) if implicit else slice(None)
    table = _make_interactions(n_users, n_items, user[best], item[best], rating[best], implicit)
    return replace(world, interactions=table)


def clusters(
    n_users: int,
    n_items: int,
    n_groups: int,
    rng: np.random.Generator,
    *,
    rows_per_user: int = 20,
    in_group_probability: float = 0.8,
    noise: float = 0.3,
    implicit: bool = False,
) -> ClusteredRatings:
    """Return ratings of users who rate items of their group about 4.5 and others about 1.5. User n
    and item n are in group n modulo `n_groups`. `rows_per_user` items are drawn for each user,
    repeated ones counting once, each from the user's group with `in_group_probability`."""
    if n_groups > min(n_users, n_items):
        raise DataError(
            f"{n_groups} groups need as many users and items, got {n_users} and {n_items}"
        )
    user_group, item_group = np.arange(n_users) % n_groups, np.arange(n_items) % n_groups
    user = np.repeat(np.arange(n_users), rows_per_user)
    is_in_group = rng.random(len(user)) < in_group_probability
    group = np.where(is_in_group, user_group[user], rng.integers(n_groups, size=len(user)))
    size = (n_items - 1 - group) // n_groups + 1
    item = np.floor(rng.random(len(user)) * size).astype(np.int64) * n_groups + group
    user, item = np.divmod(_sorted_unique(user * n_items + item), n_items)
    mean = np.where(user_group[user] == item_group[item], 4.5, 1.5)
    rating = np.clip(mean + rng.normal(0, noise, len(user)), 1, 5)
    return ClusteredRatings(
        _make_interactions(n_users, n_items, user, item, rating, implicit), user_group, item_group
    )


def long_tailed(
    n_rows: int,
    rng: np.random.Generator,
    *,
    n_users: int | None = None,
    n_items: int | None = None,
    implicit: bool = False,
) -> Interactions:
    """Return a large dataset in which few items and few users have most of the rows. By default the
    numbers of users and items grow with the rows. Raises `DataError` if more than a quarter of all
    pairs would have a row."""
    side = 4 * int(n_rows**0.5) + 1
    n_users, n_items = n_users or max(side, n_rows // 100), n_items or max(side, n_rows // 250)
    if n_rows > n_users * n_items // 4:
        raise DataError(f"{n_rows:,} rows are too many for {n_users:,} users x {n_items:,} items")
    activity = np.cumsum(rng.lognormal(0, 1, n_users))
    popularity = np.cumsum(1 / (np.arange(n_items) + 10.0))
    pairs = np.empty(0, np.int64)
    while len(pairs) < n_rows:
        n = int(1.3 * n_rows) - len(pairs)
        user = np.searchsorted(activity, rng.random(n) * activity[-1], "right")
        item = np.searchsorted(popularity, rng.random(n) * popularity[-1], "right")
        pairs = _sorted_unique(np.concatenate([pairs, user * n_items + item]))
    user, item = np.divmod(_sample_values(pairs, n_rows, rng), n_items)
    bias = rng.normal(0, 0.4, n_users)[user] + rng.normal(0, 0.5, n_items)[item]
    rating = np.clip(np.rint(_MEAN_RATING + bias + rng.normal(0, 0.8, n_rows)), 1, 5)
    return _make_interactions(n_users, n_items, user, item, rating, implicit)


def _sample_mostly_liked(
    users: Ints, n_items: int, n_per_user: Ints, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Draw distinct items for each user, those that the user likes eight times as often. The draw
    is an exponential race: the first arrivals are a weighted sample without replacement."""
    weight = np.where(users[:, None] % 2 == np.arange(n_items) % 2, 8.0, 1.0)
    arrival = rng.standard_exponential(weight.shape) / weight
    rank = np.argsort(np.argsort(arrival, 1, kind="stable"), 1, kind="stable")
    row, item = np.nonzero(rank < n_per_user[:, None])
    return users[row], item


def _sample_pairs(
    n_users: int, n_items: int, n_pairs: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Draw distinct pairs of a user and an item, sorted."""
    total = n_users * n_items
    pairs = np.arange(total) if n_pairs > total // 4 else np.empty(0, np.int64)
    while len(pairs) < n_pairs:
        new_pairs = rng.integers(total, size=int(1.2 * n_pairs) + 16, dtype=np.int64)
        pairs = _sorted_unique(np.concatenate([pairs, new_pairs]))
    user, item = np.divmod(_sample_values(pairs, n_pairs, rng), n_items)
    return user, item


def _sorted_unique(values: Ints) -> Ints:
    """Return the distinct values, sorted; np.unique hashes, which is far slower on millions."""
    values = np.sort(values)
    first = np.ones(len(values), bool)
    first[1:] = values[1:] != values[:-1]
    return values[first]


def _sample_values(values: Ints, n: int, rng: np.random.Generator) -> Ints:
    """Draw n of the values without replacement, in their order."""
    if n >= len(values):
        return values
    return values[np.sort(np.argpartition(rng.random(len(values)), n)[:n])]


def _make_interactions(
    n_users: int, n_items: int, user: Ints, item: Ints, rating: np.typing.ArrayLike, implicit: bool
) -> Interactions:
    """Return a table with the ids "u{n}" and "i{n}"; ratings are 1 for implicit feedback."""
    value = np.ones(len(user), np.float32) if implicit else np.asarray(rating, np.float32)
    users = Vocab([f"u{n}" for n in range(n_users)])
    items = Vocab([f"i{n}" for n in range(n_items)])
    return Interactions(users, items, user, item, value, None, implicit)


@dataclass(frozen=True, eq=False)
class ChosenRatings:
    """Ratings of items that users chose, and what they would rate every other item."""

    interactions: Interactions  # the chosen pairs
    rating: Floats = field(repr=False)  # [U, I]: of every pair, noise included


def chosen_by_rating(
    n_users: int,
    n_items: int,
    rng: np.random.Generator,
    *,
    slope: float,
    rank: int = 4,
    noise: float = 0.9,
    rows_per_user: int = 40,
) -> ChosenRatings:
    """Return ratings from 1 to 5 of items that users chose with weights exp(`slope` · rating),
    times a weight of the item that has nothing to do with its ratings."""
    spread = (0.6 / rank**0.5) ** 0.5
    user_factors, item_factors = (rng.normal(0, spread, (n, rank)) for n in (n_users, n_items))
    mean = 3 + rng.normal(0, 0.4, (n_users, 1)) + rng.normal(0, 0.5, n_items)
    mean = mean + user_factors @ item_factors.T
    rating = np.clip(np.rint(mean + rng.normal(0, noise, mean.shape)), 1, 5)
    # the largest of the log weights with Gumbel noise are a sample without replacement
    key = slope * rating + rng.normal(0, 1, n_items) + rng.gumbel(size=mean.shape)
    n_rows = np.clip(rng.lognormal(np.log(rows_per_user), 0.5, n_users), 8, n_items // 2)
    rank_of_item = np.argsort(np.argsort(-key, 1), 1)
    user, item = np.nonzero(rank_of_item < n_rows[:, None])
    table = _make_interactions(n_users, n_items, user, item, rating[user, item], False)
    return ChosenRatings(table, rating.astype(np.float32))
