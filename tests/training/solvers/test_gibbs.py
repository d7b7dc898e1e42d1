"""The Gibbs sampler against slow references, and on synthetic data with known parameters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.sparse import csr_array

from idcf.data.interactions import Interactions
from idcf.data.split import hold_out_rows, hold_out_users, sample_users
from idcf.inference.scoring import rmse_on
from idcf.models.bayes import BayesModel
from idcf.models.options import BiasConfig
from idcf.models.registry import configure
from idcf.testing.synthetic import low_rank
from idcf.training.solvers import SolverContext
from idcf.training.solvers.bayes import (
    BlockAccumulator,
    GibbsSampler,
    GibbsSide,
    _initialize_sampler,
    fit_bayes,
    limit_work,
)
from idcf.training.solvers.bias import fit_bias
from idcf.training.solvers.normal_wishart import FeatureWeights, sample_normal_wishart
from idcf.training.solvers.singular_directions import (
    determine_signs,
    right_singular_vectors,
    singular_directions,
)

NOISE = 0.4
SMALL = {"embedding_size": 4, "rank": 6, "sweeps": 24, "burn_in": 12, "shrinkage": 5.0}


@pytest.fixture(scope="module")
def world():
    return low_rank(150, 80, 2, np.random.default_rng(0), noise=NOISE, density=0.4)


def new_sampler(table: Interactions, **options: object) -> tuple[GibbsSampler, BayesModel]:
    """Return a sampler in its initial state, and the model it belongs to."""
    config = configure("idcf-bayes", {**SMALL, **options})
    model = BayesModel(config, table.domain())
    key_users = table.build_users(np.flatnonzero(table.user_counts()))
    return _initialize_sampler(model, config, key_users, None, SolverContext(3)), model


def after_sweeps(sampler: GibbsSampler, n_sweeps: int) -> GibbsSampler:
    """Run the sampler and return it."""
    for _ in range(n_sweeps):
        sampler.sweep()
    return sampler


@pytest.mark.parametrize("side_name", ["users", "items"])
def test_conditionals_against_a_slow_loop(world, side_name: str) -> None:
    """The distribution that each row is drawn from, computed row by row in NumPy."""
    sampler = after_sweeps(
        new_sampler(world.interactions)[0], 8
    )  # past the warm-up of the feature weights
    side: GibbsSide = getattr(sampler, side_name)
    other_side: GibbsSide = sampler.items if side_name == "users" else sampler.users
    alpha = sampler.noise_precision * sampler.user_weights
    _, mean, factor = sampler._sample_latents(
        side, other_side, alpha[:, None] if side_name == "users" else None
    )
    precision, offsets = side.precision.numpy(), side.ratings.offsets.tolist()
    latent = other_side.latents.double().numpy()
    for row in range(len(offsets) - 1):
        entries = slice(offsets[row], offsets[row + 1])
        columns = side.ratings.indices[entries]
        others = latent[columns.numpy()]
        f = np.c_[others[:, :-1], np.ones(len(others))]
        t = side.ratings.values[entries].double().numpy() - others[:, -1]
        prior = side.mean.numpy() + side.features[row].numpy() @ side.feature_weights.numpy()
        users = columns if side_name == "items" else torch.tensor([row] * len(t))
        a = alpha[users].double().numpy()
        posterior_precision = precision + f.T * a @ f
        right = precision @ prior + f.T * a @ t
        np.testing.assert_allclose(
            mean[row].numpy(), np.linalg.solve(posterior_precision, right), atol=2e-4
        )
        L = factor[row].double().numpy()
        np.testing.assert_allclose(L @ L.T, posterior_precision, rtol=1e-4, atol=1e-3)


def test_draws_have_the_moments_they_are_drawn_from(world) -> None:
    sampler = after_sweeps(new_sampler(world.interactions)[0], 3)
    drawn = [
        sampler._sample_latents(
            sampler.users, sampler.items, sampler.noise_precision * sampler.user_weights[:, None]
        )
        for _ in range(1500)
    ]
    mean, factor = drawn[0][1][5], drawn[0][2][5]
    rows = torch.stack([x[0][5] for x in drawn])
    covariance = torch.cholesky_inverse(factor)
    error = (rows.mean(0) - mean) / covariance.diagonal().sqrt() * len(rows) ** 0.5
    assert error.abs().max() < 4.5
    torch.testing.assert_close(
        rows.T.cov(), covariance, atol=0.1 * float(covariance.max()), rtol=0.1
    )


@pytest.mark.parametrize("n_features", [0, 7])
def test_normal_wishart_has_the_moments_of_scipys(n_features: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)) @ np.diag([1.0, 0.5, 2.0]) + [1.0, 0.0, -1.0]
    weights = FeatureWeights(rng.normal(size=(n_features, 3)), 2.5)
    draws = [sample_normal_wishart(x, weights, rng) for _ in range(4000)]
    means, precisions = (np.array(d) for d in zip(*draws, strict=True))
    center, centered = x.mean(0), x - x.mean(0)
    scatter = centered.T @ centered + 100 / 52 * np.outer(center, center) + np.eye(3)
    scatter += 2.5 * weights.values.T @ weights.values
    expected = stats.wishart(53 + n_features, np.linalg.inv(scatter)).mean()
    np.testing.assert_allclose(precisions.mean(0), expected, rtol=0.05, atol=0.02)
    np.testing.assert_allclose(means.mean(0), 50 * center / 52, atol=0.02)


def test_the_noise_is_estimated(world) -> None:
    """α is that of the data, and the error on held-out rows is near the noise."""
    train_rows, targets = hold_out_rows(world.interactions, 0.1, np.random.default_rng(1))
    model = fit_bayes(
        configure("idcf-bayes", {**SMALL, "noise_dof": float("inf")}), train_rows, SolverContext(0)
    )
    assert float(model.noise_precision.mean()) == pytest.approx(1 / NOISE**2, rel=0.1)
    assert rmse_on(model, targets, train_rows) < 1.15 * NOISE


def test_noisy_users_have_less_weight(world) -> None:
    """Noise is added to the ratings of half of the users: the sampler gives it less weight."""
    table = world.interactions
    noise = np.random.default_rng(4).normal(0, 1.0, len(table)) * (table.user % 2)
    sampler = new_sampler(replace(table, rating=(table.rating + noise).astype(np.float32)))[0]
    weight = after_sweeps(sampler, 20).user_weights.numpy()
    assert weight[1::2].mean() < 0.4 * weight[::2].mean()
    mean_weight = np.average(weight, weights=table.user_counts())
    expected = sampler.noise_precision * mean_weight
    assert sampler.mean_noise_precision() == pytest.approx(expected, rel=1e-5)


def test_new_users_are_predicted_better_than_by_biases(world) -> None:
    rng = np.random.default_rng(2)
    held_out = sample_users(np.arange(150), 0.2, rng)
    train_rows, task = hold_out_users(world.interactions, held_out, (4, 12), rng)
    model = fit_bayes(configure("idcf-bayes", SMALL), train_rows, SolverContext(0))
    baseline = fit_bias(BiasConfig(), train_rows)
    targets, history = task.target_table, task.history_table
    assert rmse_on(model, targets, history) < 0.8 * rmse_on(baseline, targets, history)


def test_a_block_of_one_sweep_is_a_sample(world) -> None:
    """Its moments are those of the distribution that the items were drawn from."""
    sampler, model = new_sampler(world.interactions, blocks=2)
    blocks = BlockAccumulator(
        model,
        world.interactions.build_users(np.arange(150)),
        configure("idcf-bayes", {**SMALL, "blocks": 2}),
        0,
    )
    for block in range(2):
        mean, factor = sampler.sweep()
        blocks.add(block, 1.0, sampler, mean, factor)
        torch.testing.assert_close(model.means[:, block], mean)
        second = torch.cholesky_inverse(factor) + mean[:, :, None] * mean[:, None]
        torch.testing.assert_close(model.second_moments[:, block][:, model.packed_index], second)
        expected = pytest.approx(sampler.mean_noise_precision())
        assert float(model.noise_precision[block]) == expected


def test_short_histories_are_parts_of_the_histories(world) -> None:
    history = world.interactions.history(np.arange(150))
    model = new_sampler(world.interactions)[1]
    blocks = BlockAccumulator(
        model,
        world.interactions.build_users(np.arange(150)),
        configure("idcf-bayes", {**SMALL, "history_lengths": (2, 7)}),
        0,
    )
    seen_lengths = set()
    for _ in range(20):
        short = blocks._sample_short_histories()
        lengths = short.lengths()
        assert lengths.min() >= 2
        assert lengths.max() <= 7
        seen_lengths |= set(lengths.tolist())
        for row in (0, 70, 149):
            full = history.items[history.offsets[row] : history.offsets[row + 1]].tolist()
            part = short.items[short.offsets[row] : short.offsets[row + 1]].tolist()
            assert set(part) <= set(full)
    assert seen_lengths == {2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("rank", [3, 200])
def test_directions_are_singular_vectors(world, rank: int) -> None:
    """There are at most 80; the other columns are zero."""
    history = world.interactions.history(np.arange(150))
    vectors = singular_directions(history, 80, rank, 0).double().numpy()
    n = history.lengths().numpy()
    dense = np.zeros((150, 80))
    dense[history.owner().numpy(), history.items.numpy()] = np.repeat(1 / np.sqrt(n), n)
    values = np.linalg.svd(dense, compute_uv=False)
    norms = np.sort(np.linalg.norm(dense @ vectors, axis=0))[::-1]
    np.testing.assert_allclose(norms[: min(rank, 80)], values[: min(rank, 80)], atol=1e-5)
    assert vectors.shape == (80, rank)


@pytest.mark.parametrize("rank", [2, 6, 29])
@pytest.mark.parametrize("shape", [(90, 30), (30, 90)])
def test_singular_vectors_are_a_function_of_the_matrix(shape: tuple[int, int], rank: int) -> None:
    """Three kinds of users, so that all but three singular values are 0: a solver that goes on from
    vectors drawn at random gives others each time."""
    dense = np.zeros(shape)
    for kind, weight in enumerate((1.0, 0.7, 0.4)):
        dense[kind::3, kind::3] = weight
    matrix, start = csr_array(dense), np.ones(30)
    first, second = (right_singular_vectors(matrix, rank, start) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    n = min(rank, 3)
    np.testing.assert_array_equal(first[:, :-n], 0)
    np.testing.assert_allclose(first[:, -n:].T @ first[:, -n:], np.eye(n), atol=1e-10)
    values = np.linalg.svd(dense, compute_uv=False)[:n]
    np.testing.assert_allclose(np.linalg.norm(dense @ first, axis=0)[::-1][:n], values, atol=1e-6)


def test_signs_do_not_depend_on_rounding() -> None:
    """The largest entry decides, the first of equal ones; a column of zeros is unchanged."""
    vectors = torch.tensor([[0.1, 0.5, 0.0], [-0.7, -0.5, 0.0], [0.2, 0.1, 0.0]])
    expected = [[-0.1, 0.5, 0.0], [0.7, -0.5, 0.0], [-0.2, 0.1, 0.0]]
    for factor in (1, -1):
        for rounding in (1, 1 - 1e-6, 1 + 1e-6):
            column = torch.tensor([1, rounding, 1])[:, None]
            torch.testing.assert_close(
                determine_signs(factor * column * vectors), torch.tensor(expected)
            )


def test_a_fit_does_not_depend_on_the_signs_of_singular_vectors(world, monkeypatch) -> None:
    """They differ between processors, and decide what the chain draws."""
    config, module = configure("idcf-bayes", SMALL), "idcf.training.solvers.singular_directions"
    expected = fit_bayes(config, world.interactions, SolverContext(3))

    def negated(*arguments) -> np.ndarray:
        vectors = right_singular_vectors(*arguments)
        return vectors * (-1) ** np.arange(vectors.shape[1])

    monkeypatch.setattr(f"{module}.right_singular_vectors", negated)
    computed = fit_bayes(config, world.interactions, SolverContext(3))
    torch.testing.assert_close(computed.state_dict(), expected.state_dict())


def test_a_table_of_a_few_users_is_enough() -> None:
    table = low_rank(4, 5, 1, np.random.default_rng(0), noise=0.1, density=0.9).interactions
    model = fit_bayes(configure("idcf-bayes", {"sweeps": 4, "burn_in": 8}), table, SolverContext(0))
    assert np.isfinite(rmse_on(model, table, table))


def test_a_large_table_gets_fewer_sweeps_and_a_sample_of_its_users(world, monkeypatch) -> None:
    table, config = world.interactions, configure("idcf-bayes", {})
    context = SolverContext(0)
    assert limit_work(config, table, context) == (config, table)
    assert context.details["rows_used"] == len(table)
    monkeypatch.setattr("idcf.training.size_limits.LARGE_TABLE", 1000)
    monkeypatch.setattr("idcf.training.size_limits.MIN_SAMPLED_ROWS", 2000)
    monkeypatch.setattr("idcf.training.size_limits.SAMPLED_ROWS_PER_ITEM", 1)
    smaller, rows = limit_work(config, table, context)
    assert (smaller.burn_in, smaller.sweeps) == (12, 48)
    assert 1900 < len(rows) <= 2000
    full, counts = table.user_counts(), rows.user_counts()
    assert ((counts == 0) | (counts == full)).all()  # whole users
    assert context.details["key_users_used"] == (counts > 0).sum() < context.details["key_users"]
