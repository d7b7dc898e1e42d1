"""Scores corrected by the errors on the nearest items, in every place that computes scores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from idcf import ConfigError, Recommender
from idcf.data.interactions import Interactions, Vocab
from idcf.inference import onnx
from idcf.inference.topk import CatalogRanker
from idcf.models.bayes import BayesModel
from idcf.models.layers.neighbors import Neighbors
from idcf.training.solvers.neighbor_weights import choose_weight, find_neighbors
from idcf.types import History, Users

N_USERS, N_PAIRS = 360, 20
HISTORIES: tuple[Mapping[str, float], ...] = (
    {"i0": 5.0, "i7": 2.0, "i12": 4.0, "i33": 1.0},
    {"i4": 1.0},
    {f"i{n}": 1.0 + n % 5 for n in range(0, 40, 3)},
    {},
)


def paired_ratings() -> pd.DataFrame:
    """Users rate both items of some of 20 pairs, in agreement, so that pairs need 20 directions."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(N_USERS):
        for pair in rng.choice(N_PAIRS, 4 if user % 2 else 8, replace=False):
            liking = rng.normal(0, 1.2)
            for item in (2 * pair, 2 * pair + 1):
                rating = np.clip(np.rint(3 + liking + rng.normal(0, 0.3)), 1, 5)
                rows.append((f"u{user}", f"i{item}", float(rating)))
    return pd.DataFrame(rows, columns=["user_id", "item_id", "rating"])


@cache
def fitted(neighbors: int = 50) -> Recommender:
    """Train on pairs with vectors that are too small for them."""
    options = {"embedding_size": 2, "rank": 3, "blocks": 2, "sweeps": 24, "burn_in": 8}
    recommender = Recommender(
        "idcf-bayes", key_threshold=6, device="cpu", neighbors=neighbors, **options
    )
    return recommender.fit(paired_ratings())


def bayes_model(recommender: Recommender) -> BayesModel:
    model = recommender.artifact.model
    assert isinstance(model, BayesModel)
    return model


def slow_score(model: BayesModel, history: Mapping[int, float], item: int) -> float:
    """Return a corrected score from the definition, with loops."""
    plain = model.with_neighbors(Neighbors.none(model.n_items))
    rows, values = torch.tensor(list(history)), torch.tensor(list(history.values()))
    users = Users(
        torch.tensor([-1]), History(rows.long(), values.float(), torch.tensor([0, len(rows)]))
    )
    scores = plain.score_catalog(users)[0]
    numerator, total = 0.0, 1.0
    for j, rating in history.items():
        for neighbor, weight in zip(
            model.neighbor_items[j], model.neighbor_weights[j], strict=True
        ):
            if int(neighbor) == item:
                numerator += float(weight) * (rating - float(scores[j]))
                total += float(weight)
    return float(scores[item]) + float(model.neighbor_scale) * numerator / total


def test_the_weight_of_two_items_is_the_square_of_their_excess() -> None:
    rng = np.random.default_rng(1)
    x = rng.random((50, 9)) < rng.uniform(0.1, 0.7, 9)
    x[:, 3] = x[:, 5]
    user, item = np.nonzero(x)
    table = Interactions(
        Vocab(range(60)), Vocab(range(9)), user, item, np.ones(len(user), np.float32)
    )
    n_users, counts = x.any(1).sum(), x.sum(0)
    neighbors = find_neighbors(table, 50)
    assert neighbors.items.shape == (9, 8)
    weights = torch.zeros(9, 9).scatter_add_(1, neighbors.items, neighbors.weights)
    for i in range(9):
        for j in range(9):
            excess = max(0.0, (x[:, i] & x[:, j]).sum() - counts[i] * counts[j] / n_users)
            expected = excess**2 / ((counts[i] + 2) * (counts[j] + 2)) if i != j else 0.0
            assert float(weights[i, j]) == pytest.approx(expected, abs=1e-6)
    assert weights.max() == weights[3, 5] > 0.2


def test_scores_are_those_of_the_definition() -> None:
    recommender = fitted()
    model, ids = bayes_model(recommender), recommender.predictor.item_ids
    assert model.corrects_scores()
    details = recommender.artifact.manifest.details["idcf-bayes"]
    assert details["neighbor_weight"] == pytest.approx(float(model.neighbor_scale))
    assert details["neighbor_weight"] > 0
    for history in HISTORIES:
        rows = {ids.index(x): rating for x, rating in history.items()}
        predicted = recommender.predict(history, ids)
        expected = [slow_score(model, rows, i) for i in range(len(ids))]
        np.testing.assert_allclose(predicted, expected, atol=1e-4)


def test_every_path_gives_these_scores() -> None:
    """Pairs, catalogue, batch, single user, lists and ranker agree."""
    model = bayes_model(fitted())
    rng, lengths = np.random.default_rng(2), np.array([3, 0, 9, 1])
    items = np.concatenate([rng.choice(40, n, replace=False) for n in lengths])
    values = rng.integers(1, 6, len(items)).astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    history = History(*(torch.from_numpy(x) for x in (items, values, offsets)))
    users, ranker = Users(torch.full((4,), -1), history), CatalogRanker(model)
    scores = model.score_catalog(users)
    columns = torch.arange(40).expand(4, -1)
    torch.testing.assert_close(model(users, columns, torch.arange(4)), scores)
    torch.testing.assert_close(ranker.score_catalog(users), scores)
    ranked, std = ranker.top_k_block_with_std(users, 7, history)
    torch.testing.assert_close(ranked.scores, scores.gather(1, ranked.item_rows))
    torch.testing.assert_close(std, model.predictive_std(users, ranked.item_rows, torch.arange(4)))
    for n, (start, end) in enumerate(pairwise(offsets)):
        single = ranker.score_one_user(items[start:end], values[start:end])
        np.testing.assert_allclose(single, scores[n], atol=2e-5)
    plain = model.with_neighbors(Neighbors.none(40))
    assert (plain.score_catalog(users)[[0, 2, 3]] - scores[[0, 2, 3]]).abs().max() > 0.1
    torch.testing.assert_close(plain.score_catalog(users)[1], scores[1])  # without a history


def test_lists_show_the_corrected_rating_and_reasons_its_parts() -> None:
    recommender, history = fitted(), HISTORIES[0]
    best = recommender.recommend(history, n=5, quality=1.0)
    expected = recommender.predict(history, [x.item_id for x in best])
    np.testing.assert_allclose([x.rating for x in best], expected, atol=1e-5)
    together = recommender.recommend([dict(x) for x in HISTORIES], n=5, quality=1.0)
    assert [x.item_id for x in together[0]] == [x.item_id for x in best]
    model, ids = bayes_model(recommender), recommender.predictor.item_ids
    rows = {ids.index(x): rating for x, rating in history.items()}
    item = ids.index("i1")  # of the pair of i0
    users = [rows, *({k: v for k, v in rows.items() if k != j} for j in rows)]
    whole, *without = (slow_score(model, x, item) for x in users)
    explanation = recommender.explain(history, "i1", quality=1.0)
    strongest = explanation.reasons[0]
    assert strongest.item_id == "i0"
    effects = {ids[j]: whole - score for j, score in zip(rows, without, strict=True)}
    scale = recommender.artifact.manifest.domain.std
    for reason in explanation.reasons:
        ratio = np.log(explanation.score / (explanation.score - reason.effect))
        assert scale * ratio == pytest.approx(effects[reason.item_id], abs=1e-3)


def test_the_correction_is_saved_exported_and_extended(tmp_path: Path) -> None:
    recommender, ids = fitted(), fitted().predictor.item_ids
    loaded = Recommender.load(recommender.save(tmp_path / "model"))
    np.testing.assert_array_equal(
        loaded.predict(HISTORIES[0], ids), recommender.predict(HISTORIES[0], ids)
    )
    rated = torch.zeros(1, 40)
    ratings = torch.full((1, 40), 9.0)
    for item, rating in HISTORIES[0].items():
        rated[0, ids.index(item)], ratings[0, ids.index(item)] = 1.0, rating
    model = bayes_model(recommender)
    scores = onnx.to_dense_model(model)(rated, ratings)[1][0]
    rows = {ids.index(x): rating for x, rating in HISTORIES[0].items()}
    expected = [slow_score(model, rows, i) for i in range(40)]
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    new = pd.DataFrame({"user_id": ["u1", "u3"], "item_id": ["new"] * 2, "rating": [5.0, 4.0]})
    loaded.partial_fit_items(new, histories={"u1": {"i2": 4.0}, "u3": {"i8": 5.0, "i9": 4.0}})
    np.testing.assert_allclose(
        loaded.predict(HISTORIES[0], ids), recommender.predict(HISTORIES[0], ids), atol=1e-5
    )
    assert np.isfinite(loaded.predict({"new": 5.0, "i0": 1.0}, ["new", "i1"])).all()


def test_onnx_refuses_a_large_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx, "_MAX_CORRECTED_ITEMS", 39)
    with pytest.raises(ConfigError, match=r"no ONNX form for 40 items, only for up to 39"):
        onnx.to_dense_model(bayes_model(fitted()))


def test_without_neighbors_nothing_is_corrected() -> None:
    recommender = fitted(0)
    model = bayes_model(recommender)
    assert not model.corrects_scores()
    assert recommender.artifact.manifest.details["idcf-bayes"]["neighbor_weight"] == 0
    corrected = bayes_model(fitted())
    for name in ("means", "second_moments", "selection_coefficients", "basis"):  # same chain
        torch.testing.assert_close(getattr(model, name), getattr(corrected, name))


def test_the_weight_is_0_unless_users_prefer_another() -> None:
    rng = np.random.default_rng(3)
    user, chosen = np.repeat(np.arange(300), 10), []
    for _ in range(200):
        error, correction = rng.normal(0, 1, 3000), rng.normal(0, 0.07, 3000)
        chosen.append(choose_weight(user, error, correction))
    assert np.mean(chosen) < 0.15
    assert choose_weight(user, error - 1.5 * correction * 4, correction * 4) == pytest.approx(
        1.5, abs=0.5
    )
    assert choose_weight(user, error + correction * 4, correction * 4) == 0
    assert choose_weight(user[:0], error[:0], correction[:0]) == 0
