"""Reader and counting, against loops over plain lists."""

import math

import pytest
import torch

from idcf.paper.layers.history_encoder import Offered, Reader, log_odds, ridge_biases
from idcf.types import Domain, History

torch.set_num_threads(1)
ITEMS, SIZE, MEAN = 6, 3, 3.5
HISTORIES = [[(0, 5.0), (3, 2.0), (4, 4.0)], [], [(5, 1.0)]]
USERS = [[(0, 5.0), (1, 3.0)], [(0, 4.0)], [(0, 2.0), (2, 1.0), (3, 5.0)]]  # who rated what


def ragged(rows):
    flat = [pair for row in rows for pair in row]
    lengths = torch.tensor([0, *(len(row) for row in rows)])
    return History(
        torch.tensor([a for a, _ in flat], dtype=torch.int64),
        torch.tensor([b for _, b in flat]),
        lengths.cumsum(0),
    )


def domain(implicit=False):
    by_item = [
        [(u, r) for u, row in enumerate(USERS) for j, r in row if j == i] for i in range(ITEMS)
    ]
    return Domain(len(USERS), ITEMS, MEAN, (1.0, 5.0), implicit, ragged(by_item))


def reader(**more):
    torch.manual_seed(0)
    return Reader(ITEMS, SIZE, mean=MEAN, **{"rated": True, **more}).eval()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("rated", "had"), [(True, True), (True, False), (False, True)])
def test_a_history_is_read_as_a_loop_reads_it(alpha, rated, had):
    part, item_bias = reader(alpha=alpha, rated=rated, had=had), torch.randn(ITEMS)
    found = part(ragged(HISTORIES), item_bias)
    for row, vector, bias in zip(HISTORIES, found.vector, found.bias, strict=True):
        left = [r - MEAN - float(item_bias[j]) for j, r in row]
        b_u = sum(left) / (len(row) + part.strength) if rated else 0.0
        total = torch.zeros(SIZE)
        for (j, _), e in zip(row, left, strict=True):
            total += (e - b_u) * part.rated[j] if rated else 0
            total += part.had[j] if had else 0
        expected = total * (len(row) ** -alpha if row else 1.0)
        torch.testing.assert_close(vector, expected)
        assert float(bias) == pytest.approx(b_u, abs=1e-6)


def test_a_binary_history_has_unit_length():
    """n^-½ is what dividing by the norm of a vector of ones is."""
    part = reader(rated=False)
    with torch.no_grad():
        part.had.copy_(torch.eye(ITEMS)[:, :SIZE])
    history = ragged([[(0, 1.0), (1, 1.0), (2, 1.0)]])
    found = part(history, torch.zeros(ITEMS)).vector.detach()
    assert float(found.norm()) == pytest.approx(1.0)


def test_gradients_are_those_of_finite_differences():
    part, item_bias = reader().double(), torch.randn(ITEMS, dtype=torch.float64)
    history = ragged(HISTORIES)
    history = history._replace(values=history.values.double())

    def score(rated, had, bias):
        values = {"rated": rated, "had": had}
        return tuple(torch.func.functional_call(part, values, (history, bias)))

    own = [x.detach().clone().requires_grad_() for x in (part.rated, part.had, item_bias)]
    assert torch.autograd.gradcheck(score, own)


def test_dropout_is_for_training_and_keeps_the_mean():
    part, history = reader(dropout=0.5, rated=False), ragged(HISTORIES)
    sure = part(history, torch.zeros(ITEMS)).vector
    assert torch.equal(part(history, torch.zeros(ITEMS)).vector, sure)
    part.train()
    drawn = torch.stack([part(history, torch.zeros(ITEMS)).vector for _ in range(1000)])
    torch.testing.assert_close(drawn.mean(0), sure, atol=0.04, rtol=0.0)


def test_ridge_biases_are_a_fixed_point():
    """b_i from b_u and b_u from b_i, by loops."""
    bias = ridge_biases(domain(), 5.0, rounds=200)
    of_user = [sum(r - MEAN - float(bias[j]) for j, r in row) / (len(row) + 5.0) for row in USERS]
    for i in range(ITEMS):
        left = [r - MEAN - of_user[u] for u, row in enumerate(USERS) for j, r in row if j == i]
        assert float(bias[i]) == pytest.approx(sum(left) / (len(left) + 3.0), abs=1e-5)


def test_log_odds_count():
    counts = [3, 1, 1, 1, 0, 0]
    average = sum(c + 0.5 for c in counts) / ITEMS
    expected = [math.log((c + 0.5) / average) for c in counts]
    assert log_odds(domain(implicit=True)).tolist() == pytest.approx(expected, abs=1e-6)


def test_biases_are_learnt_round_where_they_start():
    part = Offered(torch.arange(4.0), SIZE)
    with torch.no_grad():
        part.table.bias.fill_(0.5)
    found = part(torch.tensor([[0, 3]]))
    assert found.vector.shape == (1, 2, SIZE)
    assert found.bias.tolist() == [[0.5, 3.5]]
    assert part.bias.tolist() == [0.5, 1.5, 2.5, 3.5]
