"""The recency that the fit chooses: 0 where order says nothing, more where tastes drift."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import board

from idcf import Recommender
from idcf.data.interactions import Interactions, Vocab
from idcf.inference.model_card import render_model_card
from idcf.training.recency import VALUES, fit_recency


def drifting(n_users: int, rng: np.random.Generator) -> Interactions:
    """Return users who take up six items of one of ten groups, then six of another, and so on."""
    n_groups, group_size, n_stages = 10, 20, 5
    user, item = [], []
    for u in range(n_users):
        for group in rng.permutation(n_groups)[:n_stages]:
            items = group * group_size + rng.permutation(group_size)[:8]
            item += items.tolist()
            user += [u] * len(items)
    n = len(user)
    return Interactions(
        Vocab([f"u{x}" for x in range(n_users)]),
        Vocab([f"i{x}" for x in range(n_groups * group_size)]),
        np.array(user),
        np.array(item),
        np.ones(n, np.float32),
        np.arange(n),
        implicit=True,
    )


@pytest.mark.parametrize("name", ["idcf-takeup", "idcf-odds"])
def test_recency_helps_where_tastes_drift(name: str) -> None:
    rng = np.random.default_rng(0)
    table = drifting(300, rng)
    fitted = Recommender(name, device="cpu").fit(table)
    assert fitted.manifest.fitted_recency >= 0.1
    assert f"recency {fitted.manifest.fitted_recency}" in render_model_card(fitted.manifest)
    without_order = replace(table, time=rng.permutation(len(table)))
    assert Recommender(name, device="cpu").fit(without_order).manifest.fitted_recency == 0
    without_times = replace(table, time=None)
    assert Recommender(name, device="cpu").fit(without_times).manifest.fitted_recency is None


def test_ratings_have_a_recency_of_their_take_up_model() -> None:
    rng = np.random.default_rng(0)
    table = drifting(200, rng)
    rating = rng.integers(3, 6, len(table)).astype(np.float32)
    options = {"sweeps": 8, "burn_in": 4, "embedding_size": 4, "rank": 6}
    model = Recommender(device="cpu", **options)
    fitted = model.fit(replace(table, rating=rating, implicit=False))
    assert fitted.manifest.details["idcf-takeup"]["recency"] in VALUES[1:]


def test_the_times_decide_and_not_the_rows() -> None:
    rng = np.random.default_rng(0)
    table = drifting(200, rng)
    shuffled = table.where(rng.permutation(len(table)))
    values = [Recommender("idcf-takeup", device="cpu").fit(x).manifest.fitted_recency
              for x in (table, shuffled)]  # fmt: skip
    assert values[0] == values[1] > 0


def test_few_users_are_no_evidence() -> None:
    table = replace(board(40, 20, 6, 12), time=np.arange(len(board(40, 20, 6, 12))))

    def train(_: Interactions) -> None:
        raise AssertionError("ten users are too few to train a model for")

    assert fit_recency(table, train, np.random.default_rng(0)) == 0.0
