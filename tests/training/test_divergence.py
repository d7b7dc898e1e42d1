"""A training whose numbers are not finite ends with an error that says what to lower."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from idcf import Recommender
from idcf.data.interactions import Interactions
from idcf.errors import DivergenceError
from idcf.testing.worlds import synthetic_world
from idcf.training.gradient import StageResult, best_result
from idcf.training.train import TrainingJob, train


def world_with(rating: float) -> TrainingJob:
    """Return a training of a small world in which one rating is very large."""
    split = synthetic_world().split
    ratings = split.train.rating.copy()
    ratings[np.isin(split.train.user, split.key_users).argmax()] = rating
    return TrainingJob(replace(split, train=replace(split.train, rating=ratings)))


@pytest.mark.parametrize("name", ["nnmf", "idcf-nn"])
def test_the_epoch_the_loss_and_the_rate_are_named(name: str) -> None:
    with pytest.raises(DivergenceError) as caught:
        train(name, world_with(1e30), options={"train.learning_rate": 0.5})
    text = str(caught.value)
    assert "training of 'nnmf' diverged in epoch 1: its loss is inf" in text
    assert "lower learning_rate (it is " in text


def test_a_solver_without_a_finite_solution_names_what_to_raise() -> None:
    with pytest.raises(DivergenceError) as caught:
        train("idcf-bayes", world_with(1e30))
    text = str(caught.value)
    assert text.startswith("'idcf-bayes' has no finite solution on this table (")
    assert "raise shrinkage" in text


def test_als_fits_a_rating_beyond_all_others() -> None:
    model = train("als", world_with(1e30)).model
    assert model.nonfinite_tensor() is None


def test_a_diverged_candidate_is_left_out_of_a_search() -> None:
    def diverge() -> StageResult:
        raise DivergenceError("the first")

    class Result:
        log = type("Log", (), {"best_validation": lambda self: 1.0})()

    finite = Result()
    assert best_result([diverge, lambda: finite]) is finite  # type: ignore[list-item, return-value]
    with pytest.raises(DivergenceError, match="the first"):
        best_result([diverge, diverge])


@pytest.mark.parametrize("scale", [1e5, 1e8])
def test_large_ratings_give_a_model_or_a_sentence(scale: float) -> None:
    rows: Interactions = synthetic_world().split.train
    table = replace(rows, rating=rows.rating * np.float32(scale))
    try:
        model = Recommender(key_threshold=14, device="cpu", sweeps=8, burn_in=2).fit(table)
    except DivergenceError:
        return
    assert np.isfinite([x.score for x in model.recommend({"i1": float(table.rating.max())})]).all()
