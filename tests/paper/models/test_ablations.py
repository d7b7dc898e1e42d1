"""The ablations against slow obvious references."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from idcf.models.idcf import IDCF
from idcf.models.layers.meta_path import Paths
from idcf.models.layers.relation import Relation
from idcf.models.registry import configure
from idcf.paper.models.trans_user import TransUser
from idcf.testing import fitted, world
from idcf.testing.worlds import blank, keys_of, some_batches
from idcf.training import train as train_module
from idcf.training.objectives import adapt
from idcf.training.presets import setting
from idcf.training.train import Job, train
from idcf.types import History, Users

torch.set_num_threads(1)
SPLIT, IMPLICIT = world().split, world(implicit=True).split
TABLE = SPLIT.train.of(SPLIT.key_users)
KEYS = keys_of(TABLE)


def users(split=SPLIT, n=6):
    who = split.query_users[:n]
    return Users(torch.from_numpy(who), split.train.history(who)).anonymous()


def each(history):
    """(items, values) of every user."""
    items, values, offsets = history
    for a, b in pairwise(offsets.tolist()):
        yield items[a:b].tolist(), values[a:b].tolist()


# --- meta-path


def slow_near(history, most, without):
    had = [set(items) for items, _ in each(KEYS.history)]
    out = np.zeros((len(without), len(had)), bool)
    for u, (items, _) in enumerate(each(history)):
        common = [len(h & set(items)) for h in had]
        able = [k for k in range(len(had)) if common[k] and KEYS.ids[k] != without[u]]
        # whoever shares most; of those, whoever had least; of those, whoever comes last
        order = sorted(able, key=lambda k: (-common[k], len(had[k]), -k))
        out[u, order[:most]] = True
    return torch.from_numpy(out)


@pytest.mark.parametrize("most", [1, 7, 50, 10_000])
def test_neighbours_against_a_loop(most):
    paths, who = Paths(TABLE.domain().n_items, KEYS), users(n=12)
    nobody = torch.full((12,), -1)
    assert torch.equal(paths.near(who.history, most), slow_near(who.history, most, nobody))
    own = KEYS.ids[:12]
    history = TABLE.history(own.numpy())
    assert torch.equal(paths.near(history, most, own), slow_near(history, most, own))


def meta_path(**options):
    torch.manual_seed(0)
    config = configure("meta-path", {"sample": 9, **options})
    return IDCF(config, fitted("nnmf").model, KEYS)


def test_only_neighbours_are_listened_to():
    model, who = meta_path().eval(), users()
    with torch.no_grad():
        model.relation.query.mul_(20)  # so that attention has something to say
        got, weights = model.induce(who.history, model.take_in(who.history)), model.attention(who)
        near = slow_near(who.history, 9, torch.full((len(who),), -1))
        assert torch.equal((weights > 0).all(0), near)
        query = model.take_in(who.history).query
        for u in range(len(who)):
            some = model.keys[near[u]]
            expected = model.relation(query[u : u + 1], some, model.key_scale)[0]
            torch.testing.assert_close(got[u], expected)


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_every_attention_can_be_confined(attention):
    torch.manual_seed(0)
    relation = Relation(5, 4, 2, attention)
    near = torch.rand(3, 8) < 0.5
    near[:, 0] = True
    weights = relation.weights(torch.randn(3, 5), torch.randn(8, 4), 1.0, near)
    assert not weights[:, ~near].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))


def test_in_training_nobody_hears_themselves():
    """A key user's own latent has seen the ratings that are asked for."""
    model = meta_path(sample=10_000).train()
    batch = next(iter(some_batches(model, TABLE, 10_000)))
    ids, history = batch.users.ids[:1], batch.users.history
    history = History(*(x[: history.offsets[1]] for x in history[:2]), history.offsets[:2])
    with torch.no_grad():
        before = model.induce(history, model.take_in(history), ids)
        model.keys[KEYS.ids == ids] += 5.0
        torch.testing.assert_close(model.induce(history, model.take_in(history), ids), before)
        model.eval()  # a name says nothing then: everybody who shares an item is heard
        assert not torch.allclose(model.induce(history, model.take_in(history), ids), before)
    model.train()
    terms = adapt(0.1)(model, batch)
    sum(terms.values()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_who_shares_nothing_is_the_mean():
    table = TABLE.where(TABLE.item != 3)
    model = IDCF(configure("meta-path"), fitted("nnmf").model, keys_of(table)).eval()
    lonely = History(torch.tensor([3]), torch.tensor([4.0]), torch.tensor([0, 1]))
    with torch.no_grad():
        torch.testing.assert_close(model.induce(lonely, model.take_in(lonely))[0], model.average)


# --- trans-user


def trans_user(base="pmf", implicit=False, **options):
    split = IMPLICIT if implicit else SPLIT
    keys = keys_of(split.train.of(split.key_users))
    torch.manual_seed(0)
    backbone = fitted(base, implicit=implicit).model
    return TransUser(configure("trans-user", options), backbone, keys).eval()


def design(model, items):
    """Of a dot product: the items of a history, and 1 for the bias."""
    q = model.backbone.items.vector[items].double()
    return torch.cat([q, torch.ones(len(items), 1)], 1).numpy()


def left(model, items, values):
    """What is left of the ratings for the user to explain."""
    bias = model.backbone.items.bias[items].double()
    return (torch.tensor(values).double() - model.mean - bias).detach().numpy()


def test_a_ridge_against_the_normal_equations():
    model, who = trans_user(reg=0.7, bias_reg=2.0), users()
    with torch.no_grad():
        got = model.embed_users(who)
    start, penalty = model.average.double().numpy(), np.diag([0.7] * 8 + [2.0])
    for u, (items, values) in enumerate(each(who.history)):
        x, y = design(model, items), left(model, items, values)
        expected = np.linalg.solve(x.T @ x + penalty, x.T @ y + penalty @ start)
        np.testing.assert_allclose(got.vector[u], expected[:-1], atol=1e-4)
        np.testing.assert_allclose(got.bias[u], expected[-1], atol=1e-4)


def test_without_a_penalty_the_nearest_minimum():
    """Fewer ratings than unknowns: all are met exactly, by the least that does it."""
    model = trans_user(steps=200)
    items, values = [3, 8, 20], [1.0, 5.0, 2.0]
    history = History(torch.tensor(items), torch.tensor(values), torch.tensor([0, 3]))
    found = model.settle(model.rows(history))[0].detach().numpy()
    x, y, start = design(model, items), left(model, items, values), model.average.double().numpy()
    np.testing.assert_allclose(x @ found, y, atol=0.01)
    np.testing.assert_allclose(found, start + np.linalg.pinv(x) @ (y - x @ start), atol=0.05)


def slow_loss(model, own, items, values):
    """Eq. 3 and the ridge, row by row; without ratings against the rivals."""
    total, head = 0.0, model.head.double()

    def score(item):
        q = model.backbone.items(torch.tensor([item]))
        return head(own[None, :-1], q.vector.double()) + own[-1] + q.bias.double() + model.mean

    for item, value in zip(items, values, strict=True):
        guess = score(item)
        fit = (
            (guess - value).square() / 2 if model.rates else -torch.nn.functional.logsigmoid(guess)
        )
        total = total + fit
    others = [i for i in model.rivals.tolist() if i not in items]
    for item in [] if model.rates else others:
        share = model.config.negatives * len(items) / len(others)
        total = total - share * torch.nn.functional.logsigmoid(-score(item))
    gap = (own - model.average).square()
    reg, bias_reg = model.config.reg, model.config.bias_reg
    return (total + reg * gap[:-1].sum() / 2 + bias_reg * gap[-1] / 2).squeeze()


@pytest.mark.parametrize("implicit", [False, True])
def test_it_ends_at_a_minimum(implicit):
    """The perceptron's loss, written out: no slope is left, and there is less of it."""
    model = trans_user("nnmf", implicit, reg=1.0, bias_reg=1.0, rivals=15)
    who = users(IMPLICIT if implicit else SPLIT, 4)
    rows = model.rows(who.history)
    found = model.settle(rows).detach()
    said = model._loss(found, rows)
    for u, (items, values) in enumerate(each(who.history)):
        own = found[u].clone().requires_grad_()
        loss = slow_loss(model, own, items, values)
        assert float(loss.detach()) == pytest.approx(float(said[u]), rel=1e-6)
        (slope,) = torch.autograd.grad(loss, own)
        assert slope.abs().max() < 1e-3
        assert loss < slow_loss(model, model.average.double(), items, values)


def test_it_can_be_asked_where_nothing_is_recorded():
    model = trans_user("nnmf")
    with torch.no_grad():
        expected = model.rank(users())
    with torch.inference_mode():
        assert torch.equal(model.rank(users()), expected)


def test_held_out_users_choose_the_ridge():
    trained = train("trans-user-ridge", Job(SPLIT, dataset="ml-100k"))
    tries = train_module._grid("trans-user-ridge", {}, implicit=False)
    assert trained.options in tries
    assert len(tries) == 10
    given = train_module._grid("trans-user-ridge", {"reg": 0.5}, implicit=False)
    assert [x["reg"] for x in given] == [0.5, 0.5]
    assert train_module._grid("trans-user", {}, implicit=False) == [{}]


# --- rd-item


def test_random_items_stay_as_they_were_drawn():
    blind, trained = fitted("nnmf-rd", alike=True).model, fitted("rd-item", alike=True).model
    assert torch.equal(blind.items.vector, trained.backbone.items.vector)
    assert float(blind.items.vector.std()) == pytest.approx(0.1, rel=0.2)
    torch.manual_seed(0)
    fresh = blank("nnmf-rd", TABLE, KEYS)
    assert not fresh.items.vector.requires_grad
    assert fresh.items.bias.requires_grad  # which items are good can still be learnt


@pytest.mark.parametrize("name", ["rd-item", "meta-path"])
@pytest.mark.parametrize("preset", ["clean", "published"])
def test_an_ablation_is_trained_as_what_it_is_compared_with(name, preset):
    for dataset in ("", "ml-100k", "ml-1m", "amazon-books"):
        assert setting(name, preset=preset, dataset=dataset) == setting(
            "idcf-nn", preset=preset, dataset=dataset
        )
