"""Splits: never a shared row, the same seed the same split, and each rule against a loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.data.interactions import Interactions, Vocab
from idcf.data.split import (
    LEFT,
    PRIOR,
    among,
    at_random,
    by_threshold,
    hold_out,
    hold_out_users,
    informative,
    last_n,
    sample_users,
)
from idcf.errors import ConfigError, DataError

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


def left_unknown(data: Interactions, chosen: list[int]) -> float:
    """What `informative` makes small, written out."""
    demand = data.item_counts()
    raters = [
        sum((u in chosen) for u, i in pairs(data) if i == item) for item in range(len(demand))
    ]
    return float(sum(d / (n + PRIOR) for d, n in zip(demand, raters, strict=True)))


@given(SEEDS)
@settings(max_examples=30)
def test_informative_users_are_chosen_greedily(seed: int) -> None:
    """One by one, each is as good as any that could have been taken instead."""
    data = table(seed)
    users = np.unique(data.user)
    before: list[int] = []
    for budget in range(1, len(users) + 1):
        after = informative(data, users, budget).tolist()
        assert len(after) == budget
        assert set(before) < set(after)
        best = min(left_unknown(data, [*before, u]) for u in users.tolist() if u not in before)
        assert left_unknown(data, after) == pytest.approx(best, abs=1e-12)
        before = after


@given(SEEDS, st.integers(1, 39), st.integers(1, 39))
@settings(max_examples=50)
def test_a_larger_budget_knows_no_fewer_items(seed: int, one: int, two: int) -> None:
    data = table(seed, users=60, items=40, least=600)
    users = np.unique(data.user)[:40]
    less, more = (informative(data, users, n) for n in sorted((one, min(two, len(users)))))
    assert len(np.unique(data.of(less).item)) <= len(np.unique(data.of(more).item))
    assert set(less) <= set(users)


def test_without_a_budget_nearly_everything_is_known() -> None:
    data = table(3, users=200, items=30, least=3000)
    users = np.unique(data.user)
    found = informative(data, users)
    assert 0 < len(found) < len(users)
    none, some, all_ = (left_unknown(data, x) for x in ([], found.tolist(), users.tolist()))
    assert some - all_ <= LEFT * (none - all_)
    fewer = found[: len(found) * 3 // 4].tolist()
    assert left_unknown(data, fewer) - all_ > LEFT * (none - all_)


def test_key_users_among_those_at_the_threshold() -> None:
    data = table(5, users=30, items=20, least=400)
    nothing = data.where(np.zeros(len(data), bool))
    threshold = int(np.median(data.counts()))
    every = by_threshold(data, nothing, threshold).key_users
    assert among(data, nothing, threshold, "threshold").key_users.tolist() == every.tolist()
    half = among(data, nothing, threshold, "random", 1)
    assert len(half.key_users) == round(len(every) / 2)
    again, other = (among(data, nothing, threshold, "random", seed) for seed in (1, 2))
    assert again.key_users.tolist() == half.key_users.tolist() != other.key_users.tolist()
    five = among(data, nothing, threshold, 5)
    assert five.key_users.tolist() == informative(data, every, 5).tolist()
    for split in (half, five, among(data, nothing, threshold, "informative")):
        assert set(split.key_users) <= set(every)
        assert sorted([*split.key_users, *split.query_users]) == list(range(30))


@pytest.mark.parametrize("keys", [0, -1, 7, True, 2.5, "infromative"])
def test_a_choice_that_cannot_be_made(keys: object) -> None:
    data = table(5)
    kind = DataError if isinstance(keys, int) and not isinstance(keys, bool) else ConfigError
    with pytest.raises(kind, match="number"):
        among(data, data, 1, keys)  # type: ignore[arg-type]
