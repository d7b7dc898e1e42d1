"""BOMIC against SoftImpute with everything written out, and its newcomers against its own rows."""

import numpy as np
import pytest
import torch

from idcf.data.interactions import Interactions
from idcf.models.registry import configure
from idcf.paper.solvers.bomic import Reg, bomic, observed, solve
from idcf.training.solvers.context import Work
from idcf.types import History, Users

torch.set_num_threads(1)
TIGHT = {"rank": 8, "tolerance": 1e-10, "epochs": 5000}
LAMBDAS = [(0.1, 0.08, 0.1), (0.4, 0.03, 0.06), (0.03, 0.5, 0.3)]  # item, user, residual


def table() -> Interactions:
    """12 people, 9 items, of whom one has no rows and of which one nobody rated."""
    rng = np.random.default_rng(3)
    full = rng.integers(1, 6, (12, 9)).astype(float)
    mask = rng.random((12, 9)) < 0.6
    mask[5], mask[:, 7] = False, False
    user, item = np.nonzero(np.ones_like(mask))
    return Interactions.from_columns(user, item, full[user, item]).where(mask[user, item])


def options(lambdas, **more):
    item, user, rest = lambdas
    return configure("bomic", {**TIGHT, "item_reg": item, "user_reg": user, "reg": rest, **more})


def blocks(n):
    """Orthonormal: ones, and the rest of the space."""
    one = np.full((n, 1), n**-0.5)
    return one, np.linalg.svd(np.eye(n) - one @ one.T)[0][:, : n - 1]


def reference(found, reg, rounds=1500):
    """Dense SoftImpute over the blocks, no momentum, no trick: Z [users with rows, items with]."""
    people, things = np.unique(found.user), np.unique(found.item)
    m, n = len(people), len(things)
    ratings, mask = np.zeros((m, n)), np.zeros((m, n), bool)
    at = np.searchsorted(people, found.user), np.searchsorted(things, found.item)
    ratings[at], mask[at] = found.rating, True
    left, right = blocks(m), blocks(n)
    pairs = [(left[0], right[0], 0.0), (left[0], right[1], reg.items)]
    pairs += [(left[-1], right[0], reg.users), (left[-1], right[1], reg.rest)]
    z, last = np.zeros((m, n)), np.ones((m, n))
    for _ in range(rounds):
        if np.abs(z - last).max() < 1e-7:
            break
        last, filled, z = z, np.where(mask, ratings, z), np.zeros((m, n))
        for x, y, strength in pairs:
            u, s, v = np.linalg.svd(x.T @ filled @ y, full_matrices=False)
            z += x @ (u * np.maximum(s - strength, 0)) @ v @ y.T
    return z


def whole(point):
    return point.mean + point.items + point.users[:, None] + point.left @ point.right.T


def solved(found, config):
    people, things = np.flatnonzero(found.counts()), np.flatnonzero(found.item_counts())
    model, ratings = bomic(config, found, Work()), observed(found, people, things)
    return model, ratings, things, solve(ratings, config, Work())


@pytest.mark.parametrize("lambdas", LAMBDAS)
def test_it_ends_where_plain_softimpute_ends(lambdas):
    found, config = table(), options(lambdas)
    _, ratings, _, z = solved(found, config)
    expected = reference(found, Reg.of(config, ratings))
    np.testing.assert_allclose(whole(z), expected, atol=2e-4)


@pytest.mark.parametrize("lambdas", LAMBDAS)
def test_a_known_user_s_own_history_gives_their_own_row(lambdas):
    """The ridge over a history, with the item side frozen, is the row of the solution."""
    found = table()
    model, _, things, z = solved(found, options(lambdas))
    with torch.no_grad():
        ranked = model.rank(found.people(np.unique(found.user)).anonymous()).numpy()
    np.testing.assert_allclose(ranked[:, things], whole(z), atol=2e-3)
    assert model.pull.any()


def test_every_effect_has_one_place():
    _, _, _, z = solved(table(), options(LAMBDAS[0]))
    for side in (z.items[:, None], z.users[:, None], z.left, z.right[:, z.left.any(0)]):
        assert np.abs(side.sum(0)).max() < 1e-8


def test_strong_penalties_leave_the_mean():
    found = table()
    model = bomic(options((1e4, 1e4, 1e4), tolerance=1e-6), found, Work())
    with torch.no_grad():
        ranked = model.rank(found.people(np.arange(12)))
    assert (ranked - float(found.rating.mean())).abs().max() < 1e-5


def test_an_item_that_nobody_rated_is_the_average_one():
    found = table()
    model = bomic(options(LAMBDAS[0]), found, Work())
    nobody = Users(torch.tensor([-1, -1]), History.empty(2))
    with torch.no_grad():
        items = model.catalogue()
        ranked = model.rank(nobody)
    assert not items.vector[7].any()
    assert torch.equal(ranked[0], ranked[1])
    usual = ranked[0, np.unique(found.item)].mean().item()
    assert ranked[0, 7].item() == pytest.approx(usual, abs=0.01)


def test_directions_are_found_as_they_come_to_life():
    """It begins with a few directions and ends with all that survive."""
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((60, 50)) < 0.8)
    value = rng.normal(size=(60, 20)) @ rng.normal(size=(20, 50))
    found = Interactions.from_columns(user, item, value[user, item])
    config = options((0.05, 0.05, 0.15), rank=40, tolerance=1e-7)
    _, ratings, _, z = solved(found, config)
    assert int(z.left.any(0).sum()) > 10
    assert z.right.shape[1] <= 40
    expected = reference(found, Reg.of(config, ratings), rounds=300)
    np.testing.assert_allclose(whole(z), expected, atol=0.02)
