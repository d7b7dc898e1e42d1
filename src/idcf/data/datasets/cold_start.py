"""The cold-start split of MovieLens-1M (Lee et al. 2019, MeLU): new users known by features.

The training rows are those of warm users with warm items. The users of the test rows are cold: no
rating of theirs is trained on. `TEST_ROWS` random rows of each cold user with 13 to 100 of them are
set apart, to be predicted from 0, 1, 2, 5, 10 or all of the user's other rows, the support.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from idcf.data.features import fit_feature_encoder
from idcf.data.interactions import Interactions, Ints, Vocab
from idcf.data.split import PredictionTask, rank_in_user
from idcf.errors import DataError
from idcf.rng import random_stream

SPLIT_FILE = "melu_split.json"
TEST_ROWS = 10  # of an eligible cold user
ROWS_OF_ELIGIBLE_USERS = (13, 100)  # the fewest and the most
SUPPORT_SIZES: Mapping[str, int] = {  # user group -> rows of the support
    "cold-0": 0,
    "cold-1": 1,
    "cold-2": 2,
    "cold-5": 5,
    "cold-10": 10,
    "cold-all": ROWS_OF_ELIGIBLE_USERS[1],
}


class ColdStartSplit(NamedTuple):
    """The tables of the split, which share their vocabularies."""

    train: Interactions  # warm users, warm items
    test: Interactions  # cold users, warm items
    tasks: dict[str, PredictionTask]  # by user group


def split_cold_users(table: Interactions, path: Path) -> ColdStartSplit:
    """Split a table of MovieLens-1M by a file of cold users, cold items and merged items.

    Items that the file merges get one row of the vocabulary. Raises `DataError` if the file is not
    as expected.
    """
    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
        cold_users, cold_items = lists["cold_users"], lists["cold_items"]
        merged = {int(x): y for x, y in lists["merged_items"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a cold-start split ({error!r:.80}); copy it again") from None
    table = _merge_items(table, merged)
    is_cold_user = np.isin(np.array(table.users.ids), cold_users)[table.user]
    is_warm_item = ~np.isin(np.array(table.items.ids), cold_items)[table.item]
    train = table.where(~is_cold_user & is_warm_item)
    test = table.where(is_cold_user & is_warm_item)
    return ColdStartSplit(train, test, support_tasks(test))


def support_tasks(test: Interactions) -> dict[str, PredictionTask]:
    """Return the task of each size of the support; a larger support holds every smaller one."""
    rank = rank_in_user(test, random_stream(0, "cold-start test rows").random(len(test)))
    low, high = ROWS_OF_ELIGIBLE_USERS
    counts = test.user_counts()[test.user]
    is_eligible = (counts >= low) & (counts <= high)
    targets = test.where(is_eligible & (rank < TEST_ROWS))
    return {
        group: PredictionTask(
            test.where(is_eligible & (rank >= TEST_ROWS) & (rank < TEST_ROWS + n)), targets
        )
        for group, n in SUPPORT_SIZES.items()
    }


def read_features(table: Interactions, folder: Path) -> dict[str, Any]:
    """Return the fields of features for a table: gender, age, occupation and the first digit of the
    zip code of users; genres and year of items.

    The MPAA rating, director and actors, which the paper also uses, are not in these files.
    """
    from idcf.data.datasets.formats import read_side_columns
    from idcf.data.datasets.side_features import years_of_titles

    users, items = read_side_columns(folder / "users.dat"), read_side_columns(folder / "movies.dat")
    item_ids = [int(x) for x in items["item_id"]]
    user_columns = {
        "gender": users["gender"],
        # numbers that are codes are read as words
        "age": [f"age {x}" for x in users["age"]],
        "occupation": [f"job {x}" for x in users["occupation"]],
        "zip": [f"zip {x[:1]}" for x in users["zip_code"]],
    }
    years = years_of_titles(folder / "movies.dat", item_ids)
    item_columns = {"genres": items["genres"], "year": years}
    fields: dict[str, Any] = {}
    for side, vocab, ids, columns in (
        ("user", table.users, [int(x) for x in users["user_id"]], user_columns),
        ("item", table.items, item_ids, item_columns),
    ):
        features, encoder = fit_feature_encoder(vocab, ids, columns)
        fields |= {f"{side}_features": features, f"{side}_feature_widths": encoder.widths}
    return fields


def _merge_items(table: Interactions, merged: Mapping[int, int]) -> Interactions:
    """Return the table with the rows of some items given to another item each."""
    ids: list[Any] = [merged.get(x, x) for x in table.items.ids]  # type: ignore[call-overload]
    items = Vocab(sorted(set(ids)))
    new_row: Ints = items.rows(ids)
    return replace(table, items=items, item=new_row[table.item])
