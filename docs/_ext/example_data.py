"""Small tables for the executed pages: films with ratings, users and films; a shop with clicks."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

GENRES = ("comedy", "drama", "thriller")
N_USERS, N_FILMS = 400, 120
DEPARTMENTS = {
    "garden": ("spade", "watering can", "seeds", "gloves", "hose", "pruner"),
    "kitchen": ("pan", "knife", "whisk", "apron", "kettle", "bowl"),
    "bicycle": ("helmet", "lock", "pump", "light", "saddle", "bell"),
}
N_VISITORS, N_MAKES = 500, 5
FIRST_CLICK = 1_700_000_000


def write_example_files(folder: Path = Path()) -> None:
    """Write ratings.csv, films.csv and users.csv: 400 users and 120 films of three genres.

    A user likes one genre and rates its films higher and more often; every fourth user has few
    ratings. Users' favorite genre follows their age.
    """
    rng = np.random.default_rng(0)
    genre, series = np.arange(N_FILMS) % 3, np.arange(N_FILMS) // 3
    quality = (np.arange(N_FILMS) * 7 % 11 - 5) / 10
    ratings, users = [("user_id", "item_id", "rating")], [("user_id", "age")]
    for user in range(N_USERS):
        favorite = user % 3
        n = rng.integers(4, 12) if user % 4 == 0 else rng.integers(20, 60)
        weight = np.where(genre == favorite, 3.0, 1.0) / (4 + series)
        name = f"user-{user:03d}"
        users.append((name, str(20 + 20 * favorite + rng.integers(0, 12))))
        for film in rng.choice(N_FILMS, size=n, replace=False, p=weight / weight.sum()):
            taste = 1.0 if genre[film] == favorite else -0.8
            rating = 3.2 + taste + quality[film] + 0.3 * rng.standard_normal()
            ratings.append((name, f"film-{film:03d}", str(int(np.clip(round(rating), 1, 5)))))
    films = [("item_id", "title", "genre")]
    films += [
        (f"film-{n:03d}", f"{GENRES[n % 3].title()} {n // 3 + 1}", GENRES[n % 3])
        for n in range(N_FILMS)
    ]
    for name, rows in (("ratings.csv", ratings), ("films.csv", films), ("users.csv", users)):
        _write_csv(folder / name, rows)


def write_shop_files(folder: Path = Path()) -> None:
    """Write clicks.csv and products.csv: 500 visitors and 90 products.

    A visitor shops in one department, sometimes in another one, and likes one make; some products
    are popular with all visitors.
    """
    rng = np.random.default_rng(1)
    makes = ("Alba", "Brio", "Cora", "Dune", "Elko")
    products = [("item_id", "title", "department")]
    products += [
        (f"sku-{n:02d}", f"{makes[n % N_MAKES]} {kind}", department)
        for n, (department, kind) in enumerate(
            (department, kind)
            for department, kinds in DEPARTMENTS.items()
            for kind in kinds
            for _ in range(N_MAKES)
        )
    ]
    n_products = len(products) - 1
    department, make = np.arange(n_products) // 30, np.arange(n_products) % N_MAKES
    popularity = 1 / (3 + rng.permutation(n_products) % 30)
    clicks: list[tuple[str, str, str]] = [("user_id", "item_id", "timestamp")]
    for visitor in range(N_VISITORS):
        weight = popularity * np.where(department == visitor % 3, 12.0, 1.0)
        weight = weight * np.where(make == visitor % N_MAKES, 4.0, 1.0)
        n = int(rng.integers(3, 25))
        chosen = rng.choice(n_products, size=n, replace=False, p=weight / weight.sum())
        times = FIRST_CLICK + np.sort(rng.integers(0, 90 * 86_400, size=n))
        clicks += [
            (f"visitor-{visitor:03d}", f"sku-{product:02d}", str(time))
            for product, time in zip(chosen, times, strict=True)
        ]
    _write_csv(folder / "clicks.csv", clicks)
    _write_csv(folder / "products.csv", products)


def _write_csv(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write rows of text, the first of which are the names of the columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
