"""Scoring all items at once against scoring them one by one."""

import pytest
import torch

from idcf.models.layers.embedding import Table
from idcf.models.layers.heads import Concat, Dot, Perceptron, Products, mlp

torch.set_num_threads(1)
USERS, ITEMS, SIZE = 4, 9, 3


def head(kind, hidden):
    torch.manual_seed(0)
    if kind == "concat":
        return Concat(SIZE - 1, SIZE + 1, hidden).double()
    made = {"dot": Dot, "perceptron": Perceptron, "products": Products}[kind]
    return (made() if kind == "dot" else made(SIZE, hidden)).double()


def towers(kind):
    width = 2 * SIZE if kind in ("products", "concat") else SIZE
    draw = torch.Generator().manual_seed(1)
    shapes = ((USERS, width), (ITEMS, width))
    return (torch.randn(s, dtype=torch.float64, generator=draw) for s in shapes)


@pytest.mark.parametrize("hidden", [(5,), (5, 4)], ids=str)
@pytest.mark.parametrize("kind", ["dot", "perceptron", "products", "concat"])
def test_all_equals_forward(kind, hidden):
    f, (user, item) = head(kind, hidden), towers(kind)
    expected = f(user, item.expand(USERS, -1, -1))
    assert expected.shape == (USERS, ITEMS)
    torch.testing.assert_close(f.all(user, item), expected)


def test_perceptron_against_its_equation():
    f, (user, item) = head("perceptron", (5,)), towers("perceptron")
    for b in range(USERS):
        for i in range(ITEMS):
            p, q = user[b], item[i]
            expected = (p @ q + f.net(torch.cat([p, q, p * q]))[0]) / 2
            torch.testing.assert_close(f.all(user, item)[b, i], expected)


def test_products_against_its_equation():
    f, (user, item) = head("products", (5,)), towers("products")
    for b in range(USERS):
        for i in range(ITEMS):
            (p, m), (q, n) = user[b].chunk(2), item[i].chunk(2)
            expected = f.net(torch.cat([p * q, p * m, n * q, n * m]))[0]
            torch.testing.assert_close(f.all(user, item)[b, i], expected)


def test_concat_against_its_equation():
    f, (user, item) = head("concat", (5,)), towers("concat")
    plain = SIZE - 1
    for b in range(USERS):
        for i in range(ITEMS):
            p, q = user[b], item[i]
            expected = f.net(torch.cat([p[:plain], q[:plain], p[plain:] * q[plain:]]))[0]
            torch.testing.assert_close(f.all(user, item)[b, i], expected)


@pytest.mark.parametrize("kind", ["perceptron", "products", "concat"])
def test_gradients_agree(kind):
    """Training goes one way and may be checked by the other."""
    f, (user, item) = head(kind, (5,)), towers(kind)
    found = []
    for scores in (f(user, item.expand(USERS, -1, -1)), f.all(user, item)):
        f.zero_grad()
        scores.square().sum().backward()
        found.append([p.grad.clone() for p in f.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_mlp_ends_without_activation():
    net = mlp((4, 3, 1), torch.nn.ReLU)
    assert [type(x).__name__ for x in net] == ["Linear", "ReLU", "Linear"]


def test_table():
    rows = torch.tensor([[2, 0], [1, 2]])
    made = Table(3, 5)
    found = made(rows)
    assert found.vector.shape == (2, 2, 5)
    assert torch.equal(found.vector[0, 1], made.vector[0])
    assert torch.equal(found.bias, made.bias[rows])
    taken = found.take(torch.tensor([1, 1]))
    assert torch.equal(taken.vector[0], found.vector[1])
