"""Fast sums over ragged histories against loops."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idcf.models.layers import ragged as ragged_module
from idcf.models.layers.ragged import (
    normal_equations,
    per_level,
    pool,
    segment_sum,
    shrunk_mean,
    spread,
    turn,
)
from idcf.types import History, pick

torch.set_num_threads(1)
ITEMS, SIZE = 7, 3
LEVELS = (1.0, 2.0, 4.0)
rated = st.tuples(st.integers(0, ITEMS - 1), st.sampled_from([0.5, 1.0, 1.4, 2.0, 3.1, 4.0, 9.0]))
people = st.lists(st.lists(rated, max_size=6), min_size=1, max_size=5)
quick = settings(max_examples=40, deadline=None)


def ragged(people):
    flat = [pair for mine in people for pair in mine]
    return History(
        torch.tensor([i for i, _ in flat], dtype=torch.int64),
        torch.tensor([v for _, v in flat], dtype=torch.float64),
        torch.tensor(np.cumsum([0, *map(len, people)])),
    )


def table(rows=ITEMS):
    return torch.randn(rows, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@quick
@given(people)
def test_pool(people):
    history, q = ragged(people), table()
    expected = [sum((q[i] for i, _ in mine), torch.zeros(SIZE).double()) for mine in people]
    torch.testing.assert_close(pool(q, history), torch.stack(expected))
    weighted = [sum((v * q[i] for i, v in mine), torch.zeros(SIZE).double()) for mine in people]
    torch.testing.assert_close(pool(q, history, history.values), torch.stack(weighted))


def test_gradients_of_pool_reach_table_and_weights():
    history = ragged([[(0, 1.0), (2, 3.1)], [], [(2, 2.0), (2, 1.0)]])
    q, w = table().requires_grad_(), history.values.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, w: pool(q, history, w), (q, w))


@quick
@given(people)
def test_spread_is_pool_with_another_way_back(people):
    history = ragged(people)
    back, order = turn(history, ITEMS)
    assert torch.equal(history.items[order], back.owner())
    assert torch.equal(history.owner()[order], back.items)
    for here, there in ((None, None), (history.values, history.values[order])):
        plain, other = table().requires_grad_(), table().requires_grad_()
        expected, got = pool(plain, history, here), spread(other, history, back, here, there)
        assert torch.equal(got, expected)
        expected.square().sum().backward()
        got.square().sum().backward()
        torch.testing.assert_close(other.grad, plain.grad)


@quick
@given(people, st.floats(0.1, 20))
def test_segment_sum_and_shrunk_mean(people, strength):
    history = ragged(people)
    sums = torch.tensor([sum(v for _, v in mine) for mine in people], dtype=torch.float64)
    torch.testing.assert_close(segment_sum(history.values, history.owner(), len(people)), sums)
    expected = sums / torch.tensor([len(mine) + strength for mine in people])
    torch.testing.assert_close(shrunk_mean(history.values, history, strength), expected)


def test_infinite_strength_is_no_bias_at_all():
    history = ragged([[(0, 4.0)], []])
    assert not shrunk_mean(history.values, history, float("inf")).any()


def test_no_strength_and_no_history_is_zero():
    history = ragged([[(0, 4.0)], []])
    assert shrunk_mean(history.values, history, 0.0).tolist() == [4.0, 0.0]


@quick
@given(people)
def test_per_level(people):
    """A value between two levels counts as the nearest; a middle one as the lower."""
    split = per_level(ragged(people), torch.tensor(LEVELS, dtype=torch.float64))
    expected = []
    for mine in people:
        near = [min(LEVELS, key=lambda x: (abs(x - v), x)) for _, v in mine]
        expected += [[i for (i, _), n in zip(mine, near, strict=True) if n == x] for x in LEVELS]
    assert split.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert split.items.tolist() == [i for row in expected for i in row]


def test_per_level_of_one_level():
    history = ragged([[(3, 1.0), (1, 1.0)], []])
    split = per_level(history, torch.ones(1, dtype=torch.float64))
    assert split.items.tolist() == [3, 1]
    assert split.offsets.tolist() == [0, 2, 2]


@quick
@given(people)
def test_normal_equations(people):
    history, q = ragged(people), table()
    outer, right = normal_equations(q, history, history.values)
    for b, mine in enumerate(people):
        a, r = torch.zeros(SIZE, SIZE).double(), torch.zeros(SIZE).double()
        for i, v in mine:
            a += q[i].outer(q[i])
            r += v * q[i]
        torch.testing.assert_close(outer[b], a)
        torch.testing.assert_close(right[b], r)


def test_normal_equations_in_pieces(monkeypatch):
    """More entries than are gathered at a time."""
    rng = np.random.default_rng(0)
    people = [
        [(int(i), 1.0) for i in rng.integers(ITEMS, size=n)] for n in rng.integers(9, size=50)
    ]
    history = ragged(people)
    whole = normal_equations(table(), history, history.values)
    monkeypatch.setattr(ragged_module, "_ENTRIES", 10)
    for a, b in zip(whole, normal_equations(table(), history, history.values), strict=True):
        torch.testing.assert_close(a, b)


@quick
@given(people, st.data())
def test_pick(people, data):
    rows = data.draw(st.lists(st.integers(0, len(people) - 1), max_size=6))
    some = pick(ragged(people), torch.tensor(rows, dtype=torch.int64))
    expected = [people[r] for r in rows]
    assert some.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert some.items.tolist() == [i for mine in expected for i, _ in mine]
    assert some.values.tolist() == [v for mine in expected for _, v in mine]


@quick
@given(people)
def test_owner_and_lengths(people):
    history = ragged(people)
    assert history.lengths().tolist() == [len(mine) for mine in people]
    assert history.owner().tolist() == [b for b, mine in enumerate(people) for _ in mine]


def test_an_empty_history():
    history = History.empty(3)
    assert history.lengths().tolist() == [0, 0, 0]
    assert not pool(table().float(), history).any()
    assert pool(table().float(), history).shape == (3, SIZE)
