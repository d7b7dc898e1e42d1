"""The take-up model: weights against slow solutions, probabilities against observed rates."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from idcf.data.interactions import Interactions
from idcf.inference.topk import CatalogRanker
from idcf.models.registry import configure, model_entry
from idcf.models.take_up import SCORE_UNIT, TakeUpConfig, TakeUpModel
from idcf.testing.synthetic import clusters
from idcf.training.solvers import SolverContext
from idcf.training.solvers.odds import interaction_matrix
from idcf.training.solvers.take_up import Ridge, local_ridge, ridge_weights
from idcf.types import History, Users

RIDGE = Ridge(reg=5.0, count_reg=0.5)


@cache
def table(n_users: int = 400, seed: int = 0) -> Interactions:
    """Implicit feedback of four groups of taste, with popular and rare items."""
    rng = np.random.default_rng(seed)
    interactions = clusters(
        n_users, 60, 4, rng, rows_per_user=30, in_group_probability=0.8, implicit=True
    ).interactions
    return interactions.where(
        rng.random(len(interactions)) < np.linspace(0.3, 1.0, 60)[interactions.item]
    )


@cache
def fitted(**options: float) -> TakeUpModel:
    solve = model_entry("idcf-takeup").load_solver()
    model = solve(
        configure("idcf-takeup", {"n_next_items": 4, **options}), table(), SolverContext()
    )
    return model.eval()


def as_history(*histories: list[int]) -> History:
    lengths = [len(x) for x in histories]
    items = torch.tensor([i for x in histories for i in x], dtype=torch.int64)
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    return History(items, torch.ones(len(items)), offsets)


def slow_column(x: csr_array, item: int, others: np.ndarray) -> np.ndarray:
    """Regress one column of X on others, with the penalty λ + a n of each."""
    dense = x.toarray().astype(np.float64)
    design = dense[:, others]
    penalty = RIDGE.reg + RIDGE.count_reg * design.sum(0)
    return np.linalg.solve(design.T @ design + np.diag(penalty), design.T @ dense[:, item])


def test_every_item_is_regressed_on_all_others() -> None:
    x = interaction_matrix(table())
    weights = ridge_weights(x, RIDGE, TakeUpConfig(neighbors=60)).toarray()
    assert (np.diag(weights) == 0).all()
    for item in (0, 17, 59):
        others = np.delete(np.arange(60), item)
        expected = slow_column(x, item, others)
        np.testing.assert_allclose(weights[others, item], expected, rtol=1e-4, atol=1e-6)


def test_above_the_limit_every_item_is_regressed_on_its_nearest() -> None:
    x = interaction_matrix(table())
    weights = local_ridge(x, RIDGE, 7)
    assert np.diff(weights.indptr).max() == 7
    for item in (0, 17, 59):
        nearest = weights.indices[weights.indptr[item] : weights.indptr[item + 1]]
        assert item not in nearest
        expected = slow_column(x, item, nearest)
        np.testing.assert_allclose(weights[[item]].toarray()[0, nearest], expected, rtol=1e-4)


def test_with_all_items_near_both_solutions_agree() -> None:
    x = csr_array((np.random.default_rng(0).random((200, 60)) < 0.4).astype(np.float32))
    dense = ridge_weights(x, RIDGE, TakeUpConfig(neighbors=60)).toarray()
    local = ridge_weights(x, RIDGE, TakeUpConfig(neighbors=60, max_dense_items=0)).toarray()
    np.testing.assert_allclose(local, dense, atol=1e-4)


def test_equal_neighbors_do_not_widen_the_equations() -> None:
    """Users with one pair of items each make all cosines equal."""
    users = np.repeat(np.arange(300), 2)
    items = np.stack([np.zeros(300, np.int64), np.arange(1, 301)], 1).ravel()
    x = csr_array((np.ones(600, np.float32), (users, items)), shape=(300, 301))
    assert np.diff(local_ridge(x, RIDGE, 5).indptr).max() == 5


def test_the_logit_is_that_of_a_slow_loop() -> None:
    model, history = fitted(), [3, 7, 11]
    weights = model.item_weights.to_dense().double().numpy()
    c = model.coefficients.double().numpy()
    length = np.log1p(len(history))
    expected = [
        c[0]
        + c[2] * length
        + (c[1] + c[3] * length) * np.arcsinh(sum(weights[j, i] for j in history) / SCORE_UNIT)
        for i in range(60)
    ]
    np.testing.assert_allclose(model.logits(as_history(history))[0], expected, rtol=1e-3, atol=1e-3)


def test_probabilities_grow_with_the_regression() -> None:
    model = fitted()
    for history in ([], [3], list(range(20))):
        entries = as_history(history)
        order = model.regression(entries)[0].argsort()
        assert (model.logits(entries)[0][order].diff() >= 0).all()


def test_probabilities_are_the_observed_rates_of_new_users() -> None:
    """Of users of the same world whom the model never saw; 4 items each are the next ones."""
    new = interaction_matrix(table(600, seed=0))[400:]
    rng, model = np.random.default_rng(1), fitted()
    expected, observed = [], []
    for row in range(new.shape[0]):
        items = rng.permutation(new.indices[new.indptr[row] : new.indptr[row + 1]])
        history, targets = items[4:14].tolist(), items[:4]
        probability = model.logits(as_history(history)).sigmoid()[0].numpy()
        candidates = np.setdiff1d(np.arange(60), history)
        expected.append(probability[candidates])
        observed.append(np.isin(candidates, targets))
    p, hit = np.concatenate(expected), np.concatenate(observed)
    assert p.mean() == pytest.approx(hit.mean(), rel=0.15)
    top = p >= np.quantile(p, 0.8)
    assert hit[top].mean() > 1.5 * hit.mean()
    assert p[top].mean() == pytest.approx(hit[top].mean(), rel=0.25)


@pytest.mark.parametrize("neighbors", [60, 10])
def test_the_kernel_gives_the_scores_of_the_model(neighbors: int, monkeypatch) -> None:
    for limit in (1 << 24, 0):  # with zeros, and without
        monkeypatch.setattr("idcf.inference.kernels._MAX_DENSE_WEIGHTS", limit)
        model = fitted(neighbors=neighbors)
        ranker = CatalogRanker(model)
        rows = np.array([5, 9, 2], np.int64)
        score = ranker.score_one_user(rows, np.ones(3, np.float32))
        users = Users(torch.tensor([-1]), as_history(rows.tolist()))
        np.testing.assert_allclose(score, model.score_catalog(users)[0], rtol=1e-4)


def test_added_items_are_unseen() -> None:
    model, history = fitted(), as_history([3, 7])
    larger = model.with_n_items(63)
    before, after = model.logits(history), larger.logits(history)
    assert after.shape == (1, 63)
    torch.testing.assert_close(after[:, :60], before)
    zero = larger.logits(as_history([61]))[0]
    assert (zero == zero[0]).all()  # nothing is known of the new item
    assert model.n_items == 60
    assert model.logits(history).shape == (1, 60)


def test_given_penalties_are_not_searched(monkeypatch) -> None:
    seen: list[Ridge] = []

    def record(x: csr_array, ridge: Ridge, config: TakeUpConfig) -> csr_array:
        seen.append(ridge)
        return ridge_weights(x, ridge, config)

    monkeypatch.setattr("idcf.training.solvers.take_up.ridge_weights", record)
    solve = model_entry("idcf-takeup").load_solver()
    solve(configure("idcf-takeup", {"reg": 7.0, "count_reg": 2.0}), table(), SolverContext())
    assert len(seen) == 2  # on the users that are not held out, and on all
    assert seen[0].reg < seen[1].reg == 7.0
    assert {x.count_reg for x in seen} == {2.0}
