"""The odds model: its logit against slow loops, its probabilities against observed rates."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from idcf.data.interactions import Interactions, Vocab
from idcf.models.odds import N_RELATIONS, N_USER_FEATURES, design_matrix
from idcf.models.registry import configure, model_entry
from idcf.recommender import Recommender
from idcf.testing.synthetic import clusters
from idcf.training.solvers import SolverContext
from idcf.training.solvers.odds import (
    HeldOutUsers,
    build_without_coefficients,
    cut_histories,
    fit_logistic,
    held_out_folds,
    interaction_matrix,
    item_recency,
    item_similarity,
)
from idcf.types import History, Users


@cache
def clustered_table(users=400, seed=0):
    """Implicit feedback of four groups of taste, with popular and rare items."""
    rng = np.random.default_rng(seed)
    table = clusters(
        users, 60, 4, rng, rows_per_user=30, in_group_probability=0.8, implicit=True
    ).interactions
    return table.where(rng.random(len(table)) < np.linspace(0.3, 1.0, 60)[table.item])


@cache
def fitted_model(query_users_in_table=False, users=400):
    options = {"rank": 5, "neighbors": 20, "reg": 20.0, "n_next_items": 4}
    context = SolverContext(0, query_users_in_table=query_users_in_table)
    solve = model_entry("idcf-odds").load_solver()
    return solve(configure("idcf-odds", options), clustered_table(users), context).eval()


def slow_logits(model, items):
    """The logit of every item for one history, in plain Python."""
    config, n, logits = model.config, len(items), []
    counts = model.item_counts.double().numpy()
    history_counts = np.maximum(counts[items] - float(model.exclude_self), 0)
    prior = model.prior_features.double().numpy()
    u = [
        1,
        (sum(history_counts == 0) + config.prior * prior[0]) / (n + config.prior),
        (sum(np.log1p(history_counts)) + config.prior * prior[1]) / (n + config.prior),
        np.log1p(n),
    ]
    known_items = [j for j, count in zip(items, history_counts, strict=True) if count > 0]
    coefficients = iter(model.coefficients.double().tolist())
    of_user = [
        (next(coefficients), a, b)
        for a in range(N_USER_FEATURES)
        for b in range(a, N_USER_FEATURES)
    ]
    of_cross = [
        (next(coefficients), a, b) for a in range(N_USER_FEATURES) for b in range(1 + N_RELATIONS)
    ]
    of_item = [
        (next(coefficients), a, b) for a in range(N_RELATIONS) for b in range(a, N_RELATIONS)
    ]
    weight = model.similarity.to_dense().double().numpy()
    history_factors, item_factors = model.history_factors.double(), model.item_factors.double()
    for i in range(model.n_items):
        similarity = sum(weight[j, i] for j in items) ** (1 / config.power)
        observed = sum(float(history_factors[j] @ item_factors[i]) for j in known_items)
        expected = len(known_items) * counts[i] / counts.sum()
        lift = np.log(max(observed / expected, config.min_lift)) if expected > 0 else 0.0
        v = [
            counts[i] == 0,
            np.log1p(counts[i]),
            float(model.recency[i]) * bool(known_items),
            lift,
            np.log1p(similarity / config.similarity_scale),
        ]
        logit = sum(w * u[a] * u[b] for w, a, b in of_user)
        logit += sum(w * u[a] * v[b] for w, a, b in of_cross)
        logits.append(logit + sum(w * v[1 + a] * v[1 + b] for w, a, b in of_item))
    return np.array(logits)


def history_of(items):
    offsets = torch.tensor([0, len(items)])
    return History(torch.tensor(items, dtype=torch.int64), torch.ones(len(items)), offsets)


@pytest.mark.parametrize("query_users_in_table", [False, True])
@settings(max_examples=15, deadline=None)
@given(items=st.lists(st.integers(0, 59), unique=True, max_size=8))
def test_logit_against_loops(query_users_in_table, items):
    model = fitted_model(query_users_in_table)
    expected = slow_logits(model, np.array(items, np.int64))
    np.testing.assert_allclose(model.logits(history_of(items))[0], expected, atol=2e-4)


def test_rows_of_the_design_matrix_give_the_quadratic_form():
    model, rng = fitted_model(), torch.Generator().manual_seed(0)
    user_features = torch.randn(9, N_USER_FEATURES, generator=rng)
    is_unseen, *relations = torch.randn(1 + N_RELATIONS, 9, generator=rng)
    got = design_matrix(user_features, is_unseen, relations) @ model.coefficients
    expected = model.quadratic_logit(
        user_features, is_unseen[:, None], [x[:, None] for x in relations]
    )
    torch.testing.assert_close(got, expected[:, 0])


def test_probabilities_are_calibrated():
    """For new users of the same world, a share p of the items with probability p is among the
    next few: over all items, and in each band of p."""
    model, x = fitted_model(users=1200), interaction_matrix(clustered_table(1500, 7))
    held_out = cut_histories(x, model.config.history_lengths, 4, np.random.default_rng(3))
    with torch.no_grad():
        users = Users(torch.full((x.shape[0],), -1), held_out.history)
        probability = model.score_catalog(users).numpy()
    is_target = np.zeros_like(probability)
    is_target[held_out.targets.owner(), held_out.targets.items] = 1
    is_candidate = np.ones_like(probability, bool)
    is_candidate[held_out.history.owner(), held_out.history.items] = False
    p, y = probability[is_candidate], is_target[is_candidate]
    assert p.mean() == pytest.approx(y.mean(), rel=0.03)
    for band in np.array_split(np.argsort(p), 8):
        assert p[band].mean() == pytest.approx(y[band].mean(), rel=0.25, abs=0.003)
    assert p.max() > 3 * p.min()


def test_an_empty_history_is_ranked_by_popularity():
    model = fitted_model()
    prior = model.score_catalog(Users(torch.tensor([-1]), History.empty(1)))[0]
    order = torch.argsort(model.item_counts, stable=True)
    assert (prior[order].diff() >= 0).all()


def test_a_user_of_the_table_is_described_without_the_row_of_that_user():
    """An item of one user alone counts as unseen for that user."""
    table = clustered_table()
    items = Vocab([*table.items.ids, "rare"])
    user, item = np.append(table.user, 0), np.append(table.item, 60)
    wider = Interactions(table.users, items, user, item, np.ones(len(user), np.float32), None, True)
    config = configure("idcf-odds", {"rank": 5, "reg": 20.0})
    x = interaction_matrix(wider)
    with_row = build_without_coefficients(config, wider.domain(), x, True, x)
    x = interaction_matrix(wider.where(wider.user != 0))
    without_row = build_without_coefficients(config, wider.domain(), x, False, x)
    without_row.prior_features = with_row.prior_features
    history = wider.history(np.array([0]))
    got, expected = with_row.summarize_history(history), without_row.summarize_history(history)
    torch.testing.assert_close(got.user_features, expected.user_features)
    torch.testing.assert_close(got.n_known_items, expected.n_known_items)


@pytest.mark.parametrize("query_users_in_table", [False, True])
@pytest.mark.parametrize("order", ["random", "last"])
def test_held_out_users_are_hidden_and_their_items_divided(order, query_users_in_table):
    """The table lacks them, or has their short histories in place of their rows."""
    options = {"holdout_order": order, "folds": 3, "history_lengths": (0, 9), "n_next_items": 4}
    config = configure("idcf-odds", options)
    x, n_held_out = interaction_matrix(clustered_table()), 0
    folds = held_out_folds(config, x, query_users_in_table, np.random.default_rng(0))
    for train, (history, targets) in folds:
        n_users, lengths = len(targets.offsets) - 1, history.lengths()
        n_held_out += n_users
        assert (targets.lengths() == 4).all()
        assert lengths.max() == 9
        cells = torch.cat([h.owner() * 60 + h.items for h in (history, targets)])
        assert len(cells.unique()) == len(cells)
        n_short_rows = int((lengths > 0).sum()) if query_users_in_table else 0
        assert train.shape[0] == x.shape[0] - n_users + n_short_rows
        if query_users_in_table:
            expected = np.zeros((n_users, 60))
            expected[history.owner(), history.items] = 1
            np.testing.assert_array_equal(
                train[-n_short_rows:].toarray(), expected[lengths.numpy() > 0]
            )
    assert n_held_out == (np.diff(x.indptr) > 4).sum()


def test_last_items_are_the_last_of_the_table():
    x = csr_array(
        (np.ones(6, np.float32), np.array([5, 1, 3, 0, 4, 2]), np.array([0, 6])), shape=(1, 6)
    )
    held_out = cut_histories(x, (2, 2), 3, np.random.default_rng(0), shuffle=False)
    assert isinstance(held_out, HeldOutUsers)
    assert held_out.history.items.tolist() == [1, 3]
    assert held_out.targets.items.tolist() == [0, 4, 2]


def test_logistic_regression_recovers_its_coefficients():
    rng = np.random.default_rng(0)
    x = np.stack([np.ones(60_000), rng.normal(3, 2, 60_000), np.full(60_000, 4.0)], 1)
    true = np.array([-1.0, 0.7])
    p = 1 / (1 + np.exp(-(x[:, :2] @ true)))
    y = (rng.random(len(p)) < p).astype(float)
    coefficients = fit_logistic(x, y, np.ones(len(y)), 1e-3)
    np.testing.assert_allclose(coefficients, [*true, 0], atol=0.05)
    # a row of weight two is two rows
    w = rng.integers(1, 3, len(y))
    repeated = fit_logistic(np.repeat(x, w, 0), np.repeat(y, w), np.ones(w.sum()), 0.0)
    np.testing.assert_allclose(fit_logistic(x, y, w.astype(float), 0.0), repeated, atol=0.02)


def test_it_is_fitted_saved_and_loaded(tmp_path):
    fitted = Recommender("idcf-odds", rank=4, device="cpu").fit(clustered_table())
    loaded = Recommender.load(fitted.save(tmp_path / "odds"))
    assert loaded.config.model == "idcf-odds"
    items = [f"i{n}" for n in (0, 4, 8)]
    before, after = fitted.recommend(items), loaded.recommend(items)
    assert [(r.item_id, r.score) for r in before] == [(r.item_id, r.score) for r in after]
    assert 0 < before[0].score < 1
    groups = [int(r.item_id[1:]) % 4 for r in fitted.similar_items("i56", n=8)]
    assert groups.count(0) > 4  # the group of i56


def test_the_recency_of_items_comes_from_the_order_of_rows():
    """Every user reads a stretch of one long series, almost in its order."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(300):
        start, is_read = rng.integers(0, 80), rng.random(40) < 0.4
        series = np.flatnonzero(is_read) + start
        rows.append(series[np.argsort(series + rng.normal(0, 3, len(series)))])
    ends = np.cumsum([0, *map(len, rows)])
    items = np.concatenate(rows)
    ones = np.ones(len(items), np.float32)
    recency = item_recency(csr_array((ones, items, ends), shape=(300, 120)))
    assert np.corrcoef(recency[10:110], np.arange(10, 110))[0, 1] > 0.95
    shuffled = np.concatenate([rng.permutation(r) for r in rows])
    unordered = item_recency(csr_array((ones, shuffled, ends), shape=(300, 120)))
    assert unordered.std() < 0.2 * recency.std()


def test_recency_is_used_only_where_the_last_items_are_held_out():
    table = clustered_table()
    options = {"rank": 5, "neighbors": 20, "holdout_order": "last"}
    x = interaction_matrix(table)
    model = build_without_coefficients(configure("idcf-odds", options), table.domain(), x, False, x)
    assert model.recency.any()
    assert not fitted_model().recency.any()


def test_item_similarity_against_loops():
    x = interaction_matrix(clustered_table())
    config = configure("idcf-odds", {"reg": 20.0, "neighbors": 100, "cosine_neighbors": 100})
    got, n = item_similarity(x, config, 1.0).toarray(), x.shape[1]
    dense = x.toarray().astype(np.float64)
    inverse = np.linalg.inv(dense.T @ dense + 20 * np.eye(n))
    counts = dense.sum(0) + config.support
    ease, cosine = np.zeros((n, n)), np.zeros((n, n))
    for j in range(n):
        for i in range(n):
            if i != j:
                ease[j, i] = max(0, -inverse[j, i] / inverse[i, i])
                cosine[j, i] = (dense[:, j] @ dense[:, i]) / np.sqrt(counts[i] * counts[j])
    halves = [k / (2 * k.max(0)[k.max(0) > 0].mean()) for k in (ease, cosine)]
    np.testing.assert_allclose(got, (halves[0] + halves[1]) ** config.power, rtol=2e-3, atol=1e-5)
