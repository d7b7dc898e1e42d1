"""Standard deviations of `PosteriorStd` against those of the model."""

from __future__ import annotations

import numpy as np
import torch

from idcf.data.history_reader import NewUser, as_users
from idcf.inference.kernels import BayesSingleUserScorer
from idcf.inference.topk import CatalogRanker
from idcf.inference.uncertainty import PosteriorStd
from idcf.models.bayes import BayesConfig, BayesModel, Moments
from idcf.testing.synthetic import checkerboard

ITEMS, BLOCKS, SIZE = 37, 3, 5


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
    assert isinstance(scorer, BayesSingleUserScorer)
    posterior_std = PosteriorStd(model)
    posterior = posterior_std.posterior(users)
    expected = model.predictive_std(users, rows, torch.arange(4))
    torch.testing.assert_close(posterior_std(posterior, rows), expected, rtol=1e-5, atol=1e-5)
    embeddings = posterior_std.embed_users(users, posterior)
    for fast, slow in zip(embeddings, model.embed_users(users), strict=True):
        torch.testing.assert_close(fast, slow)
    ranked = ranker.top_k_block(embeddings, 5, users.history)
    whole = ranker.top_k(users, 5, users.history)
    assert torch.equal(ranked.item_rows, whole.item_rows)
    torch.testing.assert_close(ranked.scores, whole.scores)
    for user, item_rows, row in zip(new_users, rows.numpy(), expected.numpy(), strict=True):
        std = scorer.rating_std(user.item_rows, user.values, item_rows)
        np.testing.assert_allclose(std, row, rtol=1e-4)
