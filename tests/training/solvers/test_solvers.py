"""The closed-form solvers against slow implementations of their definitions."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from idcf.data.interactions import Interactions, Vocab
from idcf.models.registry import configure, model_entry
from idcf.rng import derive_seed
from idcf.testing.synthetic import low_rank
from idcf.training.solvers import SolverContext, item_item
from idcf.training.solvers.bayes import fit_bayes
from idcf.types import History, Users

WORLD = low_rank(30, 12, 2, np.random.default_rng(0), density=0.5, noise=0.3)
RATED = WORLD.interactions
IMPLICIT = low_rank(30, 12, 2, np.random.default_rng(0), density=0.4, implicit=True).interactions


def solve(name, table, seed=0, **options):
    """Return the solved model."""
    solver = model_entry(name).load_solver()
    return solver(configure(name, options), table, SolverContext(seed)).eval()


def all_users(table):
    """Return the users of a table as new users."""
    rows = np.arange(len(table.users))
    return Users(torch.from_numpy(rows), table.history(rows)).anonymous()


def scores(model, table):
    """Return the scores of the catalogue for the users of a table [U, I]."""
    with torch.no_grad():
        return model.score_catalog(all_users(table)).numpy()


def dense(table, value=None):
    """Return the ratings (or `value`) as a matrix [U, I], and the mask of its entries."""
    x = np.zeros((len(table.users), len(table.items)))
    x[table.user, table.item] = table.rating if value is None else value
    observed = np.zeros_like(x, bool)
    observed[table.user, table.item] = True
    return x, observed


def biases(table, shrinkage, item_shrinkage=3.0, rounds=5):
    """Return μ, b_i and b_u by alternating ridge regression, in loops."""
    x, observed = dense(table)
    mean = table.rating.mean(dtype=np.float64)
    b_u, b_i = np.zeros(len(x)), np.zeros(x.shape[1])
    for _ in range(rounds):
        for i in range(x.shape[1]):
            raters = observed[:, i]
            total = (x[raters, i] - mean - b_u[raters]).sum()
            b_i[i] = total / (raters.sum() + item_shrinkage)
        for u in range(len(x)):
            b_u[u] = (x[u] - mean - b_i)[observed[u]].sum() / (observed[u].sum() + shrinkage)
    return mean, b_i, b_u


def residuals(table, shrinkage):
    """Return the residuals of the biases [U, I], the mask of ratings, and the bias scores."""
    mean, b_i, b_u = biases(table, shrinkage)
    x, observed = dense(table)
    return np.where(observed, x - mean - b_i - b_u[:, None], 0), observed, mean + b_i + b_u[:, None]


def test_popularity():
    model = solve("popularity", IMPLICIT)
    assert (scores(model, IMPLICIT) == np.bincount(IMPLICIT.item, minlength=12)).all()


@pytest.mark.parametrize("shrinkage", [2.0, 8.0])
def test_bias_against_loops(shrinkage):
    mean, b_i, b_u = biases(RATED, shrinkage)
    actual = scores(solve("bias", RATED, shrinkage=shrinkage), RATED)
    np.testing.assert_allclose(actual, mean + b_i + b_u[:, None], atol=1e-5)


def test_bias_is_near_the_joint_ridge_solution():
    """min Σ (r - μ - b_u - b_i)² + 3 Σ b_i² + 5 Σ b_u², solved at once."""
    n_users, n_items = len(RATED.users), len(RATED.items)
    design = np.zeros((len(RATED), n_users + n_items))
    design[np.arange(len(RATED)), RATED.user] = 1
    design[np.arange(len(RATED)), n_users + RATED.item] = 1
    ridge = np.diag([5.0] * n_users + [3.0] * n_items)
    centered = RATED.rating - RATED.rating.mean(dtype=np.float64)
    solution = np.linalg.solve(design.T @ design + ridge, design.T @ centered)
    model = solve("bias", RATED, shrinkage=5.0, item_shrinkage=3.0)
    np.testing.assert_allclose(model.item_bias, solution[n_users:], atol=0.02)


def test_item_mean():
    """With infinite shrinkage the score is μ plus the shrunk mean of the item."""
    x, observed = dense(RATED)
    mean = RATED.rating.mean(dtype=np.float64)
    expected = mean + np.where(observed, x - mean, 0).sum(0) / (observed.sum(0) + 3.0)
    actual = scores(solve("item-mean", RATED), RATED)
    np.testing.assert_allclose(actual, np.broadcast_to(expected, actual.shape), atol=1e-5)


def slow_ease(x, reg):
    """Solve argmin ‖X - XB‖² + λ‖B‖² with diag(B) = 0: one ridge regression per column."""
    weight = np.zeros((x.shape[1],) * 2)
    for j in range(x.shape[1]):
        others = np.delete(np.arange(x.shape[1]), j)
        a = x[:, others]
        weight[others, j] = np.linalg.solve(a.T @ a + reg * np.eye(len(others)), a.T @ x[:, j])
    return weight


@pytest.mark.parametrize("reg", [1.0, 30.0])
def test_ease_on_implicit_feedback(reg):
    x, _ = dense(IMPLICIT)
    weight = slow_ease(x, reg)
    model = solve("ease", IMPLICIT, reg=reg)
    np.testing.assert_allclose(model.item_weights.to_dense(), weight, atol=1e-5)
    np.testing.assert_allclose(scores(model, IMPLICIT), x @ weight, atol=1e-5)


def test_ease_on_ratings():
    x, _, base = residuals(RATED, 5.0)
    weight = slow_ease(x, 20.0)
    model = solve("ease", RATED, reg=20.0, shrinkage=5.0)
    np.testing.assert_allclose(model.item_weights.to_dense(), weight, atol=1e-5)
    np.testing.assert_allclose(scores(model, RATED), base + x @ weight, atol=1e-4)


@pytest.mark.parametrize("name", ["ease", "item-knn"])
def test_scaled_ratings_order_lists(name):
    """The matrix holds (r - 1) / 4; a history of lowest ratings says nothing."""
    x, observed = dense(RATED)
    levels = np.unique(RATED.rating)
    scaled = np.where(observed, (x - levels[0]) / (levels[-1] - levels[0]), 0)
    if name == "ease":
        weight = slow_ease(scaled, 20.0)
    else:
        weight = similarities(scaled, observed, 100, 10.0)
    model = solve(
        name, RATED, reg=20.0 if name == "ease" else 10.0, neighbors=100, ratings="scaled"
    )
    assert not model.predicts_ratings
    np.testing.assert_allclose(model.item_weights.to_dense(), weight, atol=1e-5)
    np.testing.assert_allclose(scores(model, RATED), scaled @ weight, atol=1e-5)
    lowest = History(torch.tensor([0, 3]), torch.full((2,), levels[0]), torch.tensor([0, 2]))
    with torch.no_grad():
        actual = model.score_catalog(Users(torch.tensor([-1]), lowest))[0].numpy()
    np.testing.assert_array_equal(actual, observed.sum(0))


@pytest.mark.parametrize("name", ["ease", "item-knn"])
def test_scaled_ratings_change_nothing_without_ratings(name):
    options = {"reg": 3.0, "neighbors": 5}
    expected = scores(solve(name, IMPLICIT, **options), IMPLICIT)
    actual = scores(solve(name, IMPLICIT, ratings="scaled", **options), IMPLICIT)
    np.testing.assert_array_equal(actual, expected)


def similarities(x, observed, neighbors, reg):
    """Cosines, shrunk by the number of common users; for each item those of its nearest."""
    n = x.shape[1]
    weight = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            common = (observed[:, i] & observed[:, j]).sum()
            cosine = x[:, i] @ x[:, j] / (np.linalg.norm(x[:, i]) * np.linalg.norm(x[:, j]))
            weight[j, i] = 0 if i == j else cosine * (common / (common + reg) if reg else 1)
        far = np.argsort(-np.abs(weight[:, i]), kind="stable")[neighbors:]
        weight[far, i] = 0
    return weight


@pytest.mark.parametrize("neighbors", [3, 100])
def test_item_knn_on_ratings(neighbors):
    x, observed, base = residuals(RATED, 5.0)
    weight = similarities(x, observed, neighbors, 10.0)
    model = solve("item-knn", RATED, neighbors=neighbors, reg=10.0, shrinkage=5.0)
    np.testing.assert_allclose(model.item_weights.to_dense(), weight, atol=1e-5)
    expected = base + (x @ weight) / (observed @ np.abs(weight) + 1)
    np.testing.assert_allclose(scores(model, RATED), expected, atol=1e-4)


def test_item_knn_on_implicit_feedback():
    x, observed = dense(IMPLICIT)
    weight = similarities(x, observed, 100, 0.0)
    model = solve("item-knn", IMPLICIT, neighbors=100, reg=0.0)
    np.testing.assert_allclose(scores(model, IMPLICIT), x @ weight, atol=1e-4)


def test_item_knn_on_implicit_feedback_shrinks_by_support():
    x, observed = dense(IMPLICIT)
    weight = similarities(x, observed, 4, 10.0)
    actual = solve("item-knn", IMPLICIT, neighbors=4, reg=10.0).item_weights.to_dense().numpy()
    floor = np.sort(np.abs(similarities(x, observed, 100, 10.0)), 0)[-4]
    above = weight > floor + 1e-6
    np.testing.assert_allclose(actual * above, weight * above, atol=1e-6)
    assert ((actual == 0) | (np.abs(actual) >= floor - 1e-6)).all()  # ties with the last stay


@pytest.mark.parametrize("users", [8, 40])
@pytest.mark.parametrize("neighbors", [3, 14, 100])
def test_ease_by_blocks_on_either_side(users, neighbors, monkeypatch):
    """With fewer users than items or more, in small blocks, and with an item that has no users:
    the largest entries of each column of the exact solution."""
    monkeypatch.setattr(item_item, "_MAX_BLOCK_CELLS", 50)
    rng = np.random.default_rng(users)
    x = (rng.random((users, 15)) * (rng.random((users, 15)) < 0.5)).astype(np.float32)  # no ties
    x[:, 6] = 0
    actual = item_item.ease_weights(csr_array(x), 5.0, neighbors).toarray()
    weight = slow_ease(x, 5.0)
    if neighbors < 15:
        floor = np.sort(np.abs(weight), 0)[-neighbors]
        weight[np.abs(weight) < np.maximum(floor, 1e-9)] = 0
    np.testing.assert_allclose(actual, weight, atol=1e-5)


@pytest.mark.parametrize("k", [1, 7, 300])
def test_the_largest_of_long_rows(k):
    """Also where the sample misleads: the large values of one row are outside the sample."""
    rng = np.random.default_rng(k)
    block = rng.normal(size=(5, 2000)).astype(np.float32)
    block[1, ::16] = 0
    block[2, ::16] *= 100
    block[3] = 0
    actual = item_item._largest_per_column(np.ascontiguousarray(block.T), k).toarray()
    floor = np.sort(np.abs(block), 1)[:, -k]
    np.testing.assert_array_equal(actual, np.where(np.abs(block) >= floor[:, None], block, 0))


def test_fold_in_on_ratings_against_ridge():
    """p = (Q_HᵀQ_H + λI)⁻¹ Q_Hᵀ (r - base), user by user, for new users."""
    model = solve("als", RATED, embedding_size=3, reg=2.0, shrinkage=5.0)
    x, observed, base = residuals(RATED, 5.0)
    q = model.factors.double().numpy()
    actual = scores(model, RATED)
    for u in range(len(x)):
        h = q[observed[u]]
        p = np.linalg.solve(h.T @ h + 2.0 * np.eye(3), h.T @ x[u][observed[u]])
        np.testing.assert_allclose(actual[u], base[u] + q @ p, atol=1e-4)


def test_fold_in_on_implicit_feedback_against_the_dense_formula():
    """p = (Qᵀ C Q + λI)⁻¹ Qᵀ C x with C = 1 + α x over the whole catalogue."""
    model = solve("als", IMPLICIT, embedding_size=3, reg=2.0, alpha=7.0)
    x, _ = dense(IMPLICIT)
    q = model.factors.double().numpy()
    actual = scores(model, IMPLICIT)
    for u in range(len(x)):
        c = np.diag(1 + 7.0 * x[u])
        p = np.linalg.solve(q.T @ c @ q + 2.0 * np.eye(3), q.T @ c @ x[u])
        np.testing.assert_allclose(actual[u], q @ p, atol=1e-4)


FEW = IMPLICIT.for_users(np.arange(3))  # some items have no users


@pytest.mark.parametrize("size", [3, 7, 20])  # fewer than a history, about as many, more
@pytest.mark.parametrize("table", [RATED, IMPLICIT, FEW], ids=["ratings", "implicit", "few"])
def test_als_against_loops(table, size):
    """Two alternations from the same initial factors."""
    reg, alpha = 2.0, 7.0
    x, observed = dense(table)
    weight = np.where(observed, 1.0, 0.0)
    if table.implicit:
        weight = 1 + alpha * x
    else:
        x = residuals(table, 5.0)[0]
    generator = torch.Generator().manual_seed(derive_seed(4, "als"))
    q = torch.randn(len(table.items), size, generator=generator).double().numpy() * 0.1

    def solve_side(fixed, x, weight):
        return np.array(
            [
                np.linalg.solve(fixed.T * w @ fixed + reg * np.eye(size), fixed.T * w @ row)
                for row, w in zip(x, weight, strict=True)
            ]
        )

    for _ in range(2):
        p = solve_side(q, x, weight)
        q = solve_side(p, x.T, weight.T)
    options = {"embedding_size": size, "reg": reg, "alpha": alpha, "epochs": 2}
    model = solve("als", table, seed=4, **options)
    np.testing.assert_allclose(model.factors, q, atol=1e-4)


def test_als_with_more_factors_than_a_chunk_has_entries():
    """Histories between one chunk (256 entries) and `embedding_size` are solved like long ones."""
    rng = np.random.default_rng(0)
    table = low_rank(12, 400, 2, rng, density=0.7, noise=0.1).interactions
    assert 256 < table.user_counts().min() <= table.user_counts().max() < 330
    model = solve("als", table, embedding_size=330, reg=5.0, epochs=1)
    assert np.isfinite(scores(model, table)).all()


def test_als_recovers_a_low_rank_matrix():
    world = low_rank(80, 40, 2, np.random.default_rng(1), density=0.6, noise=0.05)
    model = solve("als", world.interactions, embedding_size=4, reg=0.5)
    user, item = np.divmod(np.arange(80 * 40), 40)
    error = scores(model, world.interactions).ravel() - world.true_rating(user, item)
    assert np.sqrt(np.mean(error**2)) < 0.4 * world.true_rating(user, item).std()


def test_popularity_is_added_to_the_scores_of_als():
    options = {"embedding_size": 3, "reg": 2.0}
    plain = scores(solve("als", IMPLICIT, **options), IMPLICIT)
    actual = scores(solve("als", IMPLICIT, popularity_weight=0.3, **options), IMPLICIT)
    counts = np.bincount(IMPLICIT.item, minlength=12)
    np.testing.assert_allclose(actual, plain + 0.3 * np.log(1 + counts), atol=1e-5)
    rated = [scores(solve("als", RATED, popularity_weight=x, **options), RATED) for x in (0.0, 0.3)]
    np.testing.assert_array_equal(*rated)


@pytest.mark.parametrize("name", ["ease", "item-knn", "als"])
def test_a_user_without_history(name):
    """Ratings: the score is the item mean. Implicit feedback: it is the popularity."""
    user = Users(torch.tensor([-1]), History.empty(1))
    with torch.no_grad():
        rated = solve(name, RATED).score_catalog(user)[0].numpy()
        unrated = solve(name, IMPLICIT).score_catalog(user)[0].numpy()
    mean, b_i, _ = biases(RATED, 5.0)
    np.testing.assert_allclose(rated, mean + b_i, atol=1e-5)
    np.testing.assert_allclose(unrated, np.bincount(IMPLICIT.item, minlength=12), atol=1e-5)


@pytest.mark.parametrize("name", ["popularity", "bias", "item-knn", "ease", "slim", "als"])
def test_items_without_users_have_finite_scores(name):
    """An item that is in the vocabulary but has no row."""
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
    shuffled = RATED.where(np.random.default_rng(3).permutation(len(RATED)))
    np.testing.assert_allclose(
        scores(solve(name, shuffled), RATED), scores(solve(name, RATED), RATED), atol=1e-4
    )


@pytest.mark.parametrize("n_items", [1, 2, 4])
def test_cohorts_of_fewer_items_than_they_name(n_items: int) -> None:
    users = np.repeat(np.arange(400), n_items)
    items = np.tile(np.arange(n_items), 400)
    ratings = (1 + (users + items) % 5).astype(np.float32)
    table = Interactions(Vocab(range(400)), Vocab(range(n_items)), users, items, ratings)
    config = configure("idcf-bayes", {"embedding_size": 2, "rank": 2, "sweeps": 8, "burn_in": 2})
    model = fit_bayes(config, table, SolverContext(0))
    shown = model.cohort_items[model.cohort_sizes > 0]
    assert len(shown)
    assert ((shown < 0) | (shown < n_items)).all()
    assert all(len(set(x)) == len(x) for x in (row[row >= 0].tolist() for row in shown))
