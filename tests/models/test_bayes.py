"""The posterior of a new user against brute force, its limits, and its uncertainty."""

import numpy as np
import pytest
import torch

from idcf.inference.topk import CatalogRanker
from idcf.models.bayes import BayesModel, packed_triangle_index
from idcf.models.options import BayesConfig
from idcf.models.registry import configure, model_entry
from idcf.testing.synthetic import checkerboard
from idcf.types import History, Users

ITEMS = 30


def random_model(
    size: int = 3, blocks: int = 2, *, item_noise: float = 0.3, seed: int = 0
) -> BayesModel:
    """A model of random moments, with positive definite covariances."""
    domain = checkerboard(40, ITEMS, np.random.default_rng(0)).domain()
    options = {"embedding_size": size, "blocks": blocks, "rank": 4}
    model = model_entry("idcf-bayes").build(configure("idcf-bayes", options), domain)
    assert isinstance(model, BayesModel)
    draw = torch.Generator().manual_seed(seed)
    for tensor in (
        model.means,
        model.prior_information,
        model.mean_key_latent,
        model.basis,
        model.feature_mean,
        model.empty_history_offset,
        model.selection_coefficients,
    ):
        tensor.copy_(torch.randn(tensor.shape, generator=draw) * 0.5)
    width = size + 1
    root = torch.randn(ITEMS, blocks, width, width, generator=draw) * item_noise
    second = root @ root.mT + model.means[..., :, None] * model.means[..., None, :]
    low = torch.tril_indices(width, width)
    model.second_moments.copy_(second[..., low[0], low[1]])
    root = torch.randn(blocks, width, width, generator=draw) * 0.5
    model.precision.copy_(root @ root.mT + torch.eye(width))
    model.noise_precision.copy_(torch.rand(blocks, generator=draw) + 1)
    model.feature_std.copy_(torch.rand(model.feature_std.shape, generator=draw) + 0.5)
    return model.eval()


def random_history(n: int, seed: int = 0, items: int = ITEMS) -> History:
    rng = np.random.default_rng(seed)
    rows = rng.choice(items, n, replace=n > items)
    values = rng.integers(1, 6, n).astype(np.float32)
    return History(torch.from_numpy(rows), torch.from_numpy(values), torch.tensor([0, n]))


def new_user(history: History) -> Users:
    return Users(torch.tensor([-1]), history)


def without_item_variance(model: BayesModel) -> BayesModel:
    """Set the covariances of the items to zero."""
    size = model.mean_key_latent.shape[1]
    low = torch.tril_indices(size, size)
    exact = model.means[..., :, None] * model.means[..., None, :]
    model.second_moments.copy_(exact[..., low[0], low[1]])
    return model


def prior_mean(model: BayesModel, history: History) -> torch.Tensor:
    information = model.prior_information[:, 0] + torch.einsum(
        "f,tfd->td", model.prior_features(new_user(history))[0], model.prior_information[:, 1:]
    )
    return torch.linalg.solve(model.precision, information)


def test_one_dimension_by_brute_force() -> None:
    """Only the bias is free: its posterior is integrated over a grid."""
    model, history = without_item_variance(random_model(size=0, blocks=1)), random_history(5)
    prior = float(prior_mean(model, history)[0, 0])
    grid = np.linspace(-10, 10, 200_001)
    log = -0.5 * float(model.precision[0, 0, 0]) * (grid - prior) ** 2
    for row, value in zip(history.items.tolist(), history.values.tolist(), strict=True):
        residual = value - model.mean - float(model.means[row, 0, 0]) - grid
        log -= 0.5 * float(model.noise_precision[0]) * residual**2
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    mean = weight @ grid
    posterior = model.posterior(new_user(history))
    assert float(posterior.mean[0, 0, 0]) == pytest.approx(mean, abs=1e-5)
    variance = weight @ (grid - mean) ** 2
    precision = float(posterior.precision_cholesky[0, 0, 0, 0]) ** 2
    assert 1 / precision == pytest.approx(variance, rel=1e-4)


def test_the_posterior_against_a_loop_over_items() -> None:
    """One rating at a time, with the covariances of the items, in plain matrices."""
    model, history = random_model(), random_history(7)
    posterior = model.posterior(new_user(history))
    size = model.mean_key_latent.shape[1]
    for block in range(2):
        matrix = model.precision[block].clone()
        rhs = model.precision[block] @ prior_mean(model, history)[block]
        for row, value in zip(history.items.tolist(), history.values.tolist(), strict=True):
            second = model.second_moments[row, block][packed_triangle_index(size)]
            q, b = model.means[row, block, :-1], model.means[row, block, -1]
            outer = torch.ones(size, size)
            outer[:-1, :-1], outer[-1, :-1], outer[:-1, -1] = second[:-1, :-1], q, q
            matrix += model.noise_precision[block] * outer
            r = value - model.mean
            rhs += model.noise_precision[block] * torch.cat(
                [r * q - second[:-1, -1], (r - b)[None]]
            )
        torch.testing.assert_close(posterior.mean[0, block], torch.linalg.solve(matrix, rhs))
        cholesky = posterior.precision_cholesky[0, block]
        torch.testing.assert_close(cholesky @ cholesky.T, matrix, rtol=1e-4, atol=1e-4)


def test_without_evidence_the_posterior_is_the_prior() -> None:
    """Empty history: the mean key latent. Uninformative ratings: the prior of their history."""
    model = random_model()
    empty = History.empty(1)
    torch.testing.assert_close(model.posterior(new_user(empty)).mean[0], model.mean_key_latent)
    scores = model.mean + model.means[..., -1].mean(1) + model.empty_history_offset
    torch.testing.assert_close(model.score_catalog(new_user(empty))[0], scores)
    history = random_history(3)
    model.noise_precision.mul_(1e-8)
    torch.testing.assert_close(
        model.posterior(new_user(history)).mean[0],
        prior_mean(model, history),
        atol=1e-4,
        rtol=1e-4,
    )


def test_a_huge_history_is_the_ridge_solution() -> None:
    model = without_item_variance(random_model(blocks=1))
    model.noise_precision.mul_(100)  # or the prior of so long a history would still count
    history = random_history(40_000)
    ones = torch.ones(len(history.items), 1)
    x = torch.cat([model.means[history.items, 0, :-1], ones], 1).double()
    target = (history.values - model.mean - model.means[history.items, 0, -1]).double()
    ridge = torch.linalg.solve(x.T @ x + 1e-3 * torch.eye(4), x.T @ target)
    torch.testing.assert_close(
        model.posterior(new_user(history)).mean[0, 0].double(), ridge, atol=2e-3, rtol=2e-3
    )


def test_one_dot_product_is_the_average_over_blocks() -> None:
    model, user = random_model(blocks=5), new_user(random_history(6))
    scores, offset = [], float(model.selection_offset(torch.tensor(6)))
    for block in range(5):
        p = model.posterior(user).mean[0, block]
        q = model.means[:, block]
        scores.append(model.mean + q[:, :-1] @ p[:-1] + p[-1] + q[:, -1] + offset)
    torch.testing.assert_close(model.score_catalog(user)[0], torch.stack(scores).mean(0))
    first = torch.stack(scores[:3]).mean(0)
    torch.testing.assert_close(model.first_blocks(3).score_catalog(user)[0], first)


def test_the_predictive_std_is_that_of_draws() -> None:
    """Draw user, item and noise in each block, and compare with the std of the ratings."""
    model, history = random_model(blocks=3), random_history(4)
    items = torch.tensor([[0, 7, 19]])
    std = model.predictive_std(new_user(history), items, torch.tensor([0]))[0]
    draw = torch.Generator().manual_seed(1)
    n, size = 400_000, model.mean_key_latent.shape[1]
    mean, cholesky = model.posterior(new_user(history))
    for column, row in enumerate(items[0].tolist()):
        ratings = []
        for block in range(3):
            noise = torch.randn(n, size, generator=draw)
            u = (
                mean[0, block]
                + torch.linalg.solve_triangular(cholesky[0, block].T, noise.T, upper=True).T
            )
            center = model.means[row, block]
            second = model.second_moments[row, block][packed_triangle_index(size)]
            root = torch.linalg.cholesky(second - center[:, None] * center)
            v = center + torch.randn(n, size, generator=draw) @ root.T
            y = (u[:, :-1] * v[:, :-1]).sum(1) + u[:, -1] + v[:, -1]
            ratings.append(y + torch.randn(n, generator=draw) / model.noise_precision[block].sqrt())
        assert float(torch.cat(ratings).std()) == pytest.approx(float(std[column]), rel=0.01)


@pytest.mark.parametrize("n", [1, 2, 9, 29])
def test_the_fast_kernel_gives_the_scores_of_the_model(n: int) -> None:
    model, history = random_model(size=6, blocks=3), random_history(n)
    expected = model.score_catalog(new_user(history))[0]
    fast = CatalogRanker(model).score_one_user(history.items.numpy(), history.values.numpy())
    torch.testing.assert_close(torch.from_numpy(fast), expected, rtol=1e-4, atol=1e-4)


def slow_predictive_std(
    model: BayesModel, users: Users, items: torch.Tensor, owner: torch.Tensor
) -> torch.Tensor:
    """Lay out every term of the variance per block, and average last."""
    mean, cholesky = model.posterior(users)
    covariance = torch.cholesky_inverse(cholesky)
    w = torch.cat([mean[..., :-1], torch.ones_like(mean[..., :1])], -1)
    square = w[..., :, None] * w[..., None, :]
    square[..., :-1, :-1] += covariance[..., :-1, :-1]
    item, second = model.means[items], model.second_moments[items][..., model.packed_index]
    expected = torch.einsum("mtd,mktd->mkt", w[owner], item)
    variance = torch.einsum("mtde,mktde->mkt", square[owner], second) - expected**2
    variance += 2 * torch.einsum("mtd,mktd->mkt", covariance[owner, :, :-1, -1], item[..., :-1])
    variance += covariance[owner, :, -1, -1][:, None]
    score = expected + mean[owner, :, -1][:, None]
    within = (variance.clamp(min=0) + 1 / model.noise_precision).mean(-1)
    return model.std_scale * (within + score.var(-1, correction=0)).sqrt()


def test_the_predictive_std_equals_a_slow_computation() -> None:
    model, histories = random_model(), [random_history(n) for n in (0, 1, 7)]
    users = Users(
        torch.full((3,), -1),
        History(
            torch.cat([x.items for x in histories]),
            torch.cat([x.values for x in histories]),
            torch.tensor([0, 0, 1, 8]),
        ),
    )
    items, owner = torch.arange(10).view(5, 2), torch.tensor([2, 0, 1, 0, 2])
    expected = slow_predictive_std(model, users, items, owner)
    torch.testing.assert_close(
        model.predictive_std(users, items, owner), expected, rtol=1e-5, atol=1e-6
    )


def test_a_longer_history_lowers_the_predictive_std() -> None:
    model, items = random_model(), torch.arange(ITEMS)[None]
    std = [
        model.predictive_std(new_user(random_history(n)), items, torch.tensor([0])).mean()
        for n in (1, 5, 20)
    ]
    assert std[0] > std[1] > std[2] > float((1 / model.noise_precision).mean().sqrt())


def test_defaults_are_those_of_the_config() -> None:
    assert configure("idcf-bayes") == BayesConfig()


def with_feature_weights(model: BayesModel) -> torch.Generator:
    """Let the model read two user features, with random weights; return the generator."""
    draw = torch.Generator().manual_seed(1)
    extra = torch.randn(2, 2, 4, generator=draw)
    model.prior_information = torch.cat([model.prior_information, extra], 1)
    model.feature_weights = torch.randn(2, 2, 4, generator=draw)
    return draw


def test_user_features_alone_move_the_mean_key_latent() -> None:
    """In each block by the weights of the features alone; features of 0 are no features."""
    model = random_model()
    with_feature_weights(model)
    empty, x = History.empty(3), torch.tensor([[0.0, 0.0], [1.0, -2.0], [0.5, 0.0]])
    users = Users(torch.full((3,), -1), empty, x)
    mean = model.posterior(users).mean
    for block in range(2):
        moved = x @ model.feature_weights[block]
        torch.testing.assert_close(mean[:, block], model.mean_key_latent[block] + moved)
    without_features = model.score_catalog(Users(users.ids, empty))
    scores = model.score_catalog(users)
    torch.testing.assert_close(scores[0], without_features[0])
    shift = (mean - model.mean_key_latent)[1]
    effect = (model.means[..., :-1] * shift[:, :-1]).sum(-1).mean(1) + shift[:, -1].mean()
    torch.testing.assert_close(scores[1], without_features[0] + effect, rtol=1e-4, atol=1e-5)


def test_user_features_in_batches_give_the_scores_of_single_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_model()
    draw = with_feature_weights(model)
    monkeypatch.setattr("idcf.inference.topk._MAX_SCORES_PER_BLOCK", 3 * ITEMS)
    monkeypatch.setattr("idcf.inference.topk._MIN_PRODUCT_USERS", 1)
    ranker, history = CatalogRanker(model), random_history(4)
    x = torch.randn(7, 2, generator=draw)
    offsets = torch.tensor([0, 0, 4, 4, 4, 4, 4, 4])
    top = ranker.top_k(Users(torch.full((7,), -1), history._replace(offsets=offsets), x), 5)
    for row in range(7):
        items, values = history.items.numpy(), history.values.numpy()
        if row != 1:
            items, values = items[:0], values[:0]
        scores = ranker.score_one_user(items, values, x[row].numpy())
        np.testing.assert_allclose(np.sort(scores)[::-1][:5], top.scores[row], rtol=1e-4)
