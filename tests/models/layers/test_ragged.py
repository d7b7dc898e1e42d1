"""Fast sums over ragged rows against loops."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.models.layers import ragged as ragged_module
from idcf.models.layers.ragged import (
    item_ridge_biases,
    normal_equations,
    segment_sum,
    shrunk_mean,
    split_by_level,
    sum_neighbors,
    sum_pool,
    transpose,
)
from idcf.types import Domain, History, Ragged, select_histories, select_rows

ITEMS, SIZE = 7, 3
LEVELS = (1.0, 2.0, 4.0)
rated = st.tuples(st.integers(0, ITEMS - 1), st.sampled_from([0.5, 1.0, 1.4, 2.0, 3.1, 4.0, 9.0]))
histories = st.lists(st.lists(rated, max_size=6), min_size=1, max_size=5)
quick = settings(max_examples=40, deadline=None)


def ragged(entries_of_users):
    flat = [pair for entries in entries_of_users for pair in entries]
    return History(
        torch.tensor([i for i, _ in flat], dtype=torch.int64),
        torch.tensor([v for _, v in flat], dtype=torch.float64),
        torch.tensor(np.cumsum([0, *map(len, entries_of_users)])),
    )


def table(rows=ITEMS):
    return torch.randn(rows, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@quick
@given(histories)
def test_sum_pool(users):
    history, q = ragged(users), table()
    expected = [sum((q[i] for i, _ in entries), torch.zeros(SIZE).double()) for entries in users]
    torch.testing.assert_close(sum_pool(q, history), torch.stack(expected))
    weighted = [
        sum((v * q[i] for i, v in entries), torch.zeros(SIZE).double()) for entries in users
    ]
    torch.testing.assert_close(sum_pool(q, history, history.values), torch.stack(weighted))


def test_gradients_of_sum_pool_reach_table_and_weights():
    history = ragged([[(0, 1.0), (2, 3.1)], [], [(2, 2.0), (2, 1.0)]])
    q, w = table().requires_grad_(), history.values.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, w: sum_pool(q, history, w), (q, w))


@quick
@given(histories)
def test_sum_neighbors_is_sum_pool_with_another_backward_pass(users):
    history = ragged(users)
    transposed, order = transpose(history.as_ragged(), ITEMS)
    assert torch.equal(history.items[order], transposed.owner())
    assert torch.equal(history.owner()[order], transposed.indices)
    assert torch.equal(history.values[order], transposed.values)
    without_values = Ragged(history.items, None, history.offsets)
    assert transpose(without_values, ITEMS).rows.values is None
    for weights, reordered in ((None, None), (history.values, history.values[order])):
        plain, fast = table().requires_grad_(), table().requires_grad_()
        expected = sum_pool(plain, history, weights)
        got = sum_neighbors(fast, history, transposed, weights, reordered)
        assert torch.equal(got, expected)
        expected.square().sum().backward()
        got.square().sum().backward()
        torch.testing.assert_close(fast.grad, plain.grad)


@quick
@given(histories, st.floats(0.1, 20))
def test_segment_sum_and_shrunk_mean(users, shrinkage):
    history = ragged(users)
    sums = torch.tensor([sum(v for _, v in entries) for entries in users], dtype=torch.float64)
    torch.testing.assert_close(segment_sum(history.values, history.owner(), len(users)), sums)
    expected = sums / torch.tensor([len(entries) + shrinkage for entries in users])
    torch.testing.assert_close(shrunk_mean(history.values, history, shrinkage), expected)


def test_infinite_shrinkage_gives_a_mean_of_zero():
    history = ragged([[(0, 4.0)], []])
    assert not shrunk_mean(history.values, history, float("inf")).any()


def test_an_empty_history_without_shrinkage_gives_a_mean_of_zero():
    history = ragged([[(0, 4.0)], []])
    assert shrunk_mean(history.values, history, 0.0).tolist() == [4.0, 0.0]


@quick
@given(histories)
def test_split_by_level(users):
    """A value between two levels counts as the nearest; a middle one as the lower."""
    split = split_by_level(ragged(users).as_ragged(), torch.tensor(LEVELS, dtype=torch.float64))
    expected = []
    for entries in users:
        nearest = [min(LEVELS, key=lambda x: (abs(x - v), x)) for _, v in entries]
        expected += [
            [i for (i, _), n in zip(entries, nearest, strict=True) if n == x] for x in LEVELS
        ]
    assert split.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert split.indices.tolist() == [i for row in expected for i in row]


def test_split_by_level_of_one_level():
    history = ragged([[(3, 1.0), (1, 1.0)], []])
    split = split_by_level(history.as_ragged(), torch.ones(1, dtype=torch.float64))
    assert split.indices.tolist() == [3, 1]
    assert split.offsets.tolist() == [0, 2, 2]


@quick
@given(histories)
def test_normal_equations(users):
    history, q = ragged(users), table()
    outer, right = normal_equations(q, history, history.values)
    for b, entries in enumerate(users):
        a, r = torch.zeros(SIZE, SIZE).double(), torch.zeros(SIZE).double()
        for i, v in entries:
            a += q[i].outer(q[i])
            r += v * q[i]
        torch.testing.assert_close(outer[b], a)
        torch.testing.assert_close(right[b], r)


def test_normal_equations_in_small_groups(monkeypatch):
    """More entries than `_MAX_GATHERED_ENTRIES`."""
    rng = np.random.default_rng(0)
    users = [[(int(i), 1.0) for i in rng.integers(ITEMS, size=n)] for n in rng.integers(9, size=50)]
    history = ragged(users)
    whole = normal_equations(table(), history, history.values)
    monkeypatch.setattr(ragged_module, "_MAX_GATHERED_ENTRIES", 10)
    for a, b in zip(whole, normal_equations(table(), history, history.values), strict=True):
        torch.testing.assert_close(a, b)


@quick
@given(histories, st.data())
def test_select_histories(users, data):
    rows = data.draw(st.lists(st.integers(0, len(users) - 1), max_size=6))
    selected = select_histories(ragged(users), torch.tensor(rows, dtype=torch.int64))
    expected = [users[r] for r in rows]
    assert selected.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert selected.items.tolist() == [i for entries in expected for i, _ in entries]
    assert selected.values.tolist() == [v for entries in expected for _, v in entries]
    as_rows = select_rows(ragged(users).as_ragged(), torch.tensor(rows, dtype=torch.int64))
    assert torch.equal(as_rows.indices, selected.items)
    assert torch.equal(as_rows.values, selected.values)
    assert torch.equal(as_rows.offsets, selected.offsets)


def test_rows_without_values_stay_without():
    rows = Ragged(torch.tensor([4, 2, 2]), None, torch.tensor([0, 1, 3]))
    selected = select_rows(rows, torch.tensor([1]))
    assert selected.indices.tolist() == [2, 2]
    assert selected.values is None
    assert rows.to(torch.device("cpu")).values is None


@quick
@given(histories)
def test_owner_and_lengths(users):
    history = ragged(users)
    assert history.lengths().tolist() == [len(entries) for entries in users]
    assert history.owner().tolist() == [b for b, entries in enumerate(users) for _ in entries]
    assert torch.equal(history.as_ragged().lengths(), history.lengths())
    assert torch.equal(history.as_ragged().owner(), history.owner())


def test_an_empty_history():
    history = History.empty(3)
    assert history.lengths().tolist() == [0, 0, 0]
    assert not sum_pool(table().float(), history).any()
    assert sum_pool(table().float(), history).shape == (3, SIZE)
    assert Ragged.empty(3).lengths().tolist() == [0, 0, 0]


def make_domain(users, mean=2.5):
    """Return the domain of the histories; an item may occur once per user."""
    triples = sorted((i, u, v) for u, entries in enumerate(users) for i, v in dict(entries).items())
    counts = np.bincount([i for i, _, _ in triples], minlength=ITEMS)
    raters = Ragged(
        torch.tensor([u for _, u, _ in triples], dtype=torch.int64),
        torch.tensor([v for _, _, v in triples]),
        torch.tensor(np.concatenate([[0], np.cumsum(counts)])),
    )
    return Domain(len(users), ITEMS, mean, LEVELS, False, raters), triples


@quick
@given(histories, st.sampled_from([0.5, 5.0, float("inf")]), st.sampled_from([1.0, 3.0]))
def test_ridge_biases_alternate_between_items_and_users(users, user_shrinkage, item_shrinkage):
    """By loops over the ratings, in double precision."""
    domain, triples = make_domain(users)
    b_u, b_i = [0.0] * len(users), [0.0] * ITEMS
    for _ in range(5):
        for item in range(ITEMS):
            residuals = [v - 2.5 - b_u[u] for i, u, v in triples if i == item]
            b_i[item] = sum(residuals) / (len(residuals) + item_shrinkage)
        for user in range(len(users)):
            residuals = [v - 2.5 - b_i[i] for i, u, v in triples if u == user]
            b_u[user] = sum(residuals) / (len(residuals) + user_shrinkage)
    for dtype in (torch.float32, torch.float64):
        bias = item_ridge_biases(domain, user_shrinkage, item_shrinkage, dtype=dtype)
        assert bias.dtype == torch.float32
        np.testing.assert_allclose(bias, b_i, atol=1e-5)


def test_ridge_biases_of_users_without_bias_are_shrunken_item_means():
    domain, _ = make_domain([[(0, 4.0)], [(0, 1.0), (1, 4.0)]])
    bias = item_ridge_biases(domain, float("inf"), 1.0)
    torch.testing.assert_close(bias[:3], torch.tensor([(1.5 - 1.5) / 3, 1.5 / 2, 0.0]))
    torch.testing.assert_close(bias, item_ridge_biases(domain, float("inf"), 1.0, n_rounds=1))
