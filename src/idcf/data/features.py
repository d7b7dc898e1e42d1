"""What is known of users or items beside their interactions, as numbers: one row each.

A column of numbers becomes itself and a fifth it falls into; a column of words becomes one column
per word, with several words in a cell separated by `|`. All of it is standardised over the rows
that are known, and 0 where nothing is: the average.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idcf.data import raw
from idcf.data.interactions import Floats, Interactions, Vocab
from idcf.errors import DataError

Numbers = NDArray[np.float64]

_MOST = 64  # words of a column, the most frequent
_LEAST = 3  # rows that a word must have
_PARTS = 5  # into which numbers fall
_YEAR = re.compile(r"\((\d{4})\)\s*$")


def encode(vocab: Vocab, ids: Sequence[Hashable], columns: Mapping[str, Sequence[Any]]) -> Floats:
    """[n, F] for the ids of a vocabulary, from columns that stand beside `ids`."""
    for name, values in columns.items():
        if len(values) != len(ids):
            raise DataError(f"features: column {name!r} has {len(values)} rows, not {len(ids)}")
    at = vocab.rows(ids)
    known = at >= 0
    parts = [x[known] for values in columns.values() for x in _columns(values)]
    table = np.stack(parts, 1) if parts else np.empty((int(known.sum()), 0))
    spread = table.std(0) if len(table) else np.empty(0)
    table = (table - table.mean(0))[:, spread > 0] / spread[spread > 0] if len(table) else table
    out = np.zeros((len(vocab), table.shape[1]), np.float32)
    out[at[known]] = table
    return out


def _columns(values: Sequence[Any]) -> list[Numbers]:
    try:
        numbers = np.array([np.nan if x in (None, "") else float(x) for x in values])
    except (TypeError, ValueError):
        return _words([str(x or "") for x in values])
    if not np.isfinite(numbers).any():
        return []
    numbers = np.where(np.isfinite(numbers), numbers, np.nanmean(numbers))
    edges = np.unique(np.quantile(numbers, np.arange(1, _PARTS) / _PARTS))
    if len(np.unique(numbers)) <= 2:
        return [numbers]
    fifth = np.searchsorted(edges, numbers, side="right")
    return [numbers, *((fifth == k) * 1.0 for k in range(len(edges) + 1))]


def _words(values: Sequence[str]) -> list[Numbers]:
    each = [{w.strip() for w in x.split("|")} - {""} for x in values]
    count: dict[str, int] = {}
    for words in each:
        for w in words:
            count[w] = count.get(w, 0) + 1
    kept = sorted((w for w in count if count[w] >= _LEAST), key=lambda w: (-count[w], w))[:_MOST]
    return [np.array([w in words for words in each], np.float64) for w in kept]


def movielens(table: Interactions, users: Path, items: Path) -> dict[str, Floats]:
    """Of users age, gender and occupation, of films genres and year, as far as files are there."""
    out = {}
    if users.is_file():
        found = raw.side_table(users)
        codes = {"age": found["age"], "gender": found["gender"]}
        codes["occupation"] = [f"job {x}" for x in found["occupation"]]  # ML-1M's are numbers
        out["user_features"] = encode(table.users, [int(x) for x in found["user_id"]], codes)
    if items.is_file():
        found = raw.side_table(items)
        ids, named = [int(x) for x in found["item_id"]], raw.titles(items)
        year = [_YEAR.search(named[x]) for x in ids]
        told = {k: v for k, v in found.items() if k in ("genres", "class") or "genre_" in k}
        if "class" in told:  # RecBole's genres, which a blank separates
            told["class"] = [x.replace(" ", "|") for x in told["class"]]
        told["year"] = [y.group(1) if y else "" for y in year]
        out["item_features"] = encode(table.items, ids, told)
    return out
