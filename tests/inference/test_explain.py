"""Explanations and questions against slow and obvious computations."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from idcf.data.history_reader import as_users
from idcf.data.interactions import Interactions
from idcf.errors import ConfigError
from idcf.inference.explain import leave_one_out
from idcf.models.bayes import BayesModel
from idcf.recommender import Recommender
from idcf.testing.synthetic import checkerboard

EVEN = {"i2": 5.0, "i4": 5.0, "i3": 1.0, "i9": 2.0}
SMALL = {"sweeps": 24, "burn_in": 12, "embedding_size": 4, "rank": 6, "shrinkage": 5.0}


def list_score(recommender: Recommender, history: dict[str, float], item: str) -> float:
    """Return the score that orders the lists of `recommend`."""
    return recommender.recommend(history, candidates=[item], filter_seen=False)[0].score


@cache
def interactions() -> Interactions:
    return checkerboard(
        120, 40, np.random.default_rng(0), rows_per_light_user=6, rows_per_heavy_user=20
    )


@cache
def fitted() -> Recommender:
    return Recommender("idcf-bayes", key_threshold=12, device="cpu", **SMALL).fit(interactions())


def model() -> BayesModel:
    bayes = fitted().artifact.model
    assert isinstance(bayes, BayesModel)
    return bayes


@pytest.mark.parametrize("name", ["idcf-bayes", "als", "bias", "ease"])
def test_an_effect_is_the_score_with_the_item_minus_the_score_without(name: str) -> None:
    recommender = fitted()
    if name != "idcf-bayes":
        recommender = Recommender(name, key_threshold=12).fit(interactions())
    explanation = recommender.explain(EVEN, "i8")
    assert explanation.score == pytest.approx(list_score(recommender, EVEN, "i8"), abs=1e-4)
    for reason in explanation.reasons:
        others = {k: v for k, v in EVEN.items() if k != reason.item_id}
        without = list_score(recommender, others, "i8")
        assert reason.effect == pytest.approx(explanation.score - without, abs=2e-4)
        assert reason.rating == EVEN[reason.item_id]
    effects = [abs(x.effect) for x in explanation.reasons]
    assert effects == sorted(effects, reverse=True)


def test_histories_of_one_item_and_of_none_can_be_explained() -> None:
    assert len(fitted().explain({"i2": 5.0}, "i8").reasons) == 1
    empty = fitted().explain({}, "i8")
    assert empty.reasons == ()
    assert empty.std is not None
    rows = np.empty(0, np.int64)
    assert leave_one_out(lambda users: [0.0] * len(users), rows, np.empty(0, np.float32)) == (0, [])


def test_a_gain_is_the_expected_reduction_of_the_variance() -> None:
    """Add each item to the history and compare covariances, which do not depend on the rating."""
    bayes, predictor = model(), fitted().predictor
    users = as_users([predictor.read_new_user(EVEN)])
    means = bayes.means.transpose(0, 1)
    f = torch.cat([means[..., :-1], torch.ones_like(means[..., :1])], -1).double()
    share = (bayes.n_raters / bayes.n_raters.sum()).double()
    mean_outer = torch.einsum("i,tid,tie->tde", share, f, f)
    covariance = torch.cholesky_inverse(bayes.posterior(users).precision_cholesky)[0].double()
    before = torch.einsum("tde,tde->t", covariance, mean_outer)
    gains = bayes.question_gains(users)[0]
    gains_if_known = bayes.question_gains(users, items_are_known=True)[0]
    for item in (0, 7, 22):
        extra = (
            bayes.noise_precision.double()[:, None, None] * f[:, item, :, None] * f[:, item, None]
        )
        after = torch.linalg.inv(torch.linalg.inv(covariance) + extra)
        reduction = (before - torch.einsum("tde,tde->t", after, mean_outer)).mean()
        root_share = float(bayes.n_raters[item] / bayes.n_raters.max()) ** 0.5
        assert float(gains_if_known[item]) == pytest.approx(float(reduction), rel=1e-3)
        assert float(gains[item]) == pytest.approx(float(reduction) * root_share, rel=1e-3)


def test_questions_are_not_about_items_of_the_history() -> None:
    questions = fitted().next_question(EVEN, n=40)
    assert not {x.item_id for x in questions} & EVEN.keys()
    assert len(questions) == 36
    gain = [x.expected_gain for x in questions]
    assert gain == sorted(gain, reverse=True)
    assert gain[-1] >= 0
    among = fitted().next_question(EVEN, candidates=["i1", "i8", *EVEN])
    assert {x.item_id for x in among} == {"i1", "i8"}
    with pytest.raises(ConfigError, match="next_question needs a posterior of ratings"):
        Recommender("als", key_threshold=12).fit(interactions()).next_question(EVEN)


def test_cohorts_resemble_the_user_and_have_at_least_five_members() -> None:
    bayes, predictor = model(), fitted().predictor
    sizes = bayes.cohort_sizes[bayes.cohort_sizes > 0]
    assert len(sizes) >= 2
    assert (sizes >= 5).all()
    histories = EVEN, {"i3": 5.0, "i7": 5.0, "i2": 1.0}
    users = as_users([predictor.read_new_user(x) for x in histories])
    weight = bayes.cohort_weights(users).weights
    torch.testing.assert_close(weight.sum(1), torch.ones(2))
    for row, odd in zip(weight, (0, 1), strict=True):
        best = bayes.cohort_items[int(row.argmax())]
        assert ((best % 2) == odd).float().mean() >= 0.8
    cohorts = fitted().explain(EVEN, "i8").cohorts
    assert cohorts
    assert sum(x.weight for x in cohorts) <= 1 + 1e-6
    assert all(x.size >= 5 and len(x.liked_titles) == 5 for x in cohorts)


def test_an_explanation_names_unknown_items() -> None:
    explanation = fitted().explain({**EVEN, "nowhere": 3.0}, "i8")
    assert explanation.unknown_items == ("nowhere",)
    assert {x.item_id for x in explanation.reasons} == set(EVEN)
    assert fitted().explain(EVEN, "i8").unknown_items == ()


def test_intervals_contain_the_score() -> None:
    wide, narrow = (fitted().predict_interval(EVEN, ["i8", "i7"], level) for level in (0.9, 0.5))
    np.testing.assert_allclose(wide.score, fitted().predict(EVEN, ["i8", "i7"]))
    ratio = fitted().artifact.model.interval_ratio(0.9)
    half = ratio * 1.6449 * wide.std
    np.testing.assert_allclose(wide.low, np.clip(wide.score - half, 1, 5), rtol=1e-3)
    np.testing.assert_allclose(wide.high, np.clip(wide.score + half, 1, 5), rtol=1e-3)
    assert (narrow.low >= wide.low).all()
    assert (narrow.high <= wide.high).all()
    assert (narrow.high - narrow.low < wide.high - wide.low).all()
    with pytest.raises(ConfigError, match="which 'als', fitted on ratings, does not have"):
        Recommender("als", key_threshold=12).fit(interactions()).predict_interval(EVEN, ["i8"])


def test_lists_have_standard_deviations_if_requested() -> None:
    plain, with_std = fitted().recommend(EVEN), fitted().recommend(EVEN, return_std=True)
    assert [x.item_id for x in plain] == [x.item_id for x in with_std]
    assert all(x.std is None and x.source == "posterior" for x in plain)
    std = fitted().predict_interval(EVEN, [x.item_id for x in with_std]).std
    np.testing.assert_allclose([x.std for x in with_std], std, rtol=1e-4)
    batch = fitted().recommend([EVEN, {}, EVEN], return_std=True)
    np.testing.assert_allclose([x.std for x in batch[2]], std, rtol=1e-3)
    empty = fitted().recommend({}, return_std=True)
    assert [x.item_id for x in batch[1]] == [x.item_id for x in empty]


def test_an_empty_history_gets_the_items_with_most_raters() -> None:
    popular = fitted().recommend({}, n=40)
    assert {x.source for x in popular} == {"popular"}
    raters = dict(zip(fitted().predictor.item_ids, model().n_raters.tolist(), strict=True))
    order = [raters[x.item_id] for x in popular]
    assert order == sorted(order, reverse=True)
