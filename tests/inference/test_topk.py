"""Selection of the best items and the kernels, against slow and obvious computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from idcf.data.history_reader import HistoryReader, as_users
from idcf.data.interactions import Vocab
from idcf.errors import ConfigError
from idcf.inference.topk import (
    CatalogRanker,
    RankedItems,
    mask_scores,
    mask_scores_1d,
    top_k,
    top_k_1d,
)
from idcf.models.base import Model
from idcf.models.baselines import FoldInModel
from idcf.models.registry import all_models, configure, model_entry
from idcf.testing.synthetic import checkerboard
from idcf.types import Embeddings, History, Users

IDCF_OPTIONS = {
    "plain": {},
    "ratings": {"query": "ratings"},
    "mean, no bias": {"pooling": "mean", "bias": "own"},
    "sum, unscaled": {"pooling": "sum", "scaled": False, "standardize": False},
    "additive": {"attention": "additive"},
}


def build_untrained(name: str, options: dict[str, object], *, implicit: bool = False) -> Model:
    """Return an untrained model whose every tensor changes the scores."""
    torch.manual_seed(0)
    table = checkerboard(50, 37, np.random.default_rng(0), implicit=implicit)
    backbone = all_models()[name].backbone
    assert backbone is not None
    base = model_entry(backbone).build(configure(backbone), table.domain())
    keys = np.arange(0, 50, 2)
    with torch.no_grad():
        for tensor in base.parameters():
            tensor.copy_(torch.randn_like(tensor) * 0.5)
    key_users = Users(torch.from_numpy(keys), table.history(keys))
    return model_entry(name).build_around(configure(name, options), base, key_users)


def histories_of(users: Users) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the history of each user, as rows and values."""
    lengths = users.history.lengths().tolist()
    columns = (x.split(lengths) for x in (users.history.items, users.history.values))
    return [(x.numpy(), y.numpy()) for x, y in zip(*columns, strict=True)]


def random_users(n: int, items: int = 37) -> Users:
    """Return users with zero to eight random ratings."""
    rng = np.random.default_rng(1)
    reader = HistoryReader(Vocab(range(items)), implicit=False)
    item_rows = [rng.choice(items, size, replace=False) for size in rng.integers(0, 9, n)]
    return as_users(
        [reader.read_history({int(i): float(rng.integers(1, 6)) for i in x}) for x in item_rows]
    )


def stable_sort(scores: np.ndarray, k: int) -> list[int]:
    """Return the rows of the k best scores, of equal scores the lower row first."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


@pytest.mark.parametrize("k", [1, 3, 10, 37, 50])
@pytest.mark.parametrize("levels", [1, 4, 10**6])
def test_top_k_is_a_stable_sort(k: int, levels: int) -> None:
    scores = np.random.default_rng(k).integers(0, levels, (8, 37)).astype(np.float32)
    ranked = top_k(torch.from_numpy(scores), k)
    for row, rows, best in zip(
        scores, ranked.item_rows.tolist(), ranked.scores.tolist(), strict=True
    ):
        assert rows == stable_sort(row, k) == top_k_1d(row, k).tolist()
        assert best == row[rows].tolist()


@pytest.mark.parametrize("levels", [0, 40])
@pytest.mark.parametrize("n", [300, 5000, 5123])
def test_folding_of_long_rows_does_not_change_the_result(n: int, levels: int) -> None:
    rng = np.random.default_rng(n)
    scores = rng.normal(size=(6, n)).astype(np.float32)
    if levels:  # many ties
        scores = np.round(scores * levels) / levels
    scores[1, 7:] = scores[2] = -np.inf
    for k in (1, 10, 60):
        ranked = top_k(torch.from_numpy(scores), k)
        for row, rows in zip(scores, ranked.item_rows.tolist(), strict=True):
            assert rows == stable_sort(row, k)
            assert top_k_1d(row, k).tolist() == [x for x in rows if row[x] > -np.inf]


@pytest.mark.parametrize("max_numpy_size", [1, 1 << 20])
@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("size", [4, 16, 80])
def test_the_fold_in_kernel_equals_the_model(
    size: int, implicit: bool, max_numpy_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idcf.inference.kernels._MAX_NUMPY_TABLE_SIZE", max_numpy_size)
    table = checkerboard(50, 37, np.random.default_rng(0), implicit=implicit)
    options = {"embedding_size": size, "reg": 0.5, "popularity_weight": 0.2}
    model = model_entry("als").build(configure("als", options), table.domain())
    assert isinstance(model, FoldInModel)
    torch.manual_seed(0)
    for tensor in (model.factors, model.prior_rhs, model.popularity, model.bias_model.item_bias):
        tensor.copy_(torch.randn_like(tensor) * 0.3)
    model.gram.copy_(torch.eye(size) + 0.01 * model.factors.T @ model.factors)
    users = random_users(40)
    expected = model.score_catalog(users)
    ranker = CatalogRanker(model)
    assert ranker.single_user_scorer is not None
    torch.testing.assert_close(ranker.score_catalog(users), expected, rtol=1e-4, atol=1e-4)
    for row, history in zip(expected, histories_of(users), strict=True):
        scores = torch.from_numpy(ranker.score_one_user(*history))
        torch.testing.assert_close(scores, row, rtol=1e-4, atol=1e-4)
    ranked = ranker.top_k(users, 5, users.history)
    at_rows = expected.gather(1, ranked.item_rows)
    torch.testing.assert_close(ranked.scores, at_rows, rtol=1e-4, atol=1e-4)


def test_fold_in_without_a_penalty_has_no_kernel() -> None:
    domain = checkerboard(50, 37, np.random.default_rng(0)).domain()
    model = model_entry("als").build(configure("als"), domain)
    assert isinstance(model, FoldInModel)
    model.factors.copy_(torch.randn_like(model.factors))
    for weight in (0.0, 1e-9):
        model.gram.copy_(weight * torch.eye(16))
        assert CatalogRanker(model).single_user_scorer is None


def test_excluded_items_come_last_or_not_at_all() -> None:
    excluded = History(torch.tensor([5, 4, 5]), torch.ones(3), torch.tensor([0, 2, 3]))
    ranked = top_k(mask_scores(torch.arange(6.0).repeat(2, 1), excluded), 5)
    assert ranked.item_rows[:, :4].tolist() == [[3, 2, 1, 0], [4, 3, 2, 1]]
    assert ranked.scores[0, 4] == -torch.inf
    masked = np.array([1, -np.inf, 3, -np.inf], np.float32)
    assert top_k_1d(masked, 3).tolist() == [2, 0]
    assert top_k_1d(masked, 9).tolist() == [2, 0]
    assert top_k_1d(np.full(3, -np.inf, np.float32), 2).tolist() == []


@pytest.mark.parametrize("candidates", [None, [], [3, 5, 8, 9]])
def test_masks_of_one_user_and_of_a_batch_agree(candidates: list[int] | None) -> None:
    scores = np.random.default_rng(0).normal(size=(2, 12)).astype(np.float32)
    excluded = [np.array([5, 0, 5]), np.empty(0, np.int64)]
    rows = None if candidates is None else np.array(candidates, np.int64)
    expected = scores.copy()
    for row, item_rows in zip(expected, excluded, strict=True):
        for item in range(12):
            if item in item_rows or (candidates is not None and item not in candidates):
                row[item] = -np.inf
    one_by_one = [mask_scores_1d(x.copy(), y, rows) for x, y in zip(scores, excluded, strict=True)]
    np.testing.assert_array_equal(np.stack(one_by_one), expected)
    history = History(torch.from_numpy(excluded[0]), torch.ones(3), torch.tensor([0, 3, 3]))
    tensor_rows = None if rows is None else torch.from_numpy(rows)
    batch = mask_scores(torch.from_numpy(scores.copy()), history, tensor_rows)
    np.testing.assert_array_equal(batch.numpy(), expected)


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("options", IDCF_OPTIONS.values(), ids=IDCF_OPTIONS)
@pytest.mark.parametrize("name", ["idcf-dot", "idcf-nn", "idcf-gc"])
def test_kernels_equal_the_model(name: str, options: dict[str, object], implicit: bool) -> None:
    model = build_untrained(name, options, implicit=implicit)
    users = random_users(40)
    model.eval()
    with torch.no_grad():
        expected = model.score_catalog(users)
    ranker = CatalogRanker(model)
    torch.testing.assert_close(ranker.score_catalog(users), expected, rtol=1e-4, atol=1e-4)
    for row, history in zip(expected, histories_of(users), strict=True):
        scores = torch.from_numpy(ranker.score_one_user(*history))
        torch.testing.assert_close(scores, row, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["idcf-dot", "idcf-nn"])
def test_results_do_not_depend_on_the_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranker = CatalogRanker(build_untrained(name, {"query": "ratings"}))
    users = random_users(30)
    whole = ranker.top_k(users, 5, users.history)
    for block in (37, 37 * 7):
        monkeypatch.setattr("idcf.inference.topk._MAX_SCORES_PER_BLOCK", block)
        monkeypatch.setattr("idcf.inference.topk._MIN_PRODUCT_USERS", 1)
        parts = ranker.top_k(users, 5, users.history)
        assert torch.equal(parts.item_rows, whole.item_rows)
        torch.testing.assert_close(parts.scores, whole.scores)


def test_candidates_and_embedded_users() -> None:
    ranker, users = CatalogRanker(build_untrained("idcf-dot", {})), random_users(10)
    scores = ranker.score_catalog(users)
    embedded = ranker.top_k_block(ranker.embed_users(users), 4, users.history)
    assert torch.equal(embedded.item_rows, ranker.top_k(users, 4, users.history).item_rows)
    ranked = ranker.top_k(users, 4, candidates=torch.tensor([3, 8, 9]))
    assert set(ranked.item_rows[:, :3].flatten().tolist()) == {3, 8, 9}
    assert (ranked.scores[:, 3] == -torch.inf).all()
    torch.testing.assert_close(ranked.scores[:, 0], scores[:, [3, 8, 9]].max(1).values)
    assert isinstance(ranker.top_k(random_users(0), 4), RankedItems)


def test_models_without_vectors_rank_but_do_not_embed() -> None:
    domain = checkerboard(20, 12, np.random.default_rng(0)).domain()
    ranker = CatalogRanker(model_entry("popularity").build(configure("popularity"), domain))
    assert ranker.score_catalog(random_users(3, 12)).shape == (3, 12)
    with pytest.raises(ConfigError, match="idcf-"):
        ranker.embed_users(random_users(3, 12))
    with pytest.raises(ConfigError, match="no similarity between items"):
        ranker.item_similarities(0)


def test_an_item_is_most_similar_to_itself() -> None:
    ranker = CatalogRanker(build_untrained("idcf-nn", {}))
    assert all(ranker.item_similarities(row).argmax() == row for row in range(37))
    assert isinstance(ranker.item_embeddings, Embeddings)
