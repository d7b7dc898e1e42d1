"""What is solved in closed form, against the definition it solves."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from idcf.data.interactions import Interactions, Vocab
from idcf.models.registry import configure, model_entry
from idcf.rng import derive
from idcf.testing.synthetic import low_rank
from idcf.training.solvers import item_item
from idcf.training.solvers.context import Work
from idcf.types import History, Users

torch.set_num_threads(1)
WORLD = low_rank(30, 12, 2, np.random.default_rng(0), density=0.5, noise=0.3)
RATED = WORLD.interactions
IMPLICIT = low_rank(30, 12, 2, np.random.default_rng(0), density=0.4, implicit=True).interactions


def solve(name, table, seed=0, **options):
    solver = model_entry(name).load_solver()
    return solver(configure(name, options), table, Work(seed)).eval()


def everybody(table):
    who = np.arange(len(table.users))
    return Users(torch.from_numpy(who), table.history(who)).anonymous()


def scores(model, table):
    with torch.no_grad():
        return model.rank(everybody(table)).numpy()


def dense(table, value=None):
    """[U, I] of the values, and where they are."""
    x = np.zeros((len(table.users), len(table.items)))
    x[table.user, table.item] = table.rating if value is None else value
    there = np.zeros_like(x, bool)
    there[table.user, table.item] = True
    return x, there


def biases(table, strength, item_strength=3.0, rounds=5):
    """μ, b_i by alternating ridge, and the b_u that a user gets when they come: loops."""
    x, there = dense(table)
    mean = table.rating.mean(dtype=np.float64)
    b_u, b_i = np.zeros(len(x)), np.zeros(x.shape[1])
    for _ in range(rounds):
        for i in range(x.shape[1]):
            who = there[:, i]
            b_i[i] = (x[who, i] - mean - b_u[who]).sum() / (who.sum() + item_strength)
        for u in range(len(x)):
            b_u[u] = (x[u] - mean - b_i)[there[u]].sum() / (there[u].sum() + strength)
    return mean, b_i, b_u


def residuals(table, strength):
    mean, b_i, b_u = biases(table, strength)
    x, there = dense(table)
    return np.where(there, x - mean - b_i - b_u[:, None], 0), there, mean + b_i + b_u[:, None]


def test_popularity():
    model = solve("popularity", IMPLICIT)
    assert (scores(model, IMPLICIT) == np.bincount(IMPLICIT.item, minlength=12)).all()


@pytest.mark.parametrize("strength", [2.0, 8.0])
def test_bias_against_loops(strength):
    mean, b_i, b_u = biases(RATED, strength)
    got = scores(solve("bias", RATED, strength=strength), RATED)
    np.testing.assert_allclose(got, mean + b_i + b_u[:, None], atol=1e-5)


def test_bias_is_near_the_joint_ridge_solution():
    """min Σ (r - μ - b_u - b_i)² + 3 Σ b_i² + 5 Σ b_u², solved at once."""
    n_users, n_items = len(RATED.users), len(RATED.items)
    design = np.zeros((len(RATED), n_users + n_items))
    design[np.arange(len(RATED)), RATED.user] = 1
    design[np.arange(len(RATED)), n_users + RATED.item] = 1
    ridge = np.diag([5.0] * n_users + [3.0] * n_items)
    own = RATED.rating - RATED.rating.mean(dtype=np.float64)
    both = np.linalg.solve(design.T @ design + ridge, design.T @ own)
    model = solve("bias", RATED, strength=5.0, item_strength=3.0)
    np.testing.assert_allclose(model.item_bias, both[n_users:], atol=0.02)


def test_item_mean():
    """An infinite strength: everybody gets μ + the shrunk mean of the item."""
    x, there = dense(RATED)
    mean = RATED.rating.mean(dtype=np.float64)
    expected = mean + np.where(there, x - mean, 0).sum(0) / (there.sum(0) + 3.0)
    got = scores(solve("item-mean", RATED), RATED)
    np.testing.assert_allclose(got, np.broadcast_to(expected, got.shape), atol=1e-5)


def constrained(x, reg):
    """argmin ‖X - XB‖² + λ‖B‖² with diag(B) = 0: one ridge regression per column."""
    weight = np.zeros((x.shape[1],) * 2)
    for j in range(x.shape[1]):
        rest = np.delete(np.arange(x.shape[1]), j)
        a = x[:, rest]
        weight[rest, j] = np.linalg.solve(a.T @ a + reg * np.eye(len(rest)), a.T @ x[:, j])
    return weight


@pytest.mark.parametrize("reg", [1.0, 30.0])
def test_ease_without_ratings(reg):
    x, _ = dense(IMPLICIT)
    weight = constrained(x, reg)
    model = solve("ease", IMPLICIT, reg=reg)
    np.testing.assert_allclose(model.weight.dense(), weight, atol=1e-5)
    np.testing.assert_allclose(scores(model, IMPLICIT), x @ weight, atol=1e-5)


def test_ease_on_ratings():
    x, _, base = residuals(RATED, 5.0)
    weight = constrained(x, 20.0)
    model = solve("ease", RATED, reg=20.0, strength=5.0)
    np.testing.assert_allclose(model.weight.dense(), weight, atol=1e-5)
    np.testing.assert_allclose(scores(model, RATED), base + x @ weight, atol=1e-4)


def similarities(x, there, neighbours, reg):
    """Cosine, shrunk by the number of people who had both; for each item its nearest only."""
    n = x.shape[1]
    weight = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            both = (there[:, i] & there[:, j]).sum()
            cosine = x[:, i] @ x[:, j] / (np.linalg.norm(x[:, i]) * np.linalg.norm(x[:, j]))
            weight[j, i] = 0 if i == j else cosine * (both / (both + reg) if reg else 1)
        far = np.argsort(-np.abs(weight[:, i]), kind="stable")[neighbours:]
        weight[far, i] = 0
    return weight


@pytest.mark.parametrize("neighbours", [3, 100])
def test_item_knn_on_ratings(neighbours):
    x, there, base = residuals(RATED, 5.0)
    weight = similarities(x, there, neighbours, 10.0)
    model = solve("item-knn", RATED, neighbours=neighbours, reg=10.0, strength=5.0)
    np.testing.assert_allclose(model.weight.dense(), weight, atol=1e-5)
    expected = base + (x @ weight) / (there @ np.abs(weight) + 1)
    np.testing.assert_allclose(scores(model, RATED), expected, atol=1e-4)


def test_item_knn_without_ratings():
    x, there = dense(IMPLICIT)
    weight = similarities(x, there, 100, 0.0)
    model = solve("item-knn", IMPLICIT, neighbours=100, reg=0.0)
    np.testing.assert_allclose(scores(model, IMPLICIT), x @ weight, atol=1e-4)


def test_item_knn_without_ratings_shrinks_by_support():
    x, there = dense(IMPLICIT)
    weight = similarities(x, there, 4, 10.0)
    got = solve("item-knn", IMPLICIT, neighbours=4, reg=10.0).weight.dense().numpy()
    floor = np.sort(np.abs(similarities(x, there, 100, 10.0)), 0)[-4]
    above = weight > floor + 1e-6
    np.testing.assert_allclose(got * above, weight * above, atol=1e-6)
    assert ((got == 0) | (np.abs(got) >= floor - 1e-6)).all()  # equals of the last are kept


@pytest.mark.parametrize("users", [8, 40])
@pytest.mark.parametrize("neighbours", [3, 14, 100])
def test_ease_by_blocks_on_either_side(users, neighbours, monkeypatch):
    """Fewer users than items or more, in blocks of a few items, with and without an item that
    nobody had: the largest of each column of the plain inverse."""
    monkeypatch.setattr(item_item, "_CELLS", 50)
    rng = np.random.default_rng(users)
    x = (rng.random((users, 15)) * (rng.random((users, 15)) < 0.5)).astype(np.float32)  # no ties
    x[:, 6] = 0
    got = item_item.linear(csr_array(x), 5.0, neighbours).toarray()
    weight = constrained(x, 5.0)
    if neighbours < 15:
        floor = np.sort(np.abs(weight), 0)[-neighbours]
        weight[np.abs(weight) < np.maximum(floor, 1e-9)] = 0
    np.testing.assert_allclose(got, weight, atol=1e-5)


@pytest.mark.parametrize("k", [1, 7, 300])
def test_the_largest_of_long_rows(k):
    """Where the sample misleads, too: one row has all that is large where nobody looks."""
    rng = np.random.default_rng(k)
    block = rng.normal(size=(5, 2000)).astype(np.float32)
    block[1, ::16] = 0
    block[2, ::16] *= 100
    block[3] = 0
    got = item_item._largest(np.ascontiguousarray(block.T), k).toarray()
    floor = np.sort(np.abs(block), 1)[:, -k]
    np.testing.assert_array_equal(got, np.where(np.abs(block) >= floor[:, None], block, 0))


def test_fold_in_on_ratings_against_ridge():
    """p = (Q_HᵀQ_H + λI)⁻¹ Q_Hᵀ (r - base), user by user, for people never met."""
    model = solve("als", RATED, embedding_size=3, reg=2.0, strength=5.0)
    x, there, base = residuals(RATED, 5.0)
    q = model.factors.double().numpy()
    got = scores(model, RATED)
    for u in range(len(x)):
        h = q[there[u]]
        p = np.linalg.solve(h.T @ h + 2.0 * np.eye(3), h.T @ x[u][there[u]])
        np.testing.assert_allclose(got[u], base[u] + q @ p, atol=1e-4)


def test_fold_in_without_ratings_against_the_dense_formula():
    """p = (Qᵀ C Q + λI)⁻¹ Qᵀ C x with C = 1 + α x over the whole catalogue."""
    model = solve("als", IMPLICIT, embedding_size=3, reg=2.0, alpha=7.0)
    x, _ = dense(IMPLICIT)
    q = model.factors.double().numpy()
    got = scores(model, IMPLICIT)
    for u in range(len(x)):
        c = np.diag(1 + 7.0 * x[u])
        p = np.linalg.solve(q.T @ c @ q + 2.0 * np.eye(3), q.T @ c @ x[u])
        np.testing.assert_allclose(got[u], q @ p, atol=1e-4)


FEW = IMPLICIT.of(np.arange(3))  # some items have nobody


@pytest.mark.parametrize("size", [3, 7, 20])  # fewer than a history, about as many, more
@pytest.mark.parametrize("table", [RATED, IMPLICIT, FEW], ids=["ratings", "implicit", "few"])
def test_als_against_loops(table, size):
    """Two rounds of both halves, from the same beginning."""
    reg, alpha = 2.0, 7.0
    x, there = dense(table)
    weight = np.where(there, 1.0, 0.0)
    if table.implicit:
        weight = 1 + alpha * x
    else:
        x = residuals(table, 5.0)[0]
    draw = torch.Generator().manual_seed(derive(4, "als"))
    q = torch.randn(len(table.items), size, generator=draw).double().numpy() * 0.1

    def half(fixed, x, weight):
        return np.array(
            [
                np.linalg.solve(fixed.T * w @ fixed + reg * np.eye(size), fixed.T * w @ row)
                for row, w in zip(x, weight, strict=True)
            ]
        )

    for _ in range(2):
        p = half(q, x, weight)
        q = half(p, x.T, weight.T)
    options = {"embedding_size": size, "reg": reg, "alpha": alpha, "epochs": 2}
    model = solve("als", table, seed=4, **options)
    np.testing.assert_allclose(model.factors, q, atol=1e-4)


def test_als_finds_a_low_rank_world():
    world = low_rank(80, 40, 2, np.random.default_rng(1), density=0.6, noise=0.05)
    model = solve("als", world.interactions, embedding_size=4, reg=0.5)
    user, item = np.divmod(np.arange(80 * 40), 40)
    wrong = scores(model, world.interactions).ravel() - world.truth(user, item)
    assert np.sqrt(np.mean(wrong**2)) < 0.4 * world.truth(user, item).std()


@pytest.mark.parametrize("name", ["ease", "item-knn", "als"])
def test_somebody_without_history(name):
    """Ratings: the item means. Without: what is popular, in that order."""
    nobody = Users(torch.tensor([-1]), History.empty(1))
    with torch.no_grad():
        rated = solve(name, RATED).rank(nobody)[0].numpy()
        unrated = solve(name, IMPLICIT).rank(nobody)[0].numpy()
    mean, b_i, _ = biases(RATED, 5.0)
    np.testing.assert_allclose(rated, mean + b_i, atol=1e-5)
    np.testing.assert_allclose(unrated, np.bincount(IMPLICIT.item, minlength=12), atol=1e-5)


@pytest.mark.parametrize("name", ["popularity", "bias", "item-knn", "ease", "als"])
def test_items_that_nobody_had_are_finite(name):
    """In the vocabulary, but without a row."""
    items = Vocab([*RATED.items.ids, "never"])
    for table in (RATED, IMPLICIT):
        if name == "bias" and table.implicit:
            continue
        wider = Interactions(
            table.users, items, table.user, table.item, table.rating, None, table.implicit
        )
        assert np.isfinite(scores(solve(name, wider), wider)).all()


@pytest.mark.parametrize("name", ["bias", "item-knn", "ease", "als"])
def test_row_order_does_not_matter(name):
    mixed = RATED.where(np.random.default_rng(3).permutation(len(RATED)))
    np.testing.assert_allclose(
        scores(solve(name, mixed), RATED), scores(solve(name, RATED), RATED), atol=1e-4
    )
