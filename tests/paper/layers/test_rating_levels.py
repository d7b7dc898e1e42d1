"""Expected ratings and cross-entropies of rating levels, by hand and by loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from idcf.paper.layers.rating_levels import expected_rating, level_cross_entropy
from idcf.types import Batch, History, Users

LEVELS = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])


def make_batch(labels: list[list[float]], n_global_rows: int = 0) -> Batch:
    n = len(labels)
    users = Users(torch.arange(n), History.empty(n))
    items = torch.zeros(n, len(labels[0]), dtype=torch.int64)
    return Batch(users, torch.arange(n), items, torch.tensor(labels), n_global_rows)


def test_the_expectation_of_one_certain_level_and_of_all() -> None:
    certain = torch.full((5,), -1e4)
    certain[3] = 0
    assert expected_rating(certain, LEVELS).item() == 4
    assert expected_rating(torch.zeros(2, 3, 5), LEVELS).tolist() == [[3.0] * 3] * 2
    odds = torch.tensor([math.log(3.0), 0.0])  # three to one for the lower level
    assert expected_rating(odds, torch.tensor([1.0, 5.0])).item() == pytest.approx(2.0)


def test_the_cross_entropy_is_that_of_a_loop() -> None:
    labels = [[1.0, 4.4], [5.0, 2.5]]  # 4.4 is nearest to 4; a midpoint goes to the lower level
    logits = torch.randn(2, 2, 5, generator=torch.Generator().manual_seed(0))
    expected = -sum(
        float(logits[m, k].log_softmax(0)[level])
        for (m, k), level in {(0, 0): 0, (0, 1): 3, (1, 0): 4, (1, 1): 1}.items()
    )
    terms = level_cross_entropy(lambda *_: logits, LEVELS, make_batch(labels))
    assert set(terms) == {"levels"}
    assert terms["levels"].item() == pytest.approx(expected / 4, rel=1e-6)


def test_the_shares_of_two_processes_add_up_to_the_loss_of_the_whole_batch() -> None:
    labels = [[1.0], [4.0], [2.0]]
    logits = torch.randn(3, 1, 5, generator=torch.Generator().manual_seed(1))

    def loss(rows: slice, n_global_rows: int) -> float:
        batch = make_batch(labels[rows], n_global_rows)
        return level_cross_entropy(lambda *_: logits[rows], LEVELS, batch)["levels"].item()

    whole = loss(slice(None), 0)
    assert loss(slice(0, 1), 3) + loss(slice(1, 3), 3) == pytest.approx(whole, rel=1e-6)


def test_the_logits_are_those_of_the_rows_of_the_batch() -> None:
    batch = make_batch([[3.0], [3.0]])

    def level_logits(users: Users, items: Tensor, owner: Tensor) -> Tensor:
        assert users is batch.users
        assert items is batch.items
        assert owner is batch.owner
        return torch.zeros(2, 1, 5)

    loss = level_cross_entropy(level_logits, LEVELS, batch)["levels"].item()
    assert loss == pytest.approx(math.log(5))
