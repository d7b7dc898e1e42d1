"""Conformal intervals against their definition, on simulated users, and on a synthetic world."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from idcf.data.interactions import Interactions
from idcf.data.split import hold_out_users, sample_users
from idcf.inference.scoring import interaction_std, score_interactions
from idcf.metrics.calibration import interval_half_width
from idcf.models.bayes import INTERVAL_LEVELS, BayesModel
from idcf.models.registry import configure
from idcf.testing.synthetic import low_rank
from idcf.training import size_limits
from idcf.training.solvers import SolverContext, bayes
from idcf.training.solvers.bayes import fit_bayes
from idcf.training.solvers.blockwise_gibbs import BlockwiseSampler
from idcf.training.solvers.conformal_intervals import (
    MAX_TARGETS,
    MAX_USERS,
    MIN_USERS,
    N_FOLDS,
    HeldOutErrors,
    calibrate,
    plan_folds,
)

SMALL = {"embedding_size": 4, "rank": 6, "sweeps": 24, "burn_in": 12, "shrinkage": 5.0}
LENGTHS = (2, 6)


@pytest.fixture(scope="module")
def table() -> Interactions:
    """400 users with 5 to 16 of 60 items each."""
    rows = low_rank(400, 60, 2, np.random.default_rng(0), noise=0.4, density=0.3).interactions
    rng = np.random.default_rng(1)
    return rows.where(rng.random(len(rows)) < rng.uniform(0.3, 0.9, 400)[rows.user])


def simulated_errors(n_users: int, rng: np.random.Generator) -> HeldOutErrors:
    """Draw the errors of users who differ in their number of rows and in their noise."""
    user = np.repeat(np.arange(n_users), rng.integers(1, 9, n_users))
    scale = rng.gamma(4, 0.25, n_users)
    return HeldOutErrors(user, np.abs(rng.standard_t(4, len(user))) * scale[user])


@pytest.mark.parametrize("n_users", [20, 137])
def test_half_widths_against_their_definition(n_users: int) -> None:
    errors = simulated_errors(n_users, np.random.default_rng(2))
    by_user = [errors.z[errors.user == u] for u in range(n_users)]
    candidates = np.sort(errors.z)
    shares = np.array([sum(np.mean(z <= h) for z in by_user) / (n_users + 1) for h in candidates])
    for level, half_width in zip(INTERVAL_LEVELS, errors.half_widths(), strict=True):
        reached = candidates[shares >= level - 1e-9]
        assert half_width == min(reached, default=np.inf)
    assert np.isinf(errors.half_widths()[-1]) == (n_users == 20)  # 99 % of 21 users


def test_a_rating_of_an_exchangeable_user_is_inside_often_enough() -> None:
    """Between the level and what K + 1 adds to it, over draws of K users and of a new one."""
    rng, level, n_users, inside = np.random.default_rng(3), 0.9, 24, []
    position = INTERVAL_LEVELS.index(level)
    for _ in range(3000):
        errors = simulated_errors(n_users + 1, rng)
        is_new = errors.user == n_users
        known = HeldOutErrors(errors.user[~is_new], errors.z[~is_new])
        inside.append(np.mean(errors.z[is_new] <= known.half_widths()[position]))
    std_error = np.std(inside) / len(inside) ** 0.5
    assert level - 3 * std_error < np.mean(inside) < level + 2 / (n_users + 1)


def new_model(table: Interactions) -> BayesModel:
    """Return a model that is not fitted."""
    return BayesModel(configure("idcf-bayes", SMALL), table.domain())


@pytest.mark.parametrize("n_users", [MIN_USERS, 500])
def test_intervals_grow_with_the_level(table: Interactions, n_users: int) -> None:
    model, context = new_model(table), SolverContext(0)
    errors = simulated_errors(n_users, np.random.default_rng(4))
    calibrate(model, errors, context)
    levels = np.linspace(0.001, 0.9999, 4001)
    half_widths = np.array([model.interval_ratio(x) * interval_half_width(x) for x in levels])
    assert (np.diff(half_widths) > -1e-6).all()
    scale, at_90 = float(model.std_scale), errors.half_widths()[INTERVAL_LEVELS.index(0.9)]
    expected = pytest.approx(at_90, rel=1e-5)
    assert scale * model.interval_ratio(0.9) * interval_half_width(0.9) == expected
    assert context.details["interval_users"] == n_users
    assert context.details["interval_rows"] == len(errors.z)
    assert context.details["intervals"] == "held-out users"


def test_too_few_users_leave_normal_intervals(table: Interactions) -> None:
    model, context = new_model(table), SolverContext(0)
    calibrate(model, simulated_errors(MIN_USERS - 1, np.random.default_rng(5)), context)
    assert (model.interval_ratios == 1).all()
    assert context.details["intervals"] == "too few users to hold out"


def test_folds_are_light_users_with_histories_as_short_as_those_of_new_users(table) -> None:
    context = SolverContext(0, new_user_lengths=np.array([2, 3, 4, 4]))
    folds = list(plan_folds(table, 0.05, (1, 29), context, np.random.default_rng(0)))
    counts = table.user_counts()
    users = np.concatenate([fold.users for fold in folds])
    assert len(users) == len(np.unique(users)) == MAX_USERS
    assert counts[users].max() <= np.sort(counts)[MAX_USERS]
    assert len(folds) == N_FOLDS - 1  # of at most a quarter of the users
    for fold in folds:
        assert len(fold.users) <= len(counts) / N_FOLDS
        history, targets = fold.task.history_table, fold.task.target_table
        assert set(np.unique(targets.user)) == set(fold.users.tolist())
        lengths = history.user_counts()[fold.users]
        full = counts[fold.users]
        assert (lengths >= np.minimum(2, full - 1)).all()
        assert lengths.max() <= 4
        assert targets.user_counts().max() <= MAX_TARGETS
        pairs = {*zip(history.user.tolist(), history.item.tolist(), strict=True)}
        assert pairs.isdisjoint(zip(targets.user.tolist(), targets.item.tolist(), strict=True))


def test_users_who_are_trained_on_are_drawn_as_their_rows_are(table) -> None:
    context = SolverContext(0, query_users_in_table=True)
    counts, heavy = table.user_counts(), 0
    for seed in range(20):
        users = [
            x.users for x in plan_folds(table, 0.05, LENGTHS, context, np.random.default_rng(seed))
        ]
        heavy += np.isin(np.argsort(-counts)[:20], np.concatenate(users)).sum()
    assert heavy > 0.85 * 400  # three quarters of all users are drawn
    (first, *_) = plan_folds(table, 0.05, LENGTHS, context, np.random.default_rng(0))
    share = first.task.history_table.user_counts()[first.users] / counts[first.users]
    assert 0.6 < share.mean() < 0.85


def test_there_are_no_folds_of_a_handful_of_users(table) -> None:
    few = table.for_users(np.arange(MIN_USERS - 1))
    rng = np.random.default_rng(0)
    assert not list(plan_folds(few, 0.05, LENGTHS, SolverContext(0), rng))


@pytest.mark.parametrize("start", ["_initialize_sampler", "_initialize_blocks"])
def test_removed_users_do_not_touch_the_items(table: Interactions, start: str) -> None:
    """With their ratings multiplied by ten, the next draws are the same."""
    config = configure("idcf-bayes", SMALL)
    removed = torch.zeros(400, dtype=torch.bool)
    removed[::3] = True
    latents = []
    for factor in (1.0, 10.0):
        model = new_model(table)
        key_users = table.build_users(np.arange(400))
        sampler = getattr(bayes, start)(model, config, key_users, None, SolverContext(3))
        part = sampler.without_users(removed)
        if factor != 1:
            for side in (sampler.users, sampler.items):  # the parts do not share the ratings
                ratings = side.ratings.values if hasattr(side, "ratings") else None
                for x in [ratings] if ratings is not None else [b.ratings for b in side.whole_rows]:
                    x.mul_(factor)
        for _ in range(9):
            part.sweep()
        latents.append(part.items.latents)
        lengths = (
            part.users.lengths
            if isinstance(part, BlockwiseSampler)
            else part.users.ratings.lengths()
        )
        assert (lengths[removed] == 0).all()
        assert (lengths[~removed].numpy() == table.user_counts()[~removed.numpy()]).all()
    torch.testing.assert_close(latents[0], latents[1])
    assert latents[0].abs().max() > 0


@pytest.mark.parametrize("is_large", [False, True])
def test_intervals_cover_new_users(table: Interactions, monkeypatch, is_large: bool) -> None:
    """Noise of another distribution than the model's, and a manifest that says what it rests on."""
    monkeypatch.setattr(bayes, "is_large_table", lambda *_: is_large)
    monkeypatch.setattr(size_limits, "LARGE_TABLE_SWEEPS", 1.0)
    rng = np.random.default_rng(6)
    noise = rng.normal(0, rng.choice([0.3, 2.5], len(table), p=[0.85, 0.15]))
    noisy = replace(table, rating=(table.rating + noise).astype(np.float32))
    held_out = sample_users(np.arange(400), 0.4, rng)
    train_rows, task = hold_out_users(noisy, held_out, LENGTHS, rng)
    context = SolverContext(0, new_user_lengths=np.arange(*LENGTHS))
    config = configure("idcf-bayes", {**SMALL, "sweeps": 60, "burn_in": 20})
    model = fit_bayes(config, train_rows, context)
    targets, history = task.target_table, task.history_table
    error = np.abs(score_interactions(model, targets, history, anonymous=True) - targets.rating)
    std = interaction_std(model, targets, history, anonymous=True)
    for level in (0.5, 0.9):
        half_width = model.interval_ratio(level) * interval_half_width(level) * std
        assert np.mean(error <= half_width) == pytest.approx(level, abs=0.05)
    assert np.mean(error <= interval_half_width(0.5) * std) > 0.57  # a normal one is too wide
    assert context.details["interval_users"] == (train_rows.user_counts() > 1).sum()
