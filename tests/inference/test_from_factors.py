"""Recommenders from given factors: known answers, BPR of `implicit`, and errors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idcf import ConfigError, DataError, Recommender
from idcf.data.datasets.catalog import find_dataset_folder
from idcf.testing.synthetic import checkerboard

ITEMS, USERS, SIZE = 60, 200, 4
IDS = [f"i{n}" for n in range(ITEMS)]
needs_implicit = pytest.mark.skipif(
    importlib.util.find_spec("implicit") is None,
    reason="implicit is not installed; pip install 'idcf[peers]'",
)


def factors(seed: int = 0) -> dict[str, Any]:
    """Return users around a mean that is not 0, in a space without preferred axes."""
    rng = np.random.default_rng(seed)
    turn = rng.normal(size=(SIZE, SIZE))
    return {
        "items": rng.normal(size=(ITEMS, SIZE)),
        "users": (rng.normal(size=(USERS, SIZE)) + 0.5) @ turn,
        "item_bias": rng.normal(0, 0.3, ITEMS),
        "user_bias": rng.normal(0.1, 0.4, USERS),
    }


def true_scores(f: dict[str, Any], user: int, mean: float = 0.0) -> Any:
    """Return the scores of all items for a user of the factors."""
    return mean + f["item_bias"] + f["user_bias"][user] + f["items"] @ f["users"][user]


def test_a_new_user_with_the_ratings_of_a_training_user_gets_their_scores() -> None:
    f = factors()
    recommender = Recommender.from_factors(
        **f, item_ids=IDS, implicit=False, mean=3.0, rating_range=(-20, 20), reg=1e-4
    )
    for user in (0, 7, 100):
        truth = true_scores(f, user, 3.0)
        history = dict(zip(IDS[:30], truth[:30].tolist(), strict=True))
        np.testing.assert_allclose(recommender.predict(history, IDS), truth, atol=1e-2)
        best = [x.item_id for x in recommender.recommend(history, n=5)]
        assert best == [IDS[30 + i] for i in np.argsort(-truth[30:])[:5]]
        np.testing.assert_allclose(recommender.embed(history)[:SIZE], f["users"][user], atol=1e-2)


def test_ratings_are_the_posterior_mean_of_a_slow_solve() -> None:
    f, reg = factors(), 0.7
    recommender = Recommender.from_factors(
        **f, item_ids=IDS, implicit=False, mean=3.0, rating_range=(-20, 20), reg=reg
    )
    q = np.column_stack([f["items"], np.ones(ITEMS)])
    p = np.column_stack([f["users"], f["user_bias"]])
    spread = np.cov(p.T, bias=True)
    spread += np.trace(spread) / (USERS * (SIZE + 1)) * np.eye(SIZE + 1)
    precision = np.linalg.inv(spread) * (USERS + 1) / USERS
    rows, ratings = [3, 9, 40], np.array([5.0, 2.0, 3.5])
    matrix = precision + q[rows].T @ q[rows] / reg
    rhs = precision @ p.mean(0) + (ratings - 3.0 - f["item_bias"][rows]) @ q[rows] / reg
    expected = 3.0 + f["item_bias"] + q @ np.linalg.solve(matrix, rhs)
    history = dict(zip(["i3", "i9", "i40"], ratings, strict=True))
    np.testing.assert_allclose(recommender.predict(history, IDS), expected, atol=2e-2)
    empty = 3.0 + f["item_bias"] + q @ p.mean(0)
    np.testing.assert_allclose(recommender.predict({}, IDS), empty, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.01, 100.0])
def test_a_history_of_favorites_recovers_the_order_of_items(scale: float) -> None:
    """Correlate with the true scores, for factors of any scale and histories of three lengths."""
    f = {k: v * scale**0.5 if k in ("items", "users") else v * scale for k, v in factors().items()}
    recommender = Recommender.from_factors(**f, item_ids=IDS, implicit=True)
    correlations = []
    for n in (0, 3, 12):
        by_user = []
        for user in range(40):
            truth = true_scores(f, user)
            favorites = [IDS[i] for i in np.argsort(-truth)[:n]]
            by_user.append(np.corrcoef(recommender.predict(favorites, IDS), truth)[0, 1])
        correlations.append(np.mean(by_user))
    assert correlations[0] < correlations[1] < correlations[2]
    assert correlations[2] > 0.93


def test_a_constant_column_of_the_users_is_an_item_bias() -> None:
    """The factors of BPR in `implicit` have such a column."""
    f = factors()
    items = np.column_stack([f["items"], f["item_bias"] / 2])
    users = np.column_stack([f["users"], np.full(USERS, 2.0)])
    with_column = Recommender.from_factors(items, users, item_ids=IDS, implicit=True)
    with_bias = Recommender.from_factors(
        f["items"], f["users"], item_bias=f["item_bias"], item_ids=IDS, implicit=True
    )
    history = ["i1", "i5"]
    scores = with_column.predict(history, IDS)
    np.testing.assert_allclose(scores, with_bias.predict(history, IDS), rtol=1e-5)


@pytest.mark.parametrize("implicit", [True, False])
def test_items_alone_are_enough(implicit: bool) -> None:
    f = factors()
    recommender = Recommender.from_factors(
        torch.tensor(f["items"]), item_ids=IDS, implicit=implicit
    )
    best = np.argsort(-f["items"][:, 0])
    history = {IDS[i]: 5.0 for i in best[:6]} | ({} if implicit else {IDS[best[-1]]: 1.0})
    first = [IDS.index(x.item_id) for x in recommender.recommend(history, n=6)]
    assert f["items"][first, 0].mean() > f["items"][:, 0].mean() + 0.5
    assert len(recommender.similar_items("i4", n=3)) == 3


@pytest.mark.parametrize("implicit", [True, False])
def test_saved_and_loaded(implicit: bool, tmp_path: Path) -> None:
    recommender = Recommender.from_factors(
        **factors(), item_ids=range(ITEMS), implicit=implicit, titles={3: "Three"}
    )
    loaded = Recommender.load(recommender.save(tmp_path / "model"))
    low = 5.0 if implicit else 1.0  # of different ratings a model of clicks warns
    for history in ({4: 5.0, 5: low}, {}, [{4: 5.0}, {7: 2.0, 3: 2.0}]):
        assert loaded.recommend(history) == recommender.recommend(history)
    assert {x.item_id: x.title for x in loaded.recommend(n=ITEMS)}[3] == "Three"
    assert "the item factors were given" in (tmp_path / "model" / "card.md").read_text()
    single, batch = loaded.recommend({4: 5.0}), recommender.recommend([{4: 5.0}])[0]
    assert [x.item_id for x in single] == [x.item_id for x in batch]
    assert [x.score for x in single] == pytest.approx([x.score for x in batch], rel=1e-5)


def test_errors_name_the_argument() -> None:
    f = factors()
    items, users, bad = f["items"], f["users"], f["items"].copy()
    bad[3, 1] = np.nan

    def refused(
        match: str, *factors: Any, kind: type[Exception] = DataError, **options: Any
    ) -> None:
        with pytest.raises(kind, match=match):
            Recommender.from_factors(*factors, **{"item_ids": IDS, "implicit": True, **options})

    refused("60 rows, but there are 59 item_ids", items, item_ids=IDS[:-1])
    refused(r"items\[3, 1\] is nan", bad)
    refused("users have 3 columns and items 4", items, users[:, :3])
    refused("two users or more, got 1", items, users[:1])
    refused("all rows of users are the same", items, users[:1].repeat(5, 0))
    refused(r"items must be a matrix.*\(60,\)", items[:, 0])
    refused("item_bias must be 60 numbers", items, item_bias=[1.0])
    refused("duplicate", items, item_ids=["a"] * ITEMS)
    refused("cannot be read as numbers", [["a"]], item_ids=["a"])
    refused("reg must be above 0, got 0", items, reg=0, kind=ConfigError)
    refused("mean must be 0 with implicit=True", items, mean=3.5, kind=ConfigError)
    refused("user_bias was given without users", items, user_bias=[1.0], kind=ConfigError)
    refused("rating_range must be", items, rating_range=(5, 1), kind=ConfigError)


@needs_implicit
def test_bpr_of_implicit_with_new_users() -> None:
    from implicit.bpr import BayesianPersonalizedRanking
    from scipy.sparse import csr_matrix

    table = checkerboard(
        300,
        60,
        np.random.default_rng(0),
        rows_per_light_user=8,
        rows_per_heavy_user=20,
        implicit=True,
    )
    matrix = csr_matrix((table.rating, (table.user, table.item)))
    bpr = BayesianPersonalizedRanking(factors=8, iterations=60, random_state=0, num_threads=1)
    bpr.fit(matrix, show_progress=False)
    recommender = Recommender.from_factors(
        bpr.item_factors, bpr.user_factors, item_ids=table.items.ids, implicit=True
    )
    for parity in (0, 1):
        history = [f"i{parity + 2 * n}" for n in range(3)]
        is_liked = [int(x.item_id[1:]) % 2 == parity for x in recommender.recommend(history, n=15)]
        assert np.mean(is_liked) > 0.9


@needs_implicit
@pytest.mark.accuracy
@pytest.mark.skipif(
    find_dataset_folder("ml-100k") is None, reason="no MovieLens-100K; set IDCF_DATA"
)
def test_the_example_beats_popularity() -> None:
    path = Path(__file__).parents[2] / "examples" / "bring_your_own_factors.py"
    spec = importlib.util.spec_from_file_location("bring_your_own_factors", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for popularity, ours in example.main().values():
        assert ours > 1.1 * popularity
