"""Batches: every row once, and a target never in the history it is asked with."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.data.batches import episodes, rows
from idcf.data.interactions import Interactions, Vocab
from idcf.types import Batch

settings.register_profile("idcf", deadline=None)  # a busy machine is not a failure
settings.load_profile("idcf")
SEEDS = st.integers(0, 2**32 - 1)


def table(seed: int, users: int = 6, items: int = 9) -> Interactions:
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(users * items)[: rng.integers(1, users * items + 1)]
    user, item = np.divmod(pairs, items)
    rating = rng.integers(1, 6, len(pairs)).astype(np.float32)
    return Interactions(Vocab(range(users)), Vocab(range(items)), user, item, rating)


def triples(data: Interactions) -> list[tuple[int, int, float]]:
    return list(zip(data.user.tolist(), data.item.tolist(), data.rating.tolist(), strict=True))


def asked(batch: Batch) -> list[tuple[int, int, float]]:
    users = batch.users.ids[batch.owner].tolist()
    return list(zip(users, batch.items[:, 0].tolist(), batch.labels[:, 0].tolist(), strict=True))


def histories(batch: Batch) -> list[list[tuple[int, float]]]:
    history = batch.users.history
    at = history.offsets.tolist()
    both = list(zip(history.items.tolist(), history.values.tolist(), strict=True))
    return [both[at[n] : at[n + 1]] for n in range(len(batch.users))]


def same(one: list[Batch], two: list[Batch]) -> bool:
    return len(one) == len(two) and all(
        torch.equal(a.items, b.items)
        and torch.equal(a.owner, b.owner)
        and torch.equal(a.users.ids, b.users.ids)
        and torch.equal(a.users.history.items, b.users.history.items)
        for a, b in zip(one, two, strict=True)
    )


@given(SEEDS, st.integers(1, 60))
def test_rows_visits_each_row_once_with_the_whole_history(seed: int, size: int) -> None:
    data = table(seed)
    batches = list(rows(data, data, size=size, rng=np.random.default_rng(seed)))
    assert sorted(t for b in batches for t in asked(b)) == sorted(triples(data))
    assert all(len(b.items) == size for b in batches[:-1])
    for batch in batches:
        ids = batch.users.ids.tolist()
        assert len(set(ids)) == len(ids), "a user stands in a batch once"
        assert batch.n_users == len(ids)
        for user, history in zip(ids, histories(batch), strict=True):
            assert history == [(i, r) for u, i, r in triples(data) if u == user]


@given(SEEDS, st.integers(1, 60))
def test_histories_that_are_picked_where_they_lie_are_the_same(seed: int, size: int) -> None:
    data, seen = table(seed), table(seed).where(np.arange(len(table(seed))) % 3 > 0)

    def drawn(device: torch.device | None) -> list[Batch]:
        rng = np.random.default_rng(seed)
        return list(rows(data, seen, size=size, rng=rng, device=device))

    sent, picked = drawn(None), drawn(torch.device("cpu"))
    assert same(sent, picked)
    for a, b in zip(sent, picked, strict=True):
        assert torch.equal(a.users.history.values, b.users.history.values)
        assert torch.equal(a.users.history.offsets, b.users.history.offsets)


@given(SEEDS)
def test_rows_without_a_generator_keeps_the_order(seed: int) -> None:
    data = table(seed)
    batches = list(rows(data, None, size=4))
    assert [t for b in batches for t in asked(b)] == triples(data)
    assert all(len(b.users.history.items) == 0 for b in batches)


@given(SEEDS)
def test_the_order_depends_on_the_generator_alone(seed: int) -> None:
    data = table(seed)

    def draw(s: int) -> list[Batch]:
        return list(rows(data, data, size=5, rng=np.random.default_rng(s), negatives=2))

    def play(s: int) -> list[Batch]:
        rng = np.random.default_rng(s)
        return list(episodes(data, size=5, lengths=(1, 4), rng=rng, negatives=2))

    assert same(draw(seed), draw(seed))
    assert same(play(seed), play(seed))


@given(
    SEEDS,
    st.integers(1, 60),
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(1, 9),
    st.sampled_from([1.0, 0.5, 0.25]),
)
def test_episodes_ask_each_row_once_and_hide_it(
    seed: int, size: int, low: int, more: int, targets: int, share: float
) -> None:
    data = table(seed)
    rng = np.random.default_rng(seed)
    options = {"size": size, "lengths": (low, low + more), "targets": targets, "share": share}
    batches = list(episodes(data, rng=rng, **options))  # type: ignore[arg-type]
    assert sorted(t for b in batches for t in asked(b)) == sorted(triples(data))
    counts = data.counts().tolist()
    for batch in batches:
        seen = histories(batch)
        owned: list[set[tuple[int, float]]] = [set() for _ in seen]
        for owner, (_, item, rating) in zip(batch.owner.tolist(), asked(batch), strict=True):
            owned[owner].add((item, rating))
        for user, history, hidden in zip(batch.users.ids.tolist(), seen, owned, strict=True):
            assert not set(history) & hidden
            assert {(user, *h) for h in history} <= set(triples(data))
            assert len(set(history)) == len(history)
            assert 1 <= len(hidden) <= max(1, min(targets, counts[user] * share))
            left = counts[user] - len(hidden)
            assert min(low, left) <= len(history) <= min(low + more, left)


@given(SEEDS, st.integers(1, 5))
def test_negatives_follow_the_positive_and_are_labelled_zero(seed: int, each: int) -> None:
    data = table(seed)
    rng = np.random.default_rng(seed)
    for batch in rows(data, None, size=7, rng=rng, negatives=each):
        assert batch.items.shape[1] == batch.labels.shape[1] == 1 + each
        assert (batch.labels[:, 0] >= 1).all()
        assert (batch.labels[:, 1:] == 0).all()
        assert ((batch.items >= 0) & (batch.items < 9)).all()


def test_negatives_range_over_items_nobody_touched() -> None:
    data = Interactions(
        Vocab([0]), Vocab(range(50)), np.zeros(20, np.int64), np.arange(20), np.ones(20, np.float32)
    )
    rng = np.random.default_rng(0)
    drawn = torch.cat([b.items[:, 1:] for b in rows(data, None, size=20, rng=rng, negatives=50)])
    assert set(drawn.flatten().tolist()) == set(range(50))


def test_lengths_of_episodes_are_even_over_the_logarithm() -> None:
    """As many histories of 1 as of 2 and 3 together, of 4 to 7, of 8 to 15, of 16 to 31."""
    n = 40_000
    item = np.tile(np.arange(40), n // 40)
    data = Interactions(
        Vocab(range(n // 40)), Vocab(range(40)), np.repeat(np.arange(n // 40), 40), item,
        np.ones(n, np.float32),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    batches = list(episodes(data, size=n, lengths=(1, 31), targets=4, rng=rng))
    length = torch.cat([b.users.history.lengths() for b in batches]).numpy()
    assert (length.min(), length.max()) == (1, 31)
    found = np.bincount(np.floor(np.log2(length)).astype(int)) / len(length)
    np.testing.assert_allclose(found, 0.2, atol=0.02)
