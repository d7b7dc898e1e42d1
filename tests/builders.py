"""Small tables and files that tests of several folders build."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from idcf.data.interactions import Interactions, Vocab, encode_ids
from idcf.testing.synthetic import checkerboard


@cache
def board(
    n_users: int, n_items: int, light: int, heavy: int, *, implicit: bool = False, seed: int = 0
) -> Interactions:
    """Return a checkerboard, in which a third of the users has `light` rows, the others `heavy`."""
    rng = np.random.default_rng(seed)
    return checkerboard(
        n_users,
        n_items,
        rng,
        rows_per_light_user=light,
        rows_per_heavy_user=heavy,
        implicit=implicit,
    )


def random_table(seed: int, users: int = 6, items: int = 9, min_rows: int = 1) -> Interactions:
    """Return a table with integer ratings in random row order; some users may have no row."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(users * items)[: rng.integers(min_rows, users * items + 1)]
    user, item = np.divmod(pairs, items)
    rating = rng.integers(1, 6, len(pairs)).astype(np.float32)
    return Interactions(Vocab(range(users)), Vocab(range(items)), user, item, rating)


def table_from_columns(user: Any, item: Any, rating: Any = None, time: Any = None) -> Interactions:
    """Return the table of columns of external ids; without ratings the feedback is implicit."""
    (users, user_rows), (items, item_rows) = encode_ids(user), encode_ids(item)
    values = np.ones(len(user)) if rating is None else rating
    return Interactions(
        users, items, user_rows, item_rows, values.astype(np.float32), time, rating is None
    )


def write_file(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    """Write a text file into a folder and return its path."""
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def id_rows(table: Interactions) -> list[tuple[Any, ...]]:
    """Return (user id, item id, rating, time) of each row of a table."""
    time = [None] * len(table) if table.time is None else table.time.tolist()
    users = [table.users.ids[u] for u in table.user]
    items = [table.items.ids[i] for i in table.item]
    return list(zip(users, items, table.rating.tolist(), time, strict=True))


def write_csv(table: Interactions, path: Path) -> Path:
    """Write a table as a CSV file with a header and string ids."""
    names = ["user_id", "item_id", *([] if table.implicit else ["rating"])]
    lines = [",".join(names)]
    for user, item, rating, _ in id_rows(table):
        lines.append(f"{user},{item}" if table.implicit else f"{user},{item},{rating:g}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
