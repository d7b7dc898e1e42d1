"""The parts of AGNN against closed forms and loops."""

import torch
from torch.distributions import Normal, kl_divergence

from idcf.paper.layers.attribute_graph import (
    AttributeVAE,
    BiInteraction,
    GatedNeighbors,
    cosine_similarity,
    kl_from_standard_normal,
    most_similar,
)


def test_the_divergence_is_the_closed_form():
    """The published code has exp(z) in place of the variance."""
    torch.manual_seed(0)
    mean, log_variance = torch.randn(4, 3), torch.randn(4, 3)
    normal = Normal(mean, (log_variance / 2).exp())
    expected = kl_divergence(normal, Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(kl_from_standard_normal(mean, log_variance), expected)
    assert kl_from_standard_normal(torch.zeros(2, 3), torch.zeros(2, 3)).tolist() == [0, 0]


def test_the_divergence_is_the_mean_log_ratio_of_draws():
    torch.manual_seed(0)
    mean, log_variance = torch.tensor([[0.5, -1.0]]), torch.tensor([[0.3, -0.6]])
    normal = Normal(mean, (log_variance / 2).exp())
    z = normal.sample((200_000,))
    ratio = (normal.log_prob(z) - Normal(0.0, 1.0).log_prob(z)).sum(-1).mean()
    torch.testing.assert_close(
        kl_from_standard_normal(mean, log_variance)[0], ratio, atol=0.02, rtol=0
    )


def test_interaction_is_the_sum_over_pairs_of_features():
    torch.manual_seed(0)
    layer, x = BiInteraction(4, 3, 1.0), torch.randn(2, 4)
    for row in range(2):
        v = x[row, :, None] * layer.vectors
        pairs = sum(v[a] * v[b] for a in range(4) for b in range(a))
        parts = layer.pairs(pairs), layer.sums(v.sum(0))
        expected = sum(torch.nn.functional.leaky_relu(part) for part in parts)
        torch.testing.assert_close(layer(x)[row], expected)


def test_gates_of_a_node_and_of_each_neighbor():
    torch.manual_seed(0)
    layer, node, neighbors = GatedNeighbors(3), torch.randn(2, 3), torch.randn(2, 4, 3)
    for row in range(2):
        x, terms = node[row], []
        for n in neighbors[row]:
            terms.append(n * torch.sigmoid(layer.aggregate(torch.cat([x, n]))))
        dropped = torch.sigmoid(layer.filter(torch.cat([x, neighbors[row].mean(0)])))
        expected = x * (1 - dropped) + sum(terms) / 4
        torch.testing.assert_close(
            layer(node, neighbors)[row], torch.nn.functional.leaky_relu(expected)
        )


def test_candidates_are_the_most_similar_and_ties_go_to_the_first():
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    rows = most_similar(cosine_similarity(x[:1], x), 3).rows
    assert rows.tolist() == [[0, 1, 3]]
    assert most_similar(torch.zeros(1, 4), 2).rows.tolist() == [[0, 1]]


def test_the_generator_learns_ids_from_attributes():
    torch.manual_seed(0)
    attributes = torch.randn(60, 4)
    ids, layer = attributes @ torch.randn(4, 4), AttributeVAE(4)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    before = (layer(attributes) - ids).square().mean().detach()
    for _ in range(200):
        recon, kl = layer.losses(attributes, ids)
        optimizer.zero_grad()
        (recon + 0.01 * kl).mean().backward()
        optimizer.step()
    assert (layer(attributes) - ids).square().mean() < before / 5
