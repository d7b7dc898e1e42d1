"""The small tables that the executed pages read: 400 users, 120 films of three genres."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

GENRES = ("comedy", "drama", "thriller")
N_USERS, N_FILMS = 400, 120


def write_example_files(folder: Path = Path()) -> None:
    """Write ratings.csv, films.csv and users.csv.

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
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
