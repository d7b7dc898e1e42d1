"""MeLU: the inner loop against a loop over users, the outer gradient against finite differences."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from idcf.models.registry import configure
from idcf.paper.models.melu import MeLU
from idcf.testing import synthetic_world, trained_in_world
from idcf.types import Batch, History, Users

SPLIT = synthetic_world(features=True).split
TABLE = SPLIT.train.for_users(SPLIT.key_users)


def melu(**options):
    torch.manual_seed(0)
    config = {"embedding_size": 3, "hidden": (5,), "inner_rate": 0.1, **options}
    model = MeLU(configure("melu", config), TABLE.domain()).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def task(n_users=4):
    """Return users with short histories, and a batch of other rows of theirs."""
    ids = SPLIT.key_users[:n_users]
    full = TABLE.history(ids)
    items, values, offsets, targets = [], [], [0], []
    for u in range(n_users):
        a, b = full.offsets[u : u + 2].tolist()
        n = 2 + u  # ratings of the support
        items.append(full.items[a : a + n])
        values.append(full.values[a : a + n].double())
        offsets.append(offsets[-1] + n)
        targets += [(u, full.items[k], full.values[k].double()) for k in range(b - 3, b)]
    features = TABLE.features_of(ids).double()
    history = History(torch.cat(items), torch.cat(values), torch.tensor(offsets))
    owner, item, label = zip(*targets, strict=True)
    return Batch(
        Users(torch.from_numpy(ids), history, features),
        torch.tensor(owner),
        torch.stack(item)[:, None],
        torch.stack(label)[:, None],
    )


def outer_loss(model, batch):
    return (model(batch.users, batch.items, batch.owner) - batch.labels).square().mean()


@pytest.mark.parametrize("steps", [1, 3])
def test_adapted_parameters_are_those_of_plain_gradient_descent(steps):
    model, batch = melu(inner_steps=steps), task()
    y = model._embed_users(batch.users)
    adapted = model.adapted_parameters(model._support(y, batch.users.history))
    history = batch.users.history
    for u in range(len(batch.users)):
        a, b = history.offsets[u : u + 2].tolist()
        z, bias = model._embed_items(history.items[a:b])
        inputs = torch.cat([y[u].expand(b - a, -1), z], 1).detach()
        target = (history.values[a:b] - model.mean - bias).detach()
        net = deepcopy(model.net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            (net(inputs).squeeze(-1) - target).square().mean().backward()
            optimizer.step()
        for name, parameter in net.named_parameters():
            torch.testing.assert_close(adapted[name][u], parameter)


def outer_gradient(model, batch):
    model.zero_grad()
    outer_loss(model, batch).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def finite_difference(model, batch, name, index, step=1e-5):
    losses = []
    for sign in (1, -1):
        changed = deepcopy(model)
        with torch.no_grad():
            changed.get_parameter(name).view(-1)[index] += sign * step
            losses.append(float(outer_loss(changed, batch).detach()))
    return (losses[0] - losses[1]) / (2 * step)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_outer_gradient_is_that_of_finite_differences(steps):
    """Of the loss after adaption, second derivatives included, for every kind of parameter."""
    model, batch = melu(inner_steps=steps), task()
    rng = np.random.default_rng(0)
    for name, gradient in outer_gradient(model, batch).items():
        flat = gradient.flatten()
        nonzero = flat.nonzero().flatten().tolist()
        for index in rng.permutation(nonzero)[:4]:
            expected = finite_difference(model, batch, name, index)
            assert float(flat[index]) == pytest.approx(expected, rel=1e-4, abs=1e-7), name


def test_first_order_leaves_the_second_derivatives_out():
    """Its values are those of the full model; its gradient is not that of finite differences."""
    full, first = melu(), melu(first_order=True)
    batch = task()
    torch.testing.assert_close(outer_loss(full, batch), outer_loss(first, batch))
    exact, cut = outer_gradient(full, batch), outer_gradient(first, batch)
    difference = (exact["net.0.weight"] - cut["net.0.weight"]).norm()
    assert difference > 0.01 * exact["net.0.weight"].norm()


def test_users_without_ratings_are_scored_with_the_shared_layers():
    model, batch = melu().eval(), task()
    with torch.no_grad():
        users = Users(batch.users.ids, History.empty(4), batch.users.features)
        not_adapted = model.score_catalog(users)
        none_adapted = deepcopy(model)
        none_adapted.config = configure("melu", {"inner_rate": 0.0})
        torch.testing.assert_close(none_adapted.score_catalog(batch.users), not_adapted)
        assert not torch.allclose(model.score_catalog(batch.users), not_adapted)


def test_adaption_lowers_the_error_of_users_with_another_taste():
    """Their features say the opposite of what they like; ratings correct it."""
    model = trained_in_world("melu").model
    config = model.config
    ids = SPLIT.query_users
    users = SPLIT.train.build_users(ids)
    wrong = Users(users.ids, users.history, users.features * torch.tensor([-1.0, 1.0]))
    try:
        model.config = configure("melu", {"inner_rate": 0.02, "inner_steps": 20})
        with torch.no_grad():
            adapted = model.score_catalog(wrong)
            plain = model.score_catalog(Users(wrong.ids, History.empty(len(ids)), wrong.features))
    finally:
        model.config = config
    likes = torch.from_numpy(ids[:, None] % 2 == np.arange(model.n_items) % 2)
    truth = torch.where(likes, 5.0, 1.0)
    assert (adapted - truth).square().mean() < (plain - truth).square().mean() - 1


def test_scores_in_inference_mode_are_those_without_gradients():
    model, users = melu().eval(), task().users
    with torch.no_grad():
        expected = model.score_catalog(users)
    with torch.inference_mode():
        torch.testing.assert_close(model.score_catalog(users), expected)
