"""Lists by expected benefit: the formula, its two ends, batches, and what refuses a quality."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from idcf.errors import ConfigError
from idcf.inference.quantized_scan import multiplies_codes
from idcf.recommender import Recommender
from idcf.testing.synthetic import checkerboard

HISTORY = {"i2": 5.0, "i4": 5.0, "i3": 1.0, "i9": 2.0}
SMALL = {"sweeps": 24, "burn_in": 12, "embedding_size": 4, "rank": 6, "shrinkage": 5.0}


@cache
def fitted() -> Recommender:
    table = checkerboard(
        120, 40, np.random.default_rng(0), rows_per_light_user=6, rows_per_heavy_user=20
    )
    return Recommender(key_threshold=12, device="cpu", **SMALL).fit(table)


def test_the_score_is_the_formula() -> None:
    domain, counts = fitted().manifest.domain, fitted().artifact.take_up_model.item_counts.numpy()
    smoothed = counts + 10
    popularity = dict(zip(fitted().predictor.item_ids, smoothed / smoothed.mean(), strict=True))
    n = float(fitted().artifact.take_up_model.n_next_items)
    mean_probability = np.mean(1 - np.exp(-n * counts / counts.sum()))  # for an empty history
    for quality, damping in ((0.0, 0.0), (0.3, 0.0), (0.3, 0.6), (1.0, 0.0)):
        for item in fitted().recommend(HISTORY, n=40, quality=quality, damping=damping):
            z = (item.rating - domain.mean) / domain.std
            probability = item.probability + 2.5 * quality * mean_probability
            damped = probability / popularity[item.item_id] ** (quality / 2 + damping)
            expected = damped ** (1 - quality) * np.exp(quality * z)
            assert item.score == pytest.approx(expected, rel=1e-4)


def test_the_two_ends_are_the_orders_of_the_two_models() -> None:
    by_probability = fitted().recommend(HISTORY, n=36, quality=0)
    probabilities = [x.probability for x in by_probability]
    assert probabilities == sorted(probabilities, reverse=True)
    by_rating = fitted().recommend(HISTORY, n=36, quality=1)
    ratings = [x.rating for x in by_rating]
    assert ratings == sorted(ratings, reverse=True)
    predicted = fitted().predict(HISTORY, [x.item_id for x in by_rating])
    np.testing.assert_allclose(ratings, predicted, rtol=1e-5)


def test_the_default_quality_is_between_the_ends() -> None:
    default = fitted().recommend(HISTORY, n=36)
    assert default == fitted().recommend(HISTORY, n=36, quality=0.4)
    means = [
        np.mean([x.rating for x in fitted().recommend(HISTORY, n=5, quality=q)])
        for q in (0, 0.4, 1)
    ]
    assert means[0] <= means[1] <= means[2]


def test_a_batch_of_different_users_gives_their_lists() -> None:
    histories = [HISTORY, {"i1": 5.0}, {"i0": 1.0, "i6": 4.0}]
    for quality in (None, 0.0, 0.8):
        batch = fitted().recommend(histories, n=6, quality=quality, return_std=True)
        for history, recommendations in zip(histories, batch, strict=True):
            one = fitted().recommend(history, n=6, quality=quality, return_std=True)
            assert [x.item_id for x in one] == [x.item_id for x in recommendations]
            for field in ("score", "probability", "rating", "std"):
                values = [[getattr(x, field) for x in y] for y in (one, recommendations)]
                np.testing.assert_allclose(*values, rtol=2e-3)


def test_a_disliked_item_pushes_similar_items_down() -> None:
    """Even items go with even ones: one star for an even item must not lift the others."""
    without = {x.item_id: x for x in fitted().recommend({"i3": 4.0}, n=40)}
    disliked = {x.item_id: x for x in fitted().recommend({"i3": 4.0, "i2": 1.0}, n=40)}
    liked = {x.item_id: x for x in fitted().recommend({"i3": 4.0, "i2": 5.0}, n=40)}
    even = [x for x in disliked if int(x[1:]) % 2 == 0 and x != "i2"]
    for item in even:
        assert disliked[item].probability == pytest.approx(without[item].probability, rel=1e-4)
        assert disliked[item].score < liked[item].score
    lower = [disliked[x].score < without[x].score for x in even]
    assert np.mean(lower) > 0.9


def test_a_user_who_dislikes_everything_counts_as_one_without_history() -> None:
    histories = [{"i2": 1.0, "i5": 1.0}, {"i7": 1.0}]
    lists = [fitted().recommend(x, n=40, filter_seen=False) for x in histories]
    lists += fitted().recommend(histories, n=40, filter_seen=False)
    expected = {x.item_id: x.probability for x in lists[0]}
    for recommendations in lists[1:]:
        for item in recommendations:
            assert item.probability == pytest.approx(expected[item.item_id], rel=1e-3)


@pytest.mark.parametrize("rating", [3.0, 5.0])
def test_a_scale_of_one_value_counts_every_item(rating: float) -> None:
    table = checkerboard(60, 20, np.random.default_rng(0))
    same = replace(table, rating=np.full(len(table), rating, np.float32))
    recommender = Recommender(key_threshold=5, device="cpu", **SMALL).fit(same)
    lists = [recommender.recommend({item: rating}, n=20) for item in ("i2", "i5")]
    probabilities = [{x.item_id: x.probability for x in y} for y in lists]
    assert any(
        probabilities[0][item] != pytest.approx(probabilities[1][item], rel=1e-3)
        for item in probabilities[0].keys() & probabilities[1].keys()
    )


def test_a_saved_model_gives_the_same_lists(tmp_path) -> None:
    loaded = Recommender.load(fitted().save(tmp_path / "model"))
    assert loaded.recommend(HISTORY, n=8) == fitted().recommend(HISTORY, n=8)
    assert loaded.manifest.take_up_model == "idcf-takeup"


def test_items_added_later_can_be_in_lists() -> None:
    import pyarrow as pa

    table = checkerboard(
        120, 40, np.random.default_rng(0), rows_per_light_user=6, rows_per_heavy_user=20
    )
    recommender = Recommender(key_threshold=12, device="cpu", **SMALL).fit(table)
    ratings = pa.table({"user_id": ["u0", "u2"], "item_id": ["new", "new"], "rating": [5.0, 5.0]})
    recommender.partial_fit_items(ratings)
    lists = {x.item_id: x for x in recommender.recommend(HISTORY, n=41)}
    # no weight from any item, and no popularity
    assert 0 < lists["new"].probability < np.median([x.probability for x in lists.values()])
    assert lists["new"].rating > 4


@pytest.mark.parametrize("quality", [-0.1, 1.5, float("nan"), "good"])
def test_a_quality_outside_the_range_is_refused(quality: float) -> None:
    with pytest.raises(ConfigError, match="quality must be between 0 and 1, got"):
        fitted().recommend(HISTORY, quality=quality)


def test_a_model_with_one_order_refuses_a_quality() -> None:
    model = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=True)
    with pytest.raises(ConfigError, match="quality needs a model that knows both"):
        model.recommend(["a"], quality=0.5)
    assert model.recommend(["a"])[0].probability is None


def with_few_weights(max_dense_weights: int, monkeypatch: pytest.MonkeyPatch) -> Recommender:
    """Return the fitted recommender with three weights per item and no part of low rank, as in a
    large catalogue; a matrix of weights of at most so many cells is held with its zeros."""
    monkeypatch.setattr("idcf.inference.kernels._MAX_DENSE_WEIGHTS", max_dense_weights)
    artifact = fitted().artifact
    model = deepcopy(artifact.take_up_model)
    weights = model.item_weights.to_dense().numpy()
    third = np.sort(weights, 1)[:, -3, None]
    model.item_weights.set_entries(csr_array(np.where(weights >= third, weights, 0)))
    model.low_rank_weights.set_factors(torch.zeros(40, 0), torch.zeros(40, 0))
    return Recommender.from_artifact(replace(artifact, take_up_model=model))


def test_lists_of_a_sparse_relation_are_those_of_the_whole_matrix(monkeypatch) -> None:
    dense = with_few_weights(10**6, monkeypatch)
    assert dense.predictor.benefit_ranker._sparse is None
    sparse = with_few_weights(0, monkeypatch)
    assert sparse.predictor.benefit_ranker._sparse is not None
    monkeypatch.setattr(sparse.predictor.benefit_ranker._sparse, "_max_unrelated", 2)
    with monkeypatch.context() as patch:  # the codes of the ratings are scanned
        patch.setattr("idcf.inference.topk._MIN_SCANNED_ITEMS", 1)
        patch.setattr("idcf.inference.topk.multiplies_codes", lambda: True)
        scanned = with_few_weights(0, monkeypatch)
        assert scanned.predictor.benefit_ranker.can_scan
    if not multiplies_codes():
        monkeypatch.setattr(torch, "_int_mm", lambda a, b: a.int() @ b.int())
    monkeypatch.setattr("idcf.inference.topk._MAX_SCORES_PER_BLOCK", 40)  # blocks of 16 users
    rng = np.random.default_rng(1)
    histories = [
        {f"i{n}": float(rng.integers(1, 6)) for n in rng.choice(40, size, replace=False)}
        for size in rng.integers(1, 9, 38)
    ]
    histories += [{"i1": 1.0, "i2": 1.0}, {"i7": 1.0}]  # the take-up model reads nothing of these
    options = [
        {},
        {"quality": 0.0},
        {"quality": 1.0, "damping": 0.5},
        {"quality": 0.3, "damping": 0.2, "return_std": True},
        {"recency": 0.5},
        {"candidates": [f"i{n}" for n in range(0, 40, 2)], "filter_seen": False},
        {"candidates": ["i1", "i4", "i7"]},
        {"exclude": ["i3", "i4"], "diversity": 0.4},
    ]
    for chosen in options:
        batches = [x.recommend(histories, n=7, **chosen) for x in (sparse, scanned)]
        for history, *of_batches in zip(histories, *batches, strict=True):
            lists = [x.recommend(history, n=7, **chosen) for x in (dense, sparse, scanned)]
            for one in (*lists[1:], *of_batches):
                assert [x.item_id for x in one] == [x.item_id for x in lists[0]]
                for field in ("score", "probability", "rating", "std"):
                    values = [[getattr(x, field) or 0 for x in y] for y in (one, lists[0])]
                    np.testing.assert_allclose(*values, rtol=1e-3)
