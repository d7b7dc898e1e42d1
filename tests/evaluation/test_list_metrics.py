"""Metrics of lists against loops over users, and lists as they are served."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import log2

import numpy as np
import pytest
from builders import board

from idcf.data.datasets.catalog import Dataset
from idcf.data.interactions import Interactions, Ints
from idcf.data.split import Split, split_by_threshold, split_strong
from idcf.errors import ConfigError
from idcf.evaluation import run
from idcf.evaluation.evaluation_set import EvaluationSet, RatingScale, with_negatives
from idcf.evaluation.list_metrics import expected_list_metrics, list_length, measure_lists
from idcf.evaluation.measure import (
    ModelAssignment,
    compute_metrics,
    default_metric_names,
    expected_random_metrics,
    metric_names,
)
from idcf.evaluation.protocol import standard_split
from idcf.inference.benefit import BenefitOrder
from idcf.inference.scoring import score_interactions_by_benefit, top_unseen_items
from idcf.metrics import RelevantItems, auc_per_user, recall_at
from idcf.recommender import Recommender

OPTIONS = {"sweeps": 24, "burn_in": 12, "embedding_size": 4, "rank": 6, "shrinkage": 5.0}
LIST_METRICS = ("recall@20", "recall@50", "ndcg@100", "liked-recall@20", "ipw-liked-recall@20")
LIST_METRICS += ("utility-ndcg@20", "stars-of-hits", "low-hits")


@cache
def split_of(protocol: str = "standard") -> Split:
    """A split of a checkerboard with ratings 1 to 5; the test rows have all of them."""
    table = board(60, 80, 12, 40)
    rng = np.random.default_rng(0)
    noisy = np.clip(table.rating + rng.integers(-2, 3, len(table)), 1, 5).astype(np.float32)
    table = replace(table, rating=noisy)
    if protocol == "strong":
        return split_strong(table, 0.4, 0.5, rng)
    is_test = rng.random(len(table)) < 0.4
    return split_by_threshold(table.where(~is_test), table.where(is_test), 15)


def evaluation_set(protocol: str = "standard") -> EvaluationSet:
    split = split_of(protocol)
    return EvaluationSet.from_split(split, split.query_users)


def slow_values(data: EvaluationSet, split: Split, top: Ints) -> dict[str, float]:
    """Every list metric by its definition."""
    test, key_rows = data.test_rows, split.train.for_users(split.key_users)
    share = (np.bincount(key_rows.item, minlength=80) + 1) / len(split.key_users)
    values: dict[str, list[float]] = {name: [] for name in LIST_METRICS}
    for user, items in zip(data.users.tolist(), top.tolist(), strict=True):
        rows = test.where(test.user == user)
        rating = dict(zip(rows.item.tolist(), rows.rating.tolist(), strict=True))
        liked = {i for i, r in rating.items() if r >= 4}

        def recall(relevant: set[int], k: int, items: list[int] = items) -> float:
            denominator = len(relevant)
            if data.recall_denominator == "min":
                denominator = min(denominator, k)
            return len(relevant & set(items[:k])) / denominator

        def ndcg(gain: dict[int, float], k: int, items: list[int] = items) -> float:
            dcg = sum(gain.get(i, 0) / log2(n + 2) for n, i in enumerate(items[:k]))
            best = sorted(gain.values(), reverse=True)[:k]
            return dcg / sum(g / log2(n + 2) for n, g in enumerate(best))

        values["recall@20"].append(recall(set(rating), 20))
        values["recall@50"].append(recall(set(rating), 50))
        values["ndcg@100"].append(ndcg(dict.fromkeys(rating, 1.0), 100))
        if liked:
            values["liked-recall@20"].append(recall(liked, 20))
            weights = {i: share[i] ** -0.5 for i in liked}
            hit_weight = sum(weights[i] for i in liked & set(items[:20]))
            values["ipw-liked-recall@20"].append(hit_weight / sum(weights.values()))
        if set(rating.values()) != {1.0}:
            values["utility-ndcg@20"].append(ndcg({i: (r - 1) / 4 for i, r in rating.items()}, 20))
        hits = [rating[i] for i in items[:20] if i in rating]
        values["stars-of-hits"] += hits
        values["low-hits"] += [r <= 2 for r in hits]
    return {name: float(np.mean(x)) for name, x in values.items()}


@pytest.mark.parametrize("protocol", ["standard", "strong"])
def test_metrics_of_lists_against_a_loop(protocol: str) -> None:
    split, data = split_of(protocol), evaluation_set(protocol)
    assert data.recall_denominator == ("min" if protocol == "strong" else "relevant")
    assert (data.scale.lowest, data.scale.highest) == (1, 5)
    rng = np.random.default_rng(1)
    top = np.array([rng.permutation(80)[:70] for _ in data.users])
    got = {name: x.mean() for name, x in measure_lists(data, top, LIST_METRICS).items()}
    assert got == pytest.approx(slow_values(data, split, top))
    # a user with more test rows than k tells the two denominators apart
    assert (data.test_rows.user_counts() > 20).any() or protocol == "standard"


@pytest.mark.parametrize("protocol", ["standard", "strong"])
def test_expectations_are_means_over_random_lists(protocol: str) -> None:
    data = evaluation_set(protocol)
    rng, histories = np.random.default_rng(0), data.history_table
    draws: dict[str, list[float]] = {name: [] for name in LIST_METRICS}
    seen = [set(histories.item[histories.user == user].tolist()) for user in data.users]
    unseen = [[i for i in range(80) if i not in items] for items in seen]
    width = min(map(len, unseen))
    for _ in range(150):
        top = np.array([rng.permutation(items)[:width] for items in unseen])
        for name, values in measure_lists(data, top, LIST_METRICS).items():
            draws[name].append(values.mean())
    expected = expected_list_metrics(data, LIST_METRICS)
    for name in LIST_METRICS:
        # `width` may be below 100
        if list_length([name]) <= width:
            spread = np.std(draws[name]) / len(draws[name]) ** 0.5
            assert expected[name].mean() == pytest.approx(np.mean(draws[name]), abs=5 * spread)


def test_the_rating_scale_by_hand() -> None:
    rating = np.array([0.5, 1.0, 2.0, 3.9, 4.0, 5.0, 6.0], np.float32)
    scale = RatingScale(1.0, 5.0)
    assert scale.is_liked(rating).tolist() == [False] * 4 + [True] * 3
    assert scale.is_low(rating).tolist() == [True] * 3 + [False] * 4
    assert scale.utility(rating).round(3).tolist() == [0, 0, 0.25, 0.725, 0.75, 1, 1]
    one = RatingScale(3.0, 3.0)
    assert one.is_liked(rating[-1:]).tolist() == [True]
    assert not one.is_low(rating).any()
    assert one.utility(rating).tolist() == [1.0] * 7


@cache
def fitted() -> tuple[Split, Recommender, BenefitOrder]:
    """A recommender of the key users, and the order of its lists."""
    split = split_of()
    recommender = Recommender(key_threshold=15, device="cpu", **OPTIONS)
    recommender.fit(split.train)
    artifact = recommender.artifact
    assert artifact.take_up_model is not None
    return split, recommender, BenefitOrder(artifact.take_up_model, artifact.manifest.domain)


def served_lists(
    recommender: Recommender, split: Split, users: Ints, n: int, quality: float | None = None
) -> list[list[int]]:
    """The lists of `Recommender.recommend` for the histories of a split, as item rows."""
    lists = []
    for user in users:
        history = split.train.where(split.train.user == user)
        ids = [history.items.ids[i] for i in history.item]
        ratings = dict(zip(ids, history.rating.tolist(), strict=True))
        found = recommender.recommend(ratings, n=n, quality=quality)
        lists.append([split.train.items.row(x.item_id) for x in found])
    return lists


@pytest.mark.parametrize("quality", [0.0, 0.4, 0.9])
def test_measured_lists_are_those_that_are_served(quality: float) -> None:
    split, recommender, order = fitted()
    users = np.unique(split.test.for_users(split.query_users).user)
    order = order._replace(quality=quality)
    top = top_unseen_items(
        recommender.artifact.model, users, split.train, 12, anonymous=True, order=order
    )
    assert top.tolist() == served_lists(recommender, split, users, 12, quality)


def test_a_user_without_history_gets_popular_items_as_served() -> None:
    split, recommender, order = fitted()
    model, user = recommender.artifact.model, split.query_users[:1]
    empty = split.train.where(split.train.user != user[0])
    top = top_unseen_items(model, user, empty, 7, anonymous=True, order=order)
    served = [empty.items.row(x.item_id) for x in recommender.recommend({}, n=7)]
    assert top[0].tolist() == served


def test_a_short_list_ends_in_minus_one() -> None:
    split, recommender, order = fitted()
    model, user = recommender.artifact.model, split.query_users[:1]
    n_seen = int((split.train.user == user[0]).sum())
    for given_order in (None, order):
        top = top_unseen_items(model, user, split.train, 80, anonymous=True, order=given_order)[0]
        assert (top[-n_seen:] == -1).all()
        assert len(set(top[:-n_seen].tolist())) == 80 - n_seen


def test_scores_of_rows_are_those_of_the_lists() -> None:
    split, recommender, order = fitted()
    model, rows = recommender.artifact.model, split.test.for_users(split.query_users)
    scores = score_interactions_by_benefit(model, rows, split.train, order, anonymous=True)
    for position in (0, 5, len(rows) - 1):
        history = split.train.where(split.train.user == rows.user[position])
        parts = order.ranker(model).score_one_user(history.item, history.rating, None, 0.4)
        expected = np.log(parts.benefit[rows.item[position]])
        assert scores[position] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_evaluate_measures_the_served_order() -> None:
    split, recommender, _ = fitted()
    table: Interactions = split.train.concat(split.test)
    data = Dataset("world", table, split.train, split.test, {}, 15)
    names = ("rmse", "recall@20", "coverage@20", "auc-user")
    plan = run.EvaluationPlan(data, ["idcf-bayes"], metrics=names, options=OPTIONS)
    rows = {r.metric: r for r in run.evaluate(plan, split=(split, "x")) if r.model == "idcf-bayes"}
    assert list(rows) == list(names)
    assert [rows[name].quality for name in names] == [None, 0.4, 0.4, 0.4]
    users = evaluation_set().users
    top = np.array(served_lists(recommender, split, users, 20))
    test = split.test
    relevant = [test.item[test.user == user] for user in users]
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in relevant])])
    recall = recall_at(top, RelevantItems(np.concatenate(relevant), offsets))
    assert rows["recall@20"].value == pytest.approx(recall.mean())
    assert rows["coverage@20"].value == pytest.approx(len(np.unique(top)) / 80)
    # lists by expected ratings differ; predicted ratings do not
    own = {
        r.metric: r
        for r in run.evaluate(replace(plan, quality=1.0), split=(split, "x"))
        if r.model == "idcf-bayes"
    }
    assert own["rmse"].value == rows["rmse"].value
    assert own["recall@20"].value != rows["recall@20"].value
    assert own["recall@20"].quality is None


def test_auc_of_rated_items_is_by_the_scores_of_lists() -> None:
    split, recommender, order = fitted()
    data, model = evaluation_set(), recommender.artifact.model
    assignments = [ModelAssignment(model, split.query_users, order)]
    got = compute_metrics(data, assignments, names=["auc-user"])["auc-user"]
    rows = with_negatives(data.test_rows)
    scores = score_interactions_by_benefit(model, rows, split.train, order, anonymous=True)
    positive = np.repeat([True, False], [len(data.test_rows), 5 * len(data.test_rows)])
    assert got.interval.value == pytest.approx(auc_per_user(rows.user, scores, positive).mean())
    assert expected_random_metrics(data, ["auc-user"])["auc-user"].interval.value == 0.5


def test_names_of_metrics() -> None:
    for implicit in (False, True):
        for protocol in ("standard", "temporal", "strong"):
            names = default_metric_names(implicit, protocol)  # type: ignore[arg-type]
            assert set(names) <= set(metric_names(implicit))
    assert "liked-recall@20" not in metric_names(implicit=True)
    table = board(60, 80, 12, 40, implicit=True)
    data = Dataset("world", table, None, None, {}, 10)
    with pytest.raises(ConfigError, match="no metric of implicit feedback named 'low-hits'"):
        run.EvaluationPlan(data, ["popularity"], metrics=["low-hits"])
    with pytest.raises(ConfigError, match="quality must be between 0 and 1"):
        run.EvaluationPlan(data, ["popularity"], quality=2.0)
    with pytest.raises(ConfigError, match="no model orders lists by it: add idcf-bayes"):
        run.EvaluationPlan(data, ["popularity", "idcf-bayes"], quality=0.5)


def test_all_metrics_of_implicit_feedback() -> None:
    data = Dataset("world", board(60, 80, 16, 40, implicit=True), None, None, {}, 12)
    plan = run.EvaluationPlan(data, ["popularity"], metrics=metric_names(implicit=True))
    rows = [r for r in run.evaluate(plan, split=standard_split(data)) if r.model == "popularity"]
    assert [r.metric for r in rows] == list(metric_names(implicit=True))
    assert all(r.quality is None and r.low <= r.value <= r.high for r in rows)
