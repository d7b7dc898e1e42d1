"""Queries in one batch against queries one by one: lists, filters and standard deviations."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest

from idcf import ColdUserError, DataError, Recommender
from idcf.data.columns import DataWarning
from idcf.data.interactions import Ints
from idcf.inference.predictions import predict_scores
from idcf.inference.predictor import Predictor
from idcf.inference.ranking_query import Filters, RankingQuery
from idcf.results import Recommendations
from idcf.testing.synthetic import checkerboard

OPTIONS = {
    "idcf-bayes": {"sweeps": 24, "burn_in": 12, "embedding_size": 4, "rank": 6},
    "als": {"embedding_size": 4},
}
EVEN = {"i2": 5.0, "i4": 5.0, "i3": 1.0}


@cache
def predictor(name: str = "idcf-bayes") -> Predictor:
    table = checkerboard(
        120, 40, np.random.default_rng(0), rows_per_light_user=6, rows_per_heavy_user=20
    )
    recommender = Recommender(name, key_threshold=12, device="cpu", **OPTIONS[name])
    return recommender.fit(table).predictor


def assert_same(first: Recommendations, second: Recommendations) -> None:
    """Compare two lists; scores and standard deviations to rounding."""
    rounded = {"score": 0, "std": None, "probability": None, "rating": None}
    rounded["rating_if_shown"] = None
    assert [x._replace(**rounded) for x in first] == [x._replace(**rounded) for x in second]
    for field in rounded:
        values = [
            [getattr(x, field) for x in recommendations] for recommendations in (first, second)
        ]
        if None in values[0]:
            assert values[0] == values[1]
        else:
            np.testing.assert_allclose(*values, rtol=1e-4, atol=2e-5)
    assert (first.unknown_items, first.user_id) == (second.unknown_items, second.user_id)


def random_queries(n_queries: int, name: str) -> list[RankingQuery]:
    """Return queries with different histories, numbers of items, filters and options."""
    rng, queries = np.random.default_rng(1), []
    for position in range(n_queries):
        items = rng.choice(40, rng.integers(0, 7), replace=False)
        history = {f"i{i}": float(rng.integers(1, 6)) for i in items} | {"nowhere": 3.0}
        user = predictor(name).read_new_user(history if len(items) else {})
        excluded = rng.integers(40, size=3) if position % 3 else None
        filters = Filters(None, excluded, filter_seen=bool(position % 4))
        n, return_std = int(rng.integers(1, 12)), bool(position % 2)
        queries.append(RankingQuery(user, n, filters, return_std, f"u{position}"))
    return queries


def test_a_batch_with_std_may_ask_for_different_numbers_of_items() -> None:
    user = predictor().read_new_user(EVEN)
    lists = predictor().recommend([RankingQuery(user, n, return_std=True) for n in (1, 5, 3)])
    assert [len(x) for x in lists] == [1, 5, 3]
    assert all(
        x.std is not None and x.std > 0 for recommendations in lists for x in recommendations
    )
    assert_same(lists[0], Recommendations(lists[1][:1]))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("min_batch", [None, 1, 1000])
def test_a_batch_equals_queries_one_by_one(name: str, min_batch: int | None) -> None:
    queries = random_queries(30, name)
    lists = predictor(name).recommend(queries, min_batch=min_batch)
    for query, recommendations in zip(queries, lists, strict=True):
        assert_same(recommendations, predictor(name).recommend([query])[0])
        assert len(recommendations) == query.n
        has_std = query.return_std and name == "idcf-bayes"
        assert all((x.std is not None) == has_std for x in recommendations)
    assert predictor(name).recommend([]) == []


@pytest.mark.parametrize("name", OPTIONS)
def test_blocks_do_not_change_lists(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = random_queries(30, name)
    whole = predictor(name).recommend(queries, min_batch=1)
    monkeypatch.setattr("idcf.inference.predictor._MAX_USERS_WITH_STD", 4)
    monkeypatch.setattr("idcf.inference.topk._MAX_SCORES_PER_BLOCK", 7 * 40)
    monkeypatch.setattr("idcf.inference.topk._MIN_PRODUCT_USERS", 1)
    for first, second in zip(whole, predictor(name).recommend(queries, min_batch=1), strict=True):
        assert_same(first, second)


@pytest.mark.parametrize("shared", [False, True])
def test_candidates(shared: bool) -> None:
    candidates = np.array([3, 8, 9, 21])
    user, plain = predictor().read_new_user(EVEN), Filters()
    with_candidates = Filters(candidates, np.array([9]))
    filters = [with_candidates if shared or k % 2 else plain for k in range(10)]
    lists = predictor().recommend([RankingQuery(user, 4, x) for x in filters])
    for query_filters, recommendations in zip(filters, lists, strict=True):
        assert_same(
            recommendations, predictor().recommend([RankingQuery(user, 4, query_filters)])[0]
        )
        if query_filters is with_candidates:  # i3 is seen, i9 excluded
            assert {x.item_id for x in recommendations} == {"i8", "i21"}


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        (Filters(), [1, 2]),
        (Filters(filter_seen=False), []),
        (Filters(excluded=np.array([2, 7])), [1, 2, 2, 7]),
        (Filters(excluded=np.array([2, 7]), filter_seen=False), [2, 7]),
    ],
)
def test_excluded_rows(filters: Filters, rows: list[int]) -> None:
    seen: Ints = np.array([1, 2])
    assert filters.excluded_rows(seen).tolist() == rows


def test_training_users_get_the_lists_of_their_histories() -> None:
    table = predictor().training_table
    assert table is not None
    rows = np.array([3, 0, 50])
    history = table.history(rows)
    users = [f"u{row}" for row in rows]
    query = RankingQuery(predictor().read_new_user(None), 5)
    lists = predictor().recommend_known(users, query._replace(return_std=True))
    for k, (user, recommendations) in enumerate(zip(users, lists, strict=True)):
        entries = slice(int(history.offsets[k]), int(history.offsets[k + 1]))
        items, values = history.items[entries].tolist(), history.values[entries].tolist()
        ratings = {f"i{item}": value for item, value in zip(items, values, strict=True)}
        new_user = predictor().read_new_user(ratings)
        query = RankingQuery(new_user, 5, return_std=True, user_id=user)
        assert_same(recommendations, predictor().recommend([query])[0])
    assert predictor().recommend_known([], query) == []
    with pytest.warns(DataWarning, match="users 'no', 'where' are not in the table"):
        batch = predictor().recommend_known(["no", "u0", "where"], query)
    assert [(x.user_id, x.basis) for x in batch] == [
        ("no", "popularity"),
        ("u0", "history"),
        ("where", "popularity"),
    ]
    with pytest.raises(ColdUserError, match="does not store training histories"):
        Predictor(predictor().artifact).recommend_known(["u0"], query)


def test_items_to_predict_are_a_list() -> None:
    p = predictor()
    with pytest.raises(DataError, match="items must be a list of item ids, got 'i2'"):
        predict_scores(p, p.read_new_user(EVEN), "i2")
    with pytest.raises(DataError, match="items must be a list of item ids, got 2"):
        predict_scores(p, p.read_new_user(EVEN), 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("history", [{}, {"i1": 5.0}])
def test_a_filter_that_no_item_passes_gives_an_empty_list(history: dict[str, float]) -> None:
    table = checkerboard(30, 12, np.random.default_rng(0))
    genres = {"genre": {"i0": "drama", "i1": "comedy"}, "year": {"i0": "1990", "i1": "1995"}}
    recommender = Recommender(device="cpu", sweeps=8, burn_in=2).fit(table, attributes=genres)
    where = {"genre": "drama", "year": "1995"}
    assert len(recommender.recommend(history, where=where, return_std=True)) == 0


def test_verbs_of_one_user_refuse_a_table_of_several() -> None:
    table = pd.DataFrame({"user_id": ["a", "b"], "item_id": ["i2", "i3"], "rating": [5.0, 1.0]})
    with pytest.raises(DataError, match="holds histories of 2 users"):
        predictor("als").read_new_user(table)
    with pytest.raises(DataError, match="pass one history"):
        predictor("als").read_new_user([EVEN, EVEN])
    assert len(predictor("als").read_new_user(table[:1]).item_rows) == 1
