"""Options of a list: diversity, damping and filters by attributes, alone and together."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from builders import board
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.errors import ConfigError, DataError
from idcf.inference.reranking import diversify, diversify_batch, pool_size
from idcf.recommender import Recommender
from idcf.results import Recommendations

HISTORY = {"i2": 5.0, "i4": 5.0, "i3": 1.0, "i9": 2.0}
CLICKS = ["i2", "i4", "i9"]
SMALL = {"sweeps": 24, "burn_in": 12, "embedding_size": 4, "rank": 6, "shrinkage": 5.0}
KINDS = ("ratings", "clicks")


@cache
def fitted(name: str = "idcf-bayes", kind: str = "ratings") -> Recommender:
    """Return a model of a world in which item n has the group "g{n mod 3}", and more."""
    table = board(120, 40, 6, 20, implicit=kind == "clicks")
    items = pd.DataFrame({"item_id": table.items.ids})
    number = [int(x[1:]) for x in table.items.ids]
    items["title"] = [f"Film {n}" for n in number]
    items["group"] = [f"g{n % 3}|" + ("even" if n % 2 == 0 else "odd") for n in number]
    items["year"] = [1990 + n // 10 for n in number]
    options = SMALL if name == "idcf-bayes" and kind == "ratings" else {}
    recommender = Recommender(name, key_threshold=12, device="cpu", **options)
    return recommender.fit(table, items=items)


def history_of(kind: str) -> Any:
    return HISTORY if kind == "ratings" else CLICKS


def random_items(n_histories: int, length: int) -> list[list[str]]:
    """Return histories of different items of the world."""
    rng = np.random.default_rng(0)
    return [[f"i{n}" for n in rng.choice(40, length, replace=False)] for _ in range(n_histories)]


def ids(recommendations: Recommendations) -> list[str]:
    return [x.item_id for x in recommendations]


def slow_diversify(similarity: np.ndarray, n: int, diversity: float) -> list[int]:
    """The definition, item by item."""
    m = len(similarity)
    pairs = {(a, b): (similarity[a, b] + similarity[b, a]) / 2 for a in range(m) for b in range(m)}
    different = [x for (a, b), x in pairs.items() if a != b]
    mean, std = (np.mean(different), np.std(different)) if different else (0, 0)
    chosen = [0]
    while len(chosen) < min(n, m):
        value = {}
        for k in set(range(m)) - set(chosen):
            relevance = (1 - k / m) * 12**0.5
            near = np.mean([(pairs[k, j] - mean) / std if std > 1e-6 else 0 for j in chosen])
            value[k] = (1 - diversity) * relevance - diversity * near
        chosen.append(max(value, key=lambda k: (round(value[k], 5), -k)))
    return chosen


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), m=st.integers(1, 12), n=st.integers(1, 14))
def test_diversify_is_its_definition(seed: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    similarity, diversity = rng.normal(2, 3, (m, m)).astype(np.float32), float(rng.random())
    result = diversify(similarity.copy(), n, diversity).tolist()
    assert result == slow_diversify(similarity, n, diversity)
    assert diversify(similarity.copy(), n, 0.0).tolist() == list(range(min(n, m)))
    same = np.full((m, m), 0.3, np.float32)
    assert diversify(same, n, diversity).tolist() == list(range(min(n, m)))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 999), m=st.integers(1, 12), n=st.integers(1, 14))
def test_a_batch_is_diversified_list_by_list(seed: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    similarity = rng.normal(2, 3, (5, m, m)).astype(np.float32)
    similarity[3] = 0.3
    diversity = rng.random(5).astype(np.float32)
    chosen = diversify_batch(similarity.copy(), n, diversity)
    for one, share, positions in zip(similarity, diversity, chosen, strict=True):
        assert positions.tolist() == slow_diversify(one, n, float(share))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("idcf-bayes", "ratings"),
        ("idcf-bayes", "clicks"),
        ("ease", "clicks"),
        ("als", "clicks"),
        ("item-knn", "ratings"),
        ("als", "ratings"),
        ("idcf-takeup", "clicks"),
    ],
)
def test_similarities_among_some_items_are_those_of_similar_items(name: str, kind: str) -> None:
    ranker = fitted(name, kind).predictor.ranker
    rows = np.array([7, 0, 31, 12])
    expected = np.stack([ranker.item_similarities(row)[rows] for row in rows])
    np.testing.assert_allclose(ranker.similarities_among(rows), expected, rtol=1e-4, atol=1e-6)
    both = ranker.similarities_among(np.stack([rows, rows[::-1]]))
    expected = np.stack([expected, expected[::-1, ::-1]])
    np.testing.assert_allclose(both, expected, rtol=1e-4, atol=1e-6)


def test_a_model_with_similarities_of_single_items_alone_is_served(monkeypatch) -> None:
    """As a model of another package may be: the hook of several items is left out."""
    ranker, rows = fitted("ease", "clicks").predictor.ranker, np.array([7, 0, 31, 12])
    expected = ranker.similarities_among(rows)
    monkeypatch.setattr(type(ranker.model), "similarities_among", lambda model, rows: None)
    np.testing.assert_allclose(ranker.similarities_among(rows), expected, rtol=1e-5)
    np.testing.assert_allclose(ranker.similarities_among(rows[None])[0], expected, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_diverse_list_has_less_similar_items(kind: str) -> None:
    recommender, history = fitted(kind=kind), history_of(kind)
    ranker = recommender.predictor.ranker
    row_by_id = {x: n for n, x in enumerate(recommender.predictor.item_ids)}
    pairs = ~np.eye(6, dtype=bool)
    # a greedy choice need not improve every list, but the mean of many
    histories = [dict.fromkeys(x, 5.0) for x in random_items(40, 3)]
    means = []
    for diversity in (0.0, 0.5, 1.0):
        lists = recommender.recommend(histories, n=6, diversity=diversity)
        rows = np.array([[row_by_id[x] for x in ids(one)] for one in lists])
        means.append(ranker.similarities_among(rows)[:, pairs].mean())
    assert means[0] > means[1] > means[2]
    plain = recommender.recommend(history, n=6)
    assert recommender.recommend(history, n=6, diversity=0) == plain
    assert ids(recommender.recommend(history, n=6, diversity=0.9))[0] == plain[0].item_id
    everything = recommender.recommend(history, n=40, diversity=0.7)
    assert sorted(ids(everything)) == sorted(ids(recommender.recommend(history, n=40)))
    assert [x.rank for x in everything] == list(range(1, len(everything) + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_damping_divides_the_probability_by_the_popularity(kind: str) -> None:
    recommender, history = fitted(kind=kind), history_of(kind)
    model = recommender.artifact.take_up_model or recommender.artifact.model
    smoothed = model.item_popularity().double().numpy() + 10
    popularity = dict(zip(recommender.predictor.item_ids, smoothed / smoothed.mean(), strict=True))
    for quality in (0.0, 0.3, 1.0) if kind == "ratings" else (None,):
        plain = {x.item_id: x.score for x in recommender.recommend(history, n=40, quality=quality)}
        damped = recommender.recommend(history, n=40, quality=quality, damping=0.7)
        assert [x.score for x in damped] == sorted((x.score for x in damped), reverse=True)
        power = 0.7 * (1 - (quality or 0.0))
        for x in damped:
            expected = plain[x.item_id] / popularity[x.item_id] ** power
            assert x.score == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"damping": 0.6},
        {"diversity": 0.4},
        {"diversity": 1.0, "n": 50},
        {"where": {"group": ["g1", "g2"]}, "diversity": 0.5},
        {"where": {"group": "g1", "year": 1991}, "diversity": 0.5, "damping": 1.0},
        {"where": {"group": "even"}, "candidates": ["i2", "i5", "i6", "i8"], "exclude": ["i8"]},
        {"diversity": 0.3, "damping": 0.4, "exclude": ["i0", "i6"], "filter_seen": False},
    ],
)
def test_a_batch_gives_the_lists_of_its_users(kind: str, options: dict[str, Any]) -> None:
    recommender = fitted(kind=kind)
    histories: list[Any] = [history_of(kind)] * 5
    if kind == "ratings":
        histories += [{"i1": 5.0}, {"i0": 1.0, "i6": 4.0}, {}, {"i7": 4.0}]
    else:
        histories += [["i1"], ["i0", "i6"], [], ["i7"]]
    options = {"n": 6, "return_std": kind == "ratings", **options}
    batch = recommender.recommend(histories, **options)
    for history, in_batch in zip(histories, batch, strict=True):
        one = recommender.recommend(history, **options)
        assert ids(one) == ids(in_batch)
        np.testing.assert_allclose([x.score for x in one], [x.score for x in in_batch], rtol=2e-3)
        for field in ("std", "rating", "probability"):
            values = [[getattr(x, field) for x in y] for y in (one, in_batch)]
            if values[0] and values[0][0] is not None:
                np.testing.assert_allclose(*values, rtol=2e-3)


def test_queries_of_different_options_share_a_batch() -> None:
    predictor = fitted().predictor
    new_user = predictor.read_new_user(HISTORY)
    options: list[dict[str, Any]] = [
        {},
        {"diversity": 0.6},
        {"damping": 1.0},
        {"quality": 0.0, "damping": 0.5, "diversity": 0.2, "n": 30},
        {"n": 40, "diversity": 1.0},
        {"quality": 1.0},
        {"n": 1},
        {"n": 3, "diversity": 0.9, "exclude": ["i0", "i6", "i8"]},
    ]
    queries = [predictor.list_query(**x)._replace(new_user=new_user) for x in options]
    for query, in_batch in zip(queries, predictor.recommend(queries, min_batch=1), strict=True):
        assert ids(in_batch) == ids(predictor.recommend([query])[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("history", [None, "some"])
def test_a_filter_is_applied_before_the_ranking(kind: str, history: Any) -> None:
    recommender = fitted(kind=kind)
    history = history and history_of(kind)
    everything = ids(recommender.recommend(history, n=40))
    chosen = [x for x in everything if int(x[1:]) % 3 == 1]
    assert ids(recommender.recommend(history, n=40, where={"group": "g1"})) == chosen
    both = [x for x in chosen if 10 <= int(x[1:]) < 20]
    where = {"group": "g1", "year": [1991]}
    assert ids(recommender.recommend(history, n=40, where=where)) == both
    assert ids(recommender.recommend(history, n=2, where=where)) == both[:2]
    assert ids(recommender.recommend(history, n=40, where={})) == everything
    nothing = {"candidates": ["i0"], "where": {"group": "odd"}}
    assert recommender.recommend(history, diversity=0.5, **nothing) == []


def test_attributes_are_saved_and_stay_when_items_are_added(tmp_path) -> None:
    loaded = Recommender.load(fitted().save(tmp_path / "model"))
    where = {"group": "g2", "year": 1993}
    expected = fitted().recommend(HISTORY, where=where)
    assert expected
    assert loaded.recommend(HISTORY, where=where) == expected
    assert loaded.predictor.attribute_names == ["group", "year"]
    ratings = pd.DataFrame({"user_id": ["u0"], "item_id": ["new"], "rating": [5.0]})
    loaded.partial_fit_items(ratings, histories={"u0": {"i2": 5.0}})
    assert ids(loaded.recommend(HISTORY, where=where)) == ids(expected)
    again = Recommender.load(loaded.save(tmp_path / "more"))
    assert ids(again.recommend(HISTORY, where=where)) == ids(expected)


def test_a_model_without_attributes_says_how_to_get_them(tmp_path) -> None:
    recommender = Recommender("als", device="cpu").fit(board(60, 20, 6, 12))
    loaded = Recommender.load(recommender.save(tmp_path / "model"))
    assert loaded.predictor.attribute_names == []
    with pytest.raises(DataError, match=r"knows no attributes of items; fit it with items="):
        loaded.recommend({"i2": 5}, where={"group": "g1"})


def test_every_model_takes_a_table_of_items() -> None:
    for name, kind in (("als", "ratings"), ("ease", "clicks"), ("popularity", "clicks")):
        recommender = fitted(name, kind)
        items = ids(recommender.recommend(history_of(kind), where={"group": "g1"}))
        assert items
        assert all(int(x[1:]) % 3 == 1 for x in items)


@pytest.mark.parametrize("option", ["diversity", "damping"])
@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), "much", None])
def test_values_outside_the_range_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be between 0 and 1, got"):
        fitted().recommend(HISTORY, **{option: value})


def test_models_that_lack_what_an_option_needs_say_so() -> None:
    with pytest.raises(ConfigError, match="diversity needs a model with similarities"):
        fitted("popularity", "clicks").recommend(CLICKS, diversity=0.1)
    with pytest.raises(ConfigError, match="damping needs a model that knows how likely"):
        fitted("als").recommend(HISTORY, damping=0.1)
    factors = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=True)
    with pytest.raises(ConfigError, match="damping needs a model that knows how likely"):
        factors.recommend(["a"], damping=0.1)
    assert ids(factors.recommend(["a"], diversity=0.1))[0] == "b"
    assert fitted("popularity", "clicks").recommend(CLICKS, damping=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_an_explanation_has_the_score_of_the_list(kind: str) -> None:
    recommender, history = fitted(kind=kind), history_of(kind)
    for damping in (0.0, 0.8):
        best = recommender.recommend(history, n=1, damping=damping)[0]
        explanation = recommender.explain(history, best.item_id, damping=damping)
        assert explanation.score == pytest.approx(best.score, rel=1e-3)


def test_take_up_of_a_few_items_is_that_of_the_catalogue() -> None:
    model = fitted().artifact.take_up_model
    table = board(120, 40, 6, 20)
    users = table.build_users(np.arange(5))
    items, owner = torch.tensor([[3, 3], [9, 0], [39, 3]]), torch.tensor([4, 0, 2])
    expected = model.score_catalog(users)[owner[:, None], items]
    torch.testing.assert_close(model(users, items, owner), expected, rtol=1e-4, atol=1e-6)
    model.item_weights.train()  # without the copy that holds the zeros
    try:
        torch.testing.assert_close(model(users, items, owner), expected, rtol=1e-4, atol=1e-6)
    finally:
        model.item_weights.eval()


def test_the_pool_of_a_narrow_filter_is_small() -> None:
    assert pool_size(10, 0.0) == 10
    assert pool_size(10, 0.5) == 100
    assert pool_size(30, 0.5) == 150
    for n_matches, size in ((1682, 100), (600, 60), (250, 25), (90, 20), (5, 20)):
        assert pool_size(10, 0.5, n_matches, 1682) == size
    assert pool_size(10, 0.5, 5_000, 100_000) == 100  # a tenth is more than there would be
    assert pool_size(10, 0.5, 60, 200) == 30  # all of 200 items would have a pool of a half
    assert pool_size(10, 0.0, 90, 1682) == 10


@pytest.mark.parametrize("kind", KINDS)
def test_diversity_does_not_reach_far_down_a_filtered_list(kind: str, monkeypatch) -> None:
    """With a pool of 20 of 40 items, a list of the 20 even ones is chosen from the best ten."""
    monkeypatch.setattr("idcf.inference.reranking._MIN_POOL", 20)
    recommender, history = fitted(kind=kind), history_of(kind)
    even = ids(recommender.recommend(history, n=40, where={"group": "even"}))
    row_by_id = {x: n for n, x in enumerate(recommender.predictor.item_ids)}
    expected = {}
    for size in (10, 20):
        rows = np.array([row_by_id[x] for x in even[:size]])
        similarity = recommender.predictor.ranker.similarities_among(rows)
        expected[size] = [even[k] for k in diversify(similarity, 4, 0.9)]
    assert expected[10] != expected[20]
    candidates = [x for x in row_by_id if int(x[1:]) % 2 == 0]  # no filter by attributes
    for size, options in ((10, {"where": {"group": "even"}}), (20, {"candidates": candidates})):
        assert ids(recommender.recommend(history, n=4, diversity=0.9, **options)) == expected[size]
        for one in recommender.recommend([history] * 3, n=4, diversity=0.9, **options):
            assert ids(one) == expected[size]
