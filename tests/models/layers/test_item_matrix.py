"""The sparse item matrix against the dense matrix it was made from."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from idcf.models.layers.item_matrix import ItemMatrix
from idcf.types import History


def item_matrix(dense):
    matrix = ItemMatrix(len(dense))
    matrix.set_entries(csr_array(dense))
    return matrix


def random_histories(rng, users, items):
    length = rng.integers(0, 5, users)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(length)]))
    chosen = torch.from_numpy(rng.integers(items, size=length.sum()))
    return History(chosen, torch.ones(len(chosen)), offsets)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_sum_pool_is_the_dense_sum(seed, share):
    rng = np.random.default_rng(seed)
    dense = (rng.normal(size=(7, 7)) * (rng.random((7, 7)) < share)).astype(np.float32)
    matrix, history = item_matrix(dense), random_histories(rng, 4, 7)
    weight = torch.from_numpy(rng.normal(size=len(history.items)).astype(np.float32))
    expected = np.zeros((4, 7))
    for owner, item, w in zip(history.owner(), history.items, weight, strict=True):
        expected[owner] += float(w) * dense[item]
    np.testing.assert_allclose(matrix.sum_pool(history, weight), expected, atol=1e-5)
    np.testing.assert_array_equal(matrix.to_dense(), dense)
    np.testing.assert_array_equal(matrix.absolute().to_dense(), np.abs(dense))
    np.testing.assert_array_equal(matrix.dense_row(3), dense[3])


def test_sums_in_parts_are_those_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    dense = (rng.normal(size=(9, 9)) * (rng.random((9, 9)) < 0.5)).astype(np.float32)
    matrix, history = item_matrix(dense), random_histories(rng, 30, 9)
    weight = torch.from_numpy(rng.normal(size=len(history.items)).astype(np.float32))
    expected = matrix.sum_pool(history, weight), matrix.sum_pool(history)
    for size in (1, 7, 40):
        monkeypatch.setattr("idcf.models.layers.item_matrix._MAX_ADDED_ENTRIES", size)
        sums = matrix.sum_pool(history, weight), matrix.sum_pool(history)
        assert all(torch.equal(*x) for x in zip(sums, expected, strict=True))


def test_another_number_of_entries_can_be_loaded():
    rng = np.random.default_rng(0)
    source = item_matrix((rng.random((5, 5)) < 0.4).astype(np.float32))
    target = item_matrix(np.eye(5, dtype=np.float32))
    target.load_state_dict(source.state_dict())
    np.testing.assert_array_equal(target.to_dense(), source.to_dense())


def test_several_blocks_are_those_of_single_calls() -> None:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(12, 12)).astype(np.float32) * (rng.random((12, 12)) < 0.4)
    matrix = ItemMatrix(12)
    matrix.set_entries(csr_array(dense))
    rows, columns = (torch.from_numpy(rng.integers(0, 12, (3, 5))) for _ in range(2))
    expected = np.stack([dense[np.ix_(r, c)] for r, c in zip(rows, columns, strict=True)])
    for is_training in (True, False):  # without and with its zeros
        blocks = matrix.train(is_training).block(rows, columns)
        np.testing.assert_array_equal(blocks.numpy(), expected)
