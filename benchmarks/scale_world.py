"""A world of any number of users, written as shards block by block, and its new users.

Users have three tastes of many; an item belongs to one, and is popular by Zipf's law. Half of the
rows of a user are of the first taste, a quarter is chosen by popularity alone. Lengths of histories
are lognormal, about 20 rows in the mean. Everything of a block follows from the seed and its
number, so that a larger world contains the smaller ones.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from idcf import __version__
from idcf.data.interactions import Ints, offsets_from_lengths
from idcf.data.shard_files import RatingSummary, ShardFile
from idcf.data.shard_spill import SortedRows
from idcf.data.shards import (
    DEFAULT_BLOCK_USERS,
    FORMAT,
    ITEMS_NAME,
    MANIFEST_NAME,
    ShardedTable,
    ShardManifest,
    file_sha256,
    sum_of_counts,
)
from idcf.rng import random_stream

_BLOCKS_PER_SHARD = 100
_MEAN_ROWS = 20.0
_BY_POPULARITY = 0.25  # share of rows
_NEW_USERS_BLOCK = 1 << 40  # number of the block of new users, in no world


@dataclass(frozen=True)
class World:
    """Items, tastes and the rule by which users choose."""

    n_items: int = 20_000
    seed: int = 0

    @cached_property
    def tastes(self) -> Ints:
        """Taste of each item: [I]."""
        n_tastes = max(20, int(self.n_items**0.5))
        return random_stream(self.seed, "tastes").integers(n_tastes, size=self.n_items)

    @cached_property
    def popularity(self) -> np.ndarray:
        """Popularity of each item: [I]."""
        rank = random_stream(self.seed, "popularity").permutation(self.n_items)
        return 1 / (rank + 10.0) ** 0.9

    @cached_property
    def _by_taste(self) -> tuple[Ints, np.ndarray, np.ndarray]:
        """Items in the order of tastes, the sums of their popularity, and where tastes end."""
        order = np.argsort(self.tastes, kind="stable")
        total = np.concatenate([[0], np.cumsum(self.popularity[order])])
        ends = np.searchsorted(self.tastes[order], np.arange(self.tastes.max() + 2))
        return order, total, total[ends]

    def rows(self, block: int, n_users: int) -> tuple[Ints, Ints, np.ndarray]:
        """Return offsets, items and ratings of the users of a block."""
        rng = random_stream(self.seed, "block", block)
        n_tastes = int(self.tastes.max()) + 1
        share = np.cumsum(1 / (np.arange(n_tastes) + 5.0) ** 0.7)
        user_tastes = np.searchsorted(share / share[-1], rng.random((n_users, 3)))
        lengths = rng.lognormal(0, 1, n_users) * _MEAN_ROWS * 1.08 / np.exp(0.5)
        lengths = np.clip(np.rint(lengths), 3, self.n_items // 4).astype(np.int64)
        user = np.repeat(np.arange(n_users), lengths)
        taste = user_tastes[user, np.minimum(rng.geometric(0.5, len(user)) - 1, 2)]
        order, total, ends = self._by_taste
        drawn = ends[taste] + rng.random(len(user)) * (ends[taste + 1] - ends[taste])
        drawn = np.where(
            rng.random(len(user)) < _BY_POPULARITY, rng.random(len(user)) * total[-1], drawn
        )
        position = np.searchsorted(total, drawn, "right") - 1
        item = order[np.minimum(position, self.n_items - 1)]
        pairs = np.unique(user * np.int64(self.n_items) + item)
        user, item = np.divmod(pairs, self.n_items)
        liked = (self.tastes[item][:, None] == user_tastes[user]).any(1)
        quality = random_stream(self.seed, "quality").normal(0, 0.5, self.n_items)
        rating = 3.4 + rng.normal(0, 0.4, n_users)[user] + quality[item] + 0.5 * liked
        rating = np.clip(np.rint(rating + rng.normal(0, 0.8, len(user))), 1, 5)
        lengths = np.bincount(user, minlength=n_users)
        return offsets_from_lengths(lengths), item, rating.astype(np.float32)

    def new_users(self, n_users: int) -> list[tuple[dict[int, float], list[int]]]:
        """Return the ratings that new users have shown, and the items that they go on to choose."""
        offsets, items, ratings = self.rows(_NEW_USERS_BLOCK, 4 * n_users)
        rng, users = random_stream(self.seed, "new users"), []
        for low, high in pairwise(offsets.tolist()):
            if high - low < 10 or len(users) == n_users:
                continue
            rows = low + rng.permutation(high - low)
            shown = rows[: min(10, len(rows) // 2)]
            history = dict(zip(items[shown].tolist(), ratings[shown].tolist(), strict=True))
            users.append((history, items[rows[len(shown) :]].tolist()))
        return users


def write_world(
    world: World, folder: Path, n_users: int, block_users: int = DEFAULT_BLOCK_USERS
) -> ShardedTable:
    """Write the first users of a world; a folder that is there already is opened."""
    if (folder / MANIFEST_NAME).exists():
        return ShardedTable.open(folder)
    folder.mkdir(parents=True, exist_ok=True)
    items = pa.table({"item_id": np.arange(world.n_items)})
    parquet.write_table(items, folder / ITEMS_NAME)
    n_blocks, shards, ratings = -(-n_users // block_users), [], RatingSummary()
    for first in range(0, n_blocks, _BLOCKS_PER_SHARD):
        file = ShardFile(folder / f"shard-{len(shards):05}.parquet", first, ExitStack())
        for block in range(first, min(first + _BLOCKS_PER_SHARD, n_blocks)):
            users = np.arange(block * block_users, min((block + 1) * block_users, n_users))
            offsets, item, rating = world.rows(block, len(users))
            ratings.add(rating, len(rating))
            rows = SortedRows(pa.array(users), offsets, item.astype(np.int32), rating, None)
            file.add(rows)
        shards.append(file.close())
    counts = tuple(sorted((ratings.counts or {}).items()))
    manifest = ShardManifest(
        format=FORMAT, idcf_version=__version__, n_users=n_users, n_items=world.n_items,
        n_rows=sum(x.n_rows for x in shards), n_blocks=n_blocks, block_users=block_users,
        implicit=False, has_ratings=True, has_times=False, rating_counts=counts,
        rating_range=(ratings.low, ratings.high), rating_sum=sum_of_counts(counts), columns={},
        options={}, source={"world": "scale"}, items_sha256=file_sha256(folder / ITEMS_NAME),
        shards=tuple(shards),
    )  # fmt: skip
    (folder / MANIFEST_NAME).write_text(json.dumps(asdict(manifest)), encoding="utf-8")
    return ShardedTable.open(folder)
