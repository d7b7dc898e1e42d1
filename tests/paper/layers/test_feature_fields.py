"""Embeddings of fields and the head of dot product and network against slow references."""

import pytest
import torch

from idcf.paper.layers.feature_fields import (
    DotConcatHead,
    FieldEmbeddings,
    bounded,
    item_table_from_means,
)
from idcf.testing import synthetic_world


def test_each_field_has_an_embedding_of_its_own():
    torch.manual_seed(0)
    layer = FieldEmbeddings(6, (2, 1, 3), 4, 1.0)
    x = torch.randn(5, 6)
    expected = torch.cat([x[:, a:b] @ layer.weight[a:b] for a, b in ((0, 2), (2, 3), (3, 6))], 1)
    assert layer.output_size == 12
    torch.testing.assert_close(layer(x), expected)


def test_without_widths_all_features_are_one_field():
    layer = FieldEmbeddings(6, (), 4, 1.0)
    assert layer.output_size == 4
    assert FieldEmbeddings(0, (), 4, 1.0)(torch.zeros(3, 0)).shape == (3, 4)


def test_features_of_rare_words_are_bounded():
    assert bounded(torch.tensor([18.0, -4.0, 0.5])).tolist() == [3.0, -3.0, 0.5]


def head_with_weights(deep_size):
    torch.manual_seed(1)
    head = DotConcatHead(deep_size, (7,))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


@pytest.mark.parametrize("n_dot", [0, 3])
def test_all_pairs_equal_single_pairs(n_dot):
    head = head_with_weights(9)
    user, item = torch.randn(5, n_dot + 4), torch.randn(6, n_dot + 5)
    scores = head.score_all_pairs(user, item)
    for u in range(5):
        for i in range(6):
            deep = head.net(torch.cat([user[u, n_dot:], item[i, n_dot:]]))
            expected = user[u, :n_dot] @ item[i, :n_dot] + deep[0]
            torch.testing.assert_close(scores[u, i], expected)
    torch.testing.assert_close(head(user, item.expand(5, 6, -1)), scores)
    torch.testing.assert_close(head(user, item[:5]), scores.diagonal())


def test_item_biases_start_at_the_shrunk_means():
    split = synthetic_world().split
    table, domain = split.train, split.train.domain()
    bias = item_table_from_means(domain, 2, 0.1).bias.detach()
    for item in (0, 7):
        ratings = table.rating[table.item == item]
        expected = (ratings - domain.mean).sum() / (len(ratings) + 3)
        assert float(bias[item]) == pytest.approx(expected, rel=1e-5)
