"""What models of clicks answer: questions, similar items, reasons, and what they do not know."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import board
from typer.testing import CliRunner

from idcf import Recommender
from idcf.cli import app
from idcf.data.columns import DataWarning
from idcf.errors import DataError
from idcf.server import schemas as s
from idcf.server.service import RecommendationService

MODELS = ("idcf-bayes", "idcf-odds", "ease", "item-knn", "als")


@cache
def fitted(name: str, *, implicit: bool = True) -> Recommender:
    small = {"sweeps": 8, "burn_in": 2} if name == "idcf-bayes" and not implicit else {}
    table = board(60, 24, 6, 16, implicit=implicit)
    return Recommender(name, key_threshold=10, device="cpu", **small).fit(table)


@pytest.mark.parametrize("name", MODELS)
def test_the_only_item_of_a_history_explains_no_more_than_the_score(name: str) -> None:
    explanation = fitted(name).explain(["i0"], "i4")
    (reason,) = explanation.reasons
    assert 0 < reason.effect <= explanation.score
    both = fitted(name).explain(["i0", "i2"], "i4")
    assert all(abs(x.effect) <= both.score for x in both.reasons)


@pytest.mark.parametrize("name", ["idcf-bayes", "idcf-odds"])
def test_questions_are_about_the_least_certain_answers(name: str) -> None:
    recommender, known = fitted(name), ["i0", "i2"]
    others = [x for x in recommender.predictor.item_ids if x not in known]
    p = recommender.predict(known, others).astype(float)
    bits = dict(zip(others, -p * np.log2(p) - (1 - p) * np.log2(1 - p), strict=True))
    questions = recommender.next_question(known, 30)
    assert len(questions) == 22
    np.testing.assert_allclose(
        [x.expected_gain for x in questions], sorted(bits.values(), reverse=True), rtol=1e-4
    )
    assert questions[0].expected_gain == pytest.approx(bits[questions[0].item_id], rel=1e-4)
    among = recommender.next_question(known, candidates=["i0", "i5", "i6"])
    assert {x.item_id for x in among} == {"i5", "i6"}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("implicit", [True, False])
def test_similarities_are_at_most_one_and_in_order(name: str, implicit: bool) -> None:
    if name == "idcf-odds" and not implicit:
        pytest.skip("for clicks alone")
    scores = [x.score for x in fitted(name, implicit=implicit).similar_items("i4", 30)]
    assert len(scores) == 23
    assert scores == sorted(scores, reverse=True)
    assert scores[0] <= 1.00001


def test_a_missing_deviation_is_warned_of() -> None:
    with pytest.warns(DataWarning, match=r"return_std needs standard .*'idcf-takeup'.*std is None"):
        items = fitted("idcf-bayes").recommend(["i0"], return_std=True)
    assert items[0].std is None
    assert "basis" not in repr(items)


def test_the_basis_is_printed_unless_it_is_the_history() -> None:
    recommender = fitted("idcf-bayes")
    assert "basis: popularity" in repr(recommender.recommend())
    assert "basis" not in repr(recommender.recommend([["i0"], ["i2"]]))
    assert "popularity" in repr(recommender.recommend([["i0"], []]))
    assert recommender.similar_items("i0").basis is None


def test_intervals_over_http() -> None:
    service = RecommendationService(fitted("idcf-bayes", implicit=False))
    user: dict[str, Any] = {"history": [s.HistoryItem("i0", 5.0)], "item_ids": ["i4", "i5"]}
    plain = service.predict(s.PredictRequest(**user)).items
    assert [(x.std, x.low, x.high) for x in plain] == [(None, None, None)] * 2
    interval = fitted("idcf-bayes", implicit=False).predict_interval({"i0": 5}, ["i4", "i5"], 0.8)
    items = service.predict(s.PredictRequest(**user, confidence_level=0.8)).items
    for values, name in zip(interval[:4], ("score", "std", "low", "high"), strict=True):
        np.testing.assert_allclose([getattr(x, name) for x in items], values, atol=1e-5)
    with pytest.raises(DataError, match="confidence_level: there are no intervals of ratings if"):
        service.predict(s.PredictRequest(**user, confidence_level=0.8, if_shown=True))


@pytest.mark.parametrize(("name", "options"), [("als", {}), ("idcf-dot", {"epochs": 1})])
def test_the_models_that_embed_instead_do(name: str, options: dict[str, Any]) -> None:
    """The sentence of `embed` names them."""
    recommender = Recommender(name, key_threshold=10, device="cpu", **options)
    recommender.fit(board(60, 24, 6, 16, implicit=True))
    vectors = recommender.embed([["i0", "i2"], ["i1"]])
    assert vectors.shape[0] == 2
    assert np.isfinite(vectors).all()


def test_the_model_that_was_fitted_is_named_everywhere(tmp_path: Path) -> None:
    recommender = fitted("idcf-bayes")
    assert repr(recommender).startswith("<Recommender idcf-takeup: ")
    assert RecommendationService(recommender).model_info().model == "idcf-takeup"
    card = (recommender.save(tmp_path / "model") / "card.md").read_text(encoding="utf-8")
    assert "idcf-takeup" in card.splitlines()[0]
    assert "idcf-bayes" not in card
    assert recommender.get_params()["model"] == "idcf-bayes"  # what was asked for
    loaded = Recommender.load(tmp_path / "model")
    assert loaded.get_params()["model"] == "idcf-bayes"
    (tmp_path / "clicks.csv").write_text(
        "user_id,item_id\n"
        + "".join(f"u{u},i{i}\n" for u in range(12) for i in range(9) if (u * i) % 7 != 3)
    )
    arguments = ["train", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "cli")]
    result = CliRunner().invoke(app, [*arguments, "--no-card-metrics", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "idcf-takeup: " in result.output
    assert "idcf-bayes" not in result.output
