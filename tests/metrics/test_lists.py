"""What lists hold, compared with loops over users and with values computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from random_rows import Array, few, seeds

from idcf.errors import ConfigError, DataError
from idcf.metrics import (
    RelevantItems,
    coverage_interval,
    gini_interval,
    hit_rows,
    mean_over_hits,
    weighted_recall_at,
)

N_ITEMS = 12


def world(seed: int, users: int = 7, width: int = 5) -> tuple[Array, RelevantItems, Array]:
    """Random lists, some with empty positions, relevant items with gains, and their ratings."""
    rng = np.random.default_rng(seed)
    top = np.array([rng.permutation(N_ITEMS)[:width] for _ in range(users)])
    top[rng.random(top.shape) < 0.1] = -1
    lengths = rng.integers(0, 6, users)
    items = np.concatenate([rng.permutation(N_ITEMS)[:n] for n in lengths])
    relevant = RelevantItems(
        items, np.concatenate([[0], np.cumsum(lengths)]), rng.random(len(items)) + 0.1
    )
    return top, relevant, rng.integers(1, 6, len(items)).astype(float)


def slow_hits(top: Array, relevant: RelevantItems, k: int) -> list[list[int]]:
    """The rows of `relevant.items` that each list hits within its first k."""
    hits = []
    for user, items in enumerate(top[:, :k].tolist()):
        rows = range(relevant.offsets[user], relevant.offsets[user + 1])
        hits.append([n for x in items for n in rows if relevant.items[n] == x])
    return hits


@few
@given(seeds)
def test_hits_recall_and_means_against_loops(seed: int) -> None:
    top, relevant, rating = world(seed)
    for k in (1, 3, 5):
        hits = slow_hits(top, relevant, k)
        got = [[n for n in row if n >= 0] for row in hit_rows(top, relevant, k).tolist()]
        assert got == hits
        recall = weighted_recall_at(top, relevant, k)
        assert relevant.gains is not None
        for user, rows in enumerate(hits):
            part = slice(relevant.offsets[user], relevant.offsets[user + 1])
            total = relevant.gains[part].sum()
            expected = relevant.gains[rows].sum() / total if total else np.nan
            np.testing.assert_allclose(recall[user], expected)
        mean = mean_over_hits(top, relevant, rating, k, users=np.arange(7) * 3)
        with_hits = [user for user, rows in enumerate(hits) if rows]
        assert mean.users.tolist() == [user * 3 for user in with_hits]
        if with_hits:
            assert mean.mean() == pytest.approx(np.mean([rating[n] for x in hits for n in x]))


def test_means_by_hand() -> None:
    relevant = RelevantItems(np.array([3, 5, 8]), np.array([0, 2, 3]), np.array([1.0, 3.0, 2.0]))
    top = np.array([[5, 1, -1], [1, 2, -1]])
    assert weighted_recall_at(top, relevant).tolist() == [0.75, 0.0]
    assert weighted_recall_at(top, relevant._replace(gains=None)).tolist() == [0.5, 0.0]
    mean = mean_over_hits(top, relevant, np.array([1.0, 4.0, 2.0]))
    assert (mean.users.tolist(), mean.total.tolist(), mean.weight.tolist()) == ([0], [4.0], [1.0])


def slow_gini(counts: Array) -> float:
    """The mean difference of all pairs / twice the mean."""
    return float(np.abs(counts[:, None] - counts[None]).mean() / counts.mean() / 2)


@few
@given(seeds)
def test_coverage_and_gini_against_their_definitions(seed: int) -> None:
    top, _, _ = world(seed)
    for k in (1, 4):
        part = top[:, :k]
        if (part < 0).all():
            continue
        counts = np.array([(part == item).sum() for item in range(N_ITEMS)])
        options: dict[str, Any] = {"rng": np.random.default_rng(0), "n_resamples": 3}
        coverage = coverage_interval(top, N_ITEMS, k, **options)
        assert coverage.value == pytest.approx((counts > 0).mean())
        gini = gini_interval(top, N_ITEMS, k, **options)
        assert gini.value == pytest.approx(slow_gini(counts))


@pytest.mark.parametrize("cells", [1 << 22, 30])
def test_the_interval_has_the_spread_of_resampled_users(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idcf.metrics.lists.MAX_RESAMPLED_CELLS", cells)
    rng = np.random.default_rng(1)
    top = np.array([rng.choice(40, 3, replace=False) for _ in range(15)])
    for function, slow in (
        (coverage_interval, lambda counts: (counts > 0).mean()),
        (gini_interval, slow_gini),
    ):
        interval = function(top, 40, rng=np.random.default_rng(0), n_resamples=4000)
        draws = []
        for _ in range(4000):
            drawn = top[rng.integers(0, 15, 15)].ravel()
            draws.append(slow(np.bincount(drawn, minlength=40)))
        low, high = np.quantile(draws, [0.025, 0.975]) - np.mean(draws)
        assert interval.low - interval.value == pytest.approx(low, abs=0.015)
        assert interval.high - interval.value == pytest.approx(high, abs=0.015)
        assert interval.low < interval.value < interval.high


def test_one_user_and_wrong_input() -> None:
    rng = np.random.default_rng(0)
    assert tuple(coverage_interval(np.array([[0, 1]]), 8, rng=rng)) == (0.25, 0.25, 0.25)
    with pytest.raises(DataError, match="no list holds an item"):
        gini_interval(np.array([[-1]]), 8, rng=rng)
    with pytest.raises(DataError, match="item 8 of a catalogue of 8"):
        gini_interval(np.array([[8]]), 8, rng=rng)
    with pytest.raises(ConfigError, match="n_resamples is 0"):
        gini_interval(np.array([[1]]), 8, rng=rng, n_resamples=0)
