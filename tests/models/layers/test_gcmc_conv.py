"""Messages per rating level against loops, and the target taken out of the graph."""

import numpy as np
import pytest
import torch

from idcf.models.gcmc import GCMC, GCMCConfig
from idcf.models.layers.gcmc_conv import LevelConv
from idcf.testing.synthetic import low_rank
from idcf.types import History, Users

torch.set_num_threads(1)
DATA = low_rank(12, 9, 2, np.random.default_rng(0), density=0.6, whole=True).interactions


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mean", [False, True])
def test_level_conv_against_loops(shared, mean):
    torch.manual_seed(0)
    levels, size = 3, 4
    conv = LevelConv(levels, size, shared=shared, mean=mean).double()
    counts = torch.tensor([[2, 0, 1], [0, 0, 0]])
    sums = torch.randn(2, levels, size).double() * (counts > 0)[..., None]
    got = conv(sums, counts)
    for b in range(2):
        said = []
        for m in range(levels):
            read = sums[b, m] / max(int(counts[b, m]), 1) if mean else sums[b, m]
            said.append((read @ conv.weight[0 if shared else m]).relu())
        torch.testing.assert_close(got[b], conv.combine(torch.cat(said)))


def model(table=DATA, **options):
    torch.manual_seed(0)
    config = GCMCConfig(embedding_size=4, hidden=(6,), **options)
    return GCMC(config, table.domain()).double()


def people(table=DATA):
    who = np.arange(len(DATA.users))
    return Users(torch.from_numpy(who), table.history(who))


def test_towers_against_loops():
    """Σ over who rated the item, and over what the user rated, level by level."""
    gcmc, users, levels = model().eval(), people(), DATA.domain().levels
    assert len(levels) == 5
    with torch.no_grad():
        item, user = gcmc.catalogue(), gcmc.embed_users(users)
        for i in range(len(DATA.items)):
            own = [DATA.user[(DATA.item == i) & (DATA.rating == x)] for x in levels]
            torch.testing.assert_close(
                item.vector[i], tower(gcmc.items, gcmc.users, i, own, gcmc.from_users)
            )
        for u in range(len(DATA.users)):
            own = [DATA.item[(DATA.user == u) & (DATA.rating == x)] for x in levels]
            torch.testing.assert_close(
                user.vector[u], tower(gcmc.users, gcmc.items, u, own, gcmc.from_items)
            )


def tower(side, other, row, neighbours, conv):
    sums = torch.stack([other.vector[torch.from_numpy(n)].sum(0) for n in neighbours])
    said = conv(sums, torch.tensor([len(n) for n in neighbours]))
    return torch.cat([side.vector[row], said])


@pytest.mark.parametrize("options", [{}, {"mean": False, "shared_weights": True}], ids=str)
def test_hide_target_equals_a_graph_without_the_edge(options):
    gcmc = model(**options).train()
    with torch.no_grad():
        for row in range(0, len(DATA), 7):
            rest = DATA.where(np.arange(len(DATA)) != row)
            bare = model(rest, **options).train()
            bare.load_state_dict({**bare.state_dict(), **dict(gcmc.named_parameters())})
            if bare.levels.tolist() != gcmc.levels.tolist():
                continue
            user, item = (torch.from_numpy(x[[row]]) for x in (DATA.user, DATA.item))
            hidden = gcmc.embed_items(item[:, None], without=user)
            removed = bare.embed_items(item[:, None])
            torch.testing.assert_close(hidden, removed, rtol=0, atol=1e-12)
            shown = gcmc.embed_items(item[:, None])
            assert not torch.allclose(hidden.vector, shown.vector)


def test_hiding_an_edge_that_is_not_there_changes_nothing():
    gcmc = model().train()
    with torch.no_grad():
        there = set(zip(DATA.user.tolist(), DATA.item.tolist(), strict=True))
        pairs = [(u, i) for u in range(12) for i in range(9) if (u, i) not in there]
        user, item = torch.tensor(pairs).T
        expected = gcmc.embed_items(item[:, None])
        assert torch.equal(gcmc.embed_items(item[:, None], user).vector, expected.vector)
        nobody = torch.full_like(user, -1)
        assert torch.equal(gcmc.embed_items(item[:, None], nobody).vector, expected.vector)


def test_only_training_hides():
    """At inference the graph is what it is; with hide_target=False in training, too."""
    users, items = people(), torch.arange(9).expand(12, 9)
    owner = torch.arange(12)
    with torch.no_grad():
        hiding, showing = model(), model(hide_target=False)
        inferred = hiding.eval()(users, items, owner)
        torch.testing.assert_close(showing.train()(users, items, owner), inferred)
        assert not torch.allclose(hiding.train()(users, items, owner), inferred)


def test_a_rating_between_levels_is_read_as_the_nearest():
    gcmc, users = model().eval(), people()
    near = users.history._replace(values=users.history.values + 0.3)
    with torch.no_grad():
        a, b = (gcmc.embed_users(Users(users.ids, h)) for h in (users.history, near))
    assert torch.equal(a.vector, b.vector)


def test_a_user_without_history_is_heard_as_silence():
    gcmc = model().eval()
    with torch.no_grad():
        got = gcmc.embed_users(Users(torch.tensor([3]), History.empty(1)))
        silence = gcmc.from_items(torch.zeros(1, 5, 4).double(), torch.zeros(1, 5))
    torch.testing.assert_close(got.vector, torch.cat([gcmc.users.vector[[3]], silence], -1))
