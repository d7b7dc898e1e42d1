"""Explanations of models whose effects are known in closed form, and the dense ONNX models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import board
from hypothesis import given
from hypothesis import strategies as st

from idcf.data.history_reader import NewUser
from idcf.errors import ConfigError, DataError
from idcf.inference import onnx
from idcf.inference.artifact import Artifact
from idcf.inference.explain import explain
from idcf.inference.onnx import solve, to_dense_model
from idcf.inference.predictor import Predictor
from idcf.inference.questions import next_questions
from idcf.models.baselines import BiasModel
from idcf.models.registry import configure
from idcf.recommender import Recommender
from idcf.testing.worlds import untrained_model, users_with_rows

EVEN = {"i2": 5.0, "i4": 5.0, "i3": 1.0}
SMALL = {"sweeps": 6, "burn_in": 3, "embedding_size": 2, "rank": 3}


@cache
def fitted(name: str, implicit: bool = False) -> Recommender:
    options: dict[str, Any] = {"epochs": 1} if name in ("pmf", "idcf-gc", "idcf-dot") else {}
    options |= SMALL if name == "idcf-bayes" else {}
    recommender = Recommender(name, key_threshold=1, device="cpu", **options)
    return recommender.fit(board(30, 16, 5, 10, implicit=implicit), titles={"i2": "Two"})


def predictor(name: str) -> Predictor:
    return fitted(name).predictor


def bias_predictor(shrinkage: float, item_bias: list[float]) -> Predictor:
    """Return a bias model with these item biases."""
    artifact = fitted("bias").artifact
    domain = artifact.manifest.domain
    model = BiasModel(configure("bias", {"shrinkage": shrinkage}), domain.placeholder_domain())
    model.item_bias.copy_(torch.tensor(item_bias))
    return Predictor(Artifact(artifact.manifest, model.eval(), artifact.items, artifact.titles))


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 5)), max_size=5, unique_by=lambda x: x[0]),
    st.sampled_from([0.5, 3.0]),
)
def test_effects_of_the_bias_model_in_closed_form(history: list[Any], shrinkage: float) -> None:
    """b_u = Σ residuals / (n + shrinkage), with and without the entry."""
    item_bias = [0.1 * n - 0.3 for n in range(16)]
    p = bias_predictor(shrinkage, item_bias)
    mean = p.domain.mean
    new_user = NewUser(
        np.array([x for x, _ in history], np.int64), np.array([x for _, x in history], np.float32)
    )
    explanation = explain(p, new_user, 5)
    residuals = {f"i{x}": r - mean - item_bias[x] for x, r in history}

    def user_bias(without: str = "") -> float:
        part = [x for item, x in residuals.items() if item != without]
        return sum(part) / (len(part) + shrinkage)

    assert explanation.score == pytest.approx(mean + item_bias[5] + user_bias(), abs=1e-4)
    effects = {x.item_id: x.effect for x in explanation.reasons}
    expected = {item: user_bias() - user_bias(item) for item in residuals}
    assert effects == pytest.approx(expected, abs=1e-4)


def test_a_transductive_model_explains_nothing() -> None:
    user = NewUser(np.array([1]), np.ones(1, np.float32))
    with pytest.raises(
        ConfigError, match=r"MatrixFactorization cannot score new users, so .*'als'"
    ):
        explain(predictor("pmf"), user, 3)


def test_a_model_without_posterior_or_cohorts() -> None:
    p = predictor("als")
    explanation = explain(p, p.read_new_user({**EVEN, "no": 2.0}), 6)
    assert (explanation.item_id, explanation.title) == ("i6", None)
    assert (explanation.std, explanation.cohorts) == (None, ())
    assert explanation.unknown_items == ("no",)
    assert {x.item_id: x.title for x in explanation.reasons} == {
        "i2": "Two",
        "i3": None,
        "i4": None,
    }
    assert {x.item_id: x.rating for x in explanation.reasons} == EVEN


def test_cohorts_have_titles_or_ids_and_the_largest_weight_comes_first() -> None:
    p = predictor("idcf-bayes")
    cohorts = explain(p, p.read_new_user(EVEN), 6).cohorts
    assert 0 < len(cohorts) <= 3
    weights = [x.weight for x in cohorts]
    assert weights == sorted(weights, reverse=True)
    names = {"Two", *p.item_ids} - {"i2"}
    assert all(set(x.liked_titles) <= names for x in cohorts)


def test_questions_are_bounded_by_the_items_that_may_be_asked_about() -> None:
    p = predictor("idcf-bayes")
    user = p.read_new_user(EVEN)
    assert len(next_questions(p, user, 100)) == 16 - 3
    assert len(next_questions(p, user, 2)) == 2
    assert next_questions(p, user, 2) == next_questions(p, user, 9)[:2]
    assert [x.item_id for x in next_questions(p, user, 5, ["i2", "i9"])] == ["i9"]
    assert next_questions(p, user, 5, ["i2"]) == []  # nothing but what is known already
    with pytest.raises(DataError, match="'no' is not known to the model"):
        next_questions(p, user, 5, ["no"])


def test_known_items_are_not_weighted_by_how_known_they_are() -> None:
    """Every gain is the larger, because a user need not know a popular item only."""
    p = predictor("idcf-bayes")
    user = p.read_new_user(EVEN)
    any_item = {x.item_id: x.expected_gain for x in next_questions(p, user, 99)}
    known = {x.item_id: x.expected_gain for x in next_questions(p, user, 99, p.item_ids)}
    assert any_item.keys() == known.keys()
    assert all(known[x] >= any_item[x] - 1e-6 for x in known)


@given(st.integers(1, 7), st.integers(0, 10**6))
def test_elimination_solves_positive_definite_systems(size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(2, size, size, generator=generator)
    matrix = half @ half.mT + torch.eye(size)
    rhs = torch.randn(2, size, generator=generator)
    torch.testing.assert_close(
        (matrix @ solve(matrix, rhs)[..., None])[..., 0], rhs, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("idcf-gc", "GCMC"),
        ("popularity", "PopularityModel"),
        ("pmf", "MatrixFactorization"),
        ("meta-path", "meta-path"),
    ],
)
def test_parts_without_an_onnx_form_are_named(name: str, part: str) -> None:
    table = board(30, 16, 5, 10)
    model = untrained_model(name, table, users_with_rows(table))
    with pytest.raises(ConfigError, match=rf"^{part} has no ONNX form; idcf-dot, .* exported"):
        to_dense_model(model)


def test_the_dense_model_is_a_copy() -> None:
    model = predictor("als").artifact.model
    dense = to_dense_model(model)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for tensor in dense.state_dict().values():
        tensor.zero_()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("name", ["als", "idcf-bayes", "idcf-dot"])
def test_a_dense_row_does_not_depend_on_the_other_rows(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rated = (torch.rand(5, 16, generator=generator) < 0.3).float()
    rated[2] = 0
    ratings = torch.randint(1, 6, (5, 16), generator=generator).float()
    dense = to_dense_model(predictor(name).artifact.model)
    _, whole = dense(rated, ratings)
    for row in range(5):
        _, single = dense(rated[row : row + 1], ratings[row : row + 1])
        torch.testing.assert_close(single[0], whole[row], rtol=1e-4, atol=1e-4)
    # ratings of items outside the history are not read
    _, noisy = dense(rated, torch.where(rated > 0, ratings, torch.full_like(ratings, 1e3)))
    torch.testing.assert_close(noisy, whole, rtol=1e-4, atol=1e-4)


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")

    monkeypatch.setattr(onnx, "_export_graph", lambda *_: _proto_program())
    (tmp_path / "file").write_text("text")
    with pytest.raises(DataError, match=r"x\.onnx cannot be written: .*; choose another file"):
        onnx.export_onnx(predictor("als").artifact, tmp_path / "file" / "x.onnx")
    assert (tmp_path / "file").read_text() == "text"


def _proto_program() -> Any:
    """Return the smallest ONNX program."""
    import onnx as library

    graph = library.helper.make_graph([], "empty", [], [])

    class Program:
        model_proto = library.helper.make_model(graph)

    return Program
