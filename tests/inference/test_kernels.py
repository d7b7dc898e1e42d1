"""Standard deviations of the kernels against those of the model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from idcf.data.history_reader import NewUser, as_users
from idcf.errors import ConfigError
from idcf.inference.kernels import BayesPosteriorKernel, MatrixVectorProduct
from idcf.inference.topk import CatalogRanker
from idcf.models.bayes import BayesModel, Moments
from idcf.models.options import BayesConfig
from idcf.models.registry import configure, model_entry
from idcf.testing.synthetic import checkerboard

ITEMS, BLOCKS, SIZE = 37, 3, 5
EMPTY_ROWS = torch.zeros(1, 0, dtype=torch.int64)


def random_model() -> BayesModel:
    """Return a posterior whose every tensor changes the scores."""
    torch.manual_seed(0)
    domain = checkerboard(50, ITEMS, np.random.default_rng(0)).domain()
    model = BayesModel(BayesConfig(embedding_size=SIZE - 1, blocks=BLOCKS, rank=3), domain)
    root = torch.randn(ITEMS, BLOCKS, SIZE, SIZE) * 0.2
    means = torch.randn(ITEMS, BLOCKS, SIZE) * 0.5
    moments = Moments.from_mean_and_covariance(means, root @ root.mT)
    model.means.copy_(moments.means)
    model.second_moments.copy_(moments.second_moments)
    for tensor in (
        model.prior_information,
        model.basis,
        model.empty_history_offset,
        model.selection_coefficients,
        model.mean_key_latent,
    ):
        tensor.copy_(torch.randn_like(tensor) * 0.3)
    model.noise_precision.copy_(torch.rand(BLOCKS) + 0.5)
    model.std_scale.fill_(1.2)
    return model


def test_standard_deviations_and_vectors_equal_those_of_the_model() -> None:
    model, rng = random_model(), np.random.default_rng(1)
    new_users = [
        NewUser(
            np.sort(rng.choice(ITEMS, n, replace=False)), rng.integers(1, 6, n).astype(np.float32)
        )
        for n in (1, 2, 9, 30)
    ]
    users, rows = as_users(new_users), torch.from_numpy(rng.integers(0, ITEMS, (4, 7)))
    ranker = CatalogRanker(model)
    scorer = ranker.single_user_scorer
    assert scorer is not None
    assert scorer.rating_std is not None
    kernel = BayesPosteriorKernel(model)
    posterior = kernel.posterior(users)
    expected = model.predictive_std(users, rows, torch.arange(4))
    torch.testing.assert_close(kernel.rating_std(posterior, rows), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ranker.rating_std(users, rows), expected)
    embeddings = kernel.embed_users(users, posterior)
    for fast, slow in zip(embeddings, model.embed_users(users), strict=True):
        torch.testing.assert_close(fast, slow)
    ranked = ranker.top_k_block(embeddings, 5, users.history)
    whole = ranker.top_k(users, 5, users.history)
    assert torch.equal(ranked.item_rows, whole.item_rows)
    torch.testing.assert_close(ranked.scores, whole.scores)
    for user, item_rows, row in zip(new_users, rows.numpy(), expected.numpy(), strict=True):
        std = scorer.rating_std(user.item_rows, user.values, item_rows)
        np.testing.assert_allclose(std, row, rtol=1e-4)


def test_one_pass_gives_the_list_and_the_deviations_of_its_items() -> None:
    model, rng = random_model(), np.random.default_rng(2)
    new_users = [
        NewUser(rng.choice(ITEMS, n, replace=False), rng.integers(1, 6, n).astype(np.float32))
        for n in (1, 4, 20)
    ]
    users, ranker = as_users(new_users), CatalogRanker(model)
    ranked, std = ranker.top_k_block_with_std(users, 6, users.history)
    whole = ranker.top_k(users, 6, users.history)
    assert torch.equal(ranked.item_rows, whole.item_rows)
    expected = model.predictive_std(users, whole.item_rows, torch.arange(3))
    torch.testing.assert_close(std, expected, rtol=1e-5, atol=1e-5)
    ranker._posterior_kernel = None  # as for a model that has no kernel
    slow_ranked, slow_std = ranker.top_k_block_with_std(users, 6, users.history)
    assert torch.equal(slow_ranked.item_rows, whole.item_rows)
    torch.testing.assert_close(slow_std, expected)


@pytest.mark.parametrize("has_features", [False, True])
@pytest.mark.parametrize("n", [0, 1, 12])
def test_deviations_of_one_user_equal_those_of_the_model(n: int, has_features: bool) -> None:
    model, rng = random_model(), np.random.default_rng(n)
    user = NewUser(rng.choice(ITEMS, n, replace=False), rng.integers(1, 6, n).astype(np.float32))
    features = np.ones(2, np.float32) if has_features else None
    target_rows = np.array([0, 36, 5, 5])
    std = CatalogRanker(model).rating_std_of_one_user(
        user.item_rows, user.values, features, target_rows
    )
    expected = model.predictive_std(
        as_users([user]), torch.from_numpy(target_rows)[None], torch.zeros(1, dtype=torch.int64)
    )
    np.testing.assert_allclose(std, expected[0].numpy(), rtol=1e-4)  # the prior reads no features


def test_a_model_without_deviations_says_so() -> None:
    domain = checkerboard(20, ITEMS, np.random.default_rng(0)).domain()
    ranker = CatalogRanker(model_entry("bias").build(configure("bias"), domain))
    with pytest.raises(ConfigError, match="has no standard deviations of ratings; use a model"):
        ranker.rating_std(as_users([NewUser(np.array([1]), np.ones(1, np.float32))]), EMPTY_ROWS)


@pytest.mark.parametrize("max_numpy_size", [1, 1 << 20])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (0, 4)])
def test_the_product_does_not_depend_on_the_library(
    shape: tuple[int, int], max_numpy_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idcf.inference.kernels._MAX_NUMPY_TABLE_SIZE", max_numpy_size)
    rng = np.random.default_rng(0)
    matrix, vector = (rng.normal(size=x).astype(np.float32) for x in (shape, shape[1]))
    product = MatrixVectorProduct(matrix)(vector)
    assert product.dtype == np.float32
    np.testing.assert_allclose(product, matrix @ vector, rtol=1e-5)
