from __future__ import annotations

import numpy as np
import pytest
import torch

from idcf.data.history_reader import Reader, as_users
from idcf.data.interactions import Vocab
from idcf.errors import ConfigError
from idcf.inference.topk import Exact, Found, best_of, top_k
from idcf.models.base import Model
from idcf.models.baselines import FoldIn
from idcf.models.registry import all_models, configure, model_entry
from idcf.testing.synthetic import checkerboard
from idcf.types import Embedded, History, Users

torch.set_num_threads(1)
IDCF = {
    "plain": {},
    "ratings": {"query": "ratings"},
    "mean, no bias": {"pooling": "mean", "bias": "own"},
    "sum, unscaled": {"pooling": "sum", "scaled": False, "standardise": False},
    "additive": {"attention": "additive"},
}


def built(name: str, options: dict[str, object], *, implicit: bool = False) -> Model:
    """An untrained model whose every tensor matters."""
    torch.manual_seed(0)
    table = checkerboard(50, 37, np.random.default_rng(0), implicit=implicit)
    backbone = all_models()[name].backbone
    assert backbone is not None
    base = model_entry(backbone).model_class(configure(backbone), table.domain())
    keys = np.arange(0, 50, 2)
    with torch.no_grad():
        for tensor in base.parameters():
            tensor.copy_(torch.randn_like(tensor) * 0.5)
    who = Users(torch.from_numpy(keys), table.history(keys))
    return model_entry(name).model_class(configure(name, options), base, who)


def parts_of(users: Users) -> list[tuple[np.ndarray, np.ndarray]]:
    """The history of each, as rows and values."""
    cut = users.history.lengths().tolist()
    columns = (x.split(cut) for x in (users.history.items, users.history.values))
    return [(x.numpy(), y.numpy()) for x, y in zip(*columns, strict=True)]


def people(n: int, items: int = 37) -> Users:
    rng = np.random.default_rng(1)
    reader = Reader(Vocab(range(items)), implicit=False)
    drawn = [rng.choice(items, size, replace=False) for size in rng.integers(0, 9, n)]
    return as_users([reader.one({int(i): float(rng.integers(1, 6)) for i in x}) for x in drawn])


def slow(scores: np.ndarray, k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


@pytest.mark.parametrize("k", [1, 3, 10, 37, 50])
@pytest.mark.parametrize("levels", [1, 4, 10**6])
def test_top_k_is_a_stable_sort(k: int, levels: int) -> None:
    scores = np.random.default_rng(k).integers(0, levels, (8, 37)).astype(np.float32)
    found = top_k(torch.from_numpy(scores), k)
    for row, rows, best in zip(scores, found.rows.tolist(), found.scores.tolist(), strict=True):
        assert rows == slow(row, k) == best_of(row, k).tolist()
        assert best == row[rows].tolist()


@pytest.mark.parametrize("levels", [0, 40])
@pytest.mark.parametrize("n", [300, 5000, 5123])
def test_long_rows_are_folded_to_the_same_end(n: int, levels: int) -> None:
    rng = np.random.default_rng(n)
    scores = rng.normal(size=(6, n)).astype(np.float32)
    if levels:  # many ties
        scores = np.round(scores * levels) / levels
    scores[1, 7:] = scores[2] = -np.inf
    for k in (1, 10, 60):
        found = top_k(torch.from_numpy(scores), k)
        for row, rows in zip(scores, found.rows.tolist(), strict=True):
            assert rows == slow(row, k)
            assert best_of(row, k).tolist() == [x for x in rows if row[x] > -np.inf]


@pytest.mark.parametrize("large", [1, 1 << 20])
@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("size", [4, 16, 80])
def test_fold_in_by_the_history_equals_the_model(
    size: int, implicit: bool, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idcf.inference.kernels._LARGE", large)
    table = checkerboard(50, 37, np.random.default_rng(0), implicit=implicit)
    config = configure("als", {"embedding_size": size, "reg": 0.5})
    model = model_entry("als").model_class(config, table.domain())
    assert isinstance(model, FoldIn)
    torch.manual_seed(0)
    for tensor in (model.factors, model.prior, model.popularity, model.base.item_bias):
        tensor.copy_(torch.randn_like(tensor) * 0.3)
    model.gram.copy_(torch.eye(size) + 0.01 * model.factors.T @ model.factors)
    users = people(40)
    plain = model.rank(users)
    index = Exact(model)
    assert index.way is not None
    torch.testing.assert_close(index.scores(users), plain, rtol=1e-4, atol=1e-4)
    for row, mine in zip(plain, parts_of(users), strict=True):
        one = torch.from_numpy(index.one(*mine))
        torch.testing.assert_close(one, row, rtol=1e-4, atol=1e-4)
    found = index.top(users, 5, users.history)
    torch.testing.assert_close(found.scores, plain.gather(1, found.rows), rtol=1e-4, atol=1e-4)


def test_fold_in_without_a_penalty_is_left_to_the_model() -> None:
    domain = checkerboard(50, 37, np.random.default_rng(0)).domain()
    model = model_entry("als").model_class(configure("als"), domain)
    assert isinstance(model, FoldIn)
    model.factors.copy_(torch.randn_like(model.factors))
    for weight in (0.0, 1e-9):
        model.gram.copy_(weight * torch.eye(16))
        assert Exact(model).way is None


def test_what_is_skipped_comes_last_or_not_at_all() -> None:
    scores = torch.arange(6.0).repeat(2, 1)
    skip = History(torch.tensor([5, 4, 5]), torch.ones(3), torch.tensor([0, 2, 3]))
    found = top_k(scores, 5, skip)
    assert found.rows[:, :4].tolist() == [[3, 2, 1, 0], [4, 3, 2, 1]]
    assert found.scores[0, 4] == -torch.inf
    assert scores.isfinite().all()  # the caller's scores are left alone
    masked = np.array([1, -np.inf, 3, -np.inf], np.float32)
    assert best_of(masked, 3).tolist() == [2, 0]
    assert best_of(masked, 9).tolist() == [2, 0]
    assert best_of(np.full(3, -np.inf, np.float32), 2).tolist() == []


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("options", IDCF.values(), ids=IDCF)
@pytest.mark.parametrize("name", ["idcf-dot", "idcf-nn", "idcf-gc"])
def test_fast_paths_equal_the_slow_one(
    name: str, options: dict[str, object], implicit: bool
) -> None:
    model = built(name, options, implicit=implicit)
    users = people(40)
    model.eval()
    with torch.no_grad():
        plain = model.rank(users)
    index = Exact(model)
    torch.testing.assert_close(index.scores(users), plain, rtol=1e-4, atol=1e-4)
    for row, mine in zip(plain, parts_of(users), strict=True):
        one = torch.from_numpy(index.one(*mine))
        torch.testing.assert_close(one, row, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["idcf-dot", "idcf-nn"])
def test_results_do_not_depend_on_the_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index, users = Exact(built(name, {"query": "ratings"})), people(30)
    whole = index.top(users, 5, users.history)
    for block in (37, 37 * 7):
        monkeypatch.setattr("idcf.inference.topk._SCORES", block)
        parts = index.top(users, 5, users.history)
        assert torch.equal(parts.rows, whole.rows)
        torch.testing.assert_close(parts.scores, whole.scores)


def test_search_among_some_and_without_others() -> None:
    index, users = Exact(built("idcf-dot", {})), people(10)
    scores = index.scores(users)
    found = index.search(index.embed(users), 4, users.history)
    assert torch.equal(found.rows, index.top(users, 4, users.history).rows)
    only, never = torch.tensor([3, 5, 8, 9]), torch.tensor([5])
    found = index.top(users, 4, only=only, never=never)
    assert set(found.rows[:, :3].flatten().tolist()) == {3, 8, 9}
    assert (found.scores[:, 3] == -torch.inf).all()
    torch.testing.assert_close(found.scores[:, 0], scores[:, [3, 8, 9]].max(1).values)
    assert isinstance(index.top(people(0), 4), Found)


def test_models_without_vectors_rank_but_do_not_embed() -> None:
    domain = checkerboard(20, 12, np.random.default_rng(0)).domain()
    index = Exact(model_entry("popularity").model_class(configure("popularity"), domain))
    assert index.scores(people(3, 12)).shape == (3, 12)
    with pytest.raises(ConfigError, match="idcf-"):
        index.embed(people(3, 12))
    with pytest.raises(ConfigError, match="likeness"):
        index.similar(0)


def test_an_item_is_most_like_itself() -> None:
    index = Exact(built("idcf-nn", {}))
    assert all(index.similar(row).argmax() == row for row in range(37))
    assert isinstance(index.items, Embedded)
