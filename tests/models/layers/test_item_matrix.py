"""Sparse rows against the matrix they were taken from."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from idcf.models.layers.item_matrix import Sparse
from idcf.types import History


def filled(matrix):
    rows = Sparse(len(matrix))
    rows.fill(csr_array(matrix))
    return rows


def histories(rng, users, items):
    length = rng.integers(0, 5, users)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(length)]))
    chosen = torch.from_numpy(rng.integers(items, size=length.sum()))
    return History(chosen, torch.ones(len(chosen)), offsets)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_pool_is_the_dense_sum(seed, share):
    rng = np.random.default_rng(seed)
    matrix = (rng.normal(size=(7, 7)) * (rng.random((7, 7)) < share)).astype(np.float32)
    rows, told = filled(matrix), histories(rng, 4, 7)
    weight = torch.from_numpy(rng.normal(size=len(told.items)).astype(np.float32))
    expected = np.zeros((4, 7))
    for owner, item, w in zip(told.owner(), told.items, weight, strict=True):
        expected[owner] += float(w) * matrix[item]
    np.testing.assert_allclose(rows.pool(told, weight), expected, atol=1e-5)
    np.testing.assert_array_equal(rows.dense(), matrix)
    np.testing.assert_array_equal(rows.magnitude().dense(), np.abs(matrix))
    np.testing.assert_array_equal(rows.row(3), matrix[3])


def test_another_number_of_entries_can_be_loaded():
    rng = np.random.default_rng(0)
    one = filled((rng.random((5, 5)) < 0.4).astype(np.float32))
    two = filled(np.eye(5, dtype=np.float32))
    two.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(two.dense(), one.dense())
