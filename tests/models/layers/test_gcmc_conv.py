"""GC-MC: messages per rating level against loops, and target edges masked in training."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from idcf.models.gcmc import GCMC
from idcf.models.layers.gcmc_conv import LevelConv
from idcf.models.options import GCMCConfig
from idcf.testing.synthetic import low_rank
from idcf.types import History, Users

DATA = low_rank(12, 9, 2, np.random.default_rng(0), density=0.6, round_ratings=True).interactions


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_level_conv_against_loops(shared, average):
    torch.manual_seed(0)
    levels, size = 3, 4
    conv = LevelConv(levels, size, shared=shared, average=average).double()
    counts = torch.tensor([[2, 0, 1], [0, 0, 0]])
    sums = torch.randn(2, levels, size).double() * (counts > 0)[..., None]
    got = conv(sums, counts)
    for b in range(2):
        messages = []
        for m in range(levels):
            inputs = sums[b, m] / max(int(counts[b, m]), 1) if average else sums[b, m]
            messages.append((inputs @ conv.weight[0 if shared else m]).relu())
        torch.testing.assert_close(got[b], conv.combine(torch.cat(messages)))


def build(table=DATA, **options):
    torch.manual_seed(0)
    config = GCMCConfig(embedding_size=4, hidden=(6,), **options)
    return GCMC(config, table.domain()).double()


def all_users(table=DATA):
    ids = np.arange(len(DATA.users))
    return Users(torch.from_numpy(ids), table.history(ids))


def test_towers_against_loops():
    """Σ over the raters of each item and the items of each user, level by level."""
    gcmc, users, levels = build().eval(), all_users(), DATA.domain().levels
    assert len(levels) == 5
    with torch.no_grad():
        item, user = gcmc.embed_catalog(), gcmc.embed_users(users)
        for i in range(len(DATA.items)):
            raters = [DATA.user[(DATA.item == i) & (DATA.rating == x)] for x in levels]
            message = slow_message(gcmc.user_table, raters, gcmc.from_users)
            expected = torch.cat([gcmc.item_table.vector[i], message])
            torch.testing.assert_close(item.vector[i], expected)
        for u in range(len(DATA.users)):
            items = [DATA.item[(DATA.user == u) & (DATA.rating == x)] for x in levels]
            message = slow_message(gcmc.item_table, items, gcmc.from_items)
            expected = torch.cat([gcmc.user_table.vector[u], message])
            torch.testing.assert_close(user.vector[u], expected)


def slow_message(table, neighbors_by_level, conv):
    sums = torch.stack([table.vector[torch.from_numpy(n)].sum(0) for n in neighbors_by_level])
    return conv(sums, torch.tensor([len(n) for n in neighbors_by_level]))


@pytest.mark.parametrize(
    "options", [{}, {"average_messages": False, "shared_weights": True}], ids=str
)
def test_hide_target_equals_a_graph_without_the_edge(options):
    gcmc = build(**options).train()
    with torch.no_grad():
        for row in range(0, len(DATA), 7):
            table = DATA.where(np.arange(len(DATA)) != row)
            smaller = build(table, **options).train()
            smaller.load_state_dict({**smaller.state_dict(), **dict(gcmc.named_parameters())})
            if smaller.levels.tolist() != gcmc.levels.tolist():
                continue
            user, item = (torch.from_numpy(x[[row]]) for x in (DATA.user, DATA.item))
            hidden = gcmc.embed_items(item[:, None], exclude_users=user)
            removed = smaller.embed_items(item[:, None])
            torch.testing.assert_close(hidden, removed, rtol=0, atol=1e-12)
            visible = gcmc.embed_items(item[:, None])
            assert not torch.allclose(hidden.vector, visible.vector)


def test_hiding_an_edge_that_does_not_exist_changes_nothing():
    gcmc = build().train()
    with torch.no_grad():
        edges = set(zip(DATA.user.tolist(), DATA.item.tolist(), strict=True))
        pairs = [(u, i) for u in range(12) for i in range(9) if (u, i) not in edges]
        user, item = torch.tensor(pairs).T
        expected = gcmc.embed_items(item[:, None])
        assert torch.equal(gcmc.embed_items(item[:, None], user).vector, expected.vector)
        new_user = torch.full_like(user, -1)
        assert torch.equal(gcmc.embed_items(item[:, None], new_user).vector, expected.vector)


def test_only_training_hides():
    """Inference uses all edges; so does training with hide_target=False."""
    users, items = all_users(), torch.arange(9).expand(12, 9)
    owner = torch.arange(12)
    with torch.no_grad():
        hiding, showing = build(), build(hide_target=False)
        inferred = hiding.eval()(users, items, owner)
        torch.testing.assert_close(showing.train()(users, items, owner), inferred)
        assert not torch.allclose(hiding.train()(users, items, owner), inferred)


def test_a_rating_between_levels_is_read_as_the_nearest():
    gcmc, users = build().eval(), all_users()
    shifted = users.history._replace(values=users.history.values + 0.3)
    with torch.no_grad():
        expected, got = (gcmc.embed_users(Users(users.ids, h)) for h in (users.history, shifted))
    assert torch.equal(got.vector, expected.vector)


def test_the_message_of_an_empty_history_is_that_of_no_neighbors():
    gcmc = build().eval()
    with torch.no_grad():
        got = gcmc.embed_users(Users(torch.tensor([3]), History.empty(1)))
        message = gcmc.from_items(torch.zeros(1, 5, 4).double(), torch.zeros(1, 5))
    torch.testing.assert_close(got.vector, torch.cat([gcmc.user_table.vector[[3]], message], -1))


def table_with_target(rating):
    """Return ratings of item 0 by users 0..5, of which user 3 gives `rating`, and of item 1.

    From 2 to 4 stars the order of the edges by item, level and user is one, so that a seed gives
    every edge its weight.
    """
    stars = np.array([1, 1, 1, rating, 5, 5, 1, 2, 3, 4, 5, 5], np.float32)
    users = np.tile(np.arange(6), 2)
    return replace(DATA, user=users, item=np.repeat([0, 1], 6), rating=stars, time=None)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_embedding_of_a_pair_does_not_depend_on_its_rating(dropout):
    """An edge leaves the sums with the weight that dropout gave it."""
    user, item = torch.tensor([3]), torch.tensor([[0]])
    for seed in range(5):
        towers = []
        for rating in (2, 3, 4):
            gcmc = build(table_with_target(rating), edge_dropout=dropout).train()
            torch.manual_seed(seed)
            towers.append(gcmc.embed_items(item, exclude_users=user).vector)
        torch.testing.assert_close(towers[1], towers[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(towers[2], towers[0], rtol=0, atol=1e-12)


def test_hidden_edges_under_dropout_against_a_loop():
    """Σ weight · p over the raters of an item except the target, level by level."""
    gcmc = build(edge_dropout=0.4).train()
    torch.manual_seed(5)
    weights = torch.nn.functional.dropout(torch.ones(len(gcmc.raters)).double(), 0.4)
    assert 0 < weights.count_nonzero() < len(weights)
    n_levels, p = len(gcmc.levels), gcmc.user_table.vector
    user, item = torch.from_numpy(DATA.user), torch.from_numpy(DATA.item)
    torch.manual_seed(5)
    got = gcmc.embed_items(item[:, None], exclude_users=user).vector[:, 0]
    for row in range(len(DATA)):
        sums, counts = torch.zeros(n_levels, 4).double(), torch.zeros(n_levels).int()
        for level in range(n_levels):
            group = int(item[row]) * n_levels + level
            for edge in range(gcmc.starts[group], gcmc.starts[group + 1]):
                if gcmc.raters[edge] != user[row]:
                    sums[level] += weights[edge] * p[gcmc.raters[edge]]
                    counts[level] += 1
        expected = torch.cat([gcmc.item_table.vector[item[row]], gcmc.from_users(sums, counts)])
        torch.testing.assert_close(got[row], expected)
