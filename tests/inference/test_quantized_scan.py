"""The scan of 8-bit codes gives what scoring and sorting every item gives, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum
from typing import Any

import numpy as np
import pytest
import torch
from builders import board
from hypothesis import assume, given
from hypothesis import strategies as st

from idcf.data.history_reader import NewUser, as_users
from idcf.inference import quantized_scan, topk
from idcf.inference.quantized_scan import Order, QuantizedScan, multiplies_codes
from idcf.inference.ranking_query import Filters, RankingQuery
from idcf.inference.topk import CatalogRanker
from idcf.models.bayes import BayesModel
from idcf.models.registry import configure, model_entry
from idcf.recommender import Recommender
from idcf.types import History, Users

KINDS = (
    "normal",
    "skewed norms",
    "huge",
    "tiny",
    "zeros",
    "equal",
    "duplicates",
    "one large column",
    "one large item",
    "one column",
    "integers",
    "negative",
)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Let small catalogues have several blocks; products are exact also where codes are slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_scan, "_MAX_BLOCK_ITEMS", 128)
        patch.setattr(quantized_scan, "MAX_SCANNED_USERS", 3)
        if not multiplies_codes():
            patch.setattr(torch, "_int_mm", lambda a, b: a.int() @ b.int())
            patch.setattr(topk, "multiplies_codes", lambda: True)
        yield


def vectors(kind: str, n: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return vectors [n, size] of a kind that is difficult for codes."""
    x = rng.normal(size=(n, size))
    if kind == "skewed norms":
        x *= rng.lognormal(0, 3, (n, 1))
    elif kind in ("huge", "tiny"):
        x *= 9e14 / np.abs(x).max() if kind == "huge" else 1e-40
    elif kind == "zeros":
        x *= rng.random((n, 1)) < 0.2
    elif kind == "equal":
        x[:] = x[0]
    elif kind == "duplicates":
        x = x[rng.integers(max(1, n // 5), size=n)]
    elif kind == "one large column":
        x[:, 0] *= 1e6
    elif kind == "one large item":
        x[rng.integers(n)] *= 1e6
    elif kind == "one column":
        x[:, 1:] = 0
    elif kind == "integers":
        x = rng.integers(-3, 4, (n, size))
    elif kind == "negative":
        x = -np.abs(x)
    return x.astype(np.float32)


def make_scan(items: np.ndarray, offsets: np.ndarray) -> QuantizedScan:
    """Return the scan of item vectors."""
    return QuantizedScan(len(items), lambda rows: (items[rows], offsets[rows]))


def histories(rows: list[Any]) -> History:
    """Return excluded items as a history."""
    ends = torch.tensor([0, *np.cumsum([len(x) for x in rows])])
    items = torch.from_numpy(np.concatenate(rows).astype(np.int64))
    return History(items, torch.ones(len(items)), ends)


def expected_list(scores: np.ndarray, k: int, allowed: set[int]) -> list[int]:
    """Return the rows of a plain sort; of equal scores the lower row is first."""
    return sorted(allowed, key=lambda row: (-scores[row], row))[:k]


@st.composite
def catalogs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Draw item vectors, offsets, user vectors and a generator of random numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, size = draw(st.integers(1, 400)), draw(st.integers(1, 9))
    items = vectors(draw(st.sampled_from(KINDS)), n, size, rng)
    users = vectors(draw(st.sampled_from(KINDS)), 5, size, rng)
    scale = draw(st.sampled_from([0.0, 1.0, 1e-38, 1e6]))
    offsets = (scale * rng.normal(size=n)).round(draw(st.sampled_from([0, 45])))
    return items, offsets.astype(np.float32), users, rng


@given(catalogs())
def test_no_score_is_above_its_bound(catalog: Any) -> None:
    items, offsets, users, _ = catalog
    scan, rows = make_scan(items, offsets), np.arange(len(items))
    assume(scan.is_possible)
    bounds = scan.upper_bounds(users, rows)
    for user, bound in zip(users, bounds, strict=True):
        assert (scan.scores(user, rows) <= bound).all()


@given(catalogs())
def test_bounds_are_close_to_the_scores(catalog: Any) -> None:
    """The bound is that of the formula, so that few items need their exact score."""
    items, offsets, users, _ = catalog
    scan, rows = make_scan(items, offsets), np.arange(len(items))
    assume(scan.is_possible)
    columns = np.abs(items).max(0)
    scaled = items / np.where(columns > 0, columns, 1).astype(np.float64)
    size, largest = items.shape[1], np.abs(scaled).max(1, initial=1e-25)
    for user, bound in zip(users, scan.upper_bounds(users, rows), strict=True):
        norm = np.linalg.norm(user * columns.astype(np.float64))
        slack = (
            2.1 * size * norm * largest / 127 + 2e-6 * np.abs(offsets).max() + 1e-25 * (1 + norm)
        )
        assert (bound <= scan.scores(user, rows) + slack).all()


@given(catalogs(), st.integers(1, 450), st.booleans(), st.floats(0, 1))
def test_lists_are_those_of_a_plain_sort(
    catalog: Any, k: int, has_candidates: bool, share: float
) -> None:
    items, offsets, users, rng = catalog
    scan, n = make_scan(items, offsets), len(items)
    candidates = rng.integers(n, size=1 + int(share * n)) if has_candidates else None
    excluded = [rng.choice(n, rng.integers(0, n + 1), replace=False) for _ in users]
    best, rows = scan.top_k(users, k, histories(excluded), candidates)
    assert best.shape == rows.shape == (len(users), min(k, n))
    for user, best_scores, best_rows, out in zip(users, best, rows, excluded, strict=True):
        scores = scan.scores(user, np.arange(n))
        allowed = set(range(n)) if candidates is None else set(candidates.tolist())
        expected = expected_list(scores, k, allowed - set(out.tolist()))
        assert best_rows[: len(expected)].tolist() == expected
        assert best_scores[: len(expected)].tolist() == scores[expected].tolist()
        assert bool((best_scores[len(expected) :] == -torch.inf).all())


def test_no_candidates_give_no_items() -> None:
    rng = np.random.default_rng(0)
    scan = make_scan(vectors("normal", 70, 4, rng), np.zeros(70, np.float32))
    users, nothing = vectors("normal", 2, 4, rng), np.zeros(0, np.int64)
    best, _ = scan.top_k(users, 5, candidates=nothing)
    assert best.tolist() == [[-np.inf] * 5] * 2
    assert scan.top_k(users[:0], 5)[0].shape == (0, 5)


@given(catalogs(), st.integers(1, 30))
def test_a_list_does_not_depend_on_the_other_users(catalog: Any, k: int) -> None:
    items, offsets, users, _ = catalog
    scan = make_scan(items, offsets)
    best, rows = scan.top_k(users, k)
    for n in range(len(users)):
        alone, alone_rows = scan.top_k(users[n : n + 1], k)
        assert torch.equal(alone[0], best[n])
        assert torch.equal(alone_rows[0], rows[n])


@given(
    catalogs(),
    st.integers(1, 30),
    st.sampled_from([0.0, 0.4, 3.0]),
    st.sampled_from([(1, 45), (1e5, 45), (2, 0)]),
)
def test_other_orders_are_those_of_a_plain_sort(
    catalog: Any, k: int, slope: float, kind: tuple[float, int]
) -> None:
    items, offsets, users, rng = catalog
    size, digits = kind
    scan, n = make_scan(items, offsets), len(items)
    added = (size * rng.normal(size=n)).round(digits).astype(np.float32)

    def rescore(rows: Any, scores: Any) -> Any:
        return (slope * scores.astype(np.float64) + added[rows]).astype(np.float32)

    order = Order(slope, torch.from_numpy(added), rescore)
    best, rows = scan.top_k(users, k, order=order)
    for user in range(len(users)):
        scores = rescore(np.arange(n), scan.scores(users[user], np.arange(n)))
        expected = expected_list(scores, k, set(range(n)))
        assert rows[user].tolist() == expected
        assert best[user].tolist() == scores[expected].tolist()


@given(catalogs())
def test_scores_are_dot_products(catalog: Any) -> None:
    items, offsets, users, _ = catalog
    rows = np.arange(min(20, len(items)))
    scores = make_scan(items, offsets).scores(users[0], rows)
    for row, score in zip(rows, scores.tolist(), strict=True):
        products = [float(a) * float(b) for a, b in zip(items[row], users[0], strict=True)]
        size = fsum(map(abs, products)) + abs(float(offsets[row]))
        exact = fsum([*products, float(offsets[row])])
        assert score == pytest.approx(exact, rel=1e-7, abs=1e-14 * size + 1e-44)


@pytest.mark.parametrize("value", [1.1e15, 3e38])
def test_numbers_that_may_overflow_have_no_bounds(value: float) -> None:
    rng = np.random.default_rng(0)
    items, offsets = vectors("normal", 200, 4, rng), np.zeros(200, np.float32)
    scan = make_scan(items, offsets)
    users = vectors("normal", 2, 4, rng)
    users[1, 2] = value
    _, rows = scan.top_k(users, 5)
    for n in range(2):
        scores = scan.scores(users[n], np.arange(200))
        assert rows[n].tolist() == expected_list(scores, 5, set(range(200)))
    items[7, 1] = value
    assert scan.is_possible
    assert not make_scan(items, offsets).is_possible
    assert not make_scan(items * 0, items[:, 1]).is_possible


def recommender(*, implicit: bool, biased: bool = True) -> Recommender:
    """Return a model of factors from elsewhere."""
    rng = np.random.default_rng(3)
    factors = rng.normal(size=(300, 6)) * rng.lognormal(0, 1, (300, 1))
    bias = rng.normal(size=300) if biased else None
    ids = [f"i{n}" for n in range(300)]
    return Recommender.from_factors(factors, item_ids=ids, implicit=implicit, item_bias=bias)


@pytest.fixture
def large_from_one_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every catalogue count as large."""
    monkeypatch.setattr(topk, "_MIN_SCANNED_ITEMS", 1)


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 300},
        {"filter_seen": False, "exclude": ["i1", "i5"]},
        {"candidates": [f"i{n}" for n in range(0, 300, 7)], "n": 20},
        {"diversity": 0.5},
    ],
)
def test_a_recommender_gives_the_same_lists(
    implicit: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    users: list[Any] = [
        {f"i{x}": float(rng.integers(1, 6)) for x in rng.choice(300, n, replace=False)}
        for n in (1, 3, 20, 5, 2, 9, 4, 1, 12)
    ]
    users = [list(x) for x in users] if implicit else users
    plain = recommender(implicit=implicit)
    assert plain.predictor.ranker.scan is None
    expected = plain.recommend(users, **options)
    monkeypatch.setattr(topk, "_MIN_SCANNED_ITEMS", 1)
    model = recommender(implicit=implicit)
    assert model.predictor.ranker.scan is not None
    for lists in (
        model.recommend(users, **options),
        [model.recommend(x, **options) for x in users],
    ):
        for user, items, others in zip(users, lists, expected, strict=True):
            assert [x.item_id for x in items] == [x.item_id for x in others]
            scores = [x.score for x in items]
            assert scores == pytest.approx([x.score for x in others], rel=1e-4, abs=1e-4)
            names = [x.item_id for x in items]
            assert model.predict(user, names) == pytest.approx(scores, rel=1e-6, abs=1e-6)


@pytest.mark.usefixtures("large_from_one_item")
def test_a_user_without_a_history() -> None:
    """Without ratings, biases and a prior all items are equal, and the lower row is first."""
    for implicit in (False, True):
        model = recommender(implicit=implicit, biased=False)
        assert [x.item_id for x in model.recommend([], n=3)] == ["i0", "i1", "i2"]
        model = recommender(implicit=implicit)
        scores = model.predict([], [f"i{n}" for n in range(300)])
        best = [x.item_id for x in model.recommend([], n=300)]
        assert best == [f"i{n}" for n in expected_list(scores, 300, set(range(300)))]


@pytest.mark.parametrize("name", ["idcf-dot", "idcf-bayes", "als"])
def test_models_with_a_table_of_items_are_scanned(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    table, entry = board(30, 230, 5, 9), model_entry(name)
    domain, config = table.domain(), configure(name)
    if entry.backbone:
        backbone = model_entry(entry.backbone).build(configure(entry.backbone), domain)
        keys = np.arange(12)
        key_users = Users(torch.from_numpy(keys), table.history(keys))
        model = entry.build_around(config, backbone, key_users)
    else:
        model = entry.build(config, domain)
    for key, tensor in model.state_dict().items():
        if key.startswith(("means", "factors", "backbone.item_table")):
            tensor.copy_(torch.randn_like(tensor))
    if isinstance(model, BayesModel):
        model.second_moments += torch.eye(model.means.shape[2])[*np.tril_indices(21)]
        second = model.means[..., :, None] * model.means[..., None, :]
        model.second_moments += second[..., *np.tril_indices(21)]
    new_users = [
        NewUser(np.sort(np.random.default_rng(n).choice(230, n, replace=False)), np.full(n, 4.0))
        for n in (3, 1, 7, 20, 2)
    ]
    users = as_users([NewUser(x.item_rows, x.values.astype(np.float32)) for x in new_users])
    plain = CatalogRanker(model).top_k(users, 25, users.history)
    monkeypatch.setattr(topk, "_MIN_SCANNED_ITEMS", 1)
    ranker = CatalogRanker(model)
    assert ranker.scan is not None
    ranked = ranker.top_k(users, 25, users.history)
    assert torch.equal(ranked.item_rows, plain.item_rows)
    torch.testing.assert_close(ranked.scores, plain.scores, rtol=1e-4, atol=1e-4)
    if model.has_uncertainty:
        ranked, std = ranker.top_k_block_with_std(users, 25, users.history)
        torch.testing.assert_close(std, ranker.rating_std(users, ranked.item_rows))


@pytest.mark.usefixtures("large_from_one_item")
def test_models_without_dot_products_are_not_scanned() -> None:
    domain = board(30, 230, 5, 9).domain()
    for name in ("bias", "popularity", "ease"):
        assert CatalogRanker(model_entry(name).build(configure(name), domain)).scan is None


@pytest.mark.usefixtures("large_from_one_item")
def test_the_catalogue_is_not_copied_for_a_list() -> None:
    """Only what needs the score of every item computes the vectors of all items at once."""
    model = recommender(implicit=False)
    ranker = model.predictor.ranker
    query = RankingQuery(NewUser(np.array([3]), np.array([5.0], np.float32)), 5, Filters())
    model.predictor.recommend([query])
    model.recommend([{"i1": 3.0}, {"i2": 4.0}])
    model.predict({"i1": 3.0}, ["i5"])
    assert "_catalog" not in vars(ranker)
    assert ranker.score_catalog(as_users([query.new_user])).shape == (1, 300)
    assert "_catalog" in vars(ranker)
