"""Small files and models that several attacks need, each made when it is first wanted."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from idcf import Recommender
from idcf.data.interactions import Interactions
from idcf.testing.synthetic import checkerboard

OPTIONS = {"key_threshold": 15, "device": "cpu"}
FLAGS = ("--key-threshold", "15", "--device", "cpu", "--json")


def board(seed: int = 0, n_users: int = 60, n_items: int = 80) -> Interactions:
    """Return a table in which a third of the users has few ratings."""
    rng = np.random.default_rng(seed)
    return checkerboard(n_users, n_items, rng, rows_per_light_user=9, rows_per_heavy_user=24)


def columns(table: Interactions) -> pa.Table:
    """Return a table of ratings with its ids, sorted by user."""
    order = np.argsort(table.user, kind="stable")
    return pa.table(
        {
            "user_id": [table.users.ids[u] for u in table.user[order]],
            "item_id": [table.items.ids[i] for i in table.item[order]],
            "rating": table.rating[order],
        }
    )


class SmallWorld:
    """Files of ratings, of histories and of models in a folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def ratings(self) -> Path:
        """A CSV file of ratings."""
        return self._write_csv("ratings.csv", columns(board(self.seed)))

    @cached_property
    def other_ratings(self) -> Path:
        """A CSV file of other ratings of the same users and items."""
        return self._write_csv("other-ratings.csv", columns(board(self.seed + 1)))

    @cached_property
    def new_item(self) -> Path:
        """A CSV file of the ratings of an item that is not in `ratings`."""
        users = [f"u{n}" for n in range(8)]
        table = pa.table({"user_id": users, "item_id": ["new"] * 8, "rating": [4.0] * 8})
        return self._write_csv("new-item.csv", table)

    @cached_property
    def histories(self) -> Path:
        """A folder of six Parquet files of histories."""
        folder = self.folder / "histories"
        folder.mkdir()
        table = columns(board(self.seed, n_users=240))
        users = np.array(table["user_id"].to_pylist())
        for number, part in enumerate(np.array_split(np.unique(users), 6)):
            rows = table.filter(pa.array(np.isin(users, part)))
            parquet.write_table(rows.sort_by("user_id"), folder / f"part-{number}.parquet")
        return folder

    def model(self, seed: int, name: str = "als") -> Path:
        """Return the folder of a model that was trained with a seed."""
        folder = self.folder / f"{name}-{seed}"
        if not folder.exists():
            options = {"embedding_size": 4} if name == "als" else {"sweeps": 6, "burn_in": 2}
            model = Recommender(name, seed=seed, **OPTIONS, **options)
            model.fit(board(self.seed + seed)).save(folder)
        return folder

    def _write_csv(self, name: str, table: pa.Table) -> Path:
        path = self.folder / name
        csv.write_csv(table, path)
        return path
