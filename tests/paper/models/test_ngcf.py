"""NGCF against plain loops over a tiny graph, and the edges that must stay hidden."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from idcf.models.layers.cache import TensorCache
from idcf.paper.model_options import NGCFConfig
from idcf.paper.models.ngcf import NGCF, BipartiteGraph
from idcf.testing.synthetic import checkerboard
from idcf.training.job import LOCAL_RUNTIME
from idcf.training.optimizer import Optimizer
from idcf.training.options import TrainConfig
from idcf.types import History, Ragged, Users

TABLE = checkerboard(
    9, 7, np.random.default_rng(0), rows_per_light_user=2, rows_per_heavy_user=4, implicit=True
)
PAIRS = sorted(set(zip(TABLE.user.tolist(), TABLE.item.tolist(), strict=True)))


def make_model(**options: object) -> NGCF:
    torch.manual_seed(0)
    return NGCF(NGCFConfig(embedding_size=5, layers=2, dropout=0.0, **options), TABLE.domain())  # type: ignore[arg-type]


def make_graph() -> BipartiteGraph:
    return BipartiteGraph(TABLE.domain().raters, len(TABLE.users))


def all_users() -> Users:
    n = len(TABLE.users)
    return Users(torch.arange(n), History.empty(n))


def slow_scores(model: NGCF, pairs: list[tuple[int, int]]) -> torch.Tensor:
    """Scores [U, I] on the graph of these pairs, node by node."""
    n_users = len(TABLE.users)
    n_nodes = n_users + model.n_items
    neighbors: list[list[int]] = [[] for _ in range(n_nodes)]
    for user, item in pairs:
        neighbors[user].append(n_users + item)
        neighbors[n_users + item].append(user)
    x = torch.cat([model.user_table.vector, model.item_table.vector])
    parts = [x]
    for sum_layer, product_layer in zip(model.sums, model.products, strict=True):
        rows = []
        for node in range(n_nodes):
            mean = torch.stack([x[v] for v in [node, *neighbors[node]]]).mean(0)
            row = F.leaky_relu(sum_layer(mean), 0.2)
            rows.append(row + F.leaky_relu(product_layer(mean * x[node]), 0.2))
        x = torch.stack(rows)
        parts.append(x / x.norm(dim=-1, keepdim=True))
    nodes = torch.cat(parts, -1)
    return nodes[:n_users] @ nodes[n_users:].T + model.item_table.bias


def test_propagation_is_that_of_plain_loops() -> None:
    model = make_model().eval()
    torch.testing.assert_close(model.score_catalog(all_users()), slow_scores(model, PAIRS))


def test_a_training_pair_is_scored_on_the_graph_without_it() -> None:
    """And without the negatives that happen to be edges, whether they occur once or twice."""
    model = make_model().train()
    hidden = [PAIRS[0], PAIRS[3], PAIRS[3], PAIRS[7]]
    owner = torch.tensor([u for u, _ in hidden])
    items = torch.tensor([[i] for _, i in hidden])
    scores = model(all_users(), items, owner)[:, 0]
    without_hidden = slow_scores(model, [p for p in PAIRS if p not in hidden])
    torch.testing.assert_close(scores, without_hidden[owner, items[:, 0]])
    unmasked = make_model(hide_target=False).train()(all_users(), items, owner)[:, 0]
    torch.testing.assert_close(unmasked, slow_scores(model, PAIRS)[owner, items[:, 0]])


def test_the_gradient_of_a_sum_over_neighbors_is_right() -> None:
    graph, (user, item) = make_graph(), PAIRS[1]
    weights = graph.edge_weights_without(torch.tensor([user]), torch.tensor([[item]])).double()
    assert int((weights == 0).sum()) == 2
    x = torch.randn(len(TABLE.users) + 7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: graph.sum_neighbors(v, weights), (x,))
    assert torch.autograd.gradcheck(graph.sum_neighbors, (x,))


def test_hidden_edges_do_not_count_in_degrees() -> None:
    graph, (user, item) = make_graph(), PAIRS[0]
    weights = graph.edge_weights_without(torch.tensor([user]), torch.tensor([[item]]))
    degrees = graph.degrees()
    difference = (degrees - graph.degrees(weights))[:, 0]
    assert torch.equal(difference.nonzero()[:, 0], torch.tensor([user, len(TABLE.users) + item]))
    assert degrees.sum() == 2 * len(PAIRS)


def test_item_biases_start_at_popularity_if_there_are_any() -> None:
    counts = torch.from_numpy(TABLE.item_counts())
    bias = make_model().item_table.bias
    assert torch.equal(bias.argsort(stable=True), counts.argsort(stable=True))
    without_bias = make_model(item_bias=False)
    assert not without_bias.item_table.bias.any()
    assert not without_bias.item_table.bias.requires_grad


def test_cached_nodes_are_computed_anew_when_weights_change() -> None:
    model = make_model().eval()
    with torch.no_grad():
        before = model.score_catalog(all_users())
        assert model._nodes() is model._nodes()
        model.user_table.vector.mul_(2)
        after = model.score_catalog(all_users())
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, slow_scores(model, PAIRS))


def test_nothing_is_cached_where_gradients_are_needed() -> None:
    weight, cache = torch.ones(2, requires_grad=True), TensorCache[torch.Tensor]()
    for _ in range(2):
        cache.get(weight, lambda: weight * 2).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [4, 4]


def test_a_step_of_the_fused_optimizer_is_noticed() -> None:
    """It writes to weights without raising their version."""
    model, items = make_model(), torch.tensor([[0, 1]])
    optimizer = Optimizer(model, TrainConfig(learning_rate=0.1))
    with torch.no_grad():
        model.eval().score_catalog(all_users())
    model.train()(all_users(), items, torch.tensor([0])).sum().backward()
    optimizer.step(LOCAL_RUNTIME)
    with torch.no_grad():
        after = model.eval().score_catalog(all_users())
    torch.testing.assert_close(after, slow_scores(model, PAIRS))


def test_a_graph_without_edges() -> None:
    graph = BipartiteGraph(Ragged.empty(3), 2)
    weights = graph.edge_weights_without(torch.tensor([0]), torch.tensor([[1]]))
    assert torch.equal(weights, torch.zeros(0))
    assert not graph.degrees().any()
