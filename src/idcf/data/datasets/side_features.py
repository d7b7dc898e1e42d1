"""Features and attributes of the public datasets: MovieLens tables and the Douban friend graph."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idcf.data.datasets import formats
from idcf.data.features import fit_feature_encoder
from idcf.data.interactions import Floats, Vocab
from idcf.errors import DataError

_YEAR = re.compile(r"\((\d{4})\)\s*$")  # at the end of a title
# of the columns of u.item, from u.genre; the first is "unknown", which is no genre
_GENRES = (
    *("", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary"),
    *("Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi"),
    *("Thriller", "War", "Western"),
)


def movielens_user_features(users: Vocab, path: Path) -> Floats:
    """Encode age, gender and occupation from a MovieLens file of users: [U, F]."""
    columns = formats.read_side_columns(path)
    selected = {
        "age": columns["age"],
        "gender": columns["gender"],
        # ML-1M codes occupations as numbers, which must be read as words
        "occupation": [f"job {x}" for x in columns["occupation"]],
    }
    return fit_feature_encoder(users, [int(x) for x in columns["user_id"]], selected)[0]


def movielens_item_features(items: Vocab, path: Path) -> Floats:
    """Encode genres and the year in the title from a MovieLens file of items: [I, F]."""
    columns = formats.read_side_columns(path)
    ids = [int(x) for x in columns["item_id"]]
    selected = {k: v for k, v in columns.items() if k in ("genres", "class") or "genre_" in k}
    if "class" in selected:  # RecBole's genres, separated by spaces
        selected["class"] = [x.replace(" ", "|") for x in selected["class"]]
    selected["year"] = years_of_titles(path, ids)
    return fit_feature_encoder(items, ids, selected)[0]


def movielens_attributes(path: Path) -> dict[str, dict[Hashable, Any]]:
    """Read the genres, and the year in the title, of items from a MovieLens file, by item id."""
    columns = formats.read_side_columns(path)
    ids = [int(x) for x in columns["item_id"]]
    cells: dict[str, list[Any]] = {"genre": [[]] * len(ids), "year": years_of_titles(path, ids)}
    if "genres" in columns:  # ML-1M
        cells["genre"] = [x.split("|") for x in columns["genres"]]
    elif "class" in columns:  # RecBole's copy of ML-100K
        cells["genre"] = [x.replace("unknown", "").split() for x in columns["class"]]
    elif "genre_0" in columns:
        flags = np.array([columns[f"genre_{n}"] for n in range(len(_GENRES))]).T == "1"
        cells["genre"] = [[_GENRES[n] for n in np.flatnonzero(row) if n] for row in flags]
    return {name: dict(zip(ids, column, strict=True)) for name, column in cells.items()}


def years_of_titles(path: Path, ids: list[int]) -> list[str]:
    """Return the year in the title of each item, an empty text where there is none."""
    titles = formats.read_titles(path)
    matches = [_YEAR.search(titles[x]) for x in ids]
    return [match.group(1) if match else "" for match in matches]


def friend_graph_features(friend_links: NDArray[Any]) -> Floats:
    """Features of users from a friend graph: I + D^-½ W D^-½, [U, U].

    The rows of the graph are used instead of its leading eigenvectors, because most Douban users
    have no friends and would all have equal eigenvector features. The identity is added because
    friends hardly rate alike on Douban (their biases correlate at .04): with it, a row identifies a
    user as a one-hot code does, while a new user is described by friends alone. W, [U, U], is
    nonzero where one user follows the other; direction and diagonal are ignored.
    """
    if friend_links.ndim != 2 or len(friend_links) != friend_links.shape[1]:
        raise DataError(f"a graph of users must be square, got {friend_links.shape}")
    is_linked = (friend_links != 0) | (friend_links.T != 0)
    np.fill_diagonal(is_linked, False)
    scale = np.maximum(is_linked.sum(1), 1) ** -0.5
    normalized = is_linked * scale * scale[:, None]
    features: Floats = (np.eye(len(friend_links)) + normalized).astype(np.float32)
    return features
