"""Splits: no shared rows, reproducible by seed, and each rule against a loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import random_table
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.data.interactions import Interactions
from idcf.data.split import (
    MAX_REMAINING_GAIN,
    PRIOR_RATERS,
    hold_out_last_rows,
    hold_out_rows,
    hold_out_users,
    least_active_users,
    sample_rows_per_user,
    sample_users,
    select_informative_users,
    split_at_random,
    split_by_key_users,
    split_by_threshold,
    split_in_time,
    split_strong,
)
from idcf.errors import ConfigError, DataError

SEEDS = st.integers(0, 2**32 - 1)


def table(seed: int, users: int = 6, items: int = 9, min_rows: int = 2) -> Interactions:
    """A random table with times."""
    base = random_table(seed, users, items, min_rows)
    time = np.random.default_rng(seed).integers(0, 50, len(base))
    return replace(base, rating=np.ones(len(base), np.float32), time=time)


def pairs(data: Interactions) -> list[tuple[int, int]]:
    """(user, item) of each row of a table."""
    return list(zip(data.user.tolist(), data.item.tolist(), strict=True))


def assert_parts(data: Interactions, *parts: Interactions) -> None:
    """Assert that every row is in exactly one of the parts, which share the vocabularies."""
    assert sorted(pairs(data)) == sorted(p for part in parts for p in pairs(part))
    assert all(p.users is data.users and p.items is data.items for p in parts)


@given(SEEDS, st.floats(0.05, 0.95))
def test_hold_out_shares_no_row_and_repeats(seed: int, share: float) -> None:
    data = table(seed)
    train, test = hold_out_rows(data, share, np.random.default_rng(seed))
    assert_parts(data, train, test)
    assert abs(len(test) - share * len(data)) <= 1
    repeated = hold_out_rows(data, share, np.random.default_rng(seed))
    assert [pairs(x) for x in repeated] == [pairs(train), pairs(test)]


def test_another_seed_is_another_split() -> None:
    data = table(0, 20, 30, min_rows=300)
    test_1, test_2 = (hold_out_rows(data, 0.5, np.random.default_rng(s))[1] for s in (1, 2))
    assert pairs(test_1) != pairs(test_2)


@given(SEEDS, st.integers(1, 4), st.booleans())
def test_last_n_equals_a_loop(seed: int, n: int, timed: bool) -> None:
    data = table(seed)
    data = data if timed else replace(data, time=None)
    train, test = hold_out_last_rows(data, n)
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
    train, test = hold_out_last_rows(data, n, np.random.default_rng(seed))
    assert_parts(data, train, test)
    assert test.user_counts().tolist() == [n if c > n else 0 for c in data.user_counts().tolist()]
    assert pairs(hold_out_last_rows(data, n, np.random.default_rng(seed))[1]) == pairs(test)


@given(SEEDS, st.integers(0, 3), st.integers(0, 4))
def test_held_out_users_have_no_row_in_training(seed: int, low: int, extra: int) -> None:
    data = table(seed)
    held_out = np.array([0, 3, 4])
    lengths = (low, low + extra)
    train, task = hold_out_users(data, held_out, lengths, np.random.default_rng(seed))
    assert_parts(data, train, task.history_table, task.target_table)
    assert not np.isin(train.user, held_out).any()
    for part in (task.history_table, task.target_table):
        assert set(part.user.tolist()) <= set(held_out.tolist())
    for user in held_out.tolist():
        n_rows, length = data.user_counts()[user], task.history_table.user_counts()[user]
        assert min(low, max(n_rows - 1, 0)) <= length <= low + extra
        assert n_rows == 0 or task.target_table.user_counts()[user] >= 1
    _, repeated = hold_out_users(data, held_out, lengths, np.random.default_rng(seed))
    assert pairs(repeated.history_table) == pairs(task.history_table)


@given(SEEDS, st.integers(1, 4), st.integers(0, 5))
def test_held_out_users_with_a_number_of_targets(seed: int, n_targets: int, high: int) -> None:
    data, held_out = table(seed), np.array([0, 3, 4])
    rng = np.random.default_rng(seed)
    train, task = hold_out_users(data, held_out, (high, high), rng, n_targets)
    assert not np.isin(train.user, held_out).any()
    assert not set(pairs(task.history_table)) & set(pairs(task.target_table))
    assert set(pairs(task.history_table) + pairs(task.target_table)) <= set(pairs(data))
    for user in held_out.tolist():
        n_rows = data.user_counts()[user]
        assert task.target_table.user_counts()[user] == min(n_targets, n_rows)
        assert task.history_table.user_counts()[user] == min(high, max(n_rows - n_targets, 0))
    with pytest.raises(DataError, match="targets must be positive, got 0"):
        hold_out_users(data, held_out, (1, 2), rng, 0)


@given(SEEDS, st.integers(1, 6))
def test_threshold_parts_all_users(seed: int, threshold: int) -> None:
    data = table(seed)
    counts = data.user_counts()
    if counts.max() < threshold:
        with pytest.raises(DataError, match=f"threshold {threshold} leaves no key user"):
            split_by_threshold(data, data, threshold)
        return
    split = split_by_threshold(data, data, threshold)
    assert split.key_users.tolist() == [u for u in range(6) if counts[u] >= threshold]
    assert split.query_users.tolist() == [u for u in range(6) if counts[u] < threshold]


def test_gamma_draws_key_users_by_chance() -> None:
    data = table(1, 400, 9)
    split = split_at_random(data, data, 0.3, np.random.default_rng(0))
    assert 80 < len(split.key_users) < 160
    all_users = np.sort(np.concatenate([split.key_users, split.query_users]))
    assert all_users.tolist() == list(range(400))
    repeated = split_at_random(data, data, 0.3, np.random.default_rng(0))
    assert repeated.key_users.tolist() == split.key_users.tolist()


@given(SEEDS, st.floats(0.01, 1.0))
def test_sampled_users_are_among_the_given(seed: int, share: float) -> None:
    users = np.array([2, 5, 7, 11, 13, 17])
    sample = sample_users(users, share, np.random.default_rng(seed))
    assert len(sample) == max(1, round(share * 6))
    assert sorted(set(sample.tolist())) == sample.tolist()
    assert set(sample.tolist()) <= set(users.tolist())


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 2.0])
def test_a_share_outside_zero_and_one_is_rejected(share: float) -> None:
    with pytest.raises(DataError, match=f"between 0 and 1, got {share}"):
        hold_out_rows(table(0), share, np.random.default_rng(0))
    with pytest.raises(DataError, match=f"between 0 and 1, got {share}"):
        split_at_random(table(0), table(0), share, np.random.default_rng(0))


def test_invalid_lengths_are_rejected() -> None:
    with pytest.raises(DataError, match=r"low <= high, got \(4, 2\)"):
        hold_out_users(table(0), np.array([0]), (4, 2), np.random.default_rng(0))
    with pytest.raises(DataError, match="positive, got 0"):
        hold_out_last_rows(table(0), 0)


def uncertainty(data: Interactions, selected: list[int]) -> float:
    """The sum that `select_informative_users` lowers, as a loop."""
    demand = data.item_counts()
    n_raters = [
        sum((u in selected) for u, i in pairs(data) if i == item) for item in range(len(demand))
    ]
    return float(sum(d / (n + PRIOR_RATERS) for d, n in zip(demand, n_raters, strict=True)))


@given(SEEDS)
@settings(max_examples=30)
def test_informative_users_are_chosen_greedily(seed: int) -> None:
    """Each added user lowers the uncertainty as much as any other could."""
    data = table(seed)
    users = np.unique(data.user)
    before: list[int] = []
    for n in range(1, len(users) + 1):
        after = select_informative_users(data, users, n).tolist()
        assert len(after) == n
        assert set(before) < set(after)
        best = min(uncertainty(data, [*before, u]) for u in users.tolist() if u not in before)
        assert uncertainty(data, after) == pytest.approx(best, abs=1e-12)
        before = after


@given(SEEDS, st.integers(1, 39), st.integers(1, 39))
@settings(max_examples=50)
def test_more_users_know_no_fewer_items(seed: int, n_1: int, n_2: int) -> None:
    data = table(seed, users=60, items=40, min_rows=600)
    users = np.unique(data.user)[:40]
    small, large = (
        select_informative_users(data, users, n) for n in sorted((n_1, min(n_2, len(users))))
    )
    assert len(np.unique(data.for_users(small).item)) <= len(np.unique(data.for_users(large).item))
    assert set(small) <= set(users)


def test_by_default_nearly_the_whole_gain_is_reached() -> None:
    data = table(3, users=200, items=30, min_rows=3000)
    users = np.unique(data.user)
    selected = select_informative_users(data, users).tolist()
    assert 0 < len(selected) < len(users)
    highest, lowest = uncertainty(data, []), uncertainty(data, users.tolist())
    allowed = MAX_REMAINING_GAIN * (highest - lowest)
    assert uncertainty(data, selected) - lowest <= allowed
    fewer = selected[: len(selected) * 3 // 4]
    assert uncertainty(data, fewer) - lowest > allowed


def test_key_users_among_those_at_the_threshold() -> None:
    data = table(5, users=30, items=20, min_rows=400)
    test = data.where(np.zeros(len(data), bool))
    threshold = int(np.median(data.user_counts()))
    active = split_by_threshold(data, test, threshold).key_users.tolist()

    def select(rule: str | int, seed: int = 0) -> list[int]:
        split = split_by_key_users(data, test, threshold, rule, seed)
        assert set(split.key_users) <= set(active)
        assert sorted([*split.key_users, *split.query_users]) == list(range(30))
        return split.key_users.tolist()

    assert select("threshold") == active
    assert len(select("random", 1)) == round(len(active) / 2)
    assert select("random", 1) == select("random", 1) != select("random", 2)
    assert select(5) == select_informative_users(data, np.array(active), 5).tolist()
    assert select("informative") == select_informative_users(data, np.array(active)).tolist()


@pytest.mark.parametrize("rule", [0, -1, 7, True, 2.5, "infromative"])
def test_an_unknown_rule_for_key_users_is_rejected(rule: object) -> None:
    data = table(5)
    error = DataError if isinstance(rule, int) and not isinstance(rule, bool) else ConfigError
    with pytest.raises(error, match="number"):
        split_by_key_users(data, data, 1, rule)  # type: ignore[arg-type]


def test_histories_of_held_out_users_have_every_length_of_the_range() -> None:
    data = table(0, users=400, items=12, min_rows=4700)
    users = np.flatnonzero(data.user_counts() >= 8)
    _, task = hold_out_users(data, users, (2, 5), np.random.default_rng(0))
    lengths = task.history_table.user_counts()[users]
    counts = np.bincount(lengths, minlength=7)
    assert counts[:2].sum() == counts[6:].sum() == 0
    assert counts[2:6].min() > 0.8 * len(users) / 4, "each of 2, 3, 4 and 5 is as likely"
    targets = task.target_table.user_counts()[users]
    assert (lengths + targets == data.user_counts()[users]).all()


def test_many_users_are_selected_in_rounds() -> None:
    """640 of them in 64 rounds of ten, each of the largest gains, against a loop."""
    data = table(2, users=700, items=25, min_rows=5000)
    users = np.unique(data.user)
    n = 640
    assert len(users) > n
    raters, demand = np.zeros(25), data.item_counts()
    selected: list[int] = []
    items_of = {u: data.item[data.user == u] for u in users.tolist()}
    while len(selected) < n:
        gain = demand / ((raters + PRIOR_RATERS) * (raters + 1 + PRIOR_RATERS))
        left = [u for u in users.tolist() if u not in selected]
        added = sorted(left, key=lambda u: -gain[items_of[u]].sum())[:10]
        selected += added
        for u in added:
            raters[items_of[u]] += 1
    assert select_informative_users(data, users, n).tolist() == sorted(selected)


def test_rows_of_a_user_are_sampled_evenly() -> None:
    data = table(1, users=1, items=6, min_rows=6).where(np.arange(6))
    drawn = [
        tuple(sample_rows_per_user(data, 2, np.random.default_rng(seed)).item)
        for seed in range(400)
    ]
    assert all(len(x) == 2 for x in drawn)
    counts = np.bincount(np.ravel(drawn), minlength=6)
    assert counts.min() > 90, "each of six items in a third of 400 draws"


def test_the_least_active_users_are_those_with_rows() -> None:
    data = random_table(3, users=20, items=9, min_rows=60)
    data = data.where(data.user != 4)
    users = least_active_users(data, 0.5, np.random.default_rng(0))
    counts = data.user_counts()
    assert 4 not in users
    assert len(users) == round(0.5 * np.count_nonzero(counts))
    others = np.setdiff1d(np.flatnonzero(counts), users)
    assert counts[users].max() <= counts[others].min()
    assert users.tolist() == sorted(users.tolist())


def test_last_rows_without_times_are_the_last_of_the_table() -> None:
    data = replace(table(4, users=3, items=9, min_rows=15), time=None)
    train, test = hold_out_last_rows(data, 2)
    for u in range(3):
        rows = data.item[data.user == u].tolist()
        expected = rows[-2:] if len(rows) > 2 else []
        assert test.item[test.user == u].tolist() == expected
    assert_parts(data, train, test)


@given(SEEDS, st.floats(0.1, 0.6))
def test_a_split_in_time_equals_a_loop(seed: int, share: float) -> None:
    data = table(seed, users=8)
    assert data.time is not None
    times = data.time.tolist()
    cut = sorted(times)[min(round((1 - share) * len(data)), len(data) - 1)]
    train, test, new_users, key_users = [], [], set(), set()
    for user in range(len(data.users)):
        rows = sorted((t, r) for r, t in enumerate(times) if data.user[r] == user)
        if any(t < cut for t, _ in rows):
            key_users.add(user)
            train += [r for t, r in rows if t < cut]
            test += [r for t, r in rows if t >= cut]
        else:
            n_history = max(1, len(rows) // 2)
            train += [r for _, r in rows[:n_history]]
            test += [r for _, r in rows[n_history:]]
            new_users |= {user} if len(rows) > 1 else set()
    if not key_users or not new_users:
        with pytest.raises(DataError, match=r"leaves no key user|there are no new users"):
            split_in_time(data, share)
        return
    split = split_in_time(data, share)
    assert split.protocol == "temporal"
    assert_parts(data, split.train, split.test)
    assert pairs(split.train) == pairs(data.where(np.sort(train)))
    assert pairs(split.test) == pairs(data.where(np.sort(test)))
    assert set(split.key_users.tolist()) == key_users
    assert new_users <= set(split.query_users.tolist())


def test_a_split_in_time_needs_times() -> None:
    data = table(0)
    with pytest.raises(DataError, match="--column timestamp=NAME"):
        split_in_time(replace(data, time=None), 0.2)
    with pytest.raises(DataError, match="leaves no key user"):
        split_in_time(replace(data, time=np.zeros(len(data), np.int64)), 0.2)


@given(SEEDS)
def test_held_out_users_show_four_fifths(seed: int) -> None:
    data = table(seed, users=10, items=30, min_rows=200)
    split = split_strong(data, 0.3, 0.2, np.random.default_rng(seed))
    assert split.protocol == "strong"
    held_out = set(split.query_users.tolist())
    assert len(held_out) == 3
    assert set(split.key_users.tolist()) == set(range(10)) - held_out
    assert set(split.test.user.tolist()) <= held_out
    assert not set(pairs(split.train)) & set(pairs(split.test))
    known_items = set(data.item[~np.isin(data.user, list(held_out))].tolist())
    for user in range(10):
        items = data.item[data.user == user].tolist()
        if user in held_out:
            items = [x for x in items if x in known_items]
            assert split.test.user_counts()[user] == len(items) // 5
        shown = split.train.item[split.train.user == user].tolist()
        target = split.test.item[split.test.user == user].tolist()
        assert sorted(shown + target) == sorted(items)
    again = split_strong(data, 0.3, 0.2, np.random.default_rng(seed))
    assert pairs(again.test) == pairs(split.test)


def test_shares_of_strong_generalization_are_checked() -> None:
    for shares in ((0.0, 0.2), (0.2, 1.0)):
        with pytest.raises(DataError, match="must be between 0 and 1"):
            split_strong(table(0), *shares, np.random.default_rng(0))
