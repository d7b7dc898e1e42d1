"""Scoring all items at once against scoring them one by one."""

import pytest
import torch

from idcf.models.layers.embedding import EmbeddingTable
from idcf.models.layers.heads import ConcatHead, DotHead, PerceptronHead, ProductsHead, mlp

USERS, ITEMS, SIZE = 4, 9, 3


def build_head(kind, hidden):
    torch.manual_seed(0)
    if kind == "concat":
        return ConcatHead(SIZE - 1, SIZE + 1, hidden).double()
    head_class = {"dot": DotHead, "perceptron": PerceptronHead, "products": ProductsHead}[kind]
    return (head_class() if kind == "dot" else head_class(SIZE, hidden)).double()


def towers(kind):
    width = 2 * SIZE if kind in ("products", "concat") else SIZE
    draw = torch.Generator().manual_seed(1)
    shapes = ((USERS, width), (ITEMS, width))
    return (torch.randn(s, dtype=torch.float64, generator=draw) for s in shapes)


@pytest.mark.parametrize("hidden", [(5,), (5, 4)], ids=str)
@pytest.mark.parametrize("kind", ["dot", "perceptron", "products", "concat"])
def test_all_pairs_equal_forward(kind, hidden):
    f, (user, item) = build_head(kind, hidden), towers(kind)
    expected = f(user, item.expand(USERS, -1, -1))
    assert expected.shape == (USERS, ITEMS)
    torch.testing.assert_close(f.score_all_pairs(user, item), expected)


def test_perceptron_against_its_equation():
    f, (user, item) = build_head("perceptron", (5,)), towers("perceptron")
    for b in range(USERS):
        for i in range(ITEMS):
            p, q = user[b], item[i]
            expected = (p @ q + f.net(torch.cat([p, q, p * q]))[0]) / 2
            torch.testing.assert_close(f.score_all_pairs(user, item)[b, i], expected)


def test_products_against_its_equation():
    f, (user, item) = build_head("products", (5,)), towers("products")
    for b in range(USERS):
        for i in range(ITEMS):
            (p, m), (q, n) = user[b].chunk(2), item[i].chunk(2)
            expected = f.net(torch.cat([p * q, p * m, n * q, n * m]))[0]
            torch.testing.assert_close(f.score_all_pairs(user, item)[b, i], expected)


def test_concat_against_its_equation():
    f, (user, item) = build_head("concat", (5,)), towers("concat")
    plain = SIZE - 1
    for b in range(USERS):
        for i in range(ITEMS):
            p, q = user[b], item[i]
            expected = f.net(torch.cat([p[:plain], q[:plain], p[plain:] * q[plain:]]))[0]
            torch.testing.assert_close(f.score_all_pairs(user, item)[b, i], expected)


@pytest.mark.parametrize("kind", ["perceptron", "products", "concat"])
def test_gradients_agree(kind):
    """Both methods have the same derivatives with respect to the weights."""
    f, (user, item) = build_head(kind, (5,)), towers(kind)
    gradients = []
    for scores in (f(user, item.expand(USERS, -1, -1)), f.score_all_pairs(user, item)):
        f.zero_grad()
        scores.square().sum().backward()
        gradients.append([p.grad.clone() for p in f.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_mlp_ends_without_activation():
    net = mlp((4, 3, 1), torch.nn.ReLU)
    assert [type(x).__name__ for x in net] == ["Linear", "ReLU", "Linear"]


def test_embedding_table():
    rows = torch.tensor([[2, 0], [1, 2]])
    table = EmbeddingTable(3, 5)
    embeddings = table(rows)
    assert embeddings.vector.shape == (2, 2, 5)
    assert torch.equal(embeddings.vector[0, 1], table.vector[0])
    assert torch.equal(embeddings.bias, table.bias[rows])
    taken = embeddings.take(torch.tensor([1, 1]))
    assert torch.equal(taken.vector[0], embeddings.vector[1])
