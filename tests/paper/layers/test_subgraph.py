"""The training ratings as a lookup: levels and offsets against loops, dense and sparse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import random_table

from idcf.data.interactions import Interactions
from idcf.models.options import DEFAULT_ITEM_SHRINKAGE, DEFAULT_USER_SHRINKAGE
from idcf.paper.layers import subgraph
from idcf.paper.layers.subgraph import RatingGraph

N_USERS, N_ITEMS = 6, 9


def make_graph(table: Interactions) -> RatingGraph:
    domain = table.domain()
    return RatingGraph(domain.raters, domain.n_users, domain.levels, domain.mean).eval()


def ratings_of(table: Interactions) -> dict[tuple[int, int], float]:
    columns = (table.user.tolist(), table.item.tolist(), table.rating.tolist())
    return {(u, i): r for u, i, r in zip(*columns, strict=True)}


def slow_offsets(table: Interactions) -> tuple[list[float], list[float]]:
    """Offsets of users and of items, in standard deviations of the ratings."""
    ratings = ratings_of(table)
    std = float(np.std(table.rating))
    z = {pair: (r - float(np.mean(table.rating))) / std for pair, r in ratings.items()}
    items = []
    for i in range(N_ITEMS):
        of_item = [x for (_, j), x in z.items() if j == i]
        items.append(sum(of_item) / (len(of_item) + DEFAULT_ITEM_SHRINKAGE))
    users = []
    for u in range(N_USERS):
        residuals = [x - items[i] for (v, i), x in z.items() if v == u]
        users.append(sum(residuals) / (len(residuals) + DEFAULT_USER_SHRINKAGE))
    return users, items


@pytest.mark.parametrize("max_cells", [0, 1 << 28])
@pytest.mark.parametrize("seed", range(4))
def test_levels_are_those_of_the_table(
    seed: int, max_cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse and dense; users U and items I are missing nodes and have no rating."""
    monkeypatch.setattr(subgraph, "_MAX_DENSE_CELLS", max_cells)
    table = random_table(seed, N_USERS, N_ITEMS, 5)
    graph, ratings = make_graph(table), ratings_of(table)
    users, items = torch.arange(N_USERS + 1)[:, None], torch.arange(N_ITEMS + 1)
    levels = graph.lookup_levels(users, items)
    assert (graph.rating_lookup().keys is None) is bool(max_cells)
    numbers = {r: n for n, r in enumerate(sorted(set(ratings.values())), 1)}
    for u in range(N_USERS + 1):
        for i in range(N_ITEMS + 1):
            expected = numbers[ratings[u, i]] if (u, i) in ratings else 0
            assert int(levels[u, i]) == expected


@pytest.mark.parametrize("seed", range(4))
def test_offsets_are_shrunken_means_of_residuals(seed: int) -> None:
    table = random_table(seed, N_USERS, N_ITEMS, 5)
    lookup = make_graph(table).rating_lookup()
    users, items = slow_offsets(table)
    np.testing.assert_allclose(lookup.user_offsets.value, [*users, 0], atol=1e-5)
    np.testing.assert_allclose(lookup.item_offsets.value, [*items, 0], atol=1e-5)
    assert lookup.user_offsets.n_ratings.tolist() == [*table.user_counts(), 0]
    assert lookup.item_offsets.n_ratings.tolist() == [*table.item_counts(), 0]


def test_the_offset_of_a_user_comes_from_the_history_alone() -> None:
    table = random_table(1, N_USERS, N_ITEMS, 20)
    graph = make_graph(table)
    users = np.arange(N_USERS)
    offsets = graph.user_offsets(table.history(users))
    known = graph.rating_lookup().user_offsets.take(torch.from_numpy(users))
    np.testing.assert_allclose(offsets.value, known.value, atol=1e-5)
    assert offsets.n_ratings.tolist() == known.n_ratings.tolist()
    empty = graph.user_offsets(table.history(np.array([-1])))
    assert (empty.value.tolist(), empty.n_ratings.tolist()) == ([0], [0])


def test_item_offsets_without_a_user_are_those_of_a_table_without_the_rating() -> None:
    table = random_table(2, N_USERS, N_ITEMS, 30)
    graph = make_graph(table)
    items = torch.arange(N_ITEMS)
    everyone = graph.rating_lookup().item_offsets
    unchanged = graph.item_offsets_without(items, torch.full_like(items, -1))
    np.testing.assert_allclose(unchanged.value, everyone.value[:-1], atol=1e-6)
    scaled = {
        (u, i): (r - float(np.mean(table.rating))) / float(np.std(table.rating))
        for (u, i), r in ratings_of(table).items()
    }
    for user in range(N_USERS):
        without = graph.item_offsets_without(items, torch.full_like(items, user))
        for i in range(N_ITEMS):
            others = [x for (u, j), x in scaled.items() if j == i and u != user]
            assert float(without.n_ratings[i]) == len(others)
            expected = sum(others) / (len(others) + DEFAULT_ITEM_SHRINKAGE)
            assert float(without.value[i]) == pytest.approx(expected, abs=1e-5)


def test_a_capped_history_is_a_subset_that_does_not_depend_on_order_or_batch() -> None:
    table = random_table(3, N_USERS, N_ITEMS, 40)
    graph = make_graph(table)
    users = np.arange(N_USERS)
    capped = graph.cap_histories(table.history(users), 3)
    ratings = ratings_of(table)
    numbers = {r: n for n, r in enumerate(sorted(set(ratings.values())), 1)}
    for u in range(N_USERS):
        chosen = {
            int(i): int(n)
            for i, n in zip(capped.items[u], capped.level[u], strict=True)
            if int(i) < N_ITEMS
        }
        assert len(chosen) == min(3, int(table.user_counts()[u]))
        assert all(numbers[ratings[u, i]] == n for i, n in chosen.items())
        alone = graph.cap_histories(table.history(np.array([u])), 3)
        assert {int(i) for i in alone.items[0]} - {N_ITEMS} == set(chosen)
    backwards = table.where(np.arange(len(table))[::-1])
    shuffled = graph.cap_histories(backwards.history(users), 3)
    assert torch.equal(shuffled.items.sort(1).values, capped.items.sort(1).values)


def test_without_ratings_there_are_no_offsets() -> None:
    table = random_table(0, N_USERS, N_ITEMS, 5)
    graph = make_graph(table)
    empty = graph.cap_histories(table.history(np.array([-1, -1])), 4)
    assert empty.items.shape == (2, 0)
