"""Ranking metrics, compared with their definitions, scikit-learn and ir_measures."""

from __future__ import annotations

from itertools import pairwise, permutations
from math import log2
from typing import Any

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import RR, R, Success, nDCG
from random_rows import Array, few, rows, seeds
from sklearn.metrics import ndcg_score

from idcf.errors import ConfigError, DataError
from idcf.metrics import (
    PerUserMetric,
    RelevantItems,
    auc_interval,
    auc_per_user,
    auc_pooled,
    hit_at,
    mrr_at,
    ndcg,
    ndcg_at,
    random_ndcg,
    random_ndcg_at,
    recall_at,
)


def slow_dcg(gains: list[float], k: int | None) -> float:
    return sum(g / log2(r + 2) for r, g in enumerate(gains[:k]))


def slow_ndcg(score: Array, label: Array, gain: str, k: int | None) -> float:
    """NDCG by its definition, averaged over every order that the scores allow."""
    gains = [2.0**y - 1 if gain == "exp" else float(y) for y in label]
    allowed = [
        order
        for order in permutations(range(len(score)))
        if all(score[i] >= score[j] for i, j in pairwise(order))
    ]
    mean = sum(slow_dcg([gains[i] for i in order], k) for order in allowed) / len(allowed)
    return mean / slow_dcg(sorted(gains, reverse=True), k)


@pytest.mark.parametrize("gain", ["exp", "linear"])
@pytest.mark.parametrize("k", [None, 1, 3])
def test_ndcg_is_the_mean_over_all_allowed_orders(gain: Any, k: int | None) -> None:
    user, score, label = rows(1, n=30, users=8)
    got = ndcg(user, score, label, gain=gain, k=k)
    expected = {}
    for u in np.unique(user):
        of_user = user == u
        if of_user.sum() >= 2 and label[of_user].any():
            assert of_user.sum() <= 7, "the reference tries every order: keep the lists short"
            expected[int(u)] = slow_ndcg(score[of_user], label[of_user], gain, k)
    assert got.users.tolist() == list(expected)
    np.testing.assert_allclose(got.values, list(expected.values()))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("k", [None, 4])
def test_ndcg_against_sklearn_ties_included(seed: int, k: int | None) -> None:
    user, score, label = rows(seed, n=200)
    for gain, gains in (("exp", 2.0**label - 1), ("linear", label)):
        got = ndcg(user, score, label, gain=gain, k=k)  # type: ignore[arg-type]
        expected = [ndcg_score([gains[user == u]], [score[user == u]], k=k) for u in got.users]
        np.testing.assert_allclose(got.values, expected)


def test_ndcg_by_hand() -> None:
    user, label = np.array([1, 1]), np.array([1, 3])
    worst = (1 + 7 / log2(3)) / (7 + 1 / log2(3))
    assert ndcg(user, np.array([2.0, 1.0]), label).values == pytest.approx(worst)
    assert ndcg(user, np.array([1.0, 2.0]), label).values == pytest.approx(1)
    assert ndcg(user, np.array([0.0, 0.0]), label).values == pytest.approx((1 + worst) / 2)
    assert ndcg(user, np.array([2.0, 1.0]), label, k=1).values == pytest.approx(1 / 7)
    assert ndcg(user, np.array([2.0, 1.0]), label, gain="linear", k=1).values == pytest.approx(
        1 / 3
    )


def test_users_with_few_rows_or_no_gain_are_left_out_of_ndcg() -> None:
    user = np.array([0, 1, 1, 2, 2, 3, 3, 3])
    label = np.array([5, 1, 2, 0, 0, 1, 1, 1])
    score = np.arange(8.0)
    assert ndcg(user, score, label).users.tolist() == [1, 3]
    assert ndcg(user, score, label, min_rows=1).users.tolist() == [0, 1, 3]
    assert ndcg(user, score, label, min_rows=3).users.tolist() == [3]
    none = np.array([])
    assert len(ndcg(none, none, none)) == 0
    assert len(auc_per_user(none, none, none)) == 0


def test_a_constant_scorer_gains_nothing_from_the_order_of_the_rows() -> None:
    """The published code gives a constant scorer an NDCG of 1 here, as positives come first."""
    user, label = np.zeros(60, int), np.repeat([1, 0], [10, 50])
    got = ndcg(user, np.ones(60), label).mean()
    assert got == ndcg(user[::-1], np.ones(60), label[::-1]).mean()
    assert got == pytest.approx(random_ndcg(user, label).mean())
    assert 0.5 < got < 0.6


def test_the_mean_over_random_draws_is_the_exact_value() -> None:
    user, _, label = rows(3, n=40, users=4)
    score = label // 3  # tied in two blocks
    rng = np.random.default_rng(0)
    # noise below the distance of two scores breaks ties at random
    draws = [ndcg(user, score + rng.random(40) / 2, label, k=5).values for _ in range(2000)]
    assert np.std(draws) > 0.01
    np.testing.assert_allclose(np.mean(draws, 0), ndcg(user, score, label, k=5).values, atol=0.01)
    shuffled = [ndcg(user, rng.random(40), label).values for _ in range(2000)]
    np.testing.assert_allclose(np.mean(shuffled, 0), random_ndcg(user, label).values, atol=0.01)


@few
@given(seeds, st.integers(1, 50), st.sampled_from([None, 1, 3]), st.sampled_from(["exp", "linear"]))
def test_ndcg_properties(seed: int, n: int, k: int | None, gain: Any) -> None:
    user, score, label = rows(seed, n, 6)
    got = ndcg(user, score, label, k=k, gain=gain)
    assert np.all((got.values >= 0) & (got.values <= 1))
    moved = np.random.default_rng(seed).permutation(n)
    moved_result = ndcg(user[moved], np.exp(score[moved] * 3) + 7, label[moved], k=k, gain=gain)
    assert np.array_equal(got.users, moved_result.users)
    assert np.array_equal(got.values, moved_result.values)
    perfect = ndcg(user, label * 0.1, label, k=k, gain=gain)
    np.testing.assert_allclose(perfect.values, 1)
    constant = ndcg(user, np.full(n, 0.3), label, k=k, gain=gain)
    floor = random_ndcg(user, label, k=k, gain=gain)
    np.testing.assert_allclose(constant.values, floor.values)
    inverted = ndcg(user, -label, label, k=k, gain=gain)
    assert np.all(inverted.values <= floor.values + 1e-12)


def catalogue(seed: int, users: int = 25, items: int = 40, width: int = 12) -> Any:
    """Random top items, and random relevant items with gains."""
    rng = np.random.default_rng(seed)
    top = np.argsort(rng.random((users, items)), axis=1)[:, :width]
    wanted = [rng.permutation(items)[: rng.integers(0, 9)] for _ in range(users)]
    offsets = np.cumsum([0, *map(len, wanted)])
    gains = rng.integers(1, 4, offsets[-1]).astype(float)
    return top, RelevantItems(np.concatenate(wanted), offsets, gains)


@pytest.mark.parametrize("k", [1, 5, 12])
def test_full_catalogue_against_ir_measures(k: int) -> None:
    top, relevant = catalogue(k)
    owner = np.repeat(np.arange(len(top)), relevant.lengths())
    qrels = [
        ir_measures.Qrel(str(u), str(i), int(g))
        for u, i, g in zip(owner, relevant.items, relevant.gains, strict=True)
    ]
    run = [
        ir_measures.ScoredDoc(str(u), str(i), -float(r))
        for u, line in enumerate(top)
        for r, i in enumerate(line)
    ]
    ours = {
        nDCG @ k: ndcg_at(top, relevant, k),
        R @ k: recall_at(top, relevant, k),
        RR @ k: mrr_at(top, relevant, k),
        Success @ k: hit_at(top, relevant, k),
    }
    seen = 0
    for metric in ir_measures.iter_calc(list(ours), qrels, run):
        value = ours[metric.measure][int(metric.query_id)]
        assert value == pytest.approx(metric.value, abs=1e-9)
        seen += 1
    assert seen == 4 * (relevant.lengths() > 0).sum()
    for values in ours.values():
        assert np.array_equal(np.isnan(values), relevant.lengths() == 0)


@few
@given(seeds, st.integers(1, 6))
def test_full_catalogue_against_a_loop(seed: int, k: int) -> None:
    top, relevant = catalogue(seed, users=6, items=9, width=6)
    top[0, 2:] = -1  # a short list
    if len(relevant.items) > 1:
        relevant.items[-1] = -1  # unknown to the ranker
    for u in range(len(top)):
        part = slice(relevant.offsets[u], relevant.offsets[u + 1])
        gain = dict(zip(relevant.items[part].tolist(), relevant.gains[part], strict=True))
        line = [0 if i < 0 else gain.get(i, 0) for i in top[u, :k].tolist()]
        ranks = [r + 1 for r, g in enumerate(line) if g]
        n = len(gain)
        best = slow_dcg(sorted(gain.values(), reverse=True), k)
        got = [
            recall_at(top, relevant, k)[u],
            recall_at(top, relevant, k, denominator="min")[u],
            hit_at(top, relevant, k)[u],
            mrr_at(top, relevant, k)[u],
            ndcg_at(top, relevant, k)[u],
        ]
        expected = [
            len(ranks) / n,
            len(ranks) / min(k, n),
            bool(ranks),
            1 / ranks[0] if ranks else 0,
            slow_dcg(line, k) / best,
        ] if n else [np.nan] * 5  # fmt: skip
        np.testing.assert_allclose(got, expected)


def test_full_catalogue_by_hand() -> None:
    top = np.array([[4, 1, 0], [2, 3, 4], [0, 1, -1]])
    relevant = RelevantItems(np.array([1, 5, 4, 7, 9, 3]), np.array([0, 5, 5, 6]))
    nan = np.nan
    np.testing.assert_allclose(recall_at(top, relevant), [0.4, nan, 0])
    np.testing.assert_allclose(recall_at(top, relevant, 2, denominator="min"), [1, nan, 0])
    np.testing.assert_allclose(hit_at(top, relevant, 1), [1, nan, 0])
    np.testing.assert_allclose(mrr_at(top[:, ::-1], relevant), [0.5, nan, 0])
    best = 1 + 1 / log2(3) + 1 / 2
    np.testing.assert_allclose(ndcg_at(top, relevant), [(1 + 1 / log2(3)) / best, nan, 0])
    assert PerUserMetric.from_values(recall_at(top, relevant)).mean() == pytest.approx(0.2)


def test_expectation_of_a_random_order_of_the_full_catalogue() -> None:
    _, relevant = catalogue(2, users=12, items=20)
    relevant.items[0] = -1
    rng = np.random.default_rng(1)
    draws = [ndcg_at(np.argsort(rng.random((12, 20)), axis=1), relevant, 5) for _ in range(4000)]
    floor = random_ndcg_at(relevant, 20, 5)
    np.testing.assert_allclose(floor, np.mean(draws, 0), atol=0.02)
    # fewer candidates than positions: one relevant item of two is first or second
    single = RelevantItems(np.array([1]), np.array([0, 1]))
    assert random_ndcg_at(single, np.array([2]), 5) == pytest.approx((1 + 1 / log2(3)) / 2)
    assert random_ndcg_at(single, 1, 5) == pytest.approx(1)


def test_bad_input_is_named() -> None:
    ones, top = np.array([1.0, 2.0]), np.array([[0, 1]])
    relevant = RelevantItems(np.array([1]), np.array([0, 1]))
    with pytest.raises(ConfigError, match="no gain named 'expo'; did you mean 'exp'"):
        ndcg(ones, ones, ones, gain="expo")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="label -1 is below 0"):
        ndcg(ones, ones, -ones / 2)
    with pytest.raises(DataError, match="label 2000 overflows the gain 'exp'"):
        ndcg(ones, ones, ones * 1000)
    with pytest.raises(DataError, match="label inf overflows the gain 'linear'"):
        ndcg(ones, ones, ones * np.inf, gain="linear")
    with pytest.raises(DataError, match="score is NaN in 1 rows, first in row 0"):
        ndcg(ones, np.array([np.nan, 1]), ones)
    with pytest.raises(ConfigError, match="k is 0"):
        ndcg(ones, ones, ones, k=0)
    with pytest.raises(DataError, match="2 positive and 0 negative"):
        auc_pooled(ones, np.array([True, True]))
    with pytest.raises(DataError, match="other than 0 and 1"):
        auc_pooled(ones, ones)
    with pytest.raises(ConfigError, match="confidence_level is 95"):
        auc_interval(ones, ones, ones > 1, confidence_level=95)
    with pytest.raises(ConfigError, match="k is 3 and the lists hold 2"):
        hit_at(top, relevant, 3)
    with pytest.raises(ConfigError, match="no denominator named 'all'"):
        recall_at(top, relevant, denominator="all")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"top_items has shape \(2,\)"):
        hit_at(top[0], relevant)
    with pytest.raises(DataError, match="same item twice"):
        hit_at(np.array([[1, 1]]), relevant)
    with pytest.raises(DataError, match="relevant twice"):
        hit_at(top, RelevantItems(np.array([1, 1]), np.array([0, 2])))
    with pytest.raises(DataError, match="offsets do not rise from 0 to the 1"):
        hit_at(top, RelevantItems(np.array([1]), np.array([0, 2])))
    with pytest.raises(DataError, match="gain that is not above 0"):
        hit_at(top, RelevantItems(np.array([1]), np.array([0, 1]), np.zeros(1)))
