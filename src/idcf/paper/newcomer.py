"""A person who was in no data: what they rated, by title, and what a model then suggests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from idcf.data.datasets.catalog import Dataset
from idcf.data.interactions import Interactions, Vocab
from idcf.errors import DataError, unknown
from idcf.inference.scoring import deviations, score_pairs, top
from idcf.models.base import Model, Posterior


class Suggestion(NamedTuple):
    title: str
    score: float  # the rating that is expected
    raters: int  # how many people of the dataset rated it
    std: float = float("nan")  # of the rating, where the model knows how sure it is


def history(dataset: Dataset, ratings: Mapping[str, float]) -> Interactions:
    """The table of one user, over the dataset's items."""
    items = dataset.interactions.items
    by_title = {title: id_ for id_, title in dataset.titles.items()}
    for title in ratings:
        if title not in by_title:
            raise DataError(f"{dataset.name}: {unknown('title', title, by_title)[:300]}")
    item = items.rows(by_title[title] for title in ratings)
    rating = np.array(list(ratings.values()), np.float32)
    return Interactions(Vocab(["newcomer"]), items, np.zeros(len(item), np.int64), item, rating)


def suggest(
    model: Model, dataset: Dataset, ratings: Mapping[str, float], n: int = 10
) -> list[Suggestion]:
    """The n best films this person has not rated."""
    seen, who = history(dataset, ratings), np.zeros(1, np.int64)
    best = top(model, who, seen, n, anonymous=True)
    scores = score_pairs(model, who, best, seen, anonymous=True)[0]
    std = np.full(best.shape, np.nan)
    if isinstance(model, Posterior):
        pairs = replace(seen, user=np.zeros(best.size, np.int64), item=best[0])
        pairs = replace(pairs, rating=scores)
        std = deviations(model, pairs, seen, anonymous=True)[None]
    raters, ids = dataset.interactions.item_counts(), dataset.interactions.items.ids
    return [
        Suggestion(
            dataset.titles.get(ids[item], str(ids[item])), float(score), int(raters[item]), float(x)
        )
        for item, score, x in zip(best[0], scores, std[0], strict=True)
    ]
