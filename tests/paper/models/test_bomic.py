"""BOMIC against a dense SoftImpute, and users embedded from histories against the solution."""

import numpy as np
import pytest
import torch
from builders import table_from_columns

from idcf.data.interactions import Interactions
from idcf.models.registry import configure
from idcf.paper.solvers.bomic import BlockRegularization, fit_bomic, observed_ratings, soft_impute
from idcf.training.solvers import SolverContext
from idcf.types import History, Users

TIGHT = {"rank": 8, "tolerance": 1e-10, "epochs": 5000}
LAMBDAS = [(0.1, 0.08, 0.1), (0.4, 0.03, 0.06), (0.03, 0.5, 0.3)]  # item, user, residual
UNRATED_ITEM = 7


def make_table() -> Interactions:
    """12 users and 9 items; user 5 and item 7 have no ratings."""
    rng = np.random.default_rng(3)
    full = rng.integers(1, 6, (12, 9)).astype(float)
    mask = rng.random((12, 9)) < 0.6
    mask[5], mask[:, UNRATED_ITEM] = False, False
    user, item = np.nonzero(np.ones_like(mask))
    return table_from_columns(user, item, full[user, item]).where(mask[user, item])


def make_config(lambdas, **options):
    item_reg, user_reg, reg = lambdas
    penalties = {"item_reg": item_reg, "user_reg": user_reg, "reg": reg}
    return configure("bomic", {**TIGHT, **penalties, **options})


def orthonormal_bases(n):
    """The constant vector [n, 1], and its orthogonal complement [n, n - 1]."""
    constant = np.full((n, 1), n**-0.5)
    complement = np.linalg.svd(np.eye(n) - constant @ constant.T)[0][:, : n - 1]
    return constant, complement


def dense_soft_impute(table, reg, rounds=1500):
    """SoftImpute over the blocks without momentum: Z [users with ratings, items with ratings]."""
    users, items = np.unique(table.user), np.unique(table.item)
    m, n = len(users), len(items)
    ratings, mask = np.zeros((m, n)), np.zeros((m, n), bool)
    cells = np.searchsorted(users, table.user), np.searchsorted(items, table.item)
    ratings[cells], mask[cells] = table.rating, True
    user_constant, user_complement = orthonormal_bases(m)
    item_constant, item_complement = orthonormal_bases(n)
    blocks = [
        (user_constant, item_constant, 0.0),
        (user_constant, item_complement, reg.items),
        (user_complement, item_constant, reg.users),
        (user_complement, item_complement, reg.residual),
    ]
    z, last = np.zeros((m, n)), np.ones((m, n))
    for _ in range(rounds):
        if np.abs(z - last).max() < 1e-7:
            break
        last, filled, z = z, np.where(mask, ratings, z), np.zeros((m, n))
        for user_basis, item_basis, penalty in blocks:
            u, s, v = np.linalg.svd(user_basis.T @ filled @ item_basis, full_matrices=False)
            z += user_basis @ (u * np.maximum(s - penalty, 0)) @ v @ item_basis.T
    return z


def dense_matrix(solution):
    biases = solution.mean + solution.item_bias + solution.user_bias[:, None]
    return biases + solution.left_factors @ solution.right_factors.T


def solve(table, config):
    """The model, the ratings, the items that have ratings, and the solution."""
    users, items = np.flatnonzero(table.user_counts()), np.flatnonzero(table.item_counts())
    model = fit_bomic(config, table, SolverContext())
    ratings = observed_ratings(table, users, items)
    return model, ratings, items, soft_impute(ratings, config, SolverContext())


@pytest.mark.parametrize("lambdas", LAMBDAS)
def test_the_solution_is_that_of_plain_soft_impute(lambdas):
    table, config = make_table(), make_config(lambdas)
    _, ratings, _, solution = solve(table, config)
    expected = dense_soft_impute(table, BlockRegularization.from_config(config, ratings))
    np.testing.assert_allclose(dense_matrix(solution), expected, atol=2e-4)


@pytest.mark.parametrize("lambdas", LAMBDAS)
def test_the_history_of_a_known_user_gives_the_row_of_the_solution(lambdas):
    """The row is a ridge regression on the history, with the item side frozen."""
    table = make_table()
    model, _, items, solution = solve(table, make_config(lambdas))
    users = table.build_users(np.unique(table.user)).anonymous()
    with torch.no_grad():
        scores = model.score_catalog(users).numpy()
    np.testing.assert_allclose(scores[:, items], dense_matrix(solution), atol=2e-3)
    assert model.orthogonality_multiplier.any()


def test_blocks_are_orthogonal_to_the_constant_vector():
    _, _, _, solution = solve(make_table(), make_config(LAMBDAS[0]))
    for side in (
        solution.item_bias[:, None],
        solution.user_bias[:, None],
        solution.left_factors,
        solution.right_factors[:, solution.left_factors.any(0)],
    ):
        assert np.abs(side.sum(0)).max() < 1e-8


def test_strong_penalties_leave_the_mean():
    table = make_table()
    model = fit_bomic(make_config((1e4, 1e4, 1e4), tolerance=1e-6), table, SolverContext())
    with torch.no_grad():
        scores = model.score_catalog(table.build_users(np.arange(12)))
    assert (scores - float(table.rating.mean())).abs().max() < 1e-5


def test_an_item_without_ratings_is_the_average_item():
    table = make_table()
    model = fit_bomic(make_config(LAMBDAS[0]), table, SolverContext())
    empty = Users(torch.tensor([-1, -1]), History.empty(2))
    with torch.no_grad():
        items = model.embed_catalog()
        scores = model.score_catalog(empty)
    assert not items.vector[UNRATED_ITEM].any()
    assert torch.equal(scores[0], scores[1])
    average = scores[0, np.unique(table.item)].mean().item()
    assert scores[0, UNRATED_ITEM].item() == pytest.approx(average, abs=0.01)


def test_the_subspace_grows_to_the_rank_of_the_solution():
    """The iteration begins with a few directions and ends with all that survive."""
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((60, 50)) < 0.8)
    value = rng.normal(size=(60, 20)) @ rng.normal(size=(20, 50))
    table = table_from_columns(user, item, value[user, item])
    config = make_config((0.05, 0.05, 0.15), rank=40, tolerance=1e-7)
    _, ratings, _, solution = solve(table, config)
    assert int(solution.left_factors.any(0).sum()) > 10
    assert solution.right_factors.shape[1] <= 40
    reg = BlockRegularization.from_config(config, ratings)
    expected = dense_soft_impute(table, reg, rounds=300)
    np.testing.assert_allclose(dense_matrix(solution), expected, atol=0.02)
