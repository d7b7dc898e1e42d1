"""The sampler of large tables against that of small ones: both draw from one distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array

from idcf.data.interactions import Interactions
from idcf.data.split import hold_out_users, sample_users
from idcf.inference.scoring import rmse_on
from idcf.models.bayes import BayesModel
from idcf.models.registry import configure
from idcf.testing.synthetic import low_rank
from idcf.training import size_limits
from idcf.training.solvers import SolverContext, bayes, blockwise_gibbs
from idcf.training.solvers.bayes import GibbsSampler, fit_bayes
from idcf.training.solvers.blockwise_gibbs import (
    BlockwiseSampler,
    BlockwiseSide,
    MomentSums,
    _Conditional,
    _gather,
    _vector_table,
    divide_rows,
)
from idcf.training.solvers.singular_directions import leading_directions
from idcf.types import Ragged

SMALL = {"embedding_size": 6, "rank": 5, "sweeps": 24, "burn_in": 12, "shrinkage": 5.0}
LONG = 24  # ratings; longer rows are taken in parts


@pytest.fixture(scope="module")
def table() -> Interactions:
    """A table whose users have 1 to 40 ratings, and that ends with an item that nobody rated."""
    rows = low_rank(120, 61, 2, np.random.default_rng(0), noise=0.4, density=0.7).interactions
    rng = np.random.default_rng(1)
    longest = rng.integers(1, 41, 120)
    rank = np.zeros(len(rows), int)
    order = np.lexsort((rng.random(len(rows)), rows.user))
    start = np.concatenate([[0], np.cumsum(rows.user_counts())])
    rank[order] = np.arange(len(rows)) - start[rows.user[order]]
    return rows.where((rank < longest[rows.user]) & (rows.item < 60))


@pytest.fixture
def samplers(table, monkeypatch) -> tuple[GibbsSampler, BlockwiseSampler, BayesModel]:
    """Both samplers in one state, reached by some sweeps of the sampler of small tables."""
    monkeypatch.setattr(blockwise_gibbs, "MAX_CHUNK_LENGTH", LONG)
    monkeypatch.setattr(blockwise_gibbs, "_MAX_BLOCK_ROWS", 7)
    config = configure("idcf-bayes", SMALL)
    model = BayesModel(config, table.domain())
    key_users = table.build_users(np.flatnonzero(table.user_counts()))
    small = bayes._initialize_sampler(model, config, key_users, None, SolverContext(3))
    large = bayes._initialize_blocks(model, config, key_users, None, SolverContext(3))
    for _ in range(9):  # past the warm-up of the feature weights
        small.sweep()
    for side, copy in ((small.users, large.users), (small.items, large.items)):
        copy.latents = side.latents.clone() * (copy.lengths > 0)[:, None]
        copy.mean, copy.precision = side.mean, side.precision
        copy.feature_weights = side.feature_weights
        side.features = copy.features.double()  # standardized over the rows with ratings
    large.user_weights, large.noise_precision = small.user_weights, small.noise_precision
    large.n_sweeps = small.n_sweeps
    return small, large, model


def test_blocks_hold_every_rating_once(table, monkeypatch) -> None:
    monkeypatch.setattr(blockwise_gibbs, "MAX_CHUNK_LENGTH", LONG)
    history = table.history(np.flatnonzero(table.user_counts()))
    ratings = Ragged(history.items, history.values, history.offsets)
    whole, parts = divide_rows(ratings, 61)
    entries = []
    for block in (*whole, *parts):
        is_entry = block.others < 61
        assert not block.ratings[~is_entry].any()
        assert is_entry.sum(1).min() * 1.125 + 1 > block.others.shape[1]  # little padding
        rows = block.rows[:, None].expand_as(block.others)[is_entry]
        entries += zip(
            rows.tolist(), block.others[is_entry].tolist(), block.ratings[is_entry].tolist(),
            strict=True,
        )  # fmt: skip
    expected = zip(
        history.owner().tolist(), history.items.tolist(), history.values.tolist(), strict=True
    )
    assert sorted(entries) == sorted(expected)
    lengths = history.lengths()
    assert parts
    assert all((lengths[block.rows] > LONG).all() for block in parts)
    assert all((lengths[block.rows] <= LONG).all() for block in whole)


@pytest.mark.parametrize("side_name", ["users", "items"])
def test_the_moments_are_those_of_the_sampler_of_small_tables(samplers, side_name: str) -> None:
    """Rows of n ratings by n × n equations, others by D × D, long ones in parts, empty ones."""
    small, large, model = samplers
    root = (small.noise_precision * small.user_weights).sqrt()
    if side_name == "users":
        _, mean, factor = small._sample_latents(small.users, small.items, root.square()[:, None])
        arguments = (large.users, _vector_table(small.items.latents), root)
    else:
        _, mean, factor = small._sample_latents(small.items, small.users, None)
        arguments = (large.items, _vector_table(small.users.latents, root), None)
    size = mean.shape[1]
    moments = MomentSums(
        torch.zeros(mean.shape), torch.zeros(len(mean), size * (size + 1) // 2), 1.0
    )
    large.sample_latents(*arguments, moments)
    arguments[0].copy_prior_moments(moments.means, moments.second_moments)
    lengths = arguments[0].lengths
    assert (lengths < size / 2).any()
    assert (lengths > LONG).any()
    assert side_name == "users" or (lengths == 0).any()
    torch.testing.assert_close(moments.means, mean, atol=2e-4, rtol=2e-4)
    second = torch.cholesky_inverse(factor) + mean[:, :, None] * mean[:, None]
    torch.testing.assert_close(
        moments.second_moments[:, model.packed_index], second, atol=3e-4, rtol=3e-4
    )


@pytest.mark.parametrize("n", [2, 9])
def test_draws_have_the_moments_they_are_drawn_from(n: int) -> None:
    """Many rows with the same vectors and targets, by n × n equations and by D × D ones."""
    generator, n_rows, size = torch.Generator().manual_seed(0), 60_000, 5
    x = torch.randn(n, size + 1, generator=generator)
    root = torch.randn(size, size, generator=generator).double()
    precision, prior = root @ root.T + torch.eye(size), torch.randn(size, generator=generator)
    rows = torch.arange(n_rows)
    moments = MomentSums(torch.zeros(n_rows, size), torch.zeros(n_rows, 15), 1.0)
    noise = torch.randn(n_rows, size, generator=generator)
    conditional = _Conditional(precision, prior.expand(n_rows, -1), noise, moments)
    if n == 2:
        drawn = conditional.draw_short(rows, x.expand(n_rows, -1, -1), generator)
    else:
        centered = x.clone()
        centered[:, -1] -= x[:, :-1] @ prior
        drawn = conditional.draw(rows, (centered.T @ centered).expand(n_rows, -1, -1))
    posterior_precision = precision + (x[:, :-1].T @ x[:, :-1]).double()
    covariance = posterior_precision.inverse()
    mean = covariance @ (precision @ prior.double() + (x[:, :-1].T @ x[:, -1]).double())
    error = (drawn.double().mean(0) - mean) / covariance.diagonal().sqrt() * n_rows**0.5
    assert error.abs().max() < 4.5
    torch.testing.assert_close(drawn.double().T.cov(), covariance, atol=0.02, rtol=0.02)
    torch.testing.assert_close(moments.means[0].double(), mean, atol=1e-5, rtol=1e-5)


def test_hyperparameters_from_sums_are_those_from_rows(samplers) -> None:
    """Of the users, all of whom have ratings."""
    small, large, _ = samplers
    large.users.gram_inverse = small.users.gram_inverse
    for sampler in (small, large):
        sampler.rng = np.random.default_rng(7)
        sampler._sample_hyperparameters(sampler.users)
    for name in ("mean", "precision", "feature_weights"):
        torch.testing.assert_close(
            getattr(large.users, name), getattr(small.users, name), atol=1e-3, rtol=1e-3
        )


def test_items_without_ratings_do_not_enter_the_hyperparameters(samplers) -> None:
    _, large, _ = samplers
    items = large.items
    assert (items.latents[items.lengths == 0] == 0).all()
    rated = items.lengths > 0
    assert items.features[rated].mean(0).abs().max() < 1e-5
    torch.testing.assert_close(
        items.gram, (items.features[rated].T @ items.features[rated]).double(), atol=1e-3, rtol=1e-4
    )
    changed = BlockwiseSide(**{**items.__dict__, "features": items.features.clone()})
    changed.features[~rated] = 1e3
    for side in (items, changed):
        large.rng = np.random.default_rng(7)
        large._sample_hyperparameters(side)
    torch.testing.assert_close(changed.mean, items.mean, atol=1e-9, rtol=0)


def test_the_noise_is_drawn_from_the_same_squared_errors(samplers) -> None:
    small, large, _ = samplers
    for sampler in (small, large):
        sampler.rng = np.random.default_rng(7)
        sampler._sample_noise()
    assert large.noise_precision == pytest.approx(small.noise_precision, rel=1e-4)
    torch.testing.assert_close(large.user_weights, small.user_weights, atol=1e-4, rtol=1e-4)


def test_padding_adds_nothing() -> None:
    latents = torch.randn(4, 3)
    table = _vector_table(latents)
    block = blockwise_gibbs.RowBlock(
        torch.tensor([0]), torch.tensor([[2, 4]], dtype=torch.int32), torch.tensor([[1.5, 0.0]])
    )
    vectors = _gather(table, block)
    expected = torch.tensor([*latents[2, :2].tolist(), 1.0, 1.5 - float(latents[2, 2])])
    torch.testing.assert_close(vectors[0, 0], expected)
    assert not vectors[0, 1].any()


def test_items_of_equal_features_share_their_prior() -> None:
    ratings = Ragged(torch.tensor([0, 1]), torch.ones(2), torch.tensor([0, 0, 1, 1, 2, 2, 2]))
    features = torch.tensor([[1.0], [0], [2], [5], [1], [2]])
    side = BlockwiseSide.initialize(ratings, features, 1.0, 3, torch.Generator(), 2)
    assert side.prior_rows.tolist() == [0, 2, 0, 2]  # of the rows 0, 2, 4, 5
    sums = torch.arange(6.0)
    side.copy_prior_moments(sums)
    assert sums.tolist() == [0, 1, 2, 3, 0, 2]


def test_leading_directions_explain_what_singular_vectors_do() -> None:
    matrix = random_array((400, 300), density=0.05, rng=np.random.default_rng(0), format="csr")
    vectors = leading_directions(csr_matrix(matrix), 8, np.random.default_rng(1))
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(8), atol=1e-5)
    exact = np.linalg.svd(matrix.toarray(), compute_uv=False)[:8]
    assert np.square(matrix @ vectors).sum() > 0.97 * np.square(exact).sum()
    norms = np.linalg.norm(matrix @ vectors, axis=0)
    assert (np.diff(norms) < 0).all()


def fit_large(table: Interactions, monkeypatch, seed: int = 0) -> BayesModel:
    """Fit as a large table is fitted, with all rows and the sweeps of `SMALL`."""
    monkeypatch.setattr(bayes, "is_large_table", lambda *_: True)
    monkeypatch.setattr(size_limits, "LARGE_TABLE_SWEEPS", 1.0)
    return fit_bayes(configure("idcf-bayes", SMALL), table, SolverContext(seed))


def test_the_number_of_threads_does_not_matter(table, monkeypatch) -> None:
    n_threads = torch.get_num_threads()
    states = []
    for n in (1, 3):
        torch.set_num_threads(n)
        try:
            states.append(fit_large(table, monkeypatch).state_dict())
            assert torch.get_num_threads() == n
        finally:
            torch.set_num_threads(n_threads)
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=1e-5, rtol=1e-5, msg=name)


def test_new_users_are_predicted_as_by_the_sampler_of_small_tables(monkeypatch) -> None:
    world = low_rank(300, 80, 2, np.random.default_rng(0), noise=0.4, density=0.4).interactions
    rng = np.random.default_rng(2)
    rows, task = hold_out_users(world, sample_users(np.arange(300), 0.3, rng), (4, 12), rng)

    def rmse(model: BayesModel) -> float:
        """Return the error on the held-out users."""
        return rmse_on(model, task.target_table, task.history_table)

    seeds = range(3)
    small = [rmse(fit_bayes(configure("idcf-bayes", SMALL), rows, SolverContext(x))) for x in seeds]
    large = [rmse(fit_large(rows, monkeypatch, seed)) for seed in seeds]
    assert np.mean(large) == pytest.approx(np.mean(small), abs=0.01)
