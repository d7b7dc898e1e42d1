"""Histories, ragged rows, users and batches, against lists of lists."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idcf.types import (
    Batch,
    Embeddings,
    History,
    Ragged,
    Users,
    select_histories,
    select_rows,
)

CPU = torch.device("cpu")
ROWS = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=5), max_size=6)


def as_history(rows):
    """Return histories from lists of (item, rating)."""
    entries = [x for row in rows for x in row]
    lengths = torch.tensor([len(x) for x in rows], dtype=torch.int64)
    return History(
        torch.tensor([x for x, _ in entries], dtype=torch.int64),
        torch.tensor([float(x) for _, x in entries]),
        torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
    )


def as_lists(ragged):
    """Return the (index, value) pairs of each row."""
    bounds = ragged.offsets.tolist()
    pairs = list(zip(ragged.indices.tolist(), ragged.values.tolist(), strict=True))
    return [pairs[a:b] for a, b in pairwise(bounds)]


def some_batch(n_users=3, n_rows=4, **sizes):
    """Return a batch whose users have empty histories."""
    users = Users(torch.arange(n_users), History.empty(n_users))
    items = torch.arange(2 * n_rows).view(n_rows, 2)
    return Batch(users, torch.zeros(n_rows, dtype=torch.int64), items, items.float(), **sizes)


@given(ROWS)
def test_lengths_and_owners_are_those_of_the_lists(rows):
    for ragged in (as_history(rows), as_history(rows).as_ragged()):
        assert ragged.lengths().tolist() == [len(x) for x in rows]
        assert ragged.owner().tolist() == [n for n, x in enumerate(rows) for _ in x]
        assert as_lists(ragged) == rows
        assert as_lists(ragged.to(CPU)) == rows


@given(ROWS, st.data())
def test_selected_rows_are_those_of_the_lists(rows, data):
    """Rows may be repeated, in any order, or none."""
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8) if rows else st.just([]))
    expected = [[(item, float(value)) for item, value in rows[n]] for n in chosen]
    history, index = as_history(rows), torch.tensor(chosen, dtype=torch.int64)
    assert as_lists(select_histories(history, index)) == expected
    n_entries = sum(map(len, expected))
    assert as_lists(select_histories(history, index, n_entries)) == expected
    ragged = history.as_ragged()
    assert as_lists(select_rows(ragged, index)) == expected
    without_values = select_rows(Ragged(ragged.indices, None, ragged.offsets), index)
    assert without_values.values is None
    assert without_values.indices.tolist() == [item for row in expected for item, _ in row]


@pytest.mark.parametrize("n", [0, 1, 4])
def test_empty_rows(n):
    for ragged in (History.empty(n), Ragged.empty(n)):
        assert ragged.lengths().tolist() == [0] * n
        assert len(ragged.owner()) == len(ragged.indices) == 0
        assert ragged.indices.dtype == ragged.offsets.dtype == torch.int64
        assert ragged.values.dtype == torch.float32


def test_a_ragged_array_without_values_moves_to_a_device():
    ragged = Ragged(torch.tensor([3, 1]), None, torch.tensor([0, 2])).to(CPU)
    assert ragged.values is None
    assert ragged.indices.tolist() == [3, 1]


def test_anonymous_users_lose_their_ids_only():
    features = torch.ones(2, 3)
    users = Users(torch.tensor([7, -1]), as_history([[(1, 5)], []]), features)
    anonymous = users.anonymous()
    assert anonymous.ids.tolist() == [-1, -1]
    assert users.ids.tolist() == [7, -1]
    assert anonymous.history is users.history
    assert anonymous.features is features
    assert len(anonymous) == 2


def test_users_move_with_or_without_features():
    users = Users(torch.tensor([0, 1]), as_history([[(1, 5)], []]))
    assert users.to(CPU).features is None
    moved = Users(users.ids, users.history, torch.zeros(2, 1)).to(CPU)
    assert moved.features is not None
    assert as_lists(moved.history) == [[(1, 5.0)], []]


def test_the_size_of_a_batch_is_that_of_all_processes_if_it_is_given():
    alone, share = some_batch(), some_batch(n_global_rows=40, n_global_users=30)
    assert (alone.n_rows, alone.n_users) == (4, 3)
    assert (share.n_rows, share.n_users) == (40, 30)
    assert alone.to(CPU) is alone  # it is there already
    meta = share.to(torch.device("meta"))
    assert (meta.n_rows, meta.n_users) == (40, 30)
    assert meta.items.device.type == meta.users.history.items.device.type == "meta"


def test_embeddings_are_reshaped_and_taken_by_row():
    embeddings = Embeddings(torch.arange(12.0).view(6, 2), torch.arange(6.0))
    grid = embeddings.view(torch.Size([2, 3]))
    assert grid.vector.shape == (2, 3, 2)
    assert grid.bias.tolist() == [[0, 1, 2], [3, 4, 5]]
    taken = embeddings.take(torch.tensor([5, 0, 5]))
    assert taken.bias.tolist() == [5, 0, 5]
    assert taken.vector.tolist() == [[10, 11], [0, 1], [10, 11]]
