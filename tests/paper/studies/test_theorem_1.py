"""Theorem 1 holds for the package's own IDCF, and would not for a model that broke its premise."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tables_world import small_dataset

from idcf.errors import ConfigError
from idcf.inference.scoring import score_interactions
from idcf.paper.studies import theorem_1
from idcf.testing import synthetic_world, trained_in_world
from idcf.training.job import LOCAL_RUNTIME
from idcf.types import Embeddings

WORLD = synthetic_world().split
# key users in the part of query users, as their histories are longer than a latent; with noise that
# no latent can fit
NOISE = np.random.default_rng(0).normal(0, 0.5, len(WORLD.train)).astype(np.float32)
SPLIT = replace(
    WORLD,
    train=replace(WORLD.train, rating=WORLD.train.rating + NOISE),
    query_users=WORLD.key_users[:30],
)
MODEL = trained_in_world("idcf-dot").model


def problems_of(model=MODEL, split=SPLIT):
    users = split.query_users
    return theorem_1.query_ratings(model, split.train.for_users(users), users)


def test_free_combinations_of_trained_key_users_reach_the_loss_of_free_latents():
    losses = theorem_1.reconstruction_losses(MODEL, SPLIT)
    keys = MODEL.key_latents
    assert np.linalg.matrix_rank(keys.numpy()) == keys.shape[1] < len(keys)
    assert losses["loss_free"] > 1e-3  # otherwise both would be 0
    assert losses["relative_difference"] < 1e-9
    assert losses["loss_free"] <= losses["loss_hull"] <= losses["loss_mean_key"]
    assert losses["loss_relation"] >= losses["loss_free"]


@pytest.mark.parametrize("broken", ["constant column", "one key user"])
def test_a_model_that_breaks_the_premise_is_noticed(broken):
    model = deepcopy(MODEL)
    if broken == "constant column":
        model.key_latents[:, 0] = 0
    else:
        model.key_latents = model.key_latents[:1].repeat(len(model.key_latents), 1)
    losses = theorem_1.reconstruction_losses(model, SPLIT)
    assert losses["relative_difference"] > 1e-3


def test_losses_are_those_of_the_scores_of_the_model():
    """The problem y ≈ X p is that of the package: its scores for a latent are X p + r - y."""
    users, rows = SPLIT.query_users, SPLIT.train.for_users(SPLIT.query_users)
    latents = theorem_1.free_latents(problems_of())
    table = torch.zeros(len(rows.users), latents.shape[1])
    table[users] = torch.from_numpy(latents).float()
    chosen = table[torch.from_numpy(rows.user)]
    with torch.no_grad():
        items = MODEL.embed_items(torch.from_numpy(rows.item))
        scores = MODEL.score_rows(Embeddings(chosen[:, :-1], chosen[:, -1]), items).numpy()
    loss = ((scores - rows.rating) ** 2).mean()
    assert problems_of().loss(latents) == pytest.approx(float(loss), rel=1e-4)


def test_the_hull_is_searched_as_by_a_general_solver():
    keys = MODEL.key_latents.double().numpy()[:6]
    problems = problems_of(split=replace(SPLIT, query_users=SPLIT.query_users[:3]))
    latents = theorem_1.hull_latents(problems, keys, 4000)
    for x, y, p in zip(problems.items, problems.residuals, latents, strict=True):
        solution = minimize(
            lambda c, x=x, y=y: ((y - x @ (c @ keys)) ** 2).sum(),
            np.full(6, 1 / 6),
            bounds=[(0, 1)] * 6,
            constraints={"type": "eq", "fun": lambda c: c.sum() - 1},
        )
        assert ((y - x @ p) ** 2).sum() == pytest.approx(solution.fun, rel=2e-3)
        weights, *_ = np.linalg.lstsq(np.vstack([keys.T, np.ones(6)]), np.append(p, 1), rcond=None)
        assert weights.min() > -1e-6


def test_a_row_has_losses_for_the_dot_product_only():
    data = small_dataset("ml-100k")
    points = theorem_1.theorem_1_points("ml-100k", 1)
    [dot] = theorem_1.measure_theorem_1(points[0], data, LOCAL_RUNTIME)
    assert dot["rank"] == min(dot["size"], dot["n_keys"]) == len(dot["singular_values"])
    [network] = theorem_1.measure_theorem_1(points[1], data, LOCAL_RUNTIME)
    assert "loss_free" in dot
    assert "loss_free" not in network
    with pytest.raises(ConfigError, match="'pmf' has no key latents"):
        theorem_1.measure_theorem_1({**points[0], "model": "pmf"}, data, LOCAL_RUNTIME)


def test_the_relation_is_measured_by_the_scores_that_are_served():
    rows = SPLIT.train.for_users(SPLIT.query_users)
    scores = score_interactions(MODEL, rows, SPLIT.train, anonymous=True)
    losses = theorem_1.reconstruction_losses(MODEL, SPLIT)
    assert losses["loss_relation"] == pytest.approx(float(((scores - rows.rating) ** 2).mean()))
