"""IGMC: its subgraphs and scores against plain loops, and what a pair must never see."""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import pytest
import torch

from idcf.models.registry import configure, model_entry
from idcf.paper.layers import subgraph
from idcf.paper.models.igmc import IGMC
from idcf.testing.synthetic import checkerboard
from idcf.training.objectives import accuracy
from idcf.types import Batch, History, Users, pick

torch.set_num_threads(1)


@cache
def table():
    rng = np.random.default_rng(3)
    made = checkerboard(30, 18, rng, few=3, many=12)
    kept = made.item != 7  # an item that nobody rated
    return made.where(kept)


def model(**options) -> IGMC:
    torch.manual_seed(0)
    usual = {"cap": 64, "size": 5, "hidden": 6, "layers": 3, "bases": 2}
    built = model_entry("igmc").model_class(
        configure("igmc", {**usual, **options}), table().domain()
    )
    return built.eval()


def people(n=6) -> Users:
    who = np.array([*range(n), -1])
    return Users(torch.from_numpy(who), table().history(who)).anonymous()


def told(history, row):
    mine = history.owner() == row
    return [*zip(history.items[mine].tolist(), history.values[mine].tolist(), strict=True)]


def slow_levels(user_history, item, hidden=-1):
    """The subgraph of a pair as {(row node, column node): level}, by loops over the table."""
    levels, columns = (
        sorted(set(table().rating.tolist())),
        (table().user, table().item, table().rating),
    )
    ratings = {
        (u, i): levels.index(r) + 1 for u, i, r in zip(*(x.tolist() for x in columns), strict=True)
    }
    mine = {j: levels.index(r) + 1 for j, r in user_history if j != item}
    raters = sorted({u for u, i in ratings if i == item and u != hidden})
    edges = {("me", j): level for j, level in mine.items()}
    edges |= {(v, "it"): ratings[v, item] for v in raters}
    edges |= {(v, j): ratings[v, j] for v in raters for j in mine if (v, j) in ratings}
    return edges, raters, mine, ratings


def slow_offsets(net, ratings, item, hidden):
    """Shrunk offsets of all items and raters in a table that lacks what `hidden` said of `item`."""
    z, left = net.graph.scaled.tolist(), {k: x for k, x in ratings.items() if k != (hidden, item)}
    of_items = {
        j: (sum(z[x] for x in own), len(own))
        for j in range(net.n_items)
        for own in [[x for (_, k), x in left.items() if k == j]]
    }
    b = {j: total / (n + 3) for j, (total, n) in of_items.items()}
    of_users = {
        v: (sum(z[x] - b[j] for j, x in own), len(own))
        for v in {v for v, _ in left}
        for own in [[(j, x) for (w, j), x in left.items() if w == v]]
    }
    a = {v: total / (n + 5) for v, (total, n) in of_users.items()}
    count = {v: n for v, (_, n) in of_users.items()} | {
        ("i", j): n for j, (_, n) in of_items.items()
    }
    return z, a, b, count


def slow_score(net, user_history, item, hidden=-1):
    """One pair, node by node and edge by edge."""
    edges, raters, mine, ratings = slow_levels(user_history, item, hidden)
    z, a, b, count = slow_offsets(net, ratings, item, hidden)
    given = [(j, sorted(set(table().rating.tolist())).index(r) + 1) for j, r in user_history]
    a["me"], count["me"] = sum(z[x] - b[j] for j, x in given) / (len(given) + 5), len(given)
    b["it"], count["i", "it"] = b[item], count["i", item]
    degree = dict.fromkeys(["me", *raters, *[("i", j) for j in ("it", *mine)]], 0)
    for v, j in edges:
        degree[v] += 1
        degree["i", j] += 1

    def kinds(v, j):
        level = edges.get((v, j), 0)
        if not net.config.residual:
            return [float(level == x + 1) for x in range(len(net.graph.levels))]
        return [1.0, z[level] - a[v] - b[j]] if level else [0.0, 0.0]

    def start(label, node, offset, tie):
        x = [float(label == k) for k in range(4)]
        if net.config.residual:
            x += [offset, np.log1p(count[node]) / 5, *tie, np.log1p(degree[node]) / 5]
        return torch.tensor(x, dtype=torch.float32)

    state = {"me": start(0, "me", a["me"], kinds("me", "it"))}
    state["i", "it"] = start(1, ("i", "it"), b["it"], kinds("me", "it"))
    state |= {v: start(2, v, a[v], kinds(v, "it")) for v in raters}
    state |= {("i", j): start(3, ("i", j), b[j], kinds("me", j)) for j in mine}
    heard = []
    for layer in net.layers:
        weight, after = layer.weight(), {}
        for node, x in state.items():
            out = layer.root(x)
            for v, j in edges:
                for one, other in ((v, ("i", j)), (("i", j), v)):
                    for kind, share in enumerate(kinds(v, j) if one == node else []):
                        out = out + share * (state[other] @ weight[kind]) / degree[node]
            after[node] = out.tanh()
        state = after
        heard += [state["me"], state["i", "it"]]
    said = net.out(net.hidden(torch.cat(heard)).relu())[0]
    if net.config.residual:
        said = (said + a["me"] + b["it"]) * net.graph.spread
    return net.mean + said


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"residual": False}, {"residual": False, "layers": 1, "center": False}]
)
def test_scores_are_those_of_plain_loops(options, dense, monkeypatch):
    monkeypatch.setattr(subgraph, "_DENSE", 1 << 28 if dense else 0)
    net, users = model(**options), people()
    with torch.no_grad():
        got = net.rank(users)
        for row in (0, 3, 6):
            pairs = told(users.history, row)
            for item in (0, 7, 11):
                assert got[row, item] == pytest.approx(
                    float(slow_score(net, pairs, item)), abs=1e-5
                )


def test_subgraphs_are_those_of_plain_loops():
    net, users = model(), people()
    items = torch.arange(18).repeat(len(users))
    owner = torch.arange(len(users)).repeat_interleave(18)
    near = net.graph.near(users.history, 64)
    found = net.graph.around(near, owner, items, 64, torch.full_like(items, -1))
    for p in range(len(items)):
        wanted = slow_levels(told(users.history, int(owner[p])), int(items[p]))[0]
        rows, columns = ["me", *found.raters[p].tolist()], ["it", *found.items[p].tolist()]
        got = {
            (rows[r], columns[c]): int(found.level[p, r, c])
            for r, c in found.level[p].nonzero().tolist()
        }
        assert got == wanted


def test_training_hides_the_row_that_holds_the_target():
    """The gradient step on (u, i) cannot tell what u said of i, in the table or in a profile."""
    net = model(edge_dropout=0.0, dropout=0.0).train()
    user = int(np.flatnonzero(table().counts() > 3)[0])
    rows = np.flatnonzero(table().user == user)
    item, value = int(table().item[rows[0]]), float(table().rating[rows[0]])
    rest = [(int(table().item[r]), float(table().rating[r])) for r in rows[1:]]
    things, values = (torch.tensor(x) for x in zip(*rest, strict=True))
    history = History(things, values, torch.tensor([0, len(rest)]))
    users = Users(torch.tensor([user]), history)
    net.requires_grad_(False)
    got = net(users, torch.tensor([[item]]), torch.tensor([0]))
    assert float(got) == pytest.approx(float(slow_score(net, rest, item, hidden=user)), abs=1e-5)
    at = int(net.graph.starts[item]) + int(
        (net.graph.raters[net.graph.starts[item] : net.graph.starts[item + 1]] == user).nonzero()
    )
    before = float(got)
    other = next(x for x in net.graph.levels.tolist() if x != value)
    net.graph.level[at] = net.graph.levels.tolist().index(other) + 1
    again = net(users, torch.tensor([[item]]), torch.tensor([0]))
    assert float(again) == pytest.approx(before, abs=1e-6)


def test_what_the_cap_leaves_out_does_not_depend_on_the_batch():
    net, users = model(cap=3), people()
    with torch.no_grad():
        together = net.rank(users)
        torch.manual_seed(5)
        order = torch.tensor([4, 2, 6])
        again = net.rank(Users(users.ids[order], pick(users.history, order)))
    assert torch.allclose(together[order], again, atol=1e-6)
    assert int(net.graph.near(users.history, 3).items.shape[1]) == 3


def test_a_cap_that_nobody_reaches_costs_nothing(monkeypatch):
    """How many subgraphs are laid out at a time follows from their size, not from the cap."""
    users, laid, around = people(), [], subgraph.Graph.around

    def spy(*args):
        laid.append(len(args[3]))
        return around(*args)

    monkeypatch.setattr(subgraph.Graph, "around", spy)
    with torch.no_grad():
        narrow, rounds = model(cap=64).rank(users), len(laid)
        wide = model(cap=100_000).rank(users)
    assert len(laid) == 2 * rounds
    assert torch.equal(narrow, wide)


def test_alike_levels_cost_nothing():
    """ARR is 0 where all levels speak alike, and is in the loss."""
    net = model(residual=False).train().requires_grad_(False)
    with torch.no_grad():
        for layer in net.layers:
            layer.share.fill_(1.0)
    assert float(net.penalty()) == 0
    with torch.no_grad():
        net.layers[0].share[0] += 1
    step = (net.layers[0].basis.sum(0)).square().sum() * net.config.smoothness
    assert float(net.penalty()) == pytest.approx(float(step), rel=1e-5)
    users, owner = people(), torch.tensor([0, 1])
    batch = Batch(users, owner, torch.tensor([[1], [2]]), torch.ones(2, 1), of_rows=8)
    terms = accuracy()(net, batch)
    assert float(terms["reg"]) == pytest.approx(float(net.penalty()) / 4)  # this share of the rows


def test_many_pairs_at_once_are_quicker_than_one_by_one():
    """Not a benchmark: a per-pair loop in the fast path would make these equal."""
    net, users = model(), people()
    items = torch.arange(18).expand(len(users), -1)
    owner = torch.arange(len(users))
    with torch.no_grad():
        net(users, items, owner)
        began = time.process_time()
        net(users, items, owner)
        together = time.process_time() - began
        began = time.process_time()
        for item in range(18):
            for row in range(len(users)):
                net(users, torch.tensor([[item]]), torch.tensor([row]))
        alone = time.process_time() - began
    assert together < alone / 5
