"""Both samplers leave the joint distribution of their model invariant. After Geweke 2004.

Parameters and ratings are drawn from the model, and some sweeps follow: the parameters must still
be distributed as the prior. Independent repetitions instead of one long chain make the standard
errors exact. The functions compared are bounded, because the prior has no second moments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from idcf.models.layers.ragged import transpose
from idcf.training.solvers import bayes
from idcf.training.solvers.bayes import GibbsSampler, GibbsSide
from idcf.training.solvers.blockwise_gibbs import (
    FEATURE_WARMUP_SWEEPS,
    BlockwiseSampler,
    BlockwiseSide,
)
from idcf.training.solvers.normal_wishart import FeatureWeights, sample_noise
from idcf.types import Ragged

N_USERS, N_ITEMS, SIZE, N_FEATURES = 5, 4, 2, 3
SHRINKAGE, NOISE_DOF = 2.0, 6.0
N_REPETITIONS, N_SWEEPS = 400, 5
MAX_Z = 4.5

Array = np.ndarray[Any, np.dtype[np.float64]]
Sampler = GibbsSampler | BlockwiseSampler


class SideDraw(NamedTuple):
    """The parameters of the users, or of the items."""

    precision: Array  # Λ
    mean: Array  # m
    weights: Array  # B
    latents: Array


def draw_side(features: Array, rng: np.random.Generator) -> SideDraw:
    """Draw the parameters of a side from the prior."""
    root = rng.normal(size=(SIZE, SIZE))
    precision = root @ root.T  # Wishart(D, I)
    columns = np.linalg.inv(np.linalg.cholesky(precision))
    mean = rng.normal(size=SIZE) @ columns / 2.0**0.5
    weights = rng.normal(size=(N_FEATURES, SIZE)) @ columns / SHRINKAGE**0.5
    noise = rng.normal(size=(len(features), SIZE)) @ columns
    return SideDraw(precision, mean, weights, mean + features @ weights + noise)


def statistics(sides: list[SideDraw], noise_precision: float, user_weights: Array) -> Array:
    """Return bounded functions of the parameters, and products of some of them."""
    values = []
    for side in sides:
        values += [np.linalg.slogdet(side.precision)[1] / 4, np.log(side.precision[1, 1]) / 2]
        values += [side.precision[0, 1], *side.mean]
        values += [np.log(np.square(side.weights).mean()) / 4, side.weights[0, 1]]
        values += [np.log(np.square(side.latents).mean()) / 4, side.latents[0, 1]]
        values += [side.weights[0] @ side.precision @ side.weights[0] - 1]
    values += [np.log(noise_precision) / 2, np.log(noise_precision * user_weights[0]) / 2]
    values += [user_weights[0] - 1, user_weights.mean() - 1]
    bounded = np.tanh(values)
    return np.concatenate([bounded, bounded[:-1] * bounded[1:], np.square(bounded)])


def invariance_scores(kind: str, n_repetitions: int = N_REPETITIONS) -> Array:
    """Return by how many standard errors the sweeps move the mean of each statistic."""
    rng = np.random.default_rng(0)
    raw = [rng.normal(size=(n, N_FEATURES)) for n in (N_USERS, N_ITEMS)]
    changes = []
    for repetition in range(n_repetitions):
        generator = torch.Generator().manual_seed(repetition)
        features = [(x - x.mean(0)) / x.std(0) for x in raw]
        draws = [draw_side(x, rng) for x in features]
        user_weights = rng.gamma(NOISE_DOF / 2, 2 / NOISE_DOF, N_USERS)
        noise_precision = rng.gamma(1.0)
        p, q = (x.latents for x in draws)
        score = p[:, :1] @ q[:, :1].T + p[:, 1:] + q[:, 1]
        scale = 1 / np.sqrt(noise_precision * user_weights)
        ratings = score + scale[:, None] * rng.normal(size=score.shape)
        sampler = start(kind, ratings, raw, generator, repetition)
        for side, draw in zip((sampler.users, sampler.items), draws, strict=True):
            side.precision, side.mean = (
                torch.from_numpy(draw.precision),
                torch.from_numpy(draw.mean),
            )
            side.feature_weights = torch.from_numpy(draw.weights)
            side.latents = torch.from_numpy(draw.latents)
        sampler.noise_precision = float(noise_precision)
        sampler.user_weights = torch.from_numpy(user_weights)
        before = statistics(draws, noise_precision, user_weights)
        for _ in range(N_SWEEPS):
            sampler.sweep()
        after = [
            SideDraw(
                *(x.double().numpy() for x in (s.precision, s.mean, s.feature_weights, s.latents))
            )
            for s in (sampler.users, sampler.items)
        ]
        weights = sampler.user_weights.double().numpy()
        changes.append(statistics(after, sampler.noise_precision, weights) - before)
    array = np.array(changes)
    scores: Array = array.mean(0) / array.std(0) * n_repetitions**0.5
    return scores


def start(
    kind: str, ratings: Array, raw: list[Array], generator: torch.Generator, seed: int
) -> Sampler:
    """Return a sampler of one kind; every user has rated every item."""
    columns = torch.arange(N_ITEMS).repeat(N_USERS)
    values = torch.from_numpy(ratings.ravel())
    by_user = Ragged(columns, values, torch.arange(N_USERS + 1) * N_ITEMS)
    by_item = transpose(by_user, N_ITEMS).rows
    features = [torch.from_numpy(x) for x in raw]
    sampler: Sampler
    if kind == "all rows at once":
        users, items = (
            GibbsSide.initialize(r, x, SHRINKAGE, SIZE, generator)
            for r, x in zip((by_user, by_item), features, strict=True)
        )
        sampler = GibbsSampler(users, items, NOISE_DOF, seed)
    else:
        first, second = (
            BlockwiseSide.initialize(r, x, SHRINKAGE, SIZE, generator, n)
            for r, x, n in zip((by_user, by_item), features, (N_ITEMS, N_USERS), strict=True)
        )
        sampler = BlockwiseSampler(first, second, NOISE_DOF, seed)
    sampler.n_sweeps = FEATURE_WARMUP_SWEEPS
    return sampler


@pytest.mark.parametrize("kind", ["all rows at once", "blocks of rows"])
def test_sweeps_leave_the_joint_distribution_invariant(kind: str) -> None:
    scores = invariance_scores(kind)
    assert np.abs(scores).max() < MAX_Z, np.round(scores, 1)


def test_a_conditional_without_the_feature_weights_is_noticed(monkeypatch) -> None:
    """λBᵀB is part of the scale of Λ's conditional."""
    monkeypatch.setattr(FeatureWeights, "scatter", lambda _: 0.0)
    assert np.abs(invariance_scores("all rows at once", 150)).max() > 2 * MAX_Z


def test_rescaled_user_weights_are_noticed(monkeypatch) -> None:
    """Weights are not scaled to a mean of 1 after they are drawn."""

    def scaled(*arguments: Any) -> tuple[float, Array]:
        noise_precision, weights = sample_noise(*arguments)
        return noise_precision, weights / weights.mean()

    monkeypatch.setattr(bayes, "sample_noise", scaled)
    assert np.abs(invariance_scores("all rows at once", 150)).max() > 2 * MAX_Z
