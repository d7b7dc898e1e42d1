"""Blocks of work in threads: the results of one thread, and PyTorch's number of threads kept."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from idcf.training.solvers.nearest_items import find_nearest_items, local_ridge
from idcf.training.solvers.threads import map_blocks, threads_over_blocks


@pytest.fixture(params=[1, 3])
def torch_threads(request) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("n_threads", [None, 1, 2, 5])
def test_results_come_in_order(n_threads: int | None, torch_threads: int) -> None:
    def power(base: int, exponent: int) -> int:
        time.sleep(0.002 * (5 - base))  # later blocks end first
        return base**exponent

    with threads_over_blocks(n_threads) as mapped:
        assert mapped(power, range(5), [2] * 5) == map_blocks(power, range(5), [2] * 5)
    assert torch.get_num_threads() == torch_threads


def test_pytorch_has_one_thread_in_each(torch_threads: int) -> None:
    if torch_threads == 1:
        pytest.skip("there are no other threads")
    both_are_here = threading.Barrier(2)

    def count(_: int) -> int:
        both_are_here.wait(timeout=30)
        return torch.get_num_threads()

    with threads_over_blocks(2) as mapped:
        assert mapped(count, range(2)) == [1, 1]


def test_an_error_of_a_block_is_raised_and_the_threads_are_kept(torch_threads: int) -> None:
    with pytest.raises(ZeroDivisionError), threads_over_blocks(2) as mapped:
        mapped(lambda x: 1 // x, [1, 0, 1])
    assert torch.get_num_threads() == torch_threads


def test_nearest_items_and_their_weights_do_not_depend_on_the_threads(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    x = csr_array((rng.random((300, 90)) < 0.15).astype(np.float32))
    # blocks of a few items
    monkeypatch.setattr("idcf.models.layers.item_matrix._MAX_BLOCK_ENTRIES", 2_000)
    monkeypatch.setattr("idcf.training.solvers.nearest_items._MAX_EQUATION_CELLS", 2_000)
    results, before = [], torch.get_num_threads()
    for n_threads in (1, 2, 4):
        torch.set_num_threads(n_threads)
        nearest = find_nearest_items(x, 20)
        results.append((*nearest, torch.from_numpy(local_ridge(nearest, 5.0, 0.5, 12).toarray())))
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
