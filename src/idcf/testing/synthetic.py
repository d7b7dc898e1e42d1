"""Worlds whose right answer is known, of any size, for tests and for measuring scale.

Row n of a vocabulary is "u{n}" or "i{n}", so a test can reason about rows and ids alike. No
Python loop runs over users, items or rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from idcf.data.interactions import Floats, Interactions, Ints, Vocab
from idcf.errors import DataError

_MEAN = 3.5


@dataclass(frozen=True, eq=False)
class LowRank:
    """Ratings that are mean + user bias + item bias + a product of `rank` factors."""

    interactions: Interactions
    user_bias: Floats = field(repr=False)
    item_bias: Floats = field(repr=False)
    user_factors: Floats = field(repr=False)  # [U, rank]
    item_factors: Floats = field(repr=False)  # [I, rank]

    def truth(self, user: Ints, item: Ints) -> Floats:
        """The rating without noise."""
        product: Floats = (self.user_factors[user] * self.item_factors[item]).sum(-1)
        return np.float32(_MEAN) + self.user_bias[user] + self.item_bias[item] + product


@dataclass(frozen=True, eq=False)
class Clusters:
    """Ratings that are high inside a group of users and items, and low elsewhere."""

    interactions: Interactions
    user_group: Ints = field(repr=False)
    item_group: Ints = field(repr=False)


def checkerboard(
    users: int,
    items: int,
    rng: np.random.Generator,
    *,
    light: float = 1 / 3,
    few: int = 8,
    many: int = 40,
    implicit: bool = False,
) -> Interactions:
    """Even users love even items (5), odd ones odd items, and neither the others (1).

    People mostly rate what they like. A share of them, the light users, has about `few` rows,
    the others about `many`, so that a threshold between the two makes them query users.
    """
    count = np.full(users, many)
    count[np.argsort(rng.random(users), kind="stable")[: round(light * users)]] = few
    count = count + rng.integers(-2, 3, users)
    count = np.clip(count, 2, max(2, items * 2 // 3))
    blocks = np.array_split(np.arange(users), 1 + users * items // 10**7)
    drawn = [_mostly_liked(block, items, count[block], rng) for block in blocks]
    user, item = (np.concatenate(x) for x in zip(*drawn, strict=True))
    loved = user % 2 == item % 2
    if implicit:
        user, item, loved = user[loved], item[loved], loved[loved]
    return _table(users, items, user, item, np.where(loved, 5, 1), implicit)


def low_rank(
    users: int,
    items: int,
    rank: int,
    rng: np.random.Generator,
    *,
    density: float = 0.1,
    noise: float = 0.1,
    whole: bool = False,
    implicit: bool = False,
) -> LowRank:
    """A share of all pairs, rated by a bilinear truth; `whole` rounds to 1..5, and implicit
    feedback is on what was liked more than its rivals."""
    spread = rank**-0.25
    user_bias, item_bias = rng.normal(0, 0.4, users), rng.normal(0, 0.5, items)
    user_factors = rng.normal(0, spread, (users, rank))
    item_factors = rng.normal(0, spread, (items, rank))
    parts = (x.astype(np.float32) for x in (user_bias, item_bias, user_factors, item_factors))
    wanted = max(1, round(density * users * items))
    user, item = _pairs(users, items, min(wanted * (3 if implicit else 1), users * items), rng)
    world = LowRank(_table(users, items, user, item, np.zeros(len(user)), implicit), *parts)
    rating = world.truth(user, item) + rng.normal(0, noise, len(user))
    if whole:
        rating = np.clip(np.rint(rating), 1, 5)
    best = np.sort(np.argsort(-rating, kind="stable")[:wanted]) if implicit else slice(None)
    table = _table(users, items, user[best], item[best], rating[best], implicit)
    return replace(world, interactions=table)


def clusters(
    users: int,
    items: int,
    groups: int,
    rng: np.random.Generator,
    *,
    each: int = 20,
    loyalty: float = 0.8,
    noise: float = 0.3,
    implicit: bool = False,
) -> Clusters:
    """Each user draws about `each` items, with probability `loyalty` from the own group, and
    rates those about 4.5 and the others about 1.5."""
    if groups > min(users, items):
        raise DataError(f"{groups} groups need as many users and items, got {users} and {items}")
    user_group, item_group = np.arange(users) % groups, np.arange(items) % groups
    user = np.repeat(np.arange(users), each)
    own = rng.random(len(user)) < loyalty
    group = np.where(own, user_group[user], rng.integers(groups, size=len(user)))
    size = (items - 1 - group) // groups + 1
    item = np.floor(rng.random(len(user)) * size).astype(np.int64) * groups + group
    user, item = np.divmod(_unique(user * items + item), items)
    middle = np.where(user_group[user] == item_group[item], 4.5, 1.5)
    rating = np.clip(middle + rng.normal(0, noise, len(user)), 1, 5)
    return Clusters(_table(users, items, user, item, rating, implicit), user_group, item_group)


def at_scale(
    rows: int,
    rng: np.random.Generator,
    *,
    users: int | None = None,
    items: int | None = None,
    implicit: bool = False,
) -> Interactions:
    """A big world with the long tails of real ones: few items are famous, few users busy."""
    side = 4 * int(rows**0.5) + 1
    users, items = users or max(side, rows // 100), items or max(side, rows // 250)
    if rows > users * items // 4:
        raise DataError(f"{rows:,} rows are too many for {users:,} users x {items:,} items")
    busy = np.cumsum(rng.lognormal(0, 1, users))
    famous = np.cumsum(1 / (np.arange(items) + 10.0))
    found = np.empty(0, np.int64)
    while len(found) < rows:
        n = int(1.3 * rows) - len(found)
        user = np.searchsorted(busy, rng.random(n) * busy[-1], "right")
        item = np.searchsorted(famous, rng.random(n) * famous[-1], "right")
        found = _unique(np.concatenate([found, user * items + item]))
    user, item = np.divmod(_some(found, rows, rng), items)
    bias = rng.normal(0, 0.4, users)[user] + rng.normal(0, 0.5, items)[item]
    rating = np.clip(np.rint(_MEAN + bias + rng.normal(0, 0.8, rows)), 1, 5)
    return _table(users, items, user, item, rating, implicit)


def _mostly_liked(
    users: Ints, items: int, count: Ints, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """For each user that many different items, those of their colour eight times as often: an
    exponential race."""
    pace = np.where(users[:, None] % 2 == np.arange(items) % 2, 8.0, 1.0)
    race = rng.standard_exponential(pace.shape) / pace
    place = np.argsort(np.argsort(race, 1, kind="stable"), 1, kind="stable")
    row, item = np.nonzero(place < count[:, None])
    return users[row], item


def _pairs(users: int, items: int, n: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Exactly n different pairs, sorted."""
    total = users * items
    found = np.arange(total) if n > total // 4 else np.empty(0, np.int64)
    while len(found) < n:
        more = rng.integers(total, size=int(1.2 * n) + 16, dtype=np.int64)
        found = _unique(np.concatenate([found, more]))
    user, item = np.divmod(_some(found, n, rng), items)
    return user, item


def _unique(values: Ints) -> Ints:
    """As np.unique, which hashes and is a hundred times slower on millions."""
    values = np.sort(values)
    first = np.ones(len(values), bool)
    first[1:] = values[1:] != values[:-1]
    return values[first]


def _some(values: Ints, n: int, rng: np.random.Generator) -> Ints:
    """n of the values at random, in their order."""
    if n >= len(values):
        return values
    return values[np.sort(np.argpartition(rng.random(len(values)), n)[:n])]


def _table(
    users: int, items: int, user: Ints, item: Ints, rating: np.typing.ArrayLike, implicit: bool
) -> Interactions:
    value = np.ones(len(user), np.float32) if implicit else np.asarray(rating, np.float32)
    names = Vocab([f"u{n}" for n in range(users)]), Vocab([f"i{n}" for n in range(items)])
    return Interactions(*names, user, item, value, None, implicit)
