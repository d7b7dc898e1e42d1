"""Relational graph convolutions against sums over single edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from idcf.paper.layers.rgcn import RGCN, SubgraphEdges

N_GRAPHS, N_USERS, N_ITEMS, SIZE, OUT, N_LEVELS = 2, 3, 4, 5, 6, 3


def make_graphs() -> tuple[Tensor, SubgraphEdges, Tensor, Tensor]:
    """Levels, edges, user vectors and item vectors; user 2 of graph 1 has no edge."""
    torch.manual_seed(0)
    level = torch.randint(0, N_LEVELS + 1, (N_GRAPHS, N_USERS, N_ITEMS))
    level[1, 2] = 0
    kinds = torch.stack([(level == number).float() for number in range(1, N_LEVELS + 1)], 1)
    users, items = torch.randn(N_GRAPHS, N_USERS, SIZE), torch.randn(N_GRAPHS, N_ITEMS, SIZE)
    return level, SubgraphEdges.from_levels(level, kinds), users, items


def slow_node(
    layer: RGCN, state: Tensor, neighbors: list[tuple[int, Tensor]], weights: Tensor
) -> Tensor:
    """W_0 x + b + the mean of W_level x over (level, vector) of the neighbors."""
    messages = [x @ weights[level - 1] for level, x in neighbors]
    mean = torch.stack(messages).mean(0) if messages else torch.zeros(OUT)
    out: Tensor = layer.root(state) + mean
    return out


@pytest.mark.parametrize("n_bases", [0, 2])
def test_nodes_are_those_of_a_loop_over_edges(n_bases: int) -> None:
    level, edges, users, items = make_graphs()
    layer = RGCN(N_LEVELS, SIZE, OUT, n_bases)
    weights = layer.weight()
    assert weights.shape == (N_LEVELS, SIZE, OUT)
    new_users, new_items = layer(edges, users, items)
    for graph in range(N_GRAPHS):
        levels = level[graph].tolist()
        for u in range(N_USERS):
            neighbors = [(levels[u][i], items[graph, i]) for i in range(N_ITEMS) if levels[u][i]]
            expected = slow_node(layer, users[graph, u], neighbors, weights)
            torch.testing.assert_close(new_users[graph, u], expected)
        for i in range(N_ITEMS):
            neighbors = [(levels[u][i], users[graph, u]) for u in range(N_USERS) if levels[u][i]]
            expected = slow_node(layer, items[graph, i], neighbors, weights)
            torch.testing.assert_close(new_items[graph, i], expected)


def test_targets_alone_are_the_first_nodes_of_each_graph() -> None:
    _, edges, users, items = make_graphs()
    layer = RGCN(N_LEVELS, SIZE, OUT)
    for target, every in zip(
        layer(edges, users, items, target_only=True), layer(edges, users, items), strict=True
    ):
        assert target.shape == (N_GRAPHS, 1, OUT)
        torch.testing.assert_close(target, every[:, :1])


def test_users_and_items_can_be_exchanged() -> None:
    level, edges, users, items = make_graphs()
    layer = RGCN(N_LEVELS, SIZE, OUT)
    new_users, new_items = layer(edges, users, items)
    exchanged = SubgraphEdges.from_levels(level.mT, edges.user_weights.mT)
    exchanged_items, exchanged_users = layer(exchanged, items, users)
    torch.testing.assert_close(exchanged_users, new_users)
    torch.testing.assert_close(exchanged_items, new_items)


def test_the_penalty_is_0_for_equal_levels_and_counts_each_step_once() -> None:
    layer = RGCN(3, 2, 2)
    with torch.no_grad():
        layer.basis.copy_(torch.ones(3, 2, 2))
        assert layer.adjacent_rating_penalty().item() == 0
        layer.basis[1] += 2  # 4 weights, 2 steps of size 2
        assert layer.adjacent_rating_penalty().item() == 2 * 4 * 4
