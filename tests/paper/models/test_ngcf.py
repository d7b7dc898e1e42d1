"""NGCF against plain loops over a tiny graph, and what must not be seen."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from idcf.models.layers.cache import Kept
from idcf.paper.layers.bipartite import Bipartite
from idcf.paper.models.ngcf import NGCF, NGCFConfig
from idcf.testing.synthetic import checkerboard
from idcf.training.distributed import LOCAL
from idcf.training.loop import TrainConfig
from idcf.training.optimizer import Optimizer
from idcf.types import History, Users

torch.set_num_threads(1)
TABLE = checkerboard(9, 7, np.random.default_rng(0), few=2, many=4, implicit=True)
PAIRS = sorted(set(zip(TABLE.user.tolist(), TABLE.item.tolist(), strict=True)))


def model(**options: object) -> NGCF:
    torch.manual_seed(0)
    return NGCF(NGCFConfig(embedding_size=5, layers=2, dropout=0.0, **options), TABLE.domain())  # type: ignore[arg-type]


def everybody() -> Users:
    n = len(TABLE.users)
    return Users(torch.arange(n), History.empty(n))


def slow(net: NGCF, pairs: list[tuple[int, int]]) -> torch.Tensor:
    """Scores [U, I] on the graph of these pairs, node by node."""
    n_users = len(TABLE.users)
    nodes = n_users + net.n_items
    near: list[list[int]] = [[] for _ in range(nodes)]
    for user, item in pairs:
        near[user].append(n_users + item)
        near[n_users + item].append(user)
    x = torch.cat([net.users.vector, net.items.vector])
    parts = [x]
    for one, two in zip(net.sums, net.products, strict=True):
        rows = []
        for node in range(nodes):
            heard = torch.stack([x[v] for v in [node, *near[node]]]).mean(0)
            rows.append(F.leaky_relu(one(heard), 0.2) + F.leaky_relu(two(heard * x[node]), 0.2))
        x = torch.stack(rows)
        parts.append(x / x.norm(dim=-1, keepdim=True))
    whole = torch.cat(parts, -1)
    return whole[:n_users] @ whole[n_users:].T + net.items.bias


def test_propagation_is_that_of_plain_loops() -> None:
    net = model().eval()
    torch.testing.assert_close(net.rank(everybody()), slow(net, PAIRS))


def test_a_training_pair_is_scored_on_the_graph_without_it() -> None:
    """And so are the negatives that happen to be edges, twice over or not."""
    net = model().train()
    hidden = [PAIRS[0], PAIRS[3], PAIRS[3], PAIRS[7]]
    owner = torch.tensor([u for u, _ in hidden])
    items = torch.tensor([[i] for _, i in hidden])
    got = net(everybody(), items, owner)[:, 0]
    rest = slow(net, [p for p in PAIRS if p not in hidden])
    torch.testing.assert_close(got, rest[owner, items[:, 0]])
    seen = model(hide_target=False).train()(everybody(), items, owner)[:, 0]
    torch.testing.assert_close(seen, slow(net, PAIRS)[owner, items[:, 0]])


def test_the_gradient_of_a_sum_over_neighbours_is_right() -> None:
    graph = Bipartite(TABLE.domain().raters, len(TABLE.users))
    keep = graph.without(torch.tensor([PAIRS[1][0]]), torch.tensor([[PAIRS[1][1]]])).double()
    assert int((keep == 0).sum()) == 2
    x = torch.randn(len(TABLE.users) + 7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: graph.spread(v, keep), (x,))
    assert torch.autograd.gradcheck(graph.spread, (x,))


def test_degrees_leave_with_the_edges() -> None:
    graph = Bipartite(TABLE.domain().raters, len(TABLE.users))
    user, item = PAIRS[0]
    full, less = (
        graph.degree(),
        graph.degree(graph.without(torch.tensor([user]), torch.tensor([[item]]))),
    )
    gone = (full - less)[:, 0]
    assert torch.equal(gone.nonzero()[:, 0], torch.tensor([user, len(TABLE.users) + item]))
    assert full.sum() == 2 * len(PAIRS)


def test_it_begins_as_popularity_unless_told_otherwise() -> None:
    counts = torch.from_numpy(TABLE.item_counts())
    assert torch.equal(model().items.bias.argsort(stable=True), counts.argsort(stable=True))
    plain = model(item_bias=False)
    assert not plain.items.bias.any()
    assert not plain.items.bias.requires_grad


def test_what_is_kept_is_made_anew_when_weights_change() -> None:
    net = model().eval()
    with torch.no_grad():
        before = net.rank(everybody())
        assert net._nodes() is net._nodes()
        net.users.vector.mul_(2)
        after = net.rank(everybody())
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, slow(net, PAIRS))


def test_nothing_is_kept_where_gradients_are_wanted() -> None:
    weight, kept = torch.ones(2, requires_grad=True), Kept[torch.Tensor]()
    for _ in range(2):
        kept.get(weight, lambda: weight * 2).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [4, 4]


def test_a_step_of_the_fused_optimizer_is_noticed() -> None:
    """It writes without raising the version of what it writes to."""
    net, items = model(), torch.tensor([[0, 1]])
    optimizer = Optimizer(net, TrainConfig(learning_rate=0.1))
    with torch.no_grad():
        net.eval().rank(everybody())
    net.train()(everybody(), items, torch.tensor([0])).sum().backward()
    optimizer.step(LOCAL)
    with torch.no_grad():
        after = net.eval().rank(everybody())
    torch.testing.assert_close(after, slow(net, PAIRS))


def test_a_graph_without_edges() -> None:
    graph = Bipartite(History.empty(3), 2)
    assert torch.equal(graph.without(torch.tensor([0]), torch.tensor([[1]])), torch.zeros(0))
    assert not graph.degree().any()
