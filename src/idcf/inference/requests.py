"""Requests as callers of `Recommender` make them: histories or user ids in, results out.

Reads histories, warns of what of them is not used, and asks the predictor. A user whose history is
empty, or of unknown items alone, does not fail: see `Recommendations.basis`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from idcf.data.columns import warn_about_data
from idcf.data.history_reader import (
    NewUser,
    has_many_users,
    warn_ignored_ratings,
    warn_unknown_histories,
    warn_unknown_items,
)
from idcf.data.interactions import Floats
from idcf.errors import ConfigError
from idcf.inference.abilities import missing_ability
from idcf.inference.predictor import Predictor
from idcf.inference.ranking_query import RankingQuery
from idcf.results import RecommendationBatch, Recommendations


def recommend(
    predictor: Predictor, query: RankingQuery, history: Any, users: Any, features: Any
) -> Recommendations | RecommendationBatch:
    """Return the list, or lists, of `Recommender.recommend` with the options of a query."""
    if query.return_std and not predictor.artifact.model.has_uncertainty:
        warn_about_data(f"{missing_ability('return_std', predictor.artifact)}; std is None")
    if users is None:
        return _recommend_to_new_users(predictor, query, history, features)
    if history is not None or features is not None:
        raise ConfigError("give either a history (and features) or users, not both")
    if isinstance(users, str) or not isinstance(users, Iterable):
        return predictor.recommend_known([users], query)[0]
    return predictor.recommend_known(list(users), query)


def embed(predictor: Predictor, history: Any, features: Any) -> Floats:
    """Return the embedding [D] of one new user, or [B, D] of several."""
    if not has_many_users(history, predictor.artifact.manifest.columns):
        vector: Floats = predictor.embed([read_one_user(predictor, history, features)])[0]
        return vector
    _, new_users = predictor.read_new_users(history, features)
    warn_unknown_items(new_users)
    return predictor.embed(new_users)


def read_one_user(predictor: Predictor, history: Any, features: Any) -> NewUser:
    """Return one new user, with warnings of what of the history is not used."""
    new_user = predictor.read_new_user(history, features)
    warn_unknown_items([new_user])
    warn_ignored_ratings([new_user])
    return new_user


def _recommend_to_new_users(
    predictor: Predictor, query: RankingQuery, history: Any, features: Any
) -> Recommendations | RecommendationBatch:
    """Return the list of one history, or the lists of several."""
    if not has_many_users(history, predictor.artifact.manifest.columns):
        new_user = predictor.read_new_user(history, features)
        _warn(predictor, [new_user])
        return predictor.recommend([query._replace(new_user=new_user)])[0]
    user_ids, new_users = predictor.read_new_users(history, features)
    _warn(predictor, new_users, user_ids)
    queries = [
        query._replace(new_user=new_user, user_id=user_id)
        for new_user, user_id in zip(new_users, user_ids, strict=True)
    ]
    return predictor.recommend(queries, min_batch=1)


def _warn(predictor: Predictor, new_users: Sequence[NewUser], user_ids: Sequence[Any] = ()) -> None:
    """Warn of histories that are taken as empty, and of ratings that are ignored."""
    warn_unknown_histories(predictor.history_reader, new_users, user_ids)
    warn_ignored_ratings(new_users)
