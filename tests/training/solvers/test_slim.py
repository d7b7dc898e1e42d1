"""SLIM against scikit-learn's elastic net, item by item."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import ElasticNet

from idcf.models.registry import configure
from idcf.training.solvers import slim
from idcf.training.solvers.item_item import first_per_row

RNG = np.random.default_rng(0)
X = (RNG.random((80, 14)) < RNG.random(14)).astype(np.float32)
X[:, 5] = 0  # an item without users


def weights(x, **options):
    """Return the weights of SLIM [I, I]."""
    return slim.slim_weights(csr_array(x), configure("slim", options)).toarray()


def elastic_net(x, item, others, l1_reg, reg):
    """Return the weights of some items for one item, by scikit-learn."""
    x, total = x.astype(np.float64), (l1_reg + reg) / len(x)
    model = ElasticNet(
        total, l1_ratio=l1_reg / (l1_reg + reg), positive=True, fit_intercept=False, tol=1e-9
    )
    return model.set_params(max_iter=100_000).fit(x[:, others], x[:, item]).coef_


@pytest.mark.parametrize(("l1_reg", "reg"), [(0.5, 2.0), (3.0, 0.1), (0.01, 30.0)])
def test_all_items_as_neighbors(l1_reg, reg):
    actual = weights(X, neighbors=100, l1_reg=l1_reg, reg=reg)
    assert (actual >= 0).all()
    assert 0 < (actual > 0).sum() < actual.size
    for item in range(X.shape[1]):
        others = np.delete(np.arange(X.shape[1]), item)
        expected = elastic_net(X, item, others, l1_reg, reg) if X[:, item].any() else 0
        np.testing.assert_allclose(actual[others, item], expected, atol=2e-4)
    assert not np.diag(actual).any()


def test_only_the_nearest_items_have_weights():
    counts = X.sum(0)
    cosine = (X.T @ X) / np.sqrt((counts + 20) * (counts[:, None] + 20))
    np.fill_diagonal(cosine, -1)
    actual = weights(X, neighbors=4, l1_reg=0.1, reg=1.0)
    for item in np.flatnonzero(counts):
        nearest = np.argsort(-cosine[item], kind="stable")[:4]
        expected = np.zeros(X.shape[1])
        expected[nearest] = elastic_net(X, item, nearest, 0.1, 1.0)
        np.testing.assert_allclose(actual[:, item], expected, atol=2e-4)


def test_blocks_and_sparse_products_change_nothing(monkeypatch):
    expected = weights(X, neighbors=6)
    monkeypatch.setattr(slim, "_MAX_BLOCK_CELLS", 150)
    np.testing.assert_allclose(weights(X, neighbors=6), expected, atol=1e-5)
    monkeypatch.setattr(slim, "_MAX_DENSE_ITEMS", 0)
    np.testing.assert_allclose(weights(X, neighbors=6), expected, atol=1e-5)


def test_a_strong_penalty_leaves_nothing():
    assert not weights(X, l1_reg=1000.0).any()


def test_the_first_entries_of_rows():
    matrix = np.array([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 5.0], [2.0, 2.0, 2.0, 2.0]])
    actual = first_per_row(csr_array(matrix), 2).toarray()
    assert actual.tolist() == [[0, 3, 3, 0], [0, 0, 0, 5], [2, 2, 0, 0]]
