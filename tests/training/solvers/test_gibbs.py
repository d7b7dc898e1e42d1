"""The sampler against slow references, and against worlds whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from idcf.data.interactions import Interactions
from idcf.data.split import hold_out, hold_out_users, sample_users
from idcf.inference.scoring import rmse_on
from idcf.models.baselines import BiasConfig
from idcf.models.bayes import Bayes
from idcf.models.registry import configure
from idcf.testing.synthetic import low_rank
from idcf.training.solvers.bayes import Kept, _sides, bayes, directions
from idcf.training.solvers.bias import bias
from idcf.training.solvers.context import Work
from idcf.training.solvers.gibbs import Chain, Side, normal_wishart

torch.set_num_threads(1)
NOISE = 0.4
SMALL = {"embedding_size": 4, "rank": 6, "sweeps": 24, "burn_in": 12, "strength": 5.0}


@pytest.fixture(scope="module")
def world():
    return low_rank(150, 80, 2, np.random.default_rng(0), noise=NOISE, density=0.4)


def started(table: Interactions, **options: object) -> tuple[Chain, Bayes]:
    config = configure("idcf-bayes", {**SMALL, **options})
    model = Bayes(config, table.domain())
    keys = np.flatnonzero(table.counts())
    users, items = _sides(model, config, table.people(keys), None, Work(3))
    return Chain(users, items, config.freedom, 3), model


def moved(chain: Chain, sweeps: int) -> Chain:
    for _ in range(sweeps):
        chain.sweep()
    return chain


@pytest.mark.parametrize("which", ["users", "items"])
def test_conditionals_against_a_slow_loop(world, which: str) -> None:
    """The distribution that every row is drawn from, one row at a time in NumPy."""
    chain = moved(started(world.interactions)[0], 8)  # so that the links are in play
    side: Side = getattr(chain, which)
    other: Side = chain.items if which == "users" else chain.users
    alpha = chain.alpha * chain.weight
    _, mean, factor = chain._latent(side, other, alpha[:, None] if which == "users" else None)
    precision, offsets = side.precision.numpy(), side.history.offsets.tolist()
    latent = other.latent.double().numpy()
    for row in range(len(offsets) - 1):
        mine = slice(offsets[row], offsets[row + 1])
        theirs = latent[side.history.items[mine].numpy()]
        f = np.c_[theirs[:, :-1], np.ones(len(theirs))]
        t = side.history.values[mine].double().numpy() - theirs[:, -1]
        prior = side.mean.numpy() + side.features[row].numpy() @ side.link.numpy()
        who = side.history.items[mine] if which == "items" else torch.tensor([row] * len(t))
        a = alpha[who].double().numpy()
        left = precision + f.T * a @ f
        right = precision @ prior + f.T * a @ t
        np.testing.assert_allclose(mean[row].numpy(), np.linalg.solve(left, right), atol=2e-4)
        L = factor[row].double().numpy()
        np.testing.assert_allclose(L @ L.T, left, rtol=1e-4, atol=1e-3)


def test_draws_have_the_moments_they_are_drawn_from(world) -> None:
    chain = moved(started(world.interactions)[0], 3)
    drawn = [
        chain._latent(chain.users, chain.items, chain.alpha * chain.weight[:, None])
        for _ in range(1500)
    ]
    mean, factor = drawn[0][1][5], drawn[0][2][5]
    rows = torch.stack([x[0][5] for x in drawn])
    cover = torch.cholesky_inverse(factor)
    error = (rows.mean(0) - mean) / cover.diagonal().sqrt() * len(rows) ** 0.5
    assert error.abs().max() < 4.5
    torch.testing.assert_close(rows.T.cov(), cover, atol=0.1 * float(cover.max()), rtol=0.1)


def test_normal_wishart_has_the_moments_of_scipys() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)) @ np.diag([1.0, 0.5, 2.0]) + [1.0, 0.0, -1.0]
    means, precisions = (
        np.array(d) for d in zip(*(normal_wishart(x, rng) for _ in range(4000)), strict=True)
    )
    center, off = x.mean(0), x - x.mean(0)
    scatter = off.T @ off + 100 / 52 * np.outer(center, center) + np.eye(3)
    expected = stats.wishart(53, np.linalg.inv(scatter)).mean()
    np.testing.assert_allclose(precisions.mean(0), expected, rtol=0.05, atol=0.02)
    np.testing.assert_allclose(means.mean(0), 50 * center / 52, atol=0.02)


def test_noise_is_found(world) -> None:
    """The chain's α is that of the world, and held-out rows are predicted nearly as well as noise
    allows."""
    rest, held = hold_out(world.interactions, 0.1, np.random.default_rng(1))
    model = bayes(configure("idcf-bayes", {**SMALL, "freedom": float("inf")}), rest, Work(0))
    assert float(model.noise.mean()) == pytest.approx(1 / NOISE**2, rel=0.1)
    assert rmse_on(model, held, rest) < 1.15 * NOISE


def test_noisy_users_count_less(world) -> None:
    """Half of the people rate at random on top: the chain finds out which half."""
    table = world.interactions
    loud = np.random.default_rng(4).normal(0, 1.0, len(table)) * (table.user % 2)
    chain = started(replace(table, rating=(table.rating + loud).astype(np.float32)))[0]
    weight = moved(chain, 20).weight.numpy()
    assert weight[1::2].mean() < 0.4 * weight[::2].mean()
    assert np.average(weight, weights=table.counts()) == pytest.approx(1, rel=1e-4)


def test_newcomers_are_better_off_than_with_biases(world) -> None:
    rng = np.random.default_rng(2)
    away = sample_users(np.arange(150), 0.2, rng)
    rest, task = hold_out_users(world.interactions, away, (4, 12), rng)
    model = bayes(configure("idcf-bayes", SMALL), rest, Work(0))
    plain = bias(BiasConfig(), rest, Work())
    ours, theirs = (rmse_on(m, task.rows, task.seen) for m in (model, plain))
    assert ours < 0.8 * theirs


def test_a_block_of_one_sweep_is_a_sample(world) -> None:
    """The mean and the second moments of what the items were drawn from, and the noise."""
    chain, model = started(world.interactions, blocks=2)
    kept = Kept(
        model,
        world.interactions.people(np.arange(150)),
        configure("idcf-bayes", {**SMALL, "blocks": 2}),
        0,
    )
    for block in range(2):
        mean, factor = chain.sweep()
        kept.add(block, 1.0, chain, mean, factor)
        torch.testing.assert_close(model.means[:, block], mean)
        second = torch.cholesky_inverse(factor) + mean[:, :, None] * mean[:, None]
        torch.testing.assert_close(model.seconds[:, block][:, model.triangle], second)
        assert float(model.noise[block]) == pytest.approx(chain.alpha)


def test_pieces_are_pieces_of_the_histories(world) -> None:
    table = world.interactions.history(np.arange(150))
    model = started(world.interactions)[1]
    kept = Kept(
        model,
        world.interactions.people(np.arange(150)),
        configure("idcf-bayes", {**SMALL, "lengths": (2, 7)}),
        0,
    )
    seen = set()
    for _ in range(20):
        cut = kept._pieces()
        lengths = cut.lengths()
        assert lengths.min() >= 2
        assert lengths.max() <= 7
        seen |= set(lengths.tolist())
        for row in (0, 70, 149):
            own = table.items[table.offsets[row] : table.offsets[row + 1]].tolist()
            assert set(cut.items[cut.offsets[row] : cut.offsets[row + 1]].tolist()) <= set(own)
    assert seen == {2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("rank", [3, 200])
def test_directions_are_singular_vectors(world, rank: int) -> None:
    """As many as there are; the rest is zero."""
    history = world.interactions.history(np.arange(150))
    found = directions(history, 80, rank, 0).double().numpy()
    n = history.lengths().numpy()
    dense = np.zeros((150, 80))
    dense[history.owner().numpy(), history.items.numpy()] = np.repeat(1 / np.sqrt(n), n)
    values = np.linalg.svd(dense, compute_uv=False)
    mine = np.sort(np.linalg.norm(dense @ found, axis=0))[::-1]
    np.testing.assert_allclose(mine[: min(rank, 80)], values[: min(rank, 80)], atol=1e-5)
    assert found.shape == (80, rank)


def test_a_world_of_a_few_people_is_enough() -> None:
    table = low_rank(4, 5, 1, np.random.default_rng(0), noise=0.1, density=0.9).interactions
    model = bayes(configure("idcf-bayes", {"sweeps": 4, "burn_in": 8}), table, Work(0))
    assert np.isfinite(rmse_on(model, table, table))
