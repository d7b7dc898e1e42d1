"""Ranking, blocks and masks as properties: every result equals that of a plain sort."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from builders import board
from hypothesis import given
from hypothesis import strategies as st

from idcf.data.history_reader import NewUser, as_users
from idcf.inference import topk
from idcf.inference.kernels import (
    BayesPosteriorKernel,
    BayesSingleUserScorer,
    FoldInKernel,
    IDCFBatchEmbedder,
    IDCFSingleUserScorer,
    MatrixVectorProduct,
    batch_embedder,
    posterior_kernel,
    single_user_scorer,
    to_float32_array,
)
from idcf.inference.topk import CatalogRanker, mask_scores, mask_scores_1d, top_k, top_k_1d
from idcf.models.base import Model
from idcf.models.bayes import BayesModel
from idcf.models.registry import all_models, configure, model_entry
from idcf.types import Embeddings, History, Users

ITEMS = 23
LEVELS = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, 1e30])
SCORES = st.lists(LEVELS | st.floats(-5, 5, width=32), min_size=1, max_size=40)


def sorted_rows(scores: Any) -> list[int]:
    """Return all rows, best first, of equal scores the lower row first."""
    return sorted(range(len(scores)), key=lambda row: (-scores[row], row))


@cache
def model(name: str, *, implicit: bool = False) -> Model:
    """Return an untrained model with random tensors, so that no two scores are equal."""
    table, entry = board(30, ITEMS, 5, 9, implicit=implicit), all_models()[name]
    torch.manual_seed(0)
    if entry.backbone:
        backbone = model_entry(entry.backbone).build(configure(entry.backbone), table.domain())
        with torch.no_grad():
            for tensor in backbone.parameters():
                tensor.copy_(0.5 * torch.randn_like(tensor))
        rows = np.arange(12)
        key_users = Users(torch.from_numpy(rows), table.history(rows))
        return entry.build_around(configure(name), backbone, key_users).eval()
    built = entry.build(
        configure(name, {"embedding_size": 4} if name == "als" else {}), table.domain()
    )
    for key, tensor in built.state_dict().items():
        if key in ("factors", "popularity", "counts", "bias_model.item_bias", "item_bias"):
            tensor.copy_(torch.randn_like(tensor))
    return built.eval()


def users(*lengths: int, seed: int = 0) -> Users:
    """Return new users with random histories of these lengths."""
    rng = np.random.default_rng(seed)
    return as_users(
        [
            NewUser(
                np.sort(rng.choice(ITEMS, n, replace=False)),
                rng.integers(1, 6, n).astype(np.float32),
            )
            for n in lengths
        ]
    )


@given(SCORES, st.integers(1, 45))
def test_one_user_gets_the_first_of_a_plain_sort(scores: list[float], k: int) -> None:
    array = np.array(scores, np.float32)
    expected = [x for x in sorted_rows(array) if array[x] > -np.inf][:k]
    assert top_k_1d(array, k).tolist() == expected


@given(
    st.lists(st.lists(LEVELS, min_size=9, max_size=9), min_size=1, max_size=4), st.integers(1, 12)
)
def test_many_users_get_the_first_of_a_plain_sort(rows: list[list[float]], k: int) -> None:
    ranked = top_k(torch.tensor(rows), k)
    assert ranked.item_rows.tolist() == [sorted_rows(row)[:k] for row in rows]
    assert ranked.scores.tolist() == [
        pytest.approx([row[x] for x in sorted_rows(row)[:k]]) for row in rows
    ]


@given(st.integers(60, 900), st.integers(1, 12), st.integers(1, 50), st.integers(0, 10**6))
def test_folded_rows_with_many_ties(n: int, k: int, levels: int, seed: int) -> None:
    scores = np.random.default_rng(seed).integers(0, levels, n).astype(np.float32)
    expected = sorted_rows(scores)[:k]
    assert top_k_1d(scores, k).tolist() == expected
    assert top_k(torch.from_numpy(scores)[None], k).item_rows[0].tolist() == expected


@given(
    st.sets(st.integers(0, 11), max_size=12),
    st.none() | st.sets(st.integers(0, 11), max_size=12),
)
def test_a_masked_item_is_one_that_must_not_be_recommended(
    excluded: set[int], candidates: set[int] | None
) -> None:
    scores = np.arange(12, dtype=np.float32)
    rows = None if candidates is None else np.array(sorted(candidates), np.int64)
    masked = mask_scores_1d(scores.copy(), np.array(sorted(excluded), np.int64), rows)
    allowed = (set(range(12)) if candidates is None else candidates) - excluded
    assert set(np.flatnonzero(masked > -np.inf).tolist()) == allowed
    assert all(masked[x] == x for x in allowed)
    assert top_k_1d(masked, 12).tolist() == sorted(allowed, reverse=True)


def test_masking_nothing_changes_nothing() -> None:
    scores = torch.arange(6.0).view(2, 3)
    assert mask_scores(scores.clone()).tolist() == scores.tolist()
    assert mask_scores(scores.clone(), History.empty(2)).tolist() == scores.tolist()


@pytest.mark.parametrize("name", ["idcf-dot", "idcf-nn", "als", "bias", "popularity"])
@pytest.mark.parametrize("max_scores", [1, 3 * ITEMS, 1 << 22])
def test_blocks_cover_all_users_in_order(
    name: str, max_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topk, "_MAX_SCORES_PER_BLOCK", max_scores)
    monkeypatch.setattr(topk, "_MIN_PRODUCT_USERS", 1)
    ranker, everyone = CatalogRanker(model(name)), users(3, 0, 1, 5, 2, 2, 4)
    blocks = list(ranker.blocks(everyone))
    assert [x for rows, _ in blocks for x in range(rows.start, rows.stop)] == list(range(7))
    assert all(0 < len(block) <= ranker.max_block_users for _, block in blocks)
    items = torch.cat([block.history.items for _, block in blocks])
    assert torch.equal(items, everyone.history.items)
    assert all(len(block) <= 2 for _, block in ranker.blocks(everyone, 2))
    ranked = ranker.top_k(everyone, 5, everyone.history)
    scores = mask_scores(ranker.score_catalog(everyone).clone(), everyone.history)
    for row, items_of_row in zip(scores, ranked.item_rows.tolist(), strict=True):
        assert items_of_row == sorted_rows(row.tolist())[:5]


def test_users_keep_their_features_in_blocks() -> None:
    plain = users(1, 2, 0)
    everyone = Users(plain.ids, plain.history, torch.arange(6.0).view(3, 2))
    blocks = [block for _, block in CatalogRanker(model("bias")).blocks(everyone, 2)]
    assert torch.equal(torch.cat([x.features for x in blocks]), everyone.features)


def test_a_buffer_is_made_only_where_it_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk, "_MAX_SCORES_PER_BLOCK", 2 * ITEMS)
    dot, neural = CatalogRanker(model("idcf-dot")), CatalogRanker(model("idcf-nn"))
    assert dot.max_block_users == 16  # a product of fewer vectors is slow
    monkeypatch.setattr(topk, "_MIN_PRODUCT_USERS", 1)
    assert dot.max_block_users == 2
    assert dot.score_buffer(2) is None
    assert dot.score_buffer(3).shape == (2, ITEMS)
    assert neural.max_block_users == 1  # its head needs memory for each score
    assert neural.score_buffer(100) is None
    everyone = users(1, 4, 2)
    with_buffer = dot.top_k(everyone, ITEMS)
    without = [dot.top_k_block(block, ITEMS) for _, block in dot.blocks(everyone)]
    assert torch.equal(with_buffer.item_rows, torch.cat([x.item_rows for x in without]))


@pytest.mark.parametrize("name", ["idcf-dot", "als", "bias", "popularity"])
def test_the_caller_may_write_into_the_scores(name: str) -> None:
    ranker = CatalogRanker(model(name))
    for n in (0, 3):
        user = users(n)
        arguments = user.history.items.numpy(), user.history.values.numpy()
        first = ranker.score_one_user(*arguments)
        expected = first.copy()
        first.fill(-np.inf)
        np.testing.assert_array_equal(ranker.score_one_user(*arguments), expected)
        with torch.inference_mode():
            ranker.score_catalog(user).fill_(0.0)
        torch.testing.assert_close(
            ranker.score_catalog(user)[0], torch.from_numpy(expected), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", ["idcf-dot", "idcf-nn", "als", "bias"])
def test_scores_do_not_depend_on_the_order_of_the_history(name: str) -> None:
    ranker, rng = CatalogRanker(model(name)), np.random.default_rng(0)
    history = users(9).history
    items, values = history.items.numpy(), history.values.numpy()
    order = rng.permutation(9)
    np.testing.assert_allclose(
        ranker.score_one_user(items[order], values[order]),
        ranker.score_one_user(items, values),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("lengths", [(0,), (1, 2), (9, 8), (0, 1, 9, 2, 12, 0), ()])
def test_fold_in_of_short_and_long_histories(lengths: tuple[int, ...], implicit: bool) -> None:
    """Short histories are solved by the kernel, long ones by the model, in the order of users."""
    als = model("als", implicit=implicit)
    kernel = batch_embedder(als)
    assert isinstance(kernel, FoldInKernel)
    everyone = users(*lengths)
    if not lengths:
        everyone = Users(torch.empty(0, dtype=torch.int64), History.empty(0))
    with torch.inference_mode():
        fast, slow = kernel.embed_users(everyone), als.embed_users(everyone)
    torch.testing.assert_close(fast.vector, slow.vector, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fast.bias, slow.bias, rtol=1e-4, atol=1e-4)


def test_which_model_has_which_kernel() -> None:
    kinds = {
        "idcf-dot": (IDCFBatchEmbedder, IDCFSingleUserScorer),
        "idcf-nn": (IDCFBatchEmbedder, IDCFSingleUserScorer),
        "idcf-gc": (IDCFBatchEmbedder, type(None)),
        "als": (FoldInKernel, FoldInKernel),
        "bias": (type(None), type(None)),
    }
    for name, (embedder_kind, scorer_kind) in kinds.items():
        embedder = batch_embedder(model(name))
        assert isinstance(embedder, embedder_kind), name
        assert isinstance(single_user_scorer(model(name), embedder), scorer_kind), name
        assert posterior_kernel(model(name)) is None
    bayes = BayesModel(configure("idcf-bayes"), board(30, ITEMS, 5, 9).domain())
    assert batch_embedder(bayes) is None
    assert isinstance(single_user_scorer(bayes, None), BayesSingleUserScorer)
    assert isinstance(posterior_kernel(bayes), BayesPosteriorKernel)


def test_an_array_is_a_copy_of_its_tensor() -> None:
    tensor = torch.arange(4, dtype=torch.float64, requires_grad=True)
    array = to_float32_array(tensor)
    array[0] = 9
    assert array.dtype == np.float32
    assert tensor[0] == 0


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6))
def test_a_product_is_the_sum_of_products(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, vector = (rng.normal(size=x).astype(np.float32) for x in ((rows, columns), columns))
    product, before = MatrixVectorProduct(matrix), matrix.copy()
    expected = [
        sum(float(a) * float(b) for a, b in zip(row, vector, strict=True)) for row in matrix
    ]
    np.testing.assert_allclose(product(vector), expected, rtol=1e-4, atol=1e-5)
    product(vector).fill(7)  # the caller may write into it
    np.testing.assert_allclose(product(vector), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(matrix, before)


@pytest.mark.parametrize("name", ["idcf-dot", "als"])
def test_similarities_are_cosines_of_the_item_vectors(name: str) -> None:
    """Those of als are the factors, without the coordinate of popularity."""
    ranker = CatalogRanker(model(name))
    assert ranker.item_embeddings is not None
    vectors = ranker.item_embeddings.vector.numpy()
    vectors = vectors[:, :-1] if name == "als" else vectors
    for row in (0, 7):
        norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(vectors[row])
        expected = vectors @ vectors[row] / norms
        np.testing.assert_allclose(ranker.item_similarities(row), expected, atol=1e-5)


def test_embedded_users_are_ranked_like_the_users() -> None:
    ranker, everyone = CatalogRanker(model("idcf-nn")), users(2, 5, 0)
    embeddings = ranker.embed_users(everyone)
    assert isinstance(embeddings, Embeddings)
    by_embedding, by_user = (ranker.top_k_block(x, 6) for x in (embeddings, everyone))
    assert torch.equal(by_embedding.item_rows, by_user.item_rows)
    torch.testing.assert_close(by_embedding.scores, by_user.scores)


def test_a_ranker_freezes_its_model() -> None:
    fresh = model_entry("pmf").build(configure("pmf"), board(30, ITEMS, 5, 9).domain())
    assert fresh.training
    CatalogRanker(fresh)
    assert not fresh.training
    assert not any(p.requires_grad for p in fresh.parameters())
