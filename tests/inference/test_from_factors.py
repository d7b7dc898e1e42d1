"""Factors from elsewhere: known answers, `implicit`'s BPR, and what is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idcf import ConfigError, DataError, Recommender
from idcf.data.datasets.catalog import find
from idcf.testing.synthetic import checkerboard

ITEMS, USERS, SIZE = 60, 200, 4
IDS = [f"i{n}" for n in range(ITEMS)]
BPR = pytest.mark.skipif(
    importlib.util.find_spec("implicit") is None,
    reason="implicit is not installed; pip install 'idcf[peers]'",
)


def factors(seed: int = 0) -> dict[str, Any]:
    """Users round a mean that is not 0, in a space with no preferred axes."""
    rng = np.random.default_rng(seed)
    turn = rng.normal(size=(SIZE, SIZE))
    return {
        "items": rng.normal(size=(ITEMS, SIZE)),
        "users": (rng.normal(size=(USERS, SIZE)) + 0.5) @ turn,
        "item_bias": rng.normal(0, 0.3, ITEMS),
        "user_bias": rng.normal(0.1, 0.4, USERS),
    }


def scores(f: dict[str, Any], user: int, mean: float = 0.0) -> Any:
    return mean + f["item_bias"] + f["user_bias"][user] + f["items"] @ f["users"][user]


def test_a_copy_of_a_known_user_gets_their_ratings_and_their_list() -> None:
    f = factors()
    made = Recommender.from_factors(
        **f, item_ids=IDS, implicit=False, mean=3.0, scale=(-20, 20), reg=1e-4
    )
    for user in (0, 7, 100):
        truth = scores(f, user, 3.0)
        history = dict(zip(IDS[:30], truth[:30].tolist(), strict=True))
        np.testing.assert_allclose(made.predict(history, IDS), truth, atol=1e-2)
        best = [x.item_id for x in made.recommend(history, n=5)]
        assert best == [IDS[30 + i] for i in np.argsort(-truth[30:])[:5]]
        np.testing.assert_allclose(made.embed(history)[:SIZE], f["users"][user], atol=1e-2)


def test_ratings_are_the_posterior_mean_of_a_slow_solve() -> None:
    f, reg = factors(), 0.7
    made = Recommender.from_factors(
        **f, item_ids=IDS, implicit=False, mean=3.0, scale=(-20, 20), reg=reg
    )
    q = np.column_stack([f["items"], np.ones(ITEMS)])
    p = np.column_stack([f["users"], f["user_bias"]])
    spread = np.cov(p.T, bias=True)
    spread += np.trace(spread) / (USERS * (SIZE + 1)) * np.eye(SIZE + 1)
    precision = np.linalg.inv(spread) * (USERS + 1) / USERS
    rows, ratings = [3, 9, 40], np.array([5.0, 2.0, 3.5])
    left = precision + q[rows].T @ q[rows] / reg
    right = precision @ p.mean(0) + (ratings - 3.0 - f["item_bias"][rows]) @ q[rows] / reg
    expected = 3.0 + f["item_bias"] + q @ np.linalg.solve(left, right)
    found = made.predict(dict(zip(["i3", "i9", "i40"], ratings, strict=True)), IDS)
    np.testing.assert_allclose(found, expected, atol=2e-2)
    nobody = 3.0 + f["item_bias"] + q @ p.mean(0)
    np.testing.assert_allclose(made.predict({}, IDS), nobody, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.01, 100.0])
def test_without_ratings_a_history_of_favourites_gives_the_users_order(scale: float) -> None:
    """Whatever the scale of the factors, and the more the longer the history."""
    f = {k: v * scale**0.5 if k in ("items", "users") else v * scale for k, v in factors().items()}
    made = Recommender.from_factors(**f, item_ids=IDS, implicit=True)
    likeness = []
    for n in (0, 3, 12):
        each = []
        for user in range(40):
            truth = scores(f, user)
            favourites = [IDS[i] for i in np.argsort(-truth)[:n]]
            each.append(np.corrcoef(made.predict(favourites, IDS), truth)[0, 1])
        likeness.append(np.mean(each))
    assert likeness[0] < likeness[1] < likeness[2]
    assert likeness[2] > 0.93


def test_a_column_in_which_all_users_are_alike_is_the_items_bias() -> None:
    """As `implicit` keeps the biases of BPR."""
    f = factors()
    items = np.column_stack([f["items"], f["item_bias"] / 2])
    users = np.column_stack([f["users"], np.full(USERS, 2.0)])
    one = Recommender.from_factors(items, users, item_ids=IDS, implicit=True)
    two = Recommender.from_factors(
        f["items"], f["users"], item_bias=f["item_bias"], item_ids=IDS, implicit=True
    )
    history = ["i1", "i5"]
    np.testing.assert_allclose(one.predict(history, IDS), two.predict(history, IDS), rtol=1e-5)


@pytest.mark.parametrize("implicit", [True, False])
def test_items_alone_are_enough(implicit: bool) -> None:
    f = factors()
    made = Recommender.from_factors(torch.tensor(f["items"]), item_ids=IDS, implicit=implicit)
    loved = np.argsort(-f["items"][:, 0])
    history = {IDS[i]: 5.0 for i in loved[:6]} | ({} if implicit else {IDS[loved[-1]]: 1.0})
    first = [IDS.index(x.item_id) for x in made.recommend(history, n=6)]
    assert f["items"][first, 0].mean() > f["items"][:, 0].mean() + 0.5
    assert len(made.similar_items("i4", n=3)) == 3


@pytest.mark.parametrize("implicit", [True, False])
def test_saved_and_loaded(implicit: bool, tmp_path: Path) -> None:
    made = Recommender.from_factors(
        **factors(), item_ids=range(ITEMS), implicit=implicit, titles={3: "Three"}
    )
    again = Recommender.load(made.save(tmp_path / "model"))
    for history in ({4: 5.0, 5: 1.0}, {}, [{4: 5.0}, {7: 2.0, 3: 2.0}]):
        assert again.recommend(history) == made.recommend(history)
    assert {x.item_id: x.title for x in again.recommend(n=ITEMS)}[3] == "Three"
    assert "factors of items were brought" in (tmp_path / "model" / "card.md").read_text()
    one, many = again.recommend({4: 5.0}), made.recommend([{4: 5.0}])[0]
    assert [x.item_id for x in one] == [x.item_id for x in many]
    assert [x.score for x in one] == pytest.approx([x.score for x in many], rel=1e-5)


def test_what_is_refused() -> None:
    f = factors()
    items, users, bad = f["items"], f["users"], f["items"].copy()
    bad[3, 1] = np.nan

    def refused(match: str, *parts: Any, kind: type[Exception] = DataError, **more: Any) -> None:
        with pytest.raises(kind, match=match):
            Recommender.from_factors(*parts, **{"item_ids": IDS, "implicit": True, **more})

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
    refused("scale must be", items, scale=(5, 1), kind=ConfigError)


@BPR
def test_bpr_of_implicit_meets_new_people() -> None:
    from implicit.bpr import BayesianPersonalizedRanking
    from scipy.sparse import csr_matrix

    table = checkerboard(300, 60, np.random.default_rng(0), few=8, many=20, implicit=True)
    matrix = csr_matrix((table.rating, (table.user, table.item)))
    bpr = BayesianPersonalizedRanking(factors=8, iterations=60, random_state=0, num_threads=1)
    bpr.fit(matrix, show_progress=False)
    made = Recommender.from_factors(
        bpr.item_factors, bpr.user_factors, item_ids=table.items.ids, implicit=True
    )
    for colour in (0, 1):
        told = [f"i{colour + 2 * n}" for n in range(3)]
        alike = [int(x.item_id[1:]) % 2 == colour for x in made.recommend(told, n=15)]
        assert np.mean(alike) > 0.9


@BPR
@pytest.mark.accuracy
@pytest.mark.skipif(find("ml-100k") is None, reason="no MovieLens-100K; set IDCF_DATA")
def test_the_example_beats_popularity() -> None:
    path = Path(__file__).parents[1] / "examples" / "bring_your_own_factors.py"
    spec = importlib.util.spec_from_file_location("bring_your_own_factors", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for usual, ours in example.main().values():
        assert ours > 1.1 * usual
