"""Batches: every row once, and a target never in the history it is predicted from."""

from __future__ import annotations

import numpy as np
import torch
from builders import random_table
from hypothesis import given
from hypothesis import strategies as st

from idcf.data.batches import episode_batches, row_batches
from idcf.data.interactions import Interactions, Vocab
from idcf.types import Batch

SEEDS = st.integers(0, 2**32 - 1)


def triples(data: Interactions) -> list[tuple[int, int, float]]:
    """(user, item, rating) of each row of a table."""
    return list(zip(data.user.tolist(), data.item.tolist(), data.rating.tolist(), strict=True))


def targets(batch: Batch) -> list[tuple[int, int, float]]:
    """(user, item, rating) of each row of a batch, without negatives."""
    users = batch.users.ids[batch.owner].tolist()
    return list(zip(users, batch.items[:, 0].tolist(), batch.labels[:, 0].tolist(), strict=True))


def histories(batch: Batch) -> list[list[tuple[int, float]]]:
    """(item, rating) pairs of the history of each user."""
    history = batch.users.history
    offsets = history.offsets.tolist()
    pairs = list(zip(history.items.tolist(), history.values.tolist(), strict=True))
    return [pairs[offsets[n] : offsets[n + 1]] for n in range(len(batch.users))]


def equal(one: list[Batch], two: list[Batch]) -> bool:
    """Whether two lists of batches hold equal rows and histories."""
    return len(one) == len(two) and all(
        torch.equal(a.items, b.items)
        and torch.equal(a.owner, b.owner)
        and torch.equal(a.users.ids, b.users.ids)
        and torch.equal(a.users.history.items, b.users.history.items)
        for a, b in zip(one, two, strict=True)
    )


@given(SEEDS, st.integers(1, 60))
def test_row_batches_visit_each_row_once_with_the_whole_history(seed: int, size: int) -> None:
    data = random_table(seed)
    batches = list(row_batches(data, data, batch_size=size, rng=np.random.default_rng(seed)))
    assert sorted(t for b in batches for t in targets(b)) == sorted(triples(data))
    assert all(len(b.items) == size for b in batches[:-1])
    for batch in batches:
        ids = batch.users.ids.tolist()
        assert len(set(ids)) == len(ids), "a user stands in a batch once"
        assert batch.n_users == len(ids)
        for user, history in zip(ids, histories(batch), strict=True):
            assert history == [(i, r) for u, i, r in triples(data) if u == user]


@given(SEEDS, st.integers(1, 60))
def test_histories_selected_on_a_device_are_equal(seed: int, size: int) -> None:
    data = random_table(seed)
    history_table = data.where(np.arange(len(data)) % 3 > 0)

    def draw(device: torch.device | None) -> list[Batch]:
        rng = np.random.default_rng(seed)
        return list(row_batches(data, history_table, batch_size=size, rng=rng, device=device))

    from_table, on_device = draw(None), draw(torch.device("cpu"))
    assert equal(from_table, on_device)
    for a, b in zip(from_table, on_device, strict=True):
        assert torch.equal(a.users.history.values, b.users.history.values)
        assert torch.equal(a.users.history.offsets, b.users.history.offsets)


@given(SEEDS)
def test_row_batches_without_a_generator_keep_the_order(seed: int) -> None:
    data = random_table(seed)
    batches = list(row_batches(data, None, batch_size=4))
    assert [t for b in batches for t in targets(b)] == triples(data)
    assert all(len(b.users.history.items) == 0 for b in batches)


@given(SEEDS)
def test_the_order_depends_on_the_generator_alone(seed: int) -> None:
    data = random_table(seed)

    def draw_rows() -> list[Batch]:
        rng = np.random.default_rng(seed)
        return list(row_batches(data, data, batch_size=5, rng=rng, n_negatives=2))

    def draw_episodes() -> list[Batch]:
        rng = np.random.default_rng(seed)
        return list(
            episode_batches(data, batch_size=5, history_lengths=(1, 4), rng=rng, n_negatives=2)
        )

    assert equal(draw_rows(), draw_rows())
    assert equal(draw_episodes(), draw_episodes())


@given(
    SEEDS,
    st.integers(1, 60),
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(1, 9),
    st.sampled_from([1.0, 0.5, 0.25]),
)
def test_episodes_have_each_row_as_target_once_and_hide_it(
    seed: int, size: int, low: int, extra: int, max_targets: int, share: float
) -> None:
    data = random_table(seed)
    batches = list(
        episode_batches(
            data,
            batch_size=size,
            history_lengths=(low, low + extra),
            rng=np.random.default_rng(seed),
            targets_per_episode=max_targets,
            max_target_share=share,
        )
    )
    assert sorted(t for b in batches for t in targets(b)) == sorted(triples(data))
    counts = data.user_counts().tolist()
    for batch in batches:
        pairs = histories(batch)
        hidden: list[set[tuple[int, float]]] = [set() for _ in pairs]
        for owner, (_, item, rating) in zip(batch.owner.tolist(), targets(batch), strict=True):
            hidden[owner].add((item, rating))
        for user, history, target in zip(batch.users.ids.tolist(), pairs, hidden, strict=True):
            assert not set(history) & target
            assert {(user, *h) for h in history} <= set(triples(data))
            assert len(set(history)) == len(history)
            assert 1 <= len(target) <= max(1, min(max_targets, counts[user] * share))
            n_others = counts[user] - len(target)
            assert min(low, n_others) <= len(history) <= min(low + extra, n_others)


@given(SEEDS, st.integers(1, 5))
def test_negatives_follow_the_positive_and_are_labelled_zero(seed: int, n: int) -> None:
    data = random_table(seed)
    rng = np.random.default_rng(seed)
    for batch in row_batches(data, None, batch_size=7, rng=rng, n_negatives=n):
        assert batch.items.shape[1] == batch.labels.shape[1] == 1 + n
        assert (batch.labels[:, 0] >= 1).all()
        assert (batch.labels[:, 1:] == 0).all()
        assert ((batch.items >= 0) & (batch.items < 9)).all()


def test_negatives_range_over_items_without_interactions() -> None:
    data = Interactions(
        Vocab([0]), Vocab(range(50)), np.zeros(20, np.int64), np.arange(20), np.ones(20, np.float32)
    )
    rng = np.random.default_rng(0)
    drawn = torch.cat(
        [b.items[:, 1:] for b in row_batches(data, None, batch_size=20, rng=rng, n_negatives=50)]
    )
    assert set(drawn.flatten().tolist()) == set(range(50))


def test_lengths_of_episodes_are_even_over_the_logarithm() -> None:
    """Lengths 1, 2 to 3, 4 to 7, 8 to 15 and 16 to 31 are equally frequent."""
    n = 40_000
    item = np.tile(np.arange(40), n // 40)
    data = Interactions(
        Vocab(range(n // 40)), Vocab(range(40)), np.repeat(np.arange(n // 40), 40), item,
        np.ones(n, np.float32),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    batches = list(
        episode_batches(data, batch_size=n, history_lengths=(1, 31), targets_per_episode=4, rng=rng)
    )
    length = torch.cat([b.users.history.lengths() for b in batches]).numpy()
    assert (length.min(), length.max()) == (1, 31)
    shares = np.bincount(np.floor(np.log2(length)).astype(int)) / len(length)
    np.testing.assert_allclose(shares, 0.2, atol=0.02)
