"""PinSAGE: walks against a power of a dense matrix, the towers against plain loops, no leak."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from idcf.paper.layers.random_walks import incidence, visits
from idcf.paper.models.pinsage import PinSage, PinSageConfig
from idcf.testing.synthetic import checkerboard
from idcf.types import History, Users

torch.set_num_threads(1)
TABLE = checkerboard(12, 9, np.random.default_rng(1), few=2, many=5, implicit=True)
HAD = np.zeros((12, 9), np.float32)
HAD[TABLE.user, TABLE.item] = 1


def model(**options: object) -> PinSage:
    torch.manual_seed(0)
    config = PinSageConfig(**{"embedding_size": 6, "neighbours": 4, **options})  # type: ignore[arg-type]
    return PinSage(config, TABLE.domain())


def walk(had: np.ndarray, top: int, hops: int, restart: float) -> np.ndarray:
    """Dense, row by row; ties at the end of a row's best all stay."""

    def best(row: np.ndarray) -> np.ndarray:
        floor = np.sort(row)[::-1][min(top, len(row)) - 1]
        return np.where((row >= floor - 1e-7) & (row > 1e-9), row, 0)

    def rows(x: np.ndarray) -> np.ndarray:
        x = x.copy()
        np.fill_diagonal(x, 0)
        return np.stack([best(row) for row in x])

    per_item = had.T / np.maximum(had.sum(0), 1)[:, None]
    per_user = had / np.maximum(had.sum(1), 1)[:, None]
    step = rows(per_item @ per_user)
    total, reached = step, step
    for hop in range(1, hops):
        reached = rows(reached @ step)
        total = total + (1 - restart) ** hop * reached
    total = rows(total)
    return total / np.maximum(total.sum(1, keepdims=True), 1e-9)


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("top", [3, 9])
def test_expected_visits_are_powers_of_a_matrix(hops: int, top: int) -> None:
    found = visits(csr_array(HAD), top, hops, 0.5).toarray()
    np.testing.assert_allclose(found, walk(HAD, top, hops, 0.5), atol=1e-5)
    np.testing.assert_allclose(found.sum(1)[HAD.sum(0) > 0], 1, atol=1e-5)


def test_one_hop_is_what_walks_do() -> None:
    """Ten thousand walks from item 0, home left out."""
    rng, seen = np.random.default_rng(0), np.zeros(9)
    for _ in range(10_000):
        user = rng.choice(np.flatnonzero(HAD[:, 0]))
        seen[rng.choice(np.flatnonzero(HAD[user]))] += 1
    seen[0] = 0
    found = visits(csr_array(HAD), 9, 1, 0.5).toarray()[0]
    np.testing.assert_allclose(found, seen / seen.sum(), atol=0.02)


def slow(net: PinSage, near: np.ndarray, history: list[int]) -> torch.Tensor:
    """Scores [I] for somebody with this history, on one graph, node by node."""
    latent, person = list(net.items.vector), net.person
    for conv in net.convs:
        said = [torch.relu(conv.message(h)) for h in latent]
        weights = torch.from_numpy(near)
        mine = torch.stack([said[j] for j in history]).mean(0) if history else person * 0
        heard = [
            sum(w * s for w, s in zip(weights[i], said, strict=True)) for i in range(len(said))
        ]
        latent = [unit(conv, h, n) for h, n in zip(latent, heard, strict=True)]
        person = unit(conv, person, mine)
    vectors = torch.stack([net.last(h) for h in latent])
    return vectors @ net.last(person) + net.items.bias


def unit(conv: torch.nn.Module, own: torch.Tensor, heard: torch.Tensor) -> torch.Tensor:
    z = torch.relu(conv.combine(torch.cat([own, heard])))  # type: ignore[operator]
    return z / z.norm().clamp(min=1e-12)


def test_the_towers_are_those_of_plain_loops() -> None:
    net, near = model().eval(), walk(HAD, 4, 1, 0.5).astype(np.float32)
    for history in ([0, 3, 5], [2], []):
        users = Users(torch.tensor([-1]), of(history))
        torch.testing.assert_close(net.rank(users)[0], slow(net, near, history))


def test_in_training_everybody_is_on_a_graph_without_their_fold() -> None:
    net = model(folds=3).train()
    history, items = [0, 3, 5], torch.arange(9)[None]
    for user in (0, 4, 11):
        users = Users(torch.tensor([user]), of(history))
        others = HAD[np.arange(12) % 3 != user % 3]
        near = walk(others, 4, 1, 0.5).astype(np.float32)
        got = net(users, items, torch.tensor([0]))[0]
        torch.testing.assert_close(got, slow(net, near, history))


def test_a_step_computes_its_items_once_and_keeps_nothing() -> None:
    net = model().train()
    users, calls = Users(torch.tensor([1, 2]), of([1, 2], [3])), []
    convolve = net._convolve
    net._convolve = lambda *args: calls.append(1) or convolve(*args)  # type: ignore[method-assign, func-returns-value]
    for _ in range(2):  # as when gradients are accumulated
        net(users, torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1])).sum().backward()
    assert len(calls) == 2
    assert net._step is None


def test_incidence_is_the_table() -> None:
    np.testing.assert_array_equal(incidence(TABLE.domain().raters, 12).toarray(), HAD)


def of(*histories: list[int]) -> History:
    items = torch.tensor([j for h in histories for j in h], dtype=torch.int64)
    offsets = torch.tensor([0, *np.cumsum([len(h) for h in histories])])
    return History(items, torch.ones(len(items)), offsets)
