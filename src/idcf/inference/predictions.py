"""Scores of some items for one new user, their intervals, and the items similar to one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from idcf.data.history_reader import NewUser
from idcf.data.interactions import Floats, Ints
from idcf.errors import DataError
from idcf.inference.abilities import missing_ability
from idcf.inference.predictor import Predictor
from idcf.inference.ranked_lists import RankedList
from idcf.inference.topk import EXCLUDED_SCORE, top_k_1d
from idcf.metrics.calibration import interval_half_width
from idcf.results import PredictionInterval, Recommendations

_MIN_COMPARED = 200  # items whose weights are compared in both directions
_POOL_PER_ITEM = 5


def predict_scores(predictor: Predictor, new_user: NewUser, items: Iterable[Any]) -> Floats:
    """Return the scores of items for one new user; DataError: an item is unknown."""
    return _scores(predictor, new_user, _item_rows(predictor, items))


def predict_if_shown(predictor: Predictor, new_user: NewUser, items: Iterable[Any]) -> Floats:
    """Return the expected ratings of items if they were shown; see `inference.if_shown`.

    DataError: an item is unknown. ConfigError: the model does not know how users choose.
    """
    if predictor.artifact.manifest.choice_slope is None:
        raise missing_ability("if_shown", predictor.artifact)
    rows = _item_rows(predictor, items)
    ratings, std = _scores(predictor, new_user, rows), predictor.rating_std(new_user, rows)
    out = predictor.rating_if_shown(ratings, std)
    assert out is not None
    return out


def predict_interval(
    predictor: Predictor, new_user: NewUser, items: Iterable[Any], confidence_level: float
) -> PredictionInterval:
    """Return ratings of items for one new user with intervals, all on the rating scale.

    DataError: an item is unknown. ConfigError: the model has no standard deviations.
    """
    if not predictor.artifact.model.has_uncertainty:
        raise missing_ability("predict_interval", predictor.artifact)
    rows = _item_rows(predictor, items)
    scores = _scores(predictor, new_user, rows)
    std = predictor.rating_std(new_user, rows).astype(np.float32)
    ratio = predictor.artifact.model.interval_ratio(confidence_level)
    half = ratio * interval_half_width(confidence_level) * std
    rating, low, high = (predictor.on_scale(x) for x in (scores, scores - half, scores + half))
    ids, titles = predictor.item_ids, predictor.titles
    of_items = tuple(ids[row] for row in rows), tuple(titles[row] for row in rows)
    return PredictionInterval(rating, std, low, high, *of_items)


def similar_items(predictor: Predictor, item: Any, n: int) -> Recommendations:
    """Return the n items most similar to one item; the score is the similarity, at most 1.

    It is the cosine of the item vectors or, where a model holds weights between items, √(w_ij w_ji)
    over that of the most similar item. ConfigError: the model has no similarity between items.
    """
    row = predictor.history_reader.item_row(item)
    similarities = predictor.ranker.item_similarities(row)
    similarities[row] = EXCLUDED_SCORE
    if predictor.artifact.model.has_item_weights:
        rows = top_k_1d(similarities, max(_MIN_COMPARED, _POOL_PER_ITEM * n))
        mutual = _mutual_weights(predictor, row, rows)
        order = np.argsort(-mutual, kind="stable")[:n]
        rows, scores = rows[order], mutual[order]
    else:
        rows = top_k_1d(similarities, n)
        scores = similarities[rows]
    ranked = RankedList(rows.tolist(), scores.tolist())
    return Recommendations(predictor.build_items(ranked, predictor.source), basis=None)


def _mutual_weights(predictor: Predictor, row: int, others: Ints) -> Floats:
    """Return √(w_ij w_ji) of an item i and some others [K] over the largest of them; 0 where a
    weight is not positive."""
    weights = predictor.ranker.similarities_among(np.append(others, row)).clip(min=0)
    mutual = np.sqrt(weights[-1, :-1] * weights[:-1, -1])
    out: Floats = mutual / max(mutual.max(initial=0.0), np.finfo(np.float32).tiny)
    return out


def _item_rows(predictor: Predictor, items: Iterable[Any]) -> Ints:
    """Return the rows of some items; DataError: one is unknown, or this is no list."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise DataError(f"items must be a list of item ids, got {items!r}")
    return np.array([predictor.history_reader.item_row(x) for x in items], np.int64)


def _scores(predictor: Predictor, user: NewUser, item_rows: Ints) -> Floats:
    """Return the scores of items [K] for one user."""
    return predictor.ranker.score_items_of_one_user(
        user.item_rows, user.values, user.features, item_rows
    )
