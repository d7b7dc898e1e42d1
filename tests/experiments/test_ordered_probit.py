"""The ordered-probit likelihood of the experiment against brute force."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy import stats

from idcf.data.interactions import Interactions, Vocab
from idcf.data.split import split_by_key_users
from idcf.inference.scoring import rmse_on
from idcf.models.bayes import BayesConfig
from idcf.models.layers.ragged import transpose
from idcf.training.solvers.bayes import GibbsSide
from idcf.training.solvers.blockwise_gibbs import FEATURE_WARMUP_SWEEPS
from idcf.training.train import TrainingJob, train
from idcf.types import History, Ragged, Users

ROOT = Path(__file__).resolve().parents[2]
N_REPETITIONS = 300  # of the joint-distribution test


@pytest.fixture(scope="module")
def study() -> ModuleType:
    """The module `experiments/ordered_probit.py`."""
    sys.path.insert(0, str(ROOT / "experiments"))
    try:
        return importlib.import_module("ordered_probit")
    finally:
        sys.path.remove(str(ROOT / "experiments"))


@pytest.fixture(scope="module")
def joint() -> ModuleType:
    """The module of the joint-distribution test of the Gaussian samplers."""
    folder = str(ROOT / "tests" / "training" / "solvers")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("test_joint_distribution")
    finally:
        sys.path.remove(folder)


BOUNDS = [(-np.inf, -1.0), (-0.5, 2.0), (1.0, 1.2), (3.0, np.inf), (-9.0, -8.0), (8.0, 8.5)]


def test_moments_of_truncated_normals_against_a_grid(study: ModuleType) -> None:
    low, high = (torch.tensor(x, dtype=torch.float64) for x in zip(*BOUNDS, strict=True))
    generator = torch.Generator().manual_seed(0)
    n = 40_000
    draws = study.draw_truncated_normal(
        low.expand(n, -1).clone(), high.expand(n, -1).clone(), generator
    ).numpy()
    means = study.truncated_normal_mean(low, high).numpy()
    masses = study.interval_probability(low, high).numpy()
    for k, (a, b) in enumerate(BOUNDS):
        grid = np.linspace(max(a, -12), min(b, 12), 200_001)
        density = np.exp(-np.square(grid) / 2) / np.sqrt(2 * np.pi)
        step = grid[1] - grid[0]
        mass = density.sum() * step
        mean = (density @ grid) * step / mass
        std = np.sqrt((density @ np.square(grid - mean)) * step / mass)
        assert masses[k] == pytest.approx(mass, rel=1e-3)
        assert means[k] == pytest.approx(mean, abs=1e-3)
        assert abs(draws[:, k].mean() - mean) < 5 * std / n**0.5 + 1e-4
        assert draws[:, k].std() == pytest.approx(std, rel=0.03)
        assert ((draws[:, k] >= a) & (draws[:, k] <= b)).all()


def cut_statistics(cuts: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return functions of the cut points, and of the shares of the levels between them."""
    return np.concatenate([cuts[1:-1], np.diff(cuts) * shares, np.diff(cuts) ** 2])


def ordered_scores(study: ModuleType, joint: ModuleType, n_sweeps: int) -> np.ndarray:
    """Return by how many standard errors sweeps move the mean of each statistic."""
    rng = np.random.default_rng(0)
    sizes, n_features = (joint.N_USERS, joint.N_ITEMS), joint.N_FEATURES
    raw = [rng.normal(size=(n, n_features)) for n in sizes]
    levels = torch.arange(5.0, dtype=torch.float64) - 2
    fixed = study.midpoints(levels).numpy()
    changes = []
    for repetition in range(N_REPETITIONS):
        generator = torch.Generator().manual_seed(repetition)
        features = [(x - x.mean(0)) / x.std(0) for x in raw]
        draws = [joint.draw_side(x, rng) for x in features]
        weights = rng.gamma(joint.NOISE_DOF / 2, 2 / joint.NOISE_DOF, joint.N_USERS)
        alpha = rng.gamma(1.0)
        cuts = np.sort(rng.uniform(fixed[0], fixed[-1], 2))
        cuts = np.concatenate([fixed[:1], cuts, fixed[-1:]])
        p, q = (x.latents for x in draws)
        mean = p[:, :1] @ q[:, :1].T + p[:, 1:] + q[:, 1]
        utilities = mean + rng.normal(size=mean.shape) / np.sqrt(alpha * weights)[:, None]
        ratings = levels.numpy()[np.searchsorted(cuts, utilities)]
        sampler = ordered_sampler(study, joint, ratings, raw, generator, repetition, levels)
        for side, draw in zip((sampler.users, sampler.items), draws, strict=True):
            side.precision, side.mean = map(torch.from_numpy, (draw.precision, draw.mean))
            side.feature_weights = torch.from_numpy(draw.weights)
            side.latents = torch.from_numpy(draw.latents)
        sampler.noise_precision, sampler.user_weights = float(alpha), torch.from_numpy(weights)
        sampler.cut_points = torch.from_numpy(cuts)
        shares = np.bincount(sampler.level.numpy(), minlength=5)[1:-1] / ratings.size
        before = np.append(joint.statistics(draws, alpha, weights), cut_statistics(cuts, shares))
        for _ in range(n_sweeps):
            sampler.sweep()
        after = [
            joint.SideDraw(
                *(x.numpy() for x in (s.precision, s.mean, s.feature_weights, s.latents))
            )
            for s in (sampler.users, sampler.items)
        ]
        values = joint.statistics(after, sampler.noise_precision, sampler.user_weights.numpy())
        cut_values = cut_statistics(sampler.cut_points.numpy(), shares)
        changes.append(np.append(values, cut_values) - before)
    array = np.array(changes)
    scores: np.ndarray = array.mean(0) / array.std(0) * N_REPETITIONS**0.5
    return scores


def ordered_sampler(
    study: ModuleType, joint: ModuleType, ratings, raw, generator, seed, levels
) -> object:
    """Return a sampler of a table in which every user has rated every item."""
    n_users, n_items = ratings.shape
    columns = torch.arange(n_items).repeat(n_users)
    by_user = Ragged(
        columns, torch.from_numpy(ratings.ravel().copy()), torch.arange(n_users + 1) * n_items
    )
    users, items = (
        GibbsSide.initialize(r, torch.from_numpy(x), joint.SHRINKAGE, joint.SIZE, generator)
        for r, x in zip((by_user, transpose(by_user, n_items).rows), raw, strict=True)
    )
    sampler = study.OrderedSampler(users, items, joint.NOISE_DOF, seed, levels=levels)
    sampler.n_sweeps = FEATURE_WARMUP_SWEEPS
    return sampler


def test_sweeps_leave_the_joint_distribution_invariant(
    study: ModuleType, joint: ModuleType
) -> None:
    scores = ordered_scores(study, joint, 3)
    assert np.abs(scores).max() < joint.MAX_Z, np.round(scores, 1)


def test_cut_points_that_ignore_the_ratings_are_noticed(
    study: ModuleType, joint: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw_from_the_prior(sampler: Any, *_: Any) -> None:
        inner = np.sort(sampler.rng.uniform(*sampler.cut_points[[0, -1]].tolist(), 2))
        sampler.cut_points[1:-1] = torch.from_numpy(inner)

    monkeypatch.setattr(study.OrderedSampler, "_draw_cut_points", draw_from_the_prior)
    assert np.abs(ordered_scores(study, joint, 1)).max() > joint.MAX_Z


def test_the_posterior_of_a_new_user_by_brute_force(study: ModuleType) -> None:
    """Only the bias is free: its estimate is the mode of the posterior, near the mean."""
    domain = ordered_world(0).domain()
    config = BayesConfig(embedding_size=0, blocks=1, rank=4)
    model = study.OrderedBayesModel(config, domain).eval()
    levels = np.array(domain.levels)
    cuts = np.sort(np.random.default_rng(1).uniform(levels[0], levels[-1], len(levels) - 1))
    model.cut_points.copy_(torch.from_numpy(cuts)[None] - model.mean)
    model.noise_precision.fill_(1.7)
    model.means[:, 0, 0].copy_(torch.linspace(-0.5, 0.5, 60))
    model.second_moments[:, 0, 0].copy_(model.means[:, 0, 0].square())
    bounds = np.concatenate([[-np.inf], cuts, [np.inf]])
    for ratings in ([levels[0]] * 6, [levels[-1]] * 2 + [levels[1]], list(levels)):
        items = torch.arange(len(ratings))
        values = torch.tensor(np.array(ratings), dtype=torch.float32)
        user = Users(torch.tensor([-1]), History(items, values, torch.tensor([0, len(ratings)])))
        grid = np.linspace(-8, 8, 20_001)
        log = -0.5 * grid**2  # the prior of an unfitted model is N(0, 1)
        for item, rating in zip(items.tolist(), ratings, strict=True):
            score = model.mean + float(model.means[item, 0, 0]) + grid
            k = int(np.searchsorted(levels, rating))
            low, high = ((x - score) * 1.7**0.5 for x in bounds[k : k + 2])
            mass = study.interval_probability(torch.tensor(low), torch.tensor(high)).numpy()
            log += np.log(np.maximum(mass, 1e-300))
        weight = np.exp(log - log.max())
        mean, mode = float(weight @ grid / weight.sum()), float(grid[weight.argmax()])
        std = float(np.sqrt(weight @ np.square(grid - mean) / weight.sum()))
        estimates = []
        for n_steps in (study.N_UTILITY_STEPS, 40):
            with patch.object(study, "N_UTILITY_STEPS", n_steps):
                estimates.append(float(model.posterior(user).mean[0, 0, 0]))
        assert estimates[1] == pytest.approx(mode, abs=0.01 * std)
        assert estimates[0] == pytest.approx(mode, abs=0.2 * std)
        assert estimates[0] == pytest.approx(mean, abs=0.4 * std)


def ordered_world(seed: int) -> Interactions:
    """Ratings of five levels, three of which lie close together at the lower end."""
    rng = np.random.default_rng(seed)
    p, q = rng.normal(size=(240, 2)), rng.normal(size=(60, 2))
    utilities = 0.9 * p @ q.T + 0.3 * rng.normal(size=(240, 1)) + 0.3 * rng.normal(size=60)
    utilities += 0.3 * rng.normal(size=utilities.shape)
    stars = 1.0 + np.searchsorted([-0.9, -0.6, -0.3, 0.0], utilities)
    user, item = np.nonzero(rng.random(utilities.shape) < 0.5)
    rating = stars[user, item].astype(np.float32)
    return Interactions(Vocab(range(240)), Vocab(range(60)), user, item, rating)


def test_levels_at_uneven_distances_are_predicted_better(study: ModuleType) -> None:
    table = ordered_world(0)
    rng = np.random.default_rng(1)
    is_test = rng.random(len(table)) < 0.2
    split = split_by_key_users(table.where(~is_test), table.where(is_test), 10, "threshold")
    options = {"embedding_size": 3, "sweeps": 40, "burn_in": 20, "blocks": 2, "neighbors": 0}
    job = TrainingJob(split)
    test = split.test
    gaussian = train("idcf-bayes", job, options=options).model
    domain = job.training_table().domain()
    with study.ordered_probit(np.array(domain.levels), domain.mean):
        ordered = train("idcf-bayes", job, options=options).model
    assert rmse_on(ordered, test, split.train) < 0.97 * rmse_on(gaussian, test, split.train)


def test_the_page_says_what_the_rows_say() -> None:
    lines = (ROOT / "experiments/results/ordered-probit.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    page = (ROOT / "docs/negative-results.md").read_text(encoding="utf-8")
    names = {"ML-100K": "ml-100k", "Douban": "douban"}
    users = {"held-out key users": "validation", "test": "test"}
    table = re.findall(r"^\| (ML-100K|Douban), ([\w -]+) \| (.*) \|$", page, re.MULTILINE)
    table = [line for line in table if line[1] in users]
    assert len(table) == 4
    for dataset, group, cells in table:
        chosen = [r for r in rows if (r["dataset"], r["on"]) == (names[dataset], users[group])]
        by_run = {(r["likelihood"], r["seed"]): r for r in chosen}
        expected = []
        for metric in ("rmse", "nll", "log-score"):
            changes = np.array(
                [
                    by_run["ordered-probit", seed][metric] - by_run["gaussian", seed][metric]
                    for seed in range(3)
                ]
            )
            half_width = stats.t.ppf(0.975, 2) * changes.std(ddof=1) / 3**0.5
            expected.append(f"{changes.mean():+.4f} ± {half_width:.4f}".replace("0.", "."))
        shown = [x.strip().replace("−", "-") for x in cells.split("|")]
        assert shown[:3] == expected
