"""Reasons and questions against slow, obvious ways to the same numbers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from idcf.data.history_reader import as_users
from idcf.data.interactions import Interactions
from idcf.errors import ConfigError
from idcf.inference.explain import cohorts, gains, leave_one_out
from idcf.models.bayes import Bayes
from idcf.recommender import Recommender
from idcf.testing.synthetic import checkerboard

torch.set_num_threads(1)
EVEN = {"i2": 5.0, "i4": 5.0, "i3": 1.0, "i9": 2.0}
SMALL = {"sweeps": 24, "burn_in": 12, "embedding_size": 4, "rank": 6, "strength": 5.0}


@cache
def world() -> Interactions:
    return checkerboard(120, 40, np.random.default_rng(0), few=6, many=20)


@cache
def fitted() -> Recommender:
    return Recommender("idcf-bayes", key_threshold=12, device="cpu", **SMALL).fit(world())


def model() -> Bayes:
    found = fitted()._fitted().model
    assert isinstance(found, Bayes)
    return found


@pytest.mark.parametrize("name", ["idcf-bayes", "als", "bias", "ease"])
def test_an_effect_is_the_score_with_less_the_score_without(name: str) -> None:
    made = fitted() if name == "idcf-bayes" else Recommender(name, key_threshold=12).fit(world())
    found = made.explain(EVEN, "i8")
    assert found.score == pytest.approx(float(made.predict(EVEN, ["i8"])[0]), abs=1e-4)
    for reason in found.reasons:
        rest = {k: v for k, v in EVEN.items() if k != reason.item_id}
        without = float(made.predict(rest, ["i8"])[0])
        assert reason.effect == pytest.approx(found.score - without, abs=2e-4)
        assert reason.rating == EVEN[reason.item_id]
    effects = [abs(x.effect) for x in found.reasons]
    assert effects == sorted(effects, reverse=True)


def test_one_item_and_none_can_be_explained() -> None:
    assert len(fitted().explain({"i2": 5.0}, "i8").reasons) == 1
    empty = fitted().explain({}, "i8")
    assert empty.reasons == ()
    assert empty.std is not None
    rows = np.empty(0, np.int64)
    assert leave_one_out(model(), rows, np.empty(0, np.float32), 3)[1] == []


def test_a_gain_is_what_the_answer_takes_from_the_uncertainty() -> None:
    """Item by item: add it to the history and look at the covariance, which no rating changes."""
    found, reader = model(), fitted().desk.reader
    told = as_users([reader.one(EVEN)])
    means = found.means.transpose(0, 1)
    f = torch.cat([means[..., :-1], torch.ones_like(means[..., :1])], -1).double()
    share = (found.raters / found.raters.sum()).double()
    asked = torch.einsum("i,tid,tie->tde", share, f, f)
    covariance = torch.cholesky_inverse(found.posterior(told).factor)[0].double()
    before = torch.einsum("tde,tde->t", covariance, asked)
    got, sure = gains(found, told)[0], gains(found, told, known=True)[0]
    for item in (0, 7, 22):
        extra = found.noise.double()[:, None, None] * f[:, item, :, None] * f[:, item, None]
        after = torch.linalg.inv(torch.linalg.inv(covariance) + extra)
        lower = (before - torch.einsum("tde,tde->t", after, asked)).mean()
        knows = float(found.raters[item] / found.raters.max()) ** 0.5
        assert float(sure[item]) == pytest.approx(float(lower), rel=1e-3)
        assert float(got[item]) == pytest.approx(float(lower) * knows, rel=1e-3)


def test_questions_are_about_what_was_not_told() -> None:
    questions = fitted().next_question(EVEN, n=40)
    assert not {x.item_id for x in questions} & EVEN.keys()
    assert len(questions) == 36
    gain = [x.gain for x in questions]
    assert gain == sorted(gain, reverse=True)
    assert gain[-1] >= 0
    some = fitted().next_question(EVEN, candidates=["i1", "i8", *EVEN])
    assert {x.item_id for x in some} == {"i1", "i8"}
    with pytest.raises(ConfigError, match="posterior model"):
        Recommender("als", key_threshold=12).fit(world()).next_question(EVEN)


def test_cohorts_are_people_alike_and_never_a_few() -> None:
    found = model()
    sizes = found.sizes[found.sizes > 0]
    assert len(sizes) >= 2
    assert (sizes >= 5).all()
    reader = fitted().desk.reader
    people = as_users([reader.one(EVEN), reader.one({"i3": 5.0, "i7": 5.0, "i2": 1.0})])
    weight = cohorts(found, people)
    torch.testing.assert_close(weight.sum(1), torch.ones(2))
    for row, odd in zip(weight, (0, 1), strict=True):  # what the nearest cohort is said to like
        best = found.likes[int(row.argmax())]
        assert ((best % 2) == odd).float().mean() >= 0.8
    told = fitted().explain(EVEN, "i8").cohorts
    assert told
    assert sum(x.weight for x in told) <= 1 + 1e-6
    assert all(x.size >= 5 and len(x.likes) == 5 for x in told)


def test_intervals_lie_round_the_score() -> None:
    wide, narrow = (fitted().predict_interval(EVEN, ["i8", "i7"], level) for level in (0.9, 0.5))
    np.testing.assert_allclose(wide.score, fitted().predict(EVEN, ["i8", "i7"]))
    np.testing.assert_allclose(wide.high - wide.score, 1.6449 * wide.std, rtol=1e-3)
    assert (narrow.low > wide.low).all()
    assert (narrow.high < wide.high).all()
    some = fitted().next_question(EVEN, candidates=["i1", "i8", *EVEN])
    assert {x.item_id for x in some} == {"i1", "i8"}
    with pytest.raises(ConfigError, match="posterior model"):
        Recommender("als", key_threshold=12).fit(world()).predict_interval(EVEN, ["i8"])


def test_lists_say_how_sure_they_are_if_asked() -> None:
    plain, sure = fitted().recommend(EVEN), fitted().recommend(EVEN, std=True)
    assert [x.item_id for x in plain] == [x.item_id for x in sure]
    assert all(x.std is None and x.source == "posterior" for x in plain)
    std = fitted().predict_interval(EVEN, [x.item_id for x in sure]).std
    np.testing.assert_allclose([x.std for x in sure], std, rtol=1e-4)
    many = fitted().recommend([EVEN, {}, EVEN], std=True)
    np.testing.assert_allclose([x.std for x in many[2]], std, rtol=1e-4)
    assert many[1] == fitted().recommend({}, std=True)


def test_nothing_known_gets_what_most_people_had() -> None:
    found = fitted().recommend({}, n=40)
    assert {x.source for x in found} == {"popular"}
    raters = dict(zip(fitted().desk.ids, model().raters.tolist(), strict=True))
    order = [raters[x.item_id] for x in found]
    assert order == sorted(order, reverse=True)
