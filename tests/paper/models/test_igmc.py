"""IGMC: its subgraphs and scores against plain loops, and the ratings a pair must not see."""

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
from idcf.training.objectives import prediction_objective
from idcf.types import Batch, History, Users, select_histories

N_ITEMS, UNRATED_ITEM = 18, 7
USER, ITEM = "target user", "target item"  # nodes of a subgraph beside raters and items


@cache
def make_table():
    rng = np.random.default_rng(3)
    table = checkerboard(30, N_ITEMS, rng, rows_per_light_user=3, rows_per_heavy_user=12)
    return table.where(table.item != UNRATED_ITEM)


def make_model(**options) -> IGMC:
    torch.manual_seed(0)
    small = {"cap": 64, "size": 5, "hidden": 6, "layers": 3, "bases": 2}
    config = configure("igmc", {**small, **options})
    return model_entry("igmc").build(config, make_table().domain()).eval()


def make_users(n=6) -> Users:
    """Users 0..n-1, anonymous, and one with an empty history."""
    ids = np.array([*range(n), -1])
    return Users(torch.from_numpy(ids), make_table().history(ids)).anonymous()


def profile_of(history, row):
    """The (item, rating) pairs of one row."""
    is_own = history.owner() == row
    return [*zip(history.items[is_own].tolist(), history.values[is_own].tolist(), strict=True)]


def level_numbers():
    return {value: n for n, value in enumerate(sorted(set(make_table().rating.tolist())), 1)}


def slow_subgraph(profile, item, hidden_user=-1):
    """The subgraph of a pair as {(user node, item node): level}, by loops over the table; its
    raters, the levels of the history, and all ratings as levels."""
    table, levels = make_table(), level_numbers()
    columns = (table.user.tolist(), table.item.tolist(), table.rating.tolist())
    ratings = {(u, i): levels[r] for u, i, r in zip(*columns, strict=True)}
    history = {j: levels[r] for j, r in profile if j != item}
    raters = sorted({u for u, i in ratings if i == item and u != hidden_user})
    edges = {(USER, j): level for j, level in history.items()}
    edges |= {(v, ITEM): ratings[v, item] for v in raters}
    edges |= {(v, j): ratings[v, j] for v in raters for j in history if (v, j) in ratings}
    return edges, raters, history, ratings


def slow_offsets(model, ratings, item, hidden_user):
    """Scaled levels; offsets of users and of items; rating counts of nodes, items as ("i", j).
    Computed from the table without the rating of `item` by `hidden_user`."""
    z = model.graph.scaled_levels.tolist()
    visible = {k: x for k, x in ratings.items() if k != (hidden_user, item)}
    of_items = {
        j: (sum(z[x] for x in levels), len(levels))
        for j in range(model.n_items)
        for levels in [[x for (_, k), x in visible.items() if k == j]]
    }
    item_offset = {j: total / (n + 3) for j, (total, n) in of_items.items()}
    of_users = {
        v: (sum(z[x] - item_offset[j] for j, x in profile), len(profile))
        for v in {v for v, _ in visible}
        for profile in [[(j, x) for (w, j), x in visible.items() if w == v]]
    }
    user_offset = {v: total / (n + 5) for v, (total, n) in of_users.items()}
    counts = {v: n for v, (_, n) in of_users.items()}
    counts |= {("i", j): n for j, (_, n) in of_items.items()}
    return z, user_offset, item_offset, counts


def slow_score(model, profile, item, hidden_user=-1):
    """Score one pair, node by node and edge by edge."""
    edges, raters, history, ratings = slow_subgraph(profile, item, hidden_user)
    z, user_offset, item_offset, counts = slow_offsets(model, ratings, item, hidden_user)
    residuals = [z[level_numbers()[r]] - item_offset[j] for j, r in profile]
    user_offset[USER], counts[USER] = sum(residuals) / (len(profile) + 5), len(profile)
    item_offset[ITEM], counts["i", ITEM] = item_offset[item], counts["i", item]
    degree = dict.fromkeys([USER, *raters, *[("i", j) for j in (ITEM, *history)]], 0)
    for v, j in edges:
        degree[v] += 1
        degree["i", j] += 1

    def kind_weights(v, j):
        level = edges.get((v, j), 0)
        if not model.config.residual:
            return [float(level == x + 1) for x in range(len(model.graph.levels))]
        return [1.0, z[level] - user_offset[v] - item_offset[j]] if level else [0.0, 0.0]

    def initial_state(label, node, offset, target_edge):
        x = [float(label == k) for k in range(4)]
        if model.config.residual:
            log_count, log_degree = np.log1p(counts[node]) / 5, np.log1p(degree[node]) / 5
            x += [offset, log_count, *target_edge, log_degree]
        return torch.tensor(x, dtype=torch.float32)

    target_edge = kind_weights(USER, ITEM)
    state = {USER: initial_state(0, USER, user_offset[USER], target_edge)}
    state["i", ITEM] = initial_state(1, ("i", ITEM), item_offset[ITEM], target_edge)
    state |= {v: initial_state(2, v, user_offset[v], kind_weights(v, ITEM)) for v in raters}
    state |= {
        ("i", j): initial_state(3, ("i", j), item_offset[j], kind_weights(USER, j)) for j in history
    }
    target_states = []
    for layer in model.layers:
        weight, new_state = layer.weight(), {}
        for node, x in state.items():
            out = layer.root(x)
            for v, j in edges:
                for receiver, sender in ((v, ("i", j)), (("i", j), v)):
                    for kind, share in enumerate(kind_weights(v, j) if receiver == node else []):
                        out = out + share * (state[sender] @ weight[kind]) / degree[node]
            new_state[node] = out.tanh()
        state = new_state
        target_states += [state[USER], state["i", ITEM]]
    score = model.out(model.hidden(torch.cat(target_states)).relu())[0]
    if model.config.residual:
        score = (score + user_offset[USER] + item_offset[ITEM]) * model.graph.rating_std
    return model.mean + score


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"residual": False}, {"residual": False, "layers": 1, "center": False}]
)
def test_scores_are_those_of_plain_loops(options, dense, monkeypatch):
    monkeypatch.setattr(subgraph, "_MAX_DENSE_CELLS", 1 << 28 if dense else 0)
    model, users = make_model(**options), make_users()
    with torch.no_grad():
        scores = model.score_catalog(users)
        for row in (0, 3, 6):
            profile = profile_of(users.history, row)
            for item in (0, UNRATED_ITEM, 11):
                expected = float(slow_score(model, profile, item))
                assert scores[row, item] == pytest.approx(expected, abs=1e-5)


def test_subgraphs_are_those_of_plain_loops():
    model, users = make_model(), make_users()
    items = torch.arange(N_ITEMS).repeat(len(users))
    owner = torch.arange(len(users)).repeat_interleave(N_ITEMS)
    histories = model.graph.cap_histories(users.history, 64)
    no_users = torch.full_like(items, -1)
    subgraphs = model.graph.extract_subgraphs(histories, owner, items, 64, no_users)
    for p in range(len(items)):
        expected = slow_subgraph(profile_of(users.history, int(owner[p])), int(items[p]))[0]
        rows, columns = [USER, *subgraphs.raters[p].tolist()], [ITEM, *subgraphs.items[p].tolist()]
        edges = {
            (rows[r], columns[c]): int(subgraphs.level[p, r, c])
            for r, c in subgraphs.level[p].nonzero().tolist()
        }
        assert edges == expected


def test_training_hides_the_row_that_holds_the_target():
    """A training score of (u, i) does not depend on u's rating of i in the table."""
    model = make_model(edge_dropout=0.0, dropout=0.0).train()
    table = make_table()
    user = int(np.flatnonzero(table.user_counts() > 3)[0])
    rows = np.flatnonzero(table.user == user)
    item, value = int(table.item[rows[0]]), float(table.rating[rows[0]])
    profile = [(int(table.item[r]), float(table.rating[r])) for r in rows[1:]]
    history_items, values = (torch.tensor(x) for x in zip(*profile, strict=True))
    history = History(history_items, values, torch.tensor([0, len(profile)]))
    users, target = Users(torch.tensor([user]), history), torch.tensor([[item]])
    model.requires_grad_(False)
    score = float(model(users, target, torch.tensor([0])))
    expected = float(slow_score(model, profile, item, hidden_user=user))
    assert score == pytest.approx(expected, abs=1e-5)
    start, end = model.graph.starts[item : item + 2]
    position = int(start) + int((model.graph.raters[start:end] == user).nonzero())
    levels = model.graph.levels.tolist()
    other_level = next(n for n, x in enumerate(levels, 1) if x != value)
    model.graph.edge_level[position] = other_level
    new_score = float(model(users, target, torch.tensor([0])))
    assert new_score == pytest.approx(score, abs=1e-6)


def test_the_neighbors_beyond_the_cap_do_not_depend_on_the_batch():
    model, users = make_model(cap=3), make_users()
    with torch.no_grad():
        scores = model.score_catalog(users)
        torch.manual_seed(5)
        order = torch.tensor([4, 2, 6])
        part = Users(users.ids[order], select_histories(users.history, order))
        part_scores = model.score_catalog(part)
    assert torch.allclose(scores[order], part_scores, atol=1e-6)
    assert int(model.graph.cap_histories(users.history, 3).items.shape[1]) == 3


def test_a_cap_that_no_node_reaches_costs_nothing(monkeypatch):
    """The number of subgraphs in a chunk follows from their size, not from the cap."""
    users, chunk_sizes = make_users(), []
    extract_subgraphs = subgraph.RatingGraph.extract_subgraphs

    def record(*args):
        chunk_sizes.append(len(args[3]))
        return extract_subgraphs(*args)

    monkeypatch.setattr(subgraph.RatingGraph, "extract_subgraphs", record)
    with torch.no_grad():
        scores, n_chunks = make_model(cap=64).score_catalog(users), len(chunk_sizes)
        large_cap_scores = make_model(cap=100_000).score_catalog(users)
    assert len(chunk_sizes) == 2 * n_chunks
    assert torch.equal(scores, large_cap_scores)


def test_the_adjacent_rating_penalty_is_0_for_equal_weights_and_part_of_the_loss():
    model = make_model(residual=False).train().requires_grad_(False)
    with torch.no_grad():
        for layer in model.layers:
            layer.share.fill_(1.0)
    assert float(model.penalty()) == 0
    with torch.no_grad():
        model.layers[0].share[0] += 1
    expected = (model.layers[0].basis.sum(0)).square().sum() * model.config.smoothness
    assert float(model.penalty()) == pytest.approx(float(expected), rel=1e-5)
    users, owner = make_users(), torch.tensor([0, 1])
    batch = Batch(users, owner, torch.tensor([[1], [2]]), torch.ones(2, 1), n_global_rows=8)
    terms = prediction_objective()(model, batch)
    # the batch has 2 of the 8 rows
    assert float(terms["reg"]) == pytest.approx(float(model.penalty()) / 4)


def test_many_pairs_at_once_are_faster_than_one_by_one():
    """Not a benchmark: a loop over pairs in the fast path would make these equal."""
    model, users = make_model(), make_users()
    items = torch.arange(N_ITEMS).expand(len(users), -1)
    owner = torch.arange(len(users))
    with torch.no_grad():
        model(users, items, owner)
        start = time.process_time()
        model(users, items, owner)
        batched_s = time.process_time() - start
        start = time.process_time()
        for item in range(N_ITEMS):
            for row in range(len(users)):
                model(users, torch.tensor([[item]]), torch.tensor([row]))
        one_by_one_s = time.process_time() - start
    assert batched_s < one_by_one_s / 5
