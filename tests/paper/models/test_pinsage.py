"""PinSAGE: walks against dense matrices, towers against plain loops, and no leak."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from idcf.paper.model_options import PinSageConfig
from idcf.paper.models.pinsage import PinSage, incidence_matrix, visit_shares
from idcf.testing.synthetic import checkerboard
from idcf.types import History, Users

N_USERS, N_ITEMS = 12, 9
TABLE = checkerboard(
    N_USERS,
    N_ITEMS,
    np.random.default_rng(1),
    rows_per_light_user=2,
    rows_per_heavy_user=5,
    implicit=True,
)
INCIDENCE = np.zeros((N_USERS, N_ITEMS), np.float32)
INCIDENCE[TABLE.user, TABLE.item] = 1


def make_model(**options: object) -> PinSage:
    torch.manual_seed(0)
    config = PinSageConfig(**{"embedding_size": 6, "neighbors": 4, **options})  # type: ignore[arg-type]
    return PinSage(config, TABLE.domain())


def make_history(*histories: list[int]) -> History:
    items = torch.tensor([j for h in histories for j in h], dtype=torch.int64)
    offsets = torch.tensor([0, *np.cumsum([len(h) for h in histories])])
    return History(items, torch.ones(len(items)), offsets)


def dense_visit_shares(incidence: np.ndarray, n_neighbors: int) -> np.ndarray:
    """Row by row; all items that tie for the last place of a row are kept."""

    def largest(row: np.ndarray) -> np.ndarray:
        threshold = np.sort(row)[::-1][min(n_neighbors, len(row)) - 1]
        return np.where((row >= threshold - 1e-7) & (row > 1e-9), row, 0)

    item_to_user = incidence.T / np.maximum(incidence.sum(0), 1)[:, None]
    user_to_item = incidence / np.maximum(incidence.sum(1), 1)[:, None]
    step = item_to_user @ user_to_item
    np.fill_diagonal(step, 0)
    total = np.stack([largest(row) for row in step])
    return total / np.maximum(total.sum(1, keepdims=True), 1e-9)


@pytest.mark.parametrize("n_neighbors", [3, 9])
def test_expected_visits_are_a_product_of_matrices(n_neighbors: int) -> None:
    shares = visit_shares(csr_array(INCIDENCE), n_neighbors).toarray()
    expected = dense_visit_shares(INCIDENCE, n_neighbors)
    np.testing.assert_allclose(shares, expected, atol=1e-5)
    np.testing.assert_allclose(shares.sum(1)[INCIDENCE.sum(0) > 0], 1, atol=1e-5)


def test_visits_agree_with_sampled_walks() -> None:
    """Ten thousand walks from item 0; returns to item 0 do not count."""
    rng, visits = np.random.default_rng(0), np.zeros(N_ITEMS)
    for _ in range(10_000):
        user = rng.choice(np.flatnonzero(INCIDENCE[:, 0]))
        visits[rng.choice(np.flatnonzero(INCIDENCE[user]))] += 1
    visits[0] = 0
    shares = visit_shares(csr_array(INCIDENCE), N_ITEMS).toarray()[0]
    np.testing.assert_allclose(shares, visits / visits.sum(), atol=0.02)


def slow_scores(model: PinSage, item_weights: np.ndarray, history: list[int]) -> torch.Tensor:
    """Scores [I] for a user with this history on one item graph [I, I], node by node."""
    items, user = list(model.items.vector), model.user_vector
    weights = torch.from_numpy(item_weights)
    for conv in model.convs:
        messages = [torch.relu(conv.message(h)) for h in items]
        user_message = sum((messages[j] for j in history), start=user * 0) / max(len(history), 1)
        item_messages = [
            sum(w * m for w, m in zip(weights[i], messages, strict=True)) for i in range(len(items))
        ]
        items = [slow_conv(conv, h, n) for h, n in zip(items, item_messages, strict=True)]
        user = slow_conv(conv, user, user_message)
    vectors = torch.stack([model.output_layers(h) for h in items])
    return vectors @ model.output_layers(user) + model.items.bias


def slow_conv(conv: torch.nn.Module, state: torch.Tensor, message: torch.Tensor) -> torch.Tensor:
    z = torch.relu(conv.combine(torch.cat([state, message])))  # type: ignore[operator]
    return z / z.norm().clamp(min=1e-12)


def test_scores_are_those_of_plain_loops() -> None:
    model = make_model().eval()
    weights = dense_visit_shares(INCIDENCE, 4).astype(np.float32)
    for history in ([0, 3, 5], [2], []):
        users = Users(torch.tensor([-1]), make_history(history))
        expected = slow_scores(model, weights, history)
        torch.testing.assert_close(model.score_catalog(users)[0], expected)


def test_in_training_a_user_is_scored_on_a_graph_without_the_fold_of_the_user() -> None:
    model = make_model(folds=3).train()
    history, items = [0, 3, 5], torch.arange(N_ITEMS)[None]
    for user in (0, 4, 11):
        users = Users(torch.tensor([user]), make_history(history))
        other_folds = INCIDENCE[np.arange(N_USERS) % 3 != user % 3]
        weights = dense_visit_shares(other_folds, 4).astype(np.float32)
        scores = model(users, items, torch.tensor([0]))[0]
        torch.testing.assert_close(scores, slow_scores(model, weights, history))


def test_a_training_step_computes_its_items_once_and_caches_nothing() -> None:
    model = make_model().train()
    users, calls = Users(torch.tensor([1, 2]), make_history([1, 2], [3])), []
    convolve = model._convolve
    model._convolve = lambda *args: calls.append(1) or convolve(*args)  # type: ignore[method-assign, func-returns-value]
    for _ in range(2):  # as when gradients are accumulated
        model(users, torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1])).sum().backward()
    assert len(calls) == 2
    assert model._step_nodes is None


def test_the_incidence_matrix_is_the_table() -> None:
    incidence = incidence_matrix(TABLE.domain().raters, N_USERS).toarray()
    np.testing.assert_array_equal(incidence, INCIDENCE)
