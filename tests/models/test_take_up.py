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
from idcf.training.solvers.nearest_items import (
    find_nearest_items,
    local_ridge,
    nonnegative_ridge,
    sample_long_rows,
)
from idcf.training.solvers.odds import interaction_matrix
from idcf.training.solvers.take_up import ItemRegression, Settings
from idcf.types import History, Users

RIDGE = Settings(reg=5.0, count_reg=0.5)


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


def slow_column(
    x: csr_array, item: int, others: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Regress one column of X on others, with the penalty λ + a n of each and weighted users."""
    dense = x.toarray().astype(np.float64)
    design = dense[:, others]
    weighted = design if weight is None else design * weight[:, None]
    penalty = RIDGE.reg + RIDGE.count_reg * (weighted * design).sum(0)
    return np.linalg.solve(weighted.T @ design + np.diag(penalty), weighted.T @ dense[:, item])


def ridge_weights(x: csr_array, settings: Settings, **options: int) -> csr_array:
    return ItemRegression(TakeUpConfig(**options), x).weights(settings)


def test_every_item_is_regressed_on_all_others() -> None:
    x = interaction_matrix(table())
    weights = ridge_weights(x, RIDGE, neighbors=60).toarray()
    assert (np.diag(weights) == 0).all()
    for item in (0, 17, 59):
        others = np.delete(np.arange(60), item)
        expected = slow_column(x, item, others)
        np.testing.assert_allclose(weights[others, item], expected, rtol=1e-4, atol=1e-6)


def test_users_may_weigh_less_the_longer_their_histories() -> None:
    x = interaction_matrix(table())
    lengths = np.diff(x.indptr).astype(np.float64)
    weight = lengths**-0.5
    weight *= lengths.sum() / (weight @ lengths)
    weights = ridge_weights(x, RIDGE._replace(length_power=0.5), neighbors=60).toarray()
    others = np.delete(np.arange(60), 17)
    expected = slow_column(x, 17, others, weight)
    np.testing.assert_allclose(weights[others, 17], expected, rtol=1e-4, atol=1e-6)


def test_the_spectral_part_is_a_low_rank_relation_of_equal_size(monkeypatch) -> None:
    monkeypatch.setattr("idcf.training.solvers.take_up._RANK", 4)
    x = interaction_matrix(table())
    plain = ridge_weights(x, RIDGE, neighbors=60).toarray()
    both = ridge_weights(x, RIDGE._replace(spectral_weight=0.5), neighbors=60).toarray()
    counts, lengths = x.toarray().sum(0) + 1, x.toarray().sum(1) + 1
    scaled = x.toarray() / np.sqrt(lengths[:, None] * counts)
    vectors = np.linalg.svd(scaled)[2][:4].T
    expected = (vectors / np.sqrt(counts)[:, None]) @ (vectors * np.sqrt(counts)[:, None]).T
    np.fill_diagonal(expected, 0)
    expected *= 0.5 * np.linalg.norm(plain) / np.linalg.norm(expected)
    np.testing.assert_allclose(both - plain, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("at_once", [1 << 23, 1])
def test_above_the_limit_every_item_is_regressed_on_its_nearest(at_once: int, monkeypatch) -> None:
    """At once, or one item at a time."""
    monkeypatch.setattr("idcf.training.solvers.nearest_items._MAX_EQUATION_CELLS", at_once)
    x = interaction_matrix(table())
    columns = csr_array(local_ridge(find_nearest_items(x, 60), RIDGE.reg, RIDGE.count_reg, 7).T)
    assert np.diff(columns.indptr).max() == 7
    counts = x.toarray().sum(0)
    cosine = (x.T @ x).toarray() / np.sqrt((counts + 20) * (counts[:, None] + 20))
    np.fill_diagonal(cosine, 0)
    for item in (0, 17, 59):
        nearest = columns.indices[columns.indptr[item] : columns.indptr[item + 1]]
        assert cosine[item, nearest].min() >= np.sort(cosine[item])[-7] - 1e-6
        expected = slow_column(x, item, nearest)
        np.testing.assert_allclose(columns[[item]].toarray()[0, nearest], expected, rtol=1e-4)


def test_with_all_items_near_both_solutions_agree() -> None:
    x = csr_array((np.random.default_rng(0).random((200, 60)) < 0.4).astype(np.float32))
    dense = ridge_weights(x, RIDGE, neighbors=60).toarray()
    local = ridge_weights(x, RIDGE, max_dense_items=0, local_neighbors=60).toarray()
    np.testing.assert_allclose(local, dense, atol=1e-4)


def test_pairs_that_are_not_kept_count_as_no_common_users() -> None:
    x = interaction_matrix(table())
    nearest = find_nearest_items(x, 9)
    gram = np.zeros((60, 60))
    for item in range(60):
        gram[item, nearest.items[item]] = nearest.counts[item]
    gram = np.maximum(gram, gram.T)
    columns = csr_array(local_ridge(nearest, RIDGE.reg, RIDGE.count_reg, 5).T)
    counts = x.toarray().sum(0)
    for item in (3, 40):
        others = nearest.items[item, :5].numpy()
        penalty = RIDGE.reg + (1 + RIDGE.count_reg) * counts[others]
        expected = np.linalg.solve(
            gram[np.ix_(others, others)] + np.diag(penalty), gram[others, item]
        )
        np.testing.assert_allclose(columns[[item]].toarray()[0, others], expected, rtol=1e-4)


def test_equal_neighbors_do_not_widen_the_equations() -> None:
    """Users with one pair of items each make all cosines equal."""
    users = np.repeat(np.arange(300), 2)
    items = np.stack([np.zeros(300, np.int64), np.arange(1, 301)], 1).ravel()
    x = csr_array((np.ones(600, np.float32), (users, items)), shape=(300, 301))
    weights = local_ridge(find_nearest_items(x, 8), RIDGE.reg, RIDGE.count_reg, 5)
    assert np.diff(csr_array(weights.T).indptr).max() == 5
    assert set(csr_array(weights.T)[[0]].indices) == {1, 2, 3, 4, 5}  # the first of equal ones


def test_items_without_neighbors_have_no_weights() -> None:
    x = csr_array(np.eye(4, 6, dtype=np.float32))
    assert local_ridge(find_nearest_items(x, 3), 1.0, 1.0, 3).nnz == 0


def test_nonnegative_weights_solve_the_conditions_of_the_minimum() -> None:
    """The gradient is 0 where a weight is positive, and not negative elsewhere."""
    x = interaction_matrix(table()).toarray().astype(np.float64)
    gram, penalty = x.T @ x, RIDGE.reg + RIDGE.count_reg * x.sum(0)
    weights = nonnegative_ridge(torch.from_numpy(gram), RIDGE.reg, RIDGE.count_reg, 1.5, 59)
    weights = weights.toarray().astype(np.float64)
    assert (weights >= 0).all()
    assert 0.1 < (weights > 0).mean() < 0.9
    gradient = (gram + np.diag(penalty)) @ weights - gram + 1.5
    np.fill_diagonal(gradient, 0)
    scale = penalty + x.sum(0)
    assert np.abs(gradient / scale)[weights > 0].max() < 1e-3
    assert (gradient / scale)[weights == 0].min() > -1e-3
    few = csr_array(nonnegative_ridge(torch.from_numpy(gram), 5.0, 0.5, 1.5, 7).T)
    assert np.diff(few.indptr).max() <= 7


def test_long_rows_are_sampled_and_short_ones_stay() -> None:
    x = interaction_matrix(table())
    short = sample_long_rows(x, 12, np.random.default_rng(0))
    lengths = np.diff(x.indptr)
    np.testing.assert_array_equal(np.diff(short.indptr), np.minimum(lengths, 12))
    assert (short.toarray() <= x.toarray()).all()
    assert sample_long_rows(x, 60, np.random.default_rng(0)) is x


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


def test_given_settings_are_not_searched(monkeypatch) -> None:
    seen: list[Settings] = []
    solve_weights = ItemRegression.weights

    def record(self: ItemRegression, settings: Settings) -> csr_array:
        seen.append(settings)
        return solve_weights(self, settings)

    monkeypatch.setattr(ItemRegression, "weights", record)
    given = {"reg": 7.0, "count_reg": 2.0, "length_power": 0.0, "spectral_weight": 0.0}
    given["nonnegative"] = False
    solve, context = model_entry("idcf-takeup").load_solver(), SolverContext()
    solve(configure("idcf-takeup", given), table(), context)
    assert seen == 2 * [Settings(**given)]  # on the users that are not held out, and on all
    assert context.details == {"relation": "all items", **given}
    seen.clear()
    solve(configure("idcf-takeup", {}), table(), SolverContext())
    assert len(set(seen)) == 6  # the first settings, and five others
