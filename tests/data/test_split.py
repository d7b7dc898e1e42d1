"""Splits: never a shared row, the same seed the same split, and each rule against a loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.data.interactions import Interactions, Vocab
from idcf.data.split import (
    at_random,
    by_threshold,
    hold_out,
    hold_out_users,
    last_n,
    sample_users,
)
from idcf.errors import DataError

settings.register_profile("idcf", deadline=None)  # a busy machine is not a failure
settings.load_profile("idcf")
SEEDS = st.integers(0, 2**32 - 1)


def table(seed: int, users: int = 6, items: int = 9, least: int = 2) -> Interactions:
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(users * items)[: rng.integers(least, users * items + 1)]
    user, item = np.divmod(pairs, items)
    time = rng.integers(0, 50, len(pairs))
    rating = np.ones(len(pairs), np.float32)
    return Interactions(Vocab(range(users)), Vocab(range(items)), user, item, rating, time)


def pairs(data: Interactions) -> list[tuple[int, int]]:
    return list(zip(data.user.tolist(), data.item.tolist(), strict=True))


def assert_parts(whole: Interactions, *parts: Interactions) -> None:
    """Every row is in exactly one of the parts, which keep the vocabularies."""
    assert sorted(pairs(whole)) == sorted(p for part in parts for p in pairs(part))
    assert all(p.users is whole.users and p.items is whole.items for p in parts)


@given(SEEDS, st.floats(0.05, 0.95))
def test_hold_out_shares_no_row_and_repeats(seed: int, share: float) -> None:
    data = table(seed)
    train, test = hold_out(data, share, np.random.default_rng(seed))
    assert_parts(data, train, test)
    assert abs(len(test) - share * len(data)) <= 1
    again = hold_out(data, share, np.random.default_rng(seed))
    assert [pairs(x) for x in again] == [pairs(train), pairs(test)]


def test_another_seed_is_another_split() -> None:
    data = table(0, 20, 30, least=300)
    one, two = (hold_out(data, 0.5, np.random.default_rng(s))[1] for s in (1, 2))
    assert pairs(one) != pairs(two)


@given(SEEDS, st.integers(1, 4), st.booleans())
def test_last_n_equals_a_loop(seed: int, n: int, timed: bool) -> None:
    data = table(seed)
    data = data if timed else replace(data, time=None)
    train, test = last_n(data, n)
    assert_parts(data, train, test)
    for user in range(len(data.users)):
        rows = [r for r in range(len(data)) if data.user[r] == user]
        if data.time is not None:
            times = data.time.tolist()
            rows.sort(key=lambda r: times[r])
        expected = rows[-n:] if len(rows) > n else []
        assert sorted(data.item[expected].tolist()) == sorted(test.item[test.user == user].tolist())


@given(SEEDS, st.integers(1, 4))
def test_last_n_with_a_generator_takes_n_random_rows(seed: int, n: int) -> None:
    data = table(seed)
    train, test = last_n(data, n, np.random.default_rng(seed))
    assert_parts(data, train, test)
    assert test.counts().tolist() == [n if c > n else 0 for c in data.counts().tolist()]
    assert pairs(last_n(data, n, np.random.default_rng(seed))[1]) == pairs(test)


@given(SEEDS, st.integers(0, 3), st.integers(0, 4))
def test_held_out_users_leave_no_row_in_training(seed: int, low: int, more: int) -> None:
    data = table(seed)
    away = np.array([0, 3, 4])
    train, task = hold_out_users(data, away, (low, low + more), np.random.default_rng(seed))
    assert_parts(data, train, task.seen, task.rows)
    assert not np.isin(train.user, away).any()
    assert set(task.seen.user.tolist()) | set(task.rows.user.tolist()) <= set(away.tolist())
    for user in away.tolist():
        rows, read = data.counts()[user], task.seen.counts()[user]
        assert min(low, max(rows - 1, 0)) <= read <= low + more
        assert rows == 0 or task.rows.counts()[user] >= 1
    _, again = hold_out_users(data, away, (low, low + more), np.random.default_rng(seed))
    assert pairs(again.seen) == pairs(task.seen)


@given(SEEDS, st.integers(1, 6))
def test_threshold_parts_all_users(seed: int, threshold: int) -> None:
    data = table(seed)
    counts = data.counts()
    if counts.max() < threshold:
        with pytest.raises(DataError, match=f"threshold {threshold} leaves no key user"):
            by_threshold(data, data, threshold)
        return
    split = by_threshold(data, data, threshold)
    assert split.key_users.tolist() == [u for u in range(6) if counts[u] >= threshold]
    assert split.query_users.tolist() == [u for u in range(6) if counts[u] < threshold]


def test_gamma_draws_key_users_by_chance() -> None:
    data = table(1, 400, 9)
    split = at_random(data, data, 0.3, np.random.default_rng(0))
    assert 80 < len(split.key_users) < 160
    everyone = np.sort(np.concatenate([split.key_users, split.query_users]))
    assert everyone.tolist() == list(range(400))
    again = at_random(data, data, 0.3, np.random.default_rng(0))
    assert again.key_users.tolist() == split.key_users.tolist()


@given(SEEDS, st.floats(0.01, 1.0))
def test_sampled_users_are_some_of_the_given(seed: int, share: float) -> None:
    users = np.array([2, 5, 7, 11, 13, 17])
    some = sample_users(users, share, np.random.default_rng(seed))
    assert len(some) == max(1, round(share * 6))
    assert sorted(set(some.tolist())) == some.tolist()
    assert set(some.tolist()) <= set(users.tolist())


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 2.0])
def test_a_share_outside_zero_and_one_is_refused(share: float) -> None:
    with pytest.raises(DataError, match=f"between 0 and 1, got {share}"):
        hold_out(table(0), share, np.random.default_rng(0))
    with pytest.raises(DataError, match=f"between 0 and 1, got {share}"):
        at_random(table(0), table(0), share, np.random.default_rng(0))


def test_lengths_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DataError, match=r"low <= high, got \(4, 2\)"):
        hold_out_users(table(0), np.array([0]), (4, 2), np.random.default_rng(0))
    with pytest.raises(DataError, match="positive, got 0"):
        last_n(table(0), 0)
